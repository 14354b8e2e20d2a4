/* The GPU backend: opening a device, its memory and copies.
 *
 * One stream carries loading, clearing, op-by-op runs and their copies; so what was asked for earlier has happened for
 * whatever comes later, and the host waits only where it needs an answer. A recorded plan is one graph, on a stream of its
 * own (record.c).
 *
 * A device has two states. When a driver call fails on it, it is lost: the sentence is kept, every later call
 * returns it at once, and closing still gives everything back. Running out of memory is no such failure. */
#include "backend/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

/* ---- errors ----------------------------------------------------------------------------------------------- */

const char *gpu_error_text(const gpu_driver *driver, int code) {
    const char *text = NULL;
    if (driver->error_text(code, &text) || !text) return "unknown error";
    return text;
}

openpi_status gpu_fail(gpu_device *self, int code, const char *doing, openpi_error *error) {
    pthread_mutex_lock(&self->losing);
    if (!atomic_load(&self->lost)) {
        snprintf(self->lost_text, sizeof self->lost_text, "device cuda:%d is lost: %.120s (error %d) while %.100s", self->ordinal,
                 gpu_error_text(&self->driver, code), code, doing);
        atomic_store(&self->lost, 1);
    }
    pthread_mutex_unlock(&self->losing);
    return report(error, OPENPI_DEVICE_LOST, "%s", self->lost_text);
}

openpi_status gpu_enter(gpu_device *self, openpi_error *error) {
    if (atomic_load(&self->lost)) return report(error, OPENPI_DEVICE_LOST, "%s", self->lost_text);
    int code = self->driver.context_set(self->context);
    return code ? gpu_fail(self, code, "entering the device", error) : OPENPI_OK;
}

/* ---- memory and copies ------------------------------------------------------------------------------------ */

static openpi_status no_memory(gpu_device *self, size_t bytes, const char *what, openpi_error *error) {
    size_t left = 0, total = 0;
    self->driver.memory_info(&left, &total);
    return report(error, OPENPI_NO_MEMORY, "out of memory on cuda:%d: %zu bytes for %s, %zu of %zu bytes are free", self->ordinal,
                  bytes, what, left, total);
}

static openpi_status gpu_allocate(device *device, size_t bytes, const char *what, void **out, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    gpu_address address = 0;
    TRY(gpu_enter(self, error));
    int code = self->driver.allocate(&address, bytes ? bytes : 1);
    if (code == GPU_OUT_OF_MEMORY) return no_memory(self, bytes, what, error);
    if (code) return gpu_fail(self, code, "taking memory", error);
    code = self->driver.fill(address, 0, bytes ? bytes : 1, self->stream);
    if (code) {
        self->driver.release(address);
        return gpu_fail(self, code, "clearing memory", error);
    }
    *out = (void *)(uintptr_t)address;
    return OPENPI_OK;
}

/* Giving back is always tried, also on a lost device: where the driver refuses, it takes everything with the context. */
static void gpu_release(device *device, void *memory) {
    gpu_device *self = (gpu_device *)device;
    if (!memory) return;
    self->driver.context_set(self->context);
    self->driver.release((gpu_address)(uintptr_t)memory);
}

static openpi_status gpu_allocate_host(device *device, size_t bytes, const char *what, void **out, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    int code = self->driver.allocate_host(out, bytes ? bytes : 1, 0);
    if (code == GPU_OUT_OF_MEMORY)
        return report(error, OPENPI_NO_MEMORY, "out of memory: %zu bytes of pinned host memory for %s", bytes, what);
    if (code) return gpu_fail(self, code, "taking pinned memory", error);
    memset(*out, 0, bytes);
    return OPENPI_OK;
}

static void gpu_release_host(device *device, void *memory) {
    gpu_device *self = (gpu_device *)device;
    if (!memory) return;
    self->driver.context_set(self->context);
    self->driver.release_host(memory);
}

/* The driver has read ordinary memory when it returns; pinned memory it may still read. */
static openpi_status gpu_upload(device *device, void *to, const void *from, size_t bytes, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    if (bytes) GPU(upload((gpu_address)(uintptr_t)to, from, bytes, self->stream), "uploading");
    return OPENPI_OK;
}

