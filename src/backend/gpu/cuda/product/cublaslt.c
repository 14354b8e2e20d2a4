/* cuBLASLt's plain product, for comparison only: opened where it is present, never needed, nothing of it
 * at build time.
 *
 * The library gets what an own kernel gets: bf16 operands, fp32 sums, weights that come from memory
 * (copies of W take turns). Of its heuristic's first algorithms the fastest counts. Note: its own types
 * are given here by size alone, as its documentation states them, so that no header of it is needed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/cuda/vendor.h"
#include "base/dynamic.h"
#include "base/report.h"

enum {
    COMPUTE_F32 = 68, TYPE_F32 = 0, TYPE_BF16 = 14,
    DESC_TRANSPOSE_A = 3, TRANSPOSED = 1,
    PREFERENCE_WORKSPACE = 1, WORKSPACE = 32 << 20,
    ALGORITHMS = 8, ROUNDS = 5, MOST_COPIES = 48, COLD_BYTES = 192 << 20, STEPS = 8,
};

/* cublasLtMatmulHeuristicResult_t */
typedef struct result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} result;

/* X(member, symbol, parameters) */
#define LT_LIST(X)                                                                                          \
    X(create, "cublasLtCreate", (void **handle))                                                            \
    X(destroy, "cublasLtDestroy", (void *handle))                                                           \
    X(version, "cublasLtGetVersion", (void))                                                                \
    X(desc_create, "cublasLtMatmulDescCreate", (void **desc, int compute, int scale))                       \
    X(desc_destroy, "cublasLtMatmulDescDestroy", (void *desc))                                              \
    X(desc_set, "cublasLtMatmulDescSetAttribute",                                                           \
      (void *desc, int attribute, const void *value, size_t bytes))                                         \
    X(layout_create, "cublasLtMatrixLayoutCreate",                                                          \
      (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))                               \
    X(layout_destroy, "cublasLtMatrixLayoutDestroy", (void *layout))                                        \
    X(preference_create, "cublasLtMatmulPreferenceCreate", (void **preference))                             \
    X(preference_destroy, "cublasLtMatmulPreferenceDestroy", (void *preference))                            \
    X(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                               \
      (void *preference, int attribute, const void *value, size_t bytes))                                   \
    X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                          \
      (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted,          \
       result *results, int *found))                                                                        \
    X(matmul, "cublasLtMatmul",                                                                             \
      (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,           \
       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,            \
       const void *algorithm, void *workspace, size_t workspace_bytes, void *stream))

typedef struct library {
    void *handle;
#define X(member, symbol, parameters) int (*member) parameters;
    LT_LIST(X)
#undef X
} library;

static int open_library(library *l) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    memset(l, 0, sizeof *l);
    l->handle = dynamic_open(names, NULL);
    if (!l->handle) return 0;
    int whole = 1;
#define X(member, symbol, parameters) \
    whole &= dynamic_find(l->handle, symbol, &l->member, sizeof l->member);
    LT_LIST(X)
#undef X
    if (!whole) dlclose(l->handle);
    return whole;
}

/* One product: all that is made for it, given back by end(). */
typedef struct product {
    device *device;
    const gpu_driver *driver;
    void *stream;
    library l;
    void *lt, *desc, *w_layout, *x_layout, *y_layout, *preference;
    char *w, *x, *y, *workspace;
    size_t w_bytes, x_bytes, y_bytes;
    int copies;
    void *events[2];
} product;

static void end(product *p) {
    const backend *backend = p->device->backend;
    void *memory[] = {p->w, p->x, p->y, p->workspace};
    for (int i = 0; i < 4; i++)
        if (memory[i]) backend->release(p->device, memory[i]);
    for (int i = 0; i < 2; i++)
        if (p->events[i]) p->driver->event_destroy(p->driver, p->events[i]);
    if (p->preference) p->l.preference_destroy(p->preference);
    if (p->y_layout) p->l.layout_destroy(p->y_layout);
    if (p->x_layout) p->l.layout_destroy(p->x_layout);
    if (p->w_layout) p->l.layout_destroy(p->w_layout);
    if (p->desc) p->l.desc_destroy(p->desc);
    if (p->lt) p->l.destroy(p->lt);
    if (p->l.handle) dlclose(p->l.handle);
}

/* Random bf16 between -1 and 1: zeros would take less power, and so run faster, than what a model
 * multiplies. */
static openpi_status fill(product *p, char *to, size_t bytes, openpi_error *error) {
    enum { PIECE = 1 << 20 };
    uint16_t *piece = malloc(PIECE);
    openpi_status status = piece ? OPENPI_OK : report_no_memory(error, PIECE, "the library's operands");
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; piece && i < PIECE / 2; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        piece[i] = (uint16_t)(0x3c00 | (random >> 33 & 0x83ff));
    }
    for (size_t at = 0; at < bytes && status == OPENPI_OK; at += PIECE)
        status = p->device->backend->upload(p->device, to + at, piece,
                                            bytes - at < PIECE ? bytes - at : PIECE, error);
    p->driver->stream_wait(p->driver, p->stream);          /* the copies read `piece` */
    free(piece);
    return status;
}

