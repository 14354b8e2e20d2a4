/* A GPU: opening it, its memory and copies, facts.
 *
 * One stream carries loading, clearing, op-by-op runs and their copies; so what was asked for earlier has
 * happened for whatever comes later, and the host waits only where it needs an answer. A recorded plan is
 * one graph, on a stream of its own (record.c).
 *
 * A device has two states. When a driver call fails on it, it is lost: the sentence is kept, every later
 * call returns it at once, and closing still gives everything back. Running out of memory is no such
 * failure. */
#include "backend/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/report.h"

/* ---- errors ----------------------------------------------------------------------------------------- */

gpu_error gpu_error_class(const gpu_device *self, int code) {
    if (code == GPU_NO_HOST_MEMORY) return GPU_ERROR_OUT_OF_MEMORY;
    return code == GPU_NO_KERNEL ? GPU_ERROR_OTHER : self->driver.error_class(code);
}

const char *gpu_error_text(const gpu_device *self, int code) {
    if (code == GPU_NO_HOST_MEMORY) return "out of memory";
    return code == GPU_NO_KERNEL ? "no kernel of this device runs an op"
                                 : self->driver.error_text(&self->driver, code);
}

openpi_status gpu_fail(gpu_device *self, int code, const char *doing, openpi_error *error) {
    pthread_mutex_lock(&self->losing);
    if (!atomic_load(&self->lost)) {
        snprintf(self->lost_text, sizeof self->lost_text, "device %s is lost: %.120s (error %d) while %.100s",
                 self->name, gpu_error_text(self, code), code, doing);
        atomic_store(&self->lost, 1);
    }
    pthread_mutex_unlock(&self->losing);
    return report(error, OPENPI_DEVICE_LOST, "%s", self->lost_text);
}

openpi_status gpu_enter(gpu_device *self, openpi_error *error) {
    if (atomic_load(&self->lost)) return report(error, OPENPI_DEVICE_LOST, "%s", self->lost_text);
    int code = self->driver.enter(&self->driver, self->context);
    return code ? gpu_fail(self, code, "entering the device", error) : OPENPI_OK;
}

/* ---- memory and copies ------------------------------------------------------------------------------ */

static openpi_status no_memory(gpu_device *self, size_t bytes, const char *what, openpi_error *error) {
    size_t left = 0, total = 0;
    self->driver.memory_info(&self->driver, &left, &total);
    return report(error, OPENPI_NO_MEMORY, "out of memory on %s: %zu bytes for %s, %zu of %zu bytes are free",
                  self->name, bytes, what, left, total);
}

openpi_status gpu_allocate(device *device, size_t bytes, const char *what, void **out, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    gpu_address address = 0;
    TRY(gpu_enter(self, error));
    int code = self->driver.allocate(&self->driver, &address, bytes ? bytes : 1);
    if (gpu_error_class(self, code) == GPU_ERROR_OUT_OF_MEMORY) return no_memory(self, bytes, what, error);
    if (code) return gpu_fail(self, code, "taking memory", error);
    code = self->driver.fill(&self->driver, address, 0, bytes ? bytes : 1, self->stream);
    if (code) {
        self->driver.release(&self->driver, address);
        return gpu_fail(self, code, "clearing memory", error);
    }
    *out = (void *)(uintptr_t)address;
    return OPENPI_OK;
}

/* Giving back is always tried, also on a lost device: where the driver refuses, it takes everything with
 * the context. */
void gpu_release(device *device, void *memory) {
    gpu_device *self = (gpu_device *)device;
    if (!memory) return;
    self->driver.enter(&self->driver, self->context);
    self->driver.release(&self->driver, (gpu_address)(uintptr_t)memory);
}

openpi_status gpu_allocate_host(device *device, size_t bytes, const char *what, void **out,
                                openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    int code = self->driver.allocate_host(&self->driver, out, bytes ? bytes : 1);
    if (gpu_error_class(self, code) == GPU_ERROR_OUT_OF_MEMORY)
        return report(error, OPENPI_NO_MEMORY, "out of memory: %zu bytes of pinned host memory for %s", bytes,
                      what);
    if (code) return gpu_fail(self, code, "taking pinned memory", error);
    memset(*out, 0, bytes);
    return OPENPI_OK;
}

void gpu_release_host(device *device, void *memory) {
    gpu_device *self = (gpu_device *)device;
    if (!memory) return;
    self->driver.enter(&self->driver, self->context);
    self->driver.release_host(&self->driver, memory);
}