static openpi_status gpu_download(device *device, void *to, const void *from, size_t bytes, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    if (bytes) GPU(download(to, (gpu_address)(uintptr_t)from, bytes, self->stream), "downloading");
    GPU(stream_wait(self->stream), "waiting for a download");
    return OPENPI_OK;
}

/* ---- the cache: a sample's block is [capacity][head_dim] act ---------------------------------------------- */

static size_t gpu_cache_bytes(const device *device, int capacity, int head_dim, dtype type) {
    (void)device;
    return (size_t)capacity * (size_t)head_dim * dtype_bytes(type);
}

static openpi_status gpu_cache_read(device *device, const kv_cache *cache, dtype type, int which, int sample, int rows,
                                    float *out, openpi_error *error) {
    size_t count = (size_t)rows * (size_t)cache->head_dim;
    const char *block = (const char *)(which ? cache->v : cache->k) +
                        (size_t)sample * gpu_cache_bytes(device, cache->capacity, cache->head_dim, type);
    TRY(gpu_download(device, out, block, count * dtype_bytes(type), error));
    if (type != DTYPE_BF16) return OPENPI_OK;
    for (size_t i = count; i-- > 0;) {     /* widen in place, from the end */
        bf16 bits;
        memcpy(&bits, (const char *)out + i * sizeof bits, sizeof bits);
        out[i] = bf16_to_float(bits);
    }
    return OPENPI_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------------ */

static openpi_status gpu_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    size_t left = 0, all = 0;
    TRY(gpu_enter(self, error));
    GPU(memory_info(&left, &all), "asking for its free memory");
    *unused = left;
    *total = all;
    return OPENPI_OK;
}