static openpi_status take(product *p, openpi_error *error) {
    device *device = p->device;
    const backend *backend = device->backend;
    TRY(backend->allocate(device, p->w_bytes * (size_t)p->copies, "the library's weights", (void **)&p->w,
                          error));
    TRY(backend->allocate(device, p->x_bytes, "the library's rows", (void **)&p->x, error));
    TRY(backend->allocate(device, p->y_bytes, "the library's result", (void **)&p->y, error));
    TRY(backend->allocate(device, WORKSPACE, "the library's workspace", (void **)&p->workspace, error));
    TRY(fill(p, p->w, p->w_bytes * (size_t)p->copies, error));
    return fill(p, p->x, p->x_bytes, error);
}

/* Row-major y = x·Wᵀ is column-major yᵀ = (Wᵀ)ᵀ·xᵀ: W [k x n] transposed times x [k x m]. */
static int describe(product *p, int m, int n, int k) {
    int transposed = TRANSPOSED;
    size_t capacity = WORKSPACE;
    int failed = p->l.create(&p->lt);
    if (!failed) failed = p->l.desc_create(&p->desc, COMPUTE_F32, TYPE_F32);
    if (!failed) failed = p->l.desc_set(p->desc, DESC_TRANSPOSE_A, &transposed, sizeof transposed);
    if (!failed) failed = p->l.layout_create(&p->w_layout, TYPE_BF16, (uint64_t)k, (uint64_t)n, k);
    if (!failed) failed = p->l.layout_create(&p->x_layout, TYPE_BF16, (uint64_t)k, (uint64_t)m, k);
    if (!failed) failed = p->l.layout_create(&p->y_layout, TYPE_BF16, (uint64_t)n, (uint64_t)m, n);
    if (!failed) failed = p->l.preference_create(&p->preference);
    if (!failed)
        failed = p->l.preference_set(p->preference, PREFERENCE_WORKSPACE, &capacity, sizeof capacity);
    for (int i = 0; i < 2 && !failed; i++) failed = p->driver->event_create(p->driver, &p->events[i]);
    return failed;
}

/* Milliseconds of one product, over `count` in a row; negative: the algorithm does not run. */
static double time_products(product *p, const result *r, int count) {
    const gpu_driver *driver = p->driver;
    float alpha = 1, beta = 0, ms = -1;
    int failed = driver->event_record(driver, p->events[0], p->stream, 0);
    for (int i = 0; i < count && !failed; i++)
        failed = p->l.matmul(p->lt, p->desc, &alpha, p->w + p->w_bytes * (size_t)(i % p->copies), p->w_layout,
                             p->x, p->x_layout, &beta, p->y, p->y_layout, p->y, p->y_layout, r->algorithm,
                             p->workspace, WORKSPACE, p->stream);
    if (!failed) failed = driver->event_record(driver, p->events[1], p->stream, 0);
    if (!failed) failed = driver->event_wait(driver, p->events[1]);
    if (!failed) failed = driver->event_elapsed(driver, &ms, p->events[0], p->events[1]);
    return failed ? -1 : (double)ms / count;
}

static openpi_status measure(product *p, int m, int n, int k, double *us, char *name, openpi_error *error) {
    result results[ALGORITHMS];
    int found = 0;
    double best = 0;
    if (!open_library(&p->l)) {
        p->l.handle = NULL;
        return report(error, OPENPI_UNSUPPORTED, "cuBLASLt is not here (libcublasLt.so.13 or .12)");
    }
    TRY(take(p, error));
    if (describe(p, m, n, k) ||
        p->l.heuristic(p->lt, p->desc, p->w_layout, p->x_layout, p->y_layout, p->y_layout, p->preference,
                       ALGORITHMS, results, &found) ||
        !found)
        return report(error, OPENPI_UNSUPPORTED, "cuBLASLt knows no algorithm for %d x %d x %d", m, n, k);
    int count = p->copies > STEPS ? p->copies : STEPS;
    for (int i = 0; i < found; i++)
        for (int round = -1; round < ROUNDS && results[i].state == 0; round++) {
            double ms = time_products(p, &results[i], count);
            if (ms < 0) break;
            if (round >= 0 && (best <= 0 || ms < best)) best = ms;
        }
    if (best <= 0)
        return report(error, OPENPI_UNSUPPORTED, "cuBLASLt runs none of its %d algorithms for %d x %d x %d",
                      found, m, n, k);
    int version = p->l.version();
    snprintf(name, 200, "cuBLASLt %d.%d", version / 10000, version / 100 % 100);
    *us = best * 1000;
    return OPENPI_OK;
}

openpi_status cuda_library_product(device *device, int m, int n, int k, double *us, char *name,
                                   openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    product p = {.device = device, .driver = gpu_driver_of(self), .stream = gpu_stream(self)};
    TRY(gpu_enter(self, error));
    p.w_bytes = (size_t)n * (size_t)k * sizeof(bf16);
    p.x_bytes = (size_t)m * (size_t)k * sizeof(bf16);
    p.y_bytes = (size_t)m * (size_t)n * sizeof(bf16);
    p.copies = (int)(COLD_BYTES / p.w_bytes) + 2;
    if (p.copies > MOST_COPIES) p.copies = MOST_COPIES;
    openpi_status status = measure(&p, m, n, k, us, name, error);
    p.driver->stream_wait(p.driver, p.stream);
    end(&p);
    return status;
}