/* The driver has read ordinary memory when it returns; pinned memory it may still read. */
openpi_status gpu_upload(device *device, void *to, const void *from, size_t bytes, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    if (bytes && to != from)
        GPU(upload, "uploading", (gpu_address)(uintptr_t)to, from, bytes, self->stream);
    return OPENPI_OK;
}

openpi_status gpu_download(device *device, void *to, const void *from, size_t bytes, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    if (bytes && to != from)
        GPU(download, "downloading", to, (gpu_address)(uintptr_t)from, bytes, self->stream);
    GPU(stream_wait, "waiting for a download", self->stream);
    return OPENPI_OK;
}

openpi_status gpu_copy_rows(device *device, void *to, const void *from, size_t pitch, size_t bytes, int rows,
                            openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    GPU(copy_rows, "copying", (gpu_address)(uintptr_t)to, (gpu_address)(uintptr_t)from, pitch, bytes,
        (size_t)rows, self->stream);
    return OPENPI_OK;
}

/* ---- the cache: a sample's block is [capacity][head_dim] act ---------------------------------------- */

size_t gpu_cache_bytes(const device *device, int capacity, int head_dim, dtype type) {
    (void)device;
    return (size_t)capacity * (size_t)head_dim * dtype_bytes(type);
}

openpi_status gpu_cache_read(device *device, const kv_cache *cache, dtype type, int which, int sample,
                             int rows, float *out, openpi_error *error) {
    size_t count = (size_t)rows * (size_t)cache->head_dim;
    const char *block = (const char *)(which ? cache->v : cache->k) +
                        (size_t)sample * gpu_cache_bytes(device, cache->capacity, cache->head_dim, type);
    TRY(gpu_download(device, out, block, count * dtype_bytes(type), error));
    if (type == DTYPE_BF16) convert_widen(out, count);
    return OPENPI_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------ */

openpi_status gpu_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    size_t left = 0, all = 0;
    TRY(gpu_enter(self, error));
    GPU(memory_info, "asking for its free memory", &left, &all);
    *unused = left;
    *total = all;
    return OPENPI_OK;
}

openpi_status gpu_get_facts(device *device, device_facts *out, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    *out = self->facts.report;
    return OPENPI_OK;
}

const gpu_facts *gpu_facts_of(const gpu_device *self) { return &self->facts; }

const gpu_driver *gpu_driver_of(const gpu_device *self) { return &self->driver; }

const char *gpu_path(const gpu_device *self) { return self->base.path; }


size_t gpu_shared_bytes(const gpu_device *self) { return self->shared_bytes; }

int gpu_multiprocessors(const gpu_device *self) {
    return self->as ? self->as->multiprocessors : self->facts.report.multiprocessors;
}

int gpu_blocks_held(const gpu_device *self, size_t shared, int most) {
    const size_t all =
        self->as ? self->as->multiprocessor_shared_bytes : self->facts.multiprocessor_shared_bytes;
    const size_t held = all / (shared + GPU_BLOCK_RESERVE);
    if (shared > self->shared_bytes) return 0;
    return !all || held >= (size_t)most ? most : held ? (int)held : 1;
}

double gpu_multiprocessor_tflops(const gpu_device *self) {
    double all = self->as ? self->as->bf16_tflops : self->facts.bf16_tflops;
    return all / gpu_multiprocessors(self);
}

double gpu_multiprocessor_int8_tops(const gpu_device *self) {
    double all = self->as ? self->as->int8_tops : self->facts.int8_tops;
    return all / gpu_multiprocessors(self);
}

void *gpu_function(const gpu_device *self, int family, int kernel) {
    return self->loaded[family].functions ? self->loaded[family].functions[kernel] : NULL;
}

void *gpu_stream(const gpu_device *self) { return self->stream; }

void *gpu_state(const gpu_device *self, int family) { return self->loaded[family].state; }

openpi_status gpu_library_product(device *device, int m, int n, int k, double *us, char *name,
                                  openpi_error *error) {
    const gpu_vendor *vendor = ((gpu_device *)device)->vendor;
    if (!vendor->library_product)
        return report(error, OPENPI_UNSUPPORTED, "there is no library of %s to compare with", vendor->title);
    return vendor->library_product(device, m, n, k, us, name, error);
}

/* ---- closing ---------------------------------------------------------------------------------------- */

static void unload(gpu_device *self) {
    for (int i = 0; i < self->loaded_count; i++) {
        const gpu_family *family = self->vendor->modules[i].family;
        gpu_loaded *loaded = &self->loaded[i];
        if (loaded->state && family->close) family->close(self, loaded->state);
        if (loaded->module) self->driver.module_unload(&self->driver, loaded->module);
        free(loaded->functions);
    }
    free(self->loaded);
}

