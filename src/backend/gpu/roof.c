/* The device's ceilings: its own kernels that do nothing but read, copy or multiply, timed by the device's clock.
 *
 * Each warms up and then runs a few times; the middle time counts. Products warm up for 0.2 s, so that the clock is where
 * the power limit holds it, which on a large card is under the highest that it reports. */
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/gpu.h"
#include "base/report.h"

enum { REPEATS = 7, SETTLE = 10, THREADS = 256, FLIGHT = 8, WGMMA_SHARED = 4 * 48 * 1024 + 1024 };
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

/* Milliseconds of the middle run, after `warm` others; 0 or the driver's error. */
static int time_kernel(stopwatch *w, gpu_kernel kernel, int blocks, size_t shared, int warm, double *ms) {
    const gpu_driver *driver = &w->device->driver;
    void *stream = w->device->stream, *arguments[] = {&w->work};
    gpu_launch config = {{(unsigned)blocks, 1, 1}, {THREADS, 1, 1}, (unsigned)shared, stream, NULL, 0};
    float times[REPEATS];
    for (int i = -warm; i < REPEATS; i++) {
        float time = 0;
        int code = driver->event_record(w->begin, stream, 0);
        if (!code) code = driver->launch(&config, w->device->kernels[kernel], arguments, NULL);
        if (!code) code = driver->event_record(w->end, stream, 0);
        if (!code) code = driver->event_wait(w->end);
        if (!code) code = driver->event_elapsed(&time, w->begin, w->end);
        if (code) return code;
        if (i >= 0) times[i] = time;
    }
    qsort(times, REPEATS, sizeof *times, ascending);
    *ms = (double)times[REPEATS / 2];
    return 0;
}

/* A kernel of products: TFLOP/s and the clock it ran at. */
typedef struct products {
    gpu_kernel kernel;
    int blocks;                            /* a multiprocessor                                                */
    int loops;                             /* about 20 ms on a large card                                     */
    double flops;                          /* a thread and loop                                               */
    size_t shared;
} products;

static const products fma_products = {GPU_roof_fma, 8, 160000, 2 * 16, 0};
static const products mma_products = {GPU_roof_mma, 1, 320000, 8 * 2.0 * 16 * 8 * 16 / 32, 0};
static const products wgmma_products = {GPU_roof_wgmma, 1, 32000, 4 * 2.0 * 64 * 256 * 16 / 128, WGMMA_SHARED};

static int time_products(stopwatch *w, const products *p, double *tflops, double *mhz) {
    gpu_device *self = w->device;
    int blocks = self->multiprocessors * p->blocks;
    double ms = 0;
    long long clocks = 0;
    w->work.loops = p->loops;
    int code = time_kernel(w, p->kernel, blocks, p->shared, SETTLE, &ms);
    if (!code) code = self->driver.download(&clocks, (gpu_address)(uintptr_t)w->work.clocks, sizeof clocks, self->stream);
    if (!code) code = self->driver.stream_wait(self->stream);
    if (code || ms <= 0) return code;
    *tflops = p->flops * p->loops * THREADS * blocks / ms * 1e-9;
    *mhz = (double)clocks / ms * 1e-3;
    return 0;
}

/* `from` and `to` are halves of one block: it is read whole, and its first half is copied to its second. */
static int time_memory(stopwatch *w, char *block, size_t bytes, device_roofs *out) {
    int blocks = w->device->multiprocessors * 8;
    size_t grain = (size_t)blocks * THREADS * FLIGHT, pieces = bytes / 16 / grain * grain, half = bytes / 2 / 16 / grain * grain;
    double fill, read = 0, copy = 0;
    w->work.from = w->work.to = block;
    w->work.pieces = pieces;
    int code = time_kernel(w, GPU_roof_fill, blocks, 0, 1, &fill);
    if (!code) code = time_kernel(w, GPU_roof_read, blocks, 0, 1, &read);
    w->work.pieces = half;
    w->work.to = block + bytes / 2;
    if (!code) code = time_kernel(w, GPU_roof_copy, blocks, 0, 1, &copy);
    if (read > 0) out->read_gbs = (double)pieces * 16 / read * 1e-6;
    if (copy > 0) out->copy_gbs = (double)half * 32 / copy * 1e-6;
    return code;
}

static int measure(stopwatch *w, char *block, size_t bytes, device_roofs *out) {
    const gpu_driver *driver = &w->device->driver;
    double ignored;
    int code = driver->event_create(&w->begin, 0);
    if (!code) code = driver->event_create(&w->end, 0);
    if (!code) code = time_memory(w, block, bytes, out);
    if (!code) code = time_products(w, &fma_products, &out->f32_tflops, &ignored);
    if (!code) code = time_products(w, w->device->hopper ? &wgmma_products : &mma_products, &out->bf16_tflops, &out->core_mhz);
    if (w->begin) driver->event_destroy(w->begin);
    if (w->end) driver->event_destroy(w->end);
    return code;
}

openpi_status gpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error) {
    enum { RESULTS = 256 };                /* in front of the block: clocks, sink                             */
    gpu_device *self = (gpu_device *)device;
    size_t left = 0, total = 0, bytes = most_bytes;
    void *memory = NULL;
    (void)type;
    memset(out, 0, sizeof *out);
    TRY(gpu_enter(self, error));
    GPU(memory_info(&left, &total), "asking for its free memory");
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