static openpi_status gpu_get_facts(device *device, device_facts *out, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    const gpu_driver *driver = &self->driver;
    int version = 0, cache = 0, core = 0, memory = 0;
    TRY(gpu_enter(self, error));
    *out = (device_facts){.capability_major = self->major,
                          .capability_minor = self->minor,
                          .multiprocessors = self->multiprocessors,
                          .memory_bytes = self->memory_bytes};
    if (driver->device_name(out->name, sizeof out->name, self->handle)) out->name[0] = 0;
    if (!driver->driver_version(&version))
        snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    if (!driver->device_attribute(&cache, GPU_DEVICE_CACHE_BYTES, self->handle)) out->cache_bytes = (uint64_t)cache;
    if (!driver->device_attribute(&core, GPU_DEVICE_CORE_KHZ, self->handle)) out->core_mhz = core * 1e-3;
    if (!driver->device_attribute(&memory, GPU_DEVICE_MEMORY_KHZ, self->handle)) out->memory_mhz = memory * 1e-3;
    return OPENPI_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

enum { OLDEST_MAJOR = 8 };

/* Name, memory and capability of a device; the reason where it cannot be used ("" if it can). */
typedef struct gpu_facts {
    char name[96], reason[256];
    int handle, major, minor, version;
    size_t memory_bytes;
} gpu_facts;

static void learn(const gpu_driver *driver, const gpu_image *images, int image_version, int ordinal, gpu_facts *f) {
    memset(f, 0, sizeof *f);
    int code = driver->device_get(&f->handle, ordinal);
    if (!code) code = driver->device_name(f->name, sizeof f->name, f->handle);
    if (!code) code = driver->device_memory(&f->memory_bytes, f->handle);
    if (!code) code = driver->device_attribute(&f->major, GPU_DEVICE_MAJOR, f->handle);
    if (!code) code = driver->device_attribute(&f->minor, GPU_DEVICE_MINOR, f->handle);
    if (!code) code = driver->driver_version(&f->version);
    if (code)
        snprintf(f->reason, sizeof f->reason, "the driver does not answer for it: %.150s (error %d)",
                 gpu_error_text(driver, code), code);
    else if (f->major < OLDEST_MAJOR)
        snprintf(f->reason, sizeof f->reason, "its compute capability is %d.%d, expected 8.0 or newer", f->major, f->minor);
    else if (!images[0].name)
        snprintf(f->reason, sizeof f->reason, "this openpi was built without nvcc, so it has no kernels for it");
    else if (f->version / 1000 < image_version / 1000)
        snprintf(f->reason, sizeof f->reason, "the driver is for CUDA %d.%d, expected %d.0 or newer", f->version / 1000,
                 f->version % 1000 / 10, image_version / 1000);
}

static void gpu_close(device *device) {
    gpu_device *self = (gpu_device *)device;
    const gpu_driver *driver = &self->driver;
    if (self->context) {
        driver->context_set(self->context);
        if (self->stream) driver->stream_wait(self->stream);
        for (int i = 0; i < GPU_SLOTS; i++) {
            if (self->slots[i].event) driver->event_destroy(self->slots[i].event);
            if (self->slots[i].memory) driver->release_host(self->slots[i].memory);
        }
        for (int i = 0; i <= OPENPI_STAGES; i++)
            if (self->events[i]) driver->event_destroy(self->events[i]);
        gpu_resident_close(self);
        for (int i = 0; i < GPU_IMAGES; i++)
            if (self->modules[i]) driver->module_unload(self->modules[i]);
        if (self->stream) driver->stream_destroy(self->stream);
        driver->context_set(NULL);
        driver->context_release(self->handle);
    }
    pthread_mutex_destroy(&self->running);
    pthread_mutex_destroy(&self->losing);
    pthread_mutex_destroy(&self->slot_lock);
    pthread_cond_destroy(&self->slot_freed);
    gpu_driver_close(&self->driver);
    free(self);
}

typedef struct kernel_entry {
    const char *name, *image;
    int dynamic;
} kernel_entry;

static const kernel_entry kernel_entries[GPU_KERNELS] = {
#define X(name, image, dynamic) {#name, #image, dynamic},
    GPU_KERNEL_LIST(X)
#undef X
};

const char *gpu_kernel_name(gpu_kernel kernel) { return kernel_entries[kernel].name; }

/* Loads the modules that this device can run and finds every kernel in them. */
static int load_kernels(gpu_device *self, const gpu_image *images, const char **doing) {
    enum { STATIC_SHARED = 2048 };         /* no kernel with dynamic memory has more static than this */
    const gpu_driver *driver = &self->driver;
    for (int i = 0; images[i].name; i++) {
        int hopper_chip = self->major == 9 && self->minor == 0, code;
        if (images[i].hopper && !(hopper_chip && self->hopper)) continue;
        *doing = images[i].name;
        code = driver->module_load(&self->modules[i], images[i].data);
        for (int k = 0; k < GPU_KERNELS && !code; k++) {
            if (strcmp(kernel_entries[k].image, images[i].name)) continue;
            code = driver->module_function(&self->kernels[k], self->modules[i], kernel_entries[k].name);
            if (!code && kernel_entries[k].dynamic)
                code = driver->function_set(self->kernels[k], GPU_FUNCTION_SHARED_BYTES, (int)self->shared_bytes - STATIC_SHARED);
        }
        if (code) return code;
    }
    if (self->kernels[GPU_attention_cluster]) {
        int code = driver->function_set(self->kernels[GPU_attention_cluster], GPU_FUNCTION_WIDE_CLUSTERS, 1);
        if (code) return code;
    }
    self->shared_bytes -= STATIC_SHARED;
    return 0;
}

static int start(gpu_device *self, const gpu_image *images, const char **doing) {
    const gpu_driver *driver = &self->driver;
    int shared = 0, code;
    *doing = "making a context";
    if ((code = driver->context_retain(&self->context, self->handle))) {
        self->context = NULL;
        return code;
    }
    if ((code = driver->context_set(self->context))) return code;
    if ((code = driver->device_attribute(&self->multiprocessors, GPU_DEVICE_MULTIPROCESSORS, self->handle))) return code;
    if ((code = driver->device_attribute(&shared, GPU_DEVICE_SHARED_BYTES, self->handle))) return code;
    self->shared_bytes = (size_t)shared;
    if ((code = driver->stream_create(&self->stream, GPU_STREAM_NON_BLOCKING))) return code;
    for (int i = 0; i <= OPENPI_STAGES; i++)
        if ((code = driver->event_create(&self->events[i], 0))) return code;
    if ((code = load_kernels(self, images, doing))) return code;
    *doing = "preparing the resident kernel";
    if ((code = gpu_resident_open(self))) return code;
    *doing = "taking pinned memory";
    for (int i = 0; i < GPU_SLOTS; i++) {
        if ((code = driver->event_create(&self->slots[i].event, 0))) return code;
        if ((code = driver->allocate_host((void **)&self->slots[i].memory, GPU_SLOT_BYTES, 0))) return code;
        self->free_slots[i] = i;
    }
    self->free_count = GPU_SLOTS;
    return 0;
}

static void gpu_set_off(device *device, uint32_t off) {
    gpu_device *self = (gpu_device *)device;
    self->resident = self->exchange && !switch_off(off, SWITCH_PERSISTENT_DENOISE);
    self->overlap = self->major >= 9 && !switch_off(off, SWITCH_DEPENDENT_LAUNCH);
    self->no_graph = switch_off(off, SWITCH_GRAPH_REPLAY);
}

static const char *const paths[] = {"hopper", "portable"};

/* Without a name: the first that can run. */
static openpi_status choose_path(gpu_device *self, const gpu_image *images, const char *path, openpi_error *error) {
    int can = 0, which = -1;
    for (int i = 0; images[i].name; i++)
        can |= images[i].hopper && self->major == 9 && self->minor == 0 && self->driver.tensor_map;
    if (!path) path = paths[!can];
    for (int i = 0; i < (int)(sizeof paths / sizeof *paths); i++)
        if (!strcmp(path, paths[i])) which = i;
    if (which < 0)
        return report(error, OPENPI_BAD_ARGUMENT, "path is \"%s\", expected hopper or portable", path);
    if (!which && !can)
        return report(error, OPENPI_UNSUPPORTED, "path %s needs compute capability 9.0, cuda:%d has %d.%d", path, self->ordinal,
                      self->major, self->minor);
    self->hopper = !which;
    strcpy(self->base.path, path);
    return OPENPI_OK;
}

openpi_status gpu_open(const gpu_driver *driver, const gpu_image *images, const backend *backend, int ordinal,
                       const device_options *options, device **out, openpi_error *error) {
    gpu_facts facts;
    const char *doing = "";
    learn(driver, images, gpu_images_cuda_version, ordinal, &facts);
    if (facts.reason[0]) {
        gpu_driver library = *driver;
        gpu_driver_close(&library);
        return report(error, OPENPI_NO_DEVICE, "cuda:%d (%s) cannot be used: %s", ordinal, facts.name, facts.reason);
    }
    gpu_device *self = calloc(1, sizeof *self);
    if (!self) {
        gpu_driver library = *driver;
        gpu_driver_close(&library);
        return report_no_memory(error, sizeof *self, "the device");
    }
    self->driver = *driver;
    self->base.backend = backend;
    self->ordinal = ordinal;
    self->handle = facts.handle;
    self->major = facts.major;
    self->minor = facts.minor;
    self->memory_bytes = facts.memory_bytes;
    pthread_mutex_init(&self->running, NULL);
    pthread_mutex_init(&self->losing, NULL);
    pthread_mutex_init(&self->slot_lock, NULL);
    pthread_cond_init(&self->slot_freed, NULL);
    openpi_status status = choose_path(self, images, options->path, error);
    int code = status == OPENPI_OK ? start(self, images, &doing) : 0;
    gpu_set_off(&self->base, options->off);
    if (code == GPU_OUT_OF_MEMORY)
        status = report(error, OPENPI_NO_MEMORY, "out of memory on cuda:%d while opening it (%s)", ordinal, doing);
    else if (code)
        status = report(error, OPENPI_NO_DEVICE, "cuda:%d (%s) does not open: %s (error %d) at %s", ordinal, facts.name,
                        gpu_error_text(driver, code), code, doing);
    if (status != OPENPI_OK) {
        gpu_close(&self->base);
        return status;
    }
    *out = &self->base;
    return OPENPI_OK;
}

/* "cuda" is "cuda:0". */
static int parse_ordinal(const char *which) {
    char *end;
    if (!strcmp(which, "cuda")) return 0;
    if (strncmp(which, "cuda:", 5) || which[5] < '0' || which[5] > '9') return -1;
    long n = strtol(which + 5, &end, 10);
    return *end || n > 1023 ? -1 : (int)n;
}

static openpi_status cuda_open(const char *which, const device_options *options, device **out, openpi_error *error) {
    gpu_driver driver;
    char why[256];
    int count = 0, ordinal = parse_ordinal(which);
    if (ordinal < 0) return report(error, OPENPI_NO_DEVICE, "there is no device \"%s\", expected cuda:N", which);
    if (options->isa)
        return report(error, OPENPI_BAD_ARGUMENT, "isa is \"%s\", expected none on %s: isa is for the CPU's kernels",
                      options->isa, which);
    if (gpu_driver_open_cuda(&driver, why, sizeof why)) return report(error, OPENPI_NO_DEVICE, "%s: %s", which, why);
    int code = driver.init(0);
    if (!code) code = driver.device_count(&count);
    openpi_status status = OPENPI_OK;
    if (code)
        status = report(error, OPENPI_NO_DEVICE, "%s: the NVIDIA driver does not start: %s (error %d)", which,
                        gpu_error_text(&driver, code), code);
    else if (ordinal >= count)
        status = report(error, OPENPI_NO_DEVICE, "there is no device \"%s\", the driver sees %d", which, count);
    if (status != OPENPI_OK) {
        gpu_driver_close(&driver);
        return status;
    }
    return gpu_open(&driver, gpu_images_cuda, &backend_cuda, ordinal, options, out, error);
}

static int unusable(openpi_device *devices, int capacity, const char *reason) {
    if (capacity < 1) return 1;
    devices[0] = (openpi_device){.name = "cuda"};
    snprintf(devices[0].description, sizeof devices[0].description, "NVIDIA GPU");
    snprintf(devices[0].reason, sizeof devices[0].reason, "%.255s", reason);
    return 1;
}

static int cuda_devices(openpi_device *devices, int capacity) {
    gpu_driver driver;
    gpu_facts f;
    char why[256];
    int count = 0, hopper = 0;
    if (gpu_driver_open_cuda(&driver, why, sizeof why)) return unusable(devices, capacity, why);
    int code = driver.init(0);
    if (!code) code = driver.device_count(&count);
    if (code || !count) {
        snprintf(why, sizeof why, "%.200s (error %d)", code ? gpu_error_text(&driver, code) : "the NVIDIA driver sees no GPU",
                 code);
        gpu_driver_close(&driver);
        return unusable(devices, capacity, why);
    }
    for (int i = 0; gpu_images_cuda[i].name; i++) hopper |= gpu_images_cuda[i].hopper;
    for (int i = 0; i < count && i < capacity; i++) {
        openpi_device *d = &devices[i];
        learn(&driver, gpu_images_cuda, gpu_images_cuda_version, i, &f);
        *d = (openpi_device){.memory_bytes = f.memory_bytes, .usable = !f.reason[0]};
        snprintf(d->name, sizeof d->name, "cuda:%d", i);
        snprintf(d->description, sizeof d->description, "%.60s, compute capability %d.%d, driver for CUDA %d.%d", f.name, f.major,
                 f.minor, f.version / 1000, f.version % 1000 / 10);
        snprintf(d->path, sizeof d->path, "%s",
                 f.reason[0]                              ? ""
                 : hopper && f.major == 9 && f.minor == 0 ? "hopper"
                                                          : "portable");
        snprintf(d->reason, sizeof d->reason, "%s", f.reason);
    }
    gpu_driver_close(&driver);
    return count;
}

const backend backend_cuda = {
    .name = "cuda",
    .devices = cuda_devices,
    .open = cuda_open,
    .close = gpu_close,
    .allocate = gpu_allocate,
    .release = gpu_release,
    .allocate_host = gpu_allocate_host,
    .release_host = gpu_release_host,
    .upload = gpu_upload,
    .download = gpu_download,
    .takes_weights = gpu_takes_weights,
    .matrix_bytes = gpu_matrix_bytes,
    .matrix_blocks = gpu_matrix_blocks,
    .matrix_scratch = gpu_matrix_scratch,
    .matrix_pack = gpu_matrix_pack,
    .matrix_generate = gpu_matrix_generate,
    .cache_bytes = gpu_cache_bytes,
    .cache_read = gpu_cache_read,
    .work_bytes = gpu_work_bytes,
    .run = gpu_run,
    .record = gpu_record,
    .replay = gpu_replay,
    .forget = gpu_forget,
    .record_timed = gpu_record_timed,
    .launches = gpu_launches,
    .nodes = gpu_nodes,
    .roof = gpu_roof,
    .memory = gpu_memory,
    .facts = gpu_get_facts,
    .candidates = gpu_candidates,
    .library_product = gpu_library_product,
    .set_off = gpu_set_off,
};