void gpu_close(device *device) {
    gpu_device *self = (gpu_device *)device;
    const gpu_driver *driver = &self->driver;
    if (self->context) {
        driver->enter(driver, self->context);
        if (self->stream) driver->stream_wait(driver, self->stream);
        if (self->calls) driver->stream_wait(driver, self->calls);
        for (int i = 0; i < GPU_SLOTS; i++) {
            if (self->slots[i].event) driver->event_destroy(driver, self->slots[i].event);
            if (self->slots[i].memory) driver->release_host(driver, self->slots[i].memory);
        }
        for (int i = 0; i <= OPENPI_STAGES; i++)
            if (self->events[i]) driver->event_destroy(driver, self->events[i]);
        unload(self);
        if (self->stream) driver->stream_destroy(driver, self->stream);
        if (self->calls) driver->stream_destroy(driver, self->calls);
        driver->enter(driver, NULL);
        driver->context_close(driver, self->ordinal);
    }
    pthread_mutex_destroy(&self->running);
    pthread_mutex_destroy(&self->losing);
    pthread_mutex_destroy(&self->slot_lock);
    pthread_cond_destroy(&self->slot_freed);
    self->driver.close(&self->driver);
    free(self);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

enum { STATIC_SHARED = 2048 };             /* no kernel with dynamic memory has more static than this       */

/* Loads a module that the device's path uses and finds its family's kernels. */
static int load(gpu_device *self, int place) {
    const gpu_driver *driver = &self->driver;
    const gpu_module *from = &self->vendor->modules[place];
    gpu_loaded *to = &self->loaded[place];
    to->functions = calloc((size_t)from->family->kernel_count, sizeof *to->functions);
    if (!to->functions) return GPU_NO_HOST_MEMORY;
    int code = driver->module_load(driver, &to->module, from->image);
    for (int k = 0; k < from->family->kernel_count && !code; k++)
        code = driver->module_function(driver, &to->functions[k], to->module, gpu_kernel_at(from->family, k),
                                       self->facts.shared_bytes - STATIC_SHARED);
    return code;
}

static int load_modules(gpu_device *self, const char **doing) {
    const gpu_module *modules = self->vendor->modules;
    int code = 0;
    self->shared_bytes = (self->as ? gpu_card_block(self->as) : self->facts.shared_bytes) - STATIC_SHARED;
    while (modules[self->loaded_count].family) self->loaded_count++;
    self->loaded = calloc((size_t)self->loaded_count, sizeof *self->loaded);
    if (!self->loaded) self->loaded_count = 0, code = GPU_NO_HOST_MEMORY;
    for (int i = 0; i < self->loaded_count && !code; i++) {
        *doing = modules[i].family->name;
        if (!modules[i].path || !strcmp(modules[i].path, self->base.path)) code = load(self, i);
    }
    for (int i = 0; i < self->loaded_count && !code; i++) {
        *doing = modules[i].family->name;
        if (self->loaded[i].functions && modules[i].family->open)
            code = modules[i].family->open(self, i, &self->loaded[i].state);
    }
    return code;
}

static int start(gpu_device *self, const char **doing) {
    const gpu_driver *driver = &self->driver;
    int code;
    *doing = "making a context";
    if ((code = driver->context_open(driver, self->ordinal, &self->context))) {
        self->context = NULL;
        return code;
    }
    if ((code = driver->enter(driver, self->context))) return code;
    if ((code = driver->stream_create(driver, &self->stream))) return code;
    if ((code = driver->stream_create(driver, &self->calls))) return code;
    for (int i = 0; i <= OPENPI_STAGES; i++)
        if ((code = driver->event_create(driver, &self->events[i]))) return code;
    if ((code = load_modules(self, doing))) return code;
    *doing = "taking pinned memory";
    for (int i = 0; i < GPU_SLOTS; i++) {
        if ((code = driver->event_create(driver, &self->slots[i].event))) return code;
        if ((code = driver->allocate_host(driver, (void **)&self->slots[i].memory, GPU_SLOT_BYTES)))
            return code;
        self->free_slots[i] = i;
    }
    self->free_count = GPU_SLOTS;
    return 0;
}

void gpu_set_off(device *device, uint32_t off) {
    gpu_device *self = (gpu_device *)device;
    self->off = off;
    self->overlap = self->facts.overlap && !switch_off(off, SWITCH_DEPENDENT_LAUNCH);
}

/* A resident kernel is there where its family has a state. */
uint32_t gpu_missing(const device *device) {
    const gpu_device *self = (const gpu_device *)device;
    uint32_t missing = 1u << SWITCH_PERSISTENT_DENOISE | 1u << SWITCH_PERSISTENT_VISION;
    for (int i = 0; i < self->loaded_count; i++)
        if (self->loaded[i].state) missing &= ~self->vendor->modules[i].family->take_switches;
    return self->facts.overlap ? missing : missing | 1u << SWITCH_DEPENDENT_LAUNCH;
}

int gpu_untuned_percent(const device *device) {
    const gpu_vendor *vendor = ((const gpu_device *)device)->vendor;
    int i = 0;
    while (strcmp(vendor->paths[i], device->path)) i++;
    return vendor->untuned_percent ? vendor->untuned_percent[i] : 0;
}

/* The kernels of cards for which there may be no table. */
int gpu_chooses_by_rows(const device *device) {
    const gpu_vendor *vendor = ((const gpu_device *)device)->vendor;
    return vendor->cards_path && !strcmp(device->path, vendor->cards_path);
}

/* "this or that" */
static void write_paths(const gpu_vendor *vendor, char *text, size_t bytes) {
    size_t used = 0;
    for (int i = 0; vendor->paths[i] && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 !i                     ? ""
                                 : vendor->paths[i + 1] ? ", "
                                                        : " or ",
                                 vendor->paths[i]);
}

/* Without a name: the first path that can run. */
static openpi_status choose_path(gpu_device *self, const char *path, openpi_error *error) {
    const gpu_vendor *vendor = self->vendor;
    char text[160] = "";
    for (int i = 0; vendor->paths[i]; i++) {
        if (path && strcmp(path, vendor->paths[i])) continue;
        if (!vendor->offers(&self->driver, &self->facts, vendor->paths[i], text, sizeof text)) {
            if (!path) continue;
            return report(error, OPENPI_UNSUPPORTED, "path %s on %s %s", path, self->name, text);
        }
        snprintf(self->base.path, sizeof self->base.path, "%s", vendor->paths[i]);
        return OPENPI_OK;
    }
    write_paths(vendor, text, sizeof text);
    return report(error, OPENPI_BAD_ARGUMENT, "path is \"%s\", expected %s", path ? path : "", text);
}

static openpi_status open_device(gpu_device *self, const device_options *options, openpi_error *error) {
    const char *doing = "";
    openpi_status status =
        gpu_card_choose(self->vendor, self->name, &self->facts, options, &self->as, error);
    if (status == OPENPI_OK)
        status = choose_path(self, self->as ? self->vendor->cards_path : options->path, error);
    int code = status == OPENPI_OK ? start(self, &doing) : 0;
    gpu_set_off(&self->base, options->off);
    if (!code) return status;
    if (gpu_error_class(self, code) == GPU_ERROR_OUT_OF_MEMORY)
        return report(error, OPENPI_NO_MEMORY, "out of memory on %s while opening it (%s)", self->name,
                      doing);
    int no_code = gpu_error_class(self, code) == GPU_ERROR_NO_CODE;
    return report(error, OPENPI_NO_DEVICE,
                  no_code ? "%s (%s): its driver takes no machine code of this openpi: %s (error %d) at %s, "
                            "expected a build for it"
                          : "%s (%s) does not open: %s (error %d) at %s",
                  self->name, no_code ? self->facts.description : self->facts.report.name,
                  gpu_error_text(self, code), code, doing);
}

/* Of "NAME" and "NAME:N"; -1: another device. */
static int parse_ordinal(const gpu_vendor *vendor, const char *which) {
    size_t length = strlen(vendor->name);
    char *end;
    if (strncmp(which, vendor->name, length)) return -1;
    which += length;
    if (!*which) return 0;
    if (which[0] != ':' || which[1] < '0' || which[1] > '9') return -1;
    long n = strtol(which + 1, &end, 10);
    return *end || n > 1023 ? -1 : (int)n;
}

/* Takes the driver over. */
static openpi_status open_ordinal(const gpu_vendor *vendor, gpu_driver *driver, const backend *backend,
                                  int ordinal, const device_options *options, device **out,
                                  openpi_error *error) {
    gpu_facts facts;
    vendor->learn(driver, ordinal, vendor->modules, &facts);
    gpu_device *self = facts.reason[0] ? NULL : calloc(1, sizeof *self);
    if (!self) {
        driver->close(driver);
        if (!facts.reason[0]) return report_no_memory(error, sizeof *self, "the device");
        return report(error, OPENPI_NO_DEVICE, "%s:%d (%s) cannot be used: %s", vendor->name, ordinal,
                      facts.report.name, facts.reason);
    }
    self->vendor = vendor;
    self->driver = *driver;
    self->base.backend = backend;
    self->ordinal = ordinal;
    self->facts = facts;
    self->base.shared_memory = facts.integrated;
    snprintf(self->name, sizeof self->name, "%.12s:%d", vendor->name, ordinal);
    pthread_mutex_init(&self->running, NULL);
    pthread_mutex_init(&self->losing, NULL);
    pthread_mutex_init(&self->slot_lock, NULL);
    pthread_cond_init(&self->slot_freed, NULL);
    openpi_status status = open_device(self, options, error);
    if (status == OPENPI_OK) *out = &self->base;
    else gpu_close(&self->base);
    return status;
}

/* Opens the driver; the build's own reason why no device is usable comes first. */
static int open_driver(const gpu_vendor *vendor, gpu_driver *driver, char *why, size_t why_bytes) {
    char own[256];
    if (!vendor->open(driver, own, sizeof own)) return 0;
    if (vendor->no_kernels && !vendor->modules[0].image)
        snprintf(why, why_bytes, "%.120s; %.130s", vendor->no_kernels, own);
    else
        snprintf(why, why_bytes, "%s", own);
    return -1;
}

openpi_status gpu_open(const gpu_vendor *vendor, const backend *backend, const char *which,
                       const device_options *options, device **out, openpi_error *error) {
    gpu_driver driver;
    char why[256];
    int count = 0, ordinal = parse_ordinal(vendor, which);
    if (ordinal < 0)
        return report(error, OPENPI_NO_DEVICE, "there is no device \"%s\", expected %s:N", which,
                      vendor->name);
    if (options->isa)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "isa is \"%s\", expected none on %s: isa is for the CPU's kernels", options->isa,
                      which);
    if (open_driver(vendor, &driver, why, sizeof why))
        return report(error, OPENPI_NO_DEVICE, "%s: %s", which, why);
    int code = driver.device_count(&driver, &count);
    if (!code && ordinal < count) return open_ordinal(vendor, &driver, backend, ordinal, options, out, error);
    if (code)
        report(error, OPENPI_NO_DEVICE, "%s: the %s driver does not count its devices: %s (error %d)", which,
               vendor->title, driver.error_text(&driver, code), code);
    else
        report(error, OPENPI_NO_DEVICE, "there is no device \"%s\", the driver sees %d", which, count);
    driver.close(&driver);
    return OPENPI_NO_DEVICE;
}

