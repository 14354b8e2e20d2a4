/* The device's ceilings: kernels of its own that do nothing but read, copy or multiply, timed by the
 * device's clock.
 *
 * Each warms up and then runs a few times; the middle time counts. Products warm up for 0.2 s, so that the
 * clock is where the power limit holds it, which on a large card is under the highest that it reports. */
#include "backend/gpu/roof.h"

#include <stdlib.h>
#include <string.h>

#include "backend/gpu/device.h"
#include "base/report.h"

enum { REPEATS = 7, SETTLE = 10, THREADS = 256, FLIGHT = 8 };
static const size_t most_bytes = (size_t)4 << 30, least_bytes = (size_t)256 << 20;

typedef struct stopwatch {
    gpu_device *device;
    void *begin, *end;
    gpu_roof_work work;
} stopwatch;

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The family's kernel for a ceiling, and where it is. */
typedef struct roof_kernel {
    int family;
    const gpu_roof_kernel *roof;           /* NULL: the device has none of the kind                         */
} roof_kernel;

static roof_kernel find(const gpu_device *self, gpu_roof_kind kind) {
    roof_kernel best = {0};
    for (int i = 0; i < self->loaded_count; i++) {
        const gpu_family *family = self->vendor->modules[i].family;
        for (int k = 0; self->loaded[i].module && k < family->roof_count; k++) {
            const gpu_roof_kernel *roof = &family->roofs[k];
            if (roof->kind == kind && (!best.roof || roof->rank < best.roof->rank))
                best = (roof_kernel){i, roof};
        }
    }
    return best;
}

/* Milliseconds of the middle run, after `warm` others; 0 or the driver's error. */
static int time_kernel(stopwatch *w, roof_kernel kernel, int warm, double *ms) {
    const gpu_device *self = w->device;
    const gpu_driver *driver = &self->driver;
    float times[REPEATS];
    if (!kernel.roof) return 0;
    gpu_launch launch = {.function = gpu_function(self, kernel.family, kernel.roof->kernel),
                         .grid = {(unsigned)(self->facts.report.multiprocessors * kernel.roof->blocks), 1, 1},
                         .block = {THREADS, 1, 1},
                         .cluster = 1,
                         .shared_bytes = kernel.roof->shared_bytes,
                         .arguments = &w->work,
                         .bytes = sizeof w->work};
    for (int i = -warm; i < REPEATS; i++) {
        float time = 0;
        int code = driver->event_record(driver, w->begin, self->stream, 0);
        if (!code) code = driver->launch(driver, &launch, self->stream);
        if (!code) code = driver->event_record(driver, w->end, self->stream, 0);
        if (!code) code = driver->event_wait(driver, w->end);
        if (!code) code = driver->event_elapsed(driver, &time, w->begin, w->end);
        if (code) return code;
        if (i >= 0) times[i] = time;
    }
    qsort(times, REPEATS, sizeof *times, ascending);
    *ms = (double)times[REPEATS / 2];
    return 0;
}

/* A kernel of products: TFLOP/s and the clock it ran at. */
static int time_products(stopwatch *w, gpu_roof_kind kind, double *tflops, double *mhz) {
    const gpu_device *self = w->device;
    const gpu_driver *driver = &self->driver;
    roof_kernel kernel = find(self, kind);
    double ms = 0;
    long long clocks = 0;
    if (!kernel.roof) return 0;
    w->work.loops = kernel.roof->loops;
    int code = time_kernel(w, kernel, SETTLE, &ms);
    if (!code)
        code = driver->download(driver, &clocks, (gpu_address)(uintptr_t)w->work.clocks, sizeof clocks,
                                self->stream);
    if (!code) code = driver->stream_wait(driver, self->stream);
    if (code || ms <= 0) return code;
    double threads = (double)THREADS * self->facts.report.multiprocessors * kernel.roof->blocks;
    *tflops = kernel.roof->flops * kernel.roof->loops * threads / ms * 1e-9;
    *mhz = (double)clocks / ms * 1e-3;
    return 0;
}

/* `from` and `to` are halves of one block: it is read whole, and its first half is copied to its second. */
static int time_memory(stopwatch *w, char *block, size_t bytes, device_roofs *out) {
    roof_kernel kernels[] = {find(w->device, GPU_ROOF_FILL), find(w->device, GPU_ROOF_READ),
                             find(w->device, GPU_ROOF_COPY)};
    double fill, read = 0, copy = 0;
    if (!kernels[0].roof || !kernels[1].roof || !kernels[2].roof) return 0;
    size_t blocks = (size_t)w->device->facts.report.multiprocessors * (size_t)kernels[0].roof->blocks;
    size_t grain = blocks * THREADS * FLIGHT, pieces = bytes / 16 / grain * grain,
           half = bytes / 2 / 16 / grain * grain;
    w->work.from = w->work.to = block;
    w->work.pieces = pieces;
    int code = time_kernel(w, kernels[0], 1, &fill);
    if (!code) code = time_kernel(w, kernels[1], 1, &read);
    w->work.pieces = half;
    w->work.to = block + bytes / 2;
    if (!code) code = time_kernel(w, kernels[2], 1, &copy);
    if (read > 0) out->read_gbs = (double)pieces * 16 / read * 1e-6;
    if (copy > 0) out->copy_gbs = (double)half * 32 / copy * 1e-6;
    return code;
}

static int measure(stopwatch *w, char *block, size_t bytes, device_roofs *out) {
    const gpu_driver *driver = &w->device->driver;
    double ignored;
    int code = driver->event_create(driver, &w->begin);
    if (!code) code = driver->event_create(driver, &w->end);
    if (!code) code = time_memory(w, block, bytes, out);
    if (!code) code = time_products(w, GPU_ROOF_F32, &out->f32_tflops, &ignored);
    if (!code) code = time_products(w, GPU_ROOF_BF16, &out->bf16_tflops, &out->core_mhz);
    if (w->begin) driver->event_destroy(driver, w->begin);
    if (w->end) driver->event_destroy(driver, w->end);
    return code;
}

openpi_status gpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error) {
    enum { RESULTS = 256 };                /* before the block: clocks, sink                                */
    gpu_device *self = (gpu_device *)device;
    size_t left = 0, total = 0, bytes = most_bytes;
    void *memory = NULL;
    (void)type;
    memset(out, 0, sizeof *out);
    TRY(gpu_enter(self, error));
    GPU(memory_info, "asking for its free memory", &left, &total);
    while (bytes > left / 2 && bytes > least_bytes) bytes /= 2;
    TRY(device->backend->allocate(device, RESULTS + bytes, "measuring the memory's speed", &memory, error));
    char *block = (char *)memory + RESULTS;
    stopwatch w = {.device = self, .work = {.clocks = memory, .sink = (float *)((char *)memory + 128)}};
    pthread_mutex_lock(&self->running);
    int code = measure(&w, block, bytes, out);
    pthread_mutex_unlock(&self->running);
    device->backend->release(device, memory);
    return code ? gpu_fail(self, code, "measuring its ceilings", error) : OPENPI_OK;
}
