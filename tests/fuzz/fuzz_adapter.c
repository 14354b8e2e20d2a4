/* A PEFT adapter: the input is adapter_config.json, a byte 0, and adapter_model.safetensors. Opened,
 * described, its factors read, and applied to a weight of the shape that they ask for. */
#include "fuzz.h"
#include "checkpoint/adapter/adapter.h"

static char folder[] = "/dev/shm/openpi_fuzz_XXXXXX";      /* in memory */
static int made;

static void clean_up(void) {
    char path[128];
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    remove(folder);
}

static void write_file(const char *name, const void *data, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    PROMISE(file && fwrite(data, 1, size, file) == size && !fclose(file));
}

static void apply_all(adapter *all) {
    openpi_error error = OPENPI_ERROR_INIT;
    for (int i = 0; i < adapter_count(all); i++) {
        double factor = 0;
        const tensor *own = adapter_tensor(all, i);
        PROMISE(own && own->name && *adapter_target(all, i) && adapter_rank(all, i, &factor) >= 0);
        tensor weight = *own;
        went_well(adapter_apply(all, i, &weight, &error), &error);
    }
    if (went_well(adapter_stage(all, &error), &error)) went_well(adapter_check(all, &error), &error);
    adapter_release(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    adapter *all;
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t config = end ? (size_t)(end - data) : size, rest = end ? size - config - 1 : 0;
    if (!made) {
        PROMISE(mkdtemp(folder));
        made = !atexit(clean_up);
    }
    write_file("adapter_config.json", data, config);
    write_file("adapter_model.safetensors", end ? end + 1 : data, rest);
    if (!went_well(adapter_open(folder, &all, &error), &error)) return 0;
    json_t *rows = adapter_describe(all);
    PROMISE(rows);
    json_decref(rows);
    apply_all(all);
    adapter_close(all);
    return 0;
}