/* ---- listing ---------------------------------------------------------------------------------------- */

static int unusable(const gpu_vendor *vendor, openpi_device *devices, int capacity, const char *reason) {
    if (capacity < 1) return 1;
    devices[0] = (openpi_device){.usable = 0};
    snprintf(devices[0].name, sizeof devices[0].name, "%.30s", vendor->name);
    snprintf(devices[0].description, sizeof devices[0].description, "%.100s GPU", vendor->title);
    snprintf(devices[0].reason, sizeof devices[0].reason, "%.255s", reason);
    return 1;
}

static void describe(const gpu_vendor *vendor, const gpu_driver *driver, int ordinal, openpi_device *out) {
    gpu_facts facts;
    char why[160];
    vendor->learn(driver, ordinal, vendor->modules, &facts);
    *out = (openpi_device){.memory_bytes = facts.report.memory_bytes,
                           .usable = !facts.reason[0],
                           .shared_memory = facts.integrated};
    snprintf(out->name, sizeof out->name, "%.12s:%d", vendor->name, ordinal);
    snprintf(out->description, sizeof out->description, "%s", facts.description);
    snprintf(out->reason, sizeof out->reason, "%s", facts.reason);
    for (int i = 0; vendor->paths[i] && out->usable && !out->path[0]; i++)
        if (vendor->offers(driver, &facts, vendor->paths[i], why, sizeof why))
            snprintf(out->path, sizeof out->path, "%s", vendor->paths[i]);
}

int gpu_devices(const gpu_vendor *vendor, openpi_device *devices, int capacity) {
    gpu_driver driver;
    char why[256];
    int count = 0;
    if (open_driver(vendor, &driver, why, sizeof why)) return unusable(vendor, devices, capacity, why);
    int code = driver.device_count(&driver, &count);
    if (code || !count) {
        if (code) snprintf(why, sizeof why, "%.200s (error %d)", driver.error_text(&driver, code), code);
        else snprintf(why, sizeof why, "the %.100s driver sees no GPU", vendor->title);
        driver.close(&driver);
        return unusable(vendor, devices, capacity, why);
    }
    for (int i = 0; i < count && i < capacity; i++) describe(vendor, &driver, i, &devices[i]);
    driver.close(&driver);
    return count;
}
