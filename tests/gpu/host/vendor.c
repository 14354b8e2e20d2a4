/* The device host:0. */
#include "host.h"
#include "kernels.h"

static int open_driver(gpu_driver *driver, char *why, size_t why_bytes) {
    (void)why, (void)why_bytes;
    host_driver_open(driver);
    return 0;
}

static void learn(const gpu_driver *driver, int ordinal, const gpu_module *modules, gpu_facts *out) {
    size_t unused, total;
    (void)ordinal, (void)modules;
    driver->memory_info(driver, &unused, &total);
    *out = (gpu_facts){.description = "the processor, as a GPU",
                       .shared_bytes = HOST_SHARED_BYTES,
                       .integrated = host_is_integrated(),
                       .report = {.name = "Host",
                                  .driver = "C11",
                                  .multiprocessors = HOST_PROCESSORS,
                                  .memory_bytes = total}};
}

/* Both paths. */
static int offers(const gpu_driver *driver, const gpu_facts *facts, const char *path, char *why,
                  size_t why_bytes) {
    (void)driver, (void)facts, (void)path, (void)why, (void)why_bytes;
    return 1;
}

static const char *const paths[] = {"plain", "copied", NULL};
static const int untuned_percent[] = {2, 0};
static const gpu_module modules[] = {
    {&gpu_family_host_products, host_image_products, NULL, 1},
    {&gpu_family_host_attention, host_image_attention, NULL, 2},
    {&gpu_family_host_pointwise, host_image_pointwise, NULL, 3},
    {&gpu_family_host_marks, host_image_copies, "copied", 4},
    {&gpu_family_host_copies, host_image_copies, "copied", 5},
    {NULL, NULL, NULL, 0},
};

const gpu_vendor gpu_vendor_host = {
    .name = "host",
    .title = "Host",
    .paths = paths,
    .untuned_percent = untuned_percent,
    .modules = modules,
    .open = open_driver,
    .learn = learn,
    .offers = offers,
};
