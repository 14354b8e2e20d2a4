/* Every operation on the GPU against its scalar definition: real and odd shapes, random inputs, poisoned outputs,
 * rows beyond the count left alone. Without a GPU every case is counted and skipped, with the reason.
 *
 *   test_gpu                        all cases, kernels of the best path
 *   OPENPI_TEST_GPU_PATH=portable   (environment of the test program only) the portable kernels
 *
 * Long rows are checked by sample: a few rows of each kind, all columns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "ops/reference.h"

/* ---- the device and its memory ---------------------------------------------------------------------------- */

enum { MOST_BUFFERS = 64 };

typedef struct gpu {
    device *device;
    char reason[600];
    void *buffers[MOST_BUFFERS];
    void *hosts[MOST_BUFFERS];
    int buffer_count, host_count;
    uint64_t random;
    int checked, failed;
    double worst[2];             /* of this test, in norm: f32, bf16 */
} gpu;

static gpu g;
static openpi_error error;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

static void *host(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    assert_true(g.host_count < MOST_BUFFERS);
    return g.hosts[g.host_count++] = p;
}

static void *up(const void *from, size_t bytes) {
    void *p = NULL;
    assert_true(g.buffer_count < MOST_BUFFERS);
    must(g.device->backend->allocate(g.device, bytes, "a test", &p, &error));
    g.buffers[g.buffer_count++] = p;
    must(g.device->backend->upload(g.device, p, from, bytes, &error));
    return p;
}

static void drop(void) {
    while (g.buffer_count) g.device->backend->release(g.device, g.buffers[--g.buffer_count]);
    while (g.host_count) free(g.hosts[--g.host_count]);
}

static float uniform(void) {             /* (-1, 1) */
    uint64_t z = g.random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (float)((double)((z ^ z >> 31) >> 40) * 0x1p-23 - 1.0);
}

static float *floats(size_t count, float offset, float scale) {
    float *p = host(count * sizeof *p);
    for (size_t i = 0; i < count; i++) p[i] = offset + scale * uniform();
    return p;
}

static void *acts(dtype type, size_t count, float scale) {
    float *p = floats(count, 0, scale);
    if (type == DTYPE_F32) return p;
    bf16 *b = host(count * sizeof *b);
    for (size_t i = 0; i < count; i++) b[i] = float_to_bf16(p[i]);
    return b;
}

static size_t act_bytes(dtype type, size_t count) { return count * dtype_bytes(type); }

/* NaN in every element. */
static void *poison(size_t bytes) {
    void *p = host(bytes);
    memset(p, 0xff, bytes);
    return p;
}

/* ---- packing ---------------------------------------------------------------------------------------------- */

typedef struct canonical {
    const char *data;
    size_t row_bytes;
} canonical;

static void read_rows(const void *context, int row, int count, void *out) {
    const canonical *c = context;
    memcpy(out, c->data + (size_t)row * c->row_bytes, (size_t)count * c->row_bytes);
}

/* The host's matrix (canonical rows) and its packed copy on the device. */
typedef struct weights {
    matrix host, device;
} weights;

static weights make_weights(matrix_form form, dtype type, int n, int k, int heads, int head_dim) {
    const backend *b = g.device->backend;
    weights w;
    void *data = acts(type, (size_t)n * (size_t)k, sqrtf(3.0f / (float)k)), *scratch, *packed = NULL;
    w.host = w.device = (matrix){data, n, k, type, form, heads, head_dim, 0};
    canonical c = {data, (size_t)k * dtype_bytes(type)};
    matrix_source source = {read_rows, &c};
    must(b->allocate(g.device, b->matrix_bytes(g.device, &w.host), "a test's weights", &packed, &error));
    assert_true(g.buffer_count < MOST_BUFFERS);
    g.buffers[g.buffer_count++] = packed;
    scratch = host(b->matrix_scratch(g.device, &w.host));
    must(b->matrix_pack(g.device, &w.host, 0, b->matrix_blocks(g.device, &w.host), &source, packed, scratch, &error));
    w.device.data = packed;
    return w;
}

/* ---- rows: samples of unequal length ---------------------------------------------------------------------- */

typedef struct rows {
    row_set host, device;
    int count, samples;
} rows;

/* Every sample has `prefix` + its number places in front of its rows, and its rows see all of them. */
static rows make_rows(int count, int capacity, int samples, int prefix) {
    size_t bytes = (size_t)capacity * sizeof(int32_t);
    int32_t *n = host(sizeof *n), *sample = host(bytes), *position = host(bytes), *keys = host(bytes);
    int each = (count + samples - 1) / samples;
    *n = count;
    for (int r = 0; r < count; r++) {
        int s = r / each, first = s * each, mine = count - first < each ? count - first : each;
        sample[r] = s;
        position[r] = prefix + s + r - first;
        keys[r] = prefix + s + (r == first ? 1 : mine);
    }
    rows out = {{capacity, n, sample, position, keys}, {capacity, up(n, sizeof *n), up(sample, bytes), up(position, bytes), up(keys, bytes)}, count, samples};
    return out;
}

/* ---- running and comparing -------------------------------------------------------------------------------- */

/* Both sides of an output buffer; `initial` is what it holds before. */
typedef struct output {
    void *host, *device, *before;
    size_t bytes;
} output;

static output make_output(void *initial, size_t bytes) {
    output o = {host(bytes), up(initial, bytes), initial, bytes};
    memcpy(o.host, initial, bytes);
    return o;
}

static void run(const op *op) {
    void *work = NULL;
    size_t bytes = g.device->backend->work_bytes(g.device, op, 1);
    if (bytes) must(g.device->backend->allocate(g.device, bytes, "a test's work", &work, &error));
    must(g.device->backend->run(g.device, op, 1, work, NULL, &error));
    if (work) g.device->backend->release(g.device, work);
}

static double at(const void *data, dtype type, size_t i) {
    return type == DTYPE_BF16 ? (double)bf16_to_float(((const bf16 *)data)[i]) : (double)((const float *)data)[i];
}

/* Elements first … first+count-1 agree: in norm and one by one. */
static void compare(const char *name, const output *o, const void *got, dtype type, size_t first, size_t count) {
    double difference = 0, norm = 0, worst = 0, top = 0;
    for (size_t i = first; i < first + count; i++) {
        double a = at(got, type, i), b = at(o->host, type, i), d = fabs(a - b);
        if (!(d <= worst)) worst = d;                    /* NaN stays */
        difference += d * d;
        norm += b * b;
        if (fabs(b) > top) top = fabs(b);
    }
    double relative = sqrt(difference / (norm > 0 ? norm : 1)), bound = type == DTYPE_BF16 ? 6e-3 : 2e-5, most = type == DTYPE_BF16 ? 0.02 : 2e-4;
    int ok = relative <= bound && worst <= most * (top > 0 ? top : 1);
    g.checked++;
    if (!ok) g.failed++;
    if (!(relative <= g.worst[type == DTYPE_BF16])) g.worst[type == DTYPE_BF16] = relative;
    if (!ok) print_message("%-58s norm %.2e max %.2e of %.2e  %s\n", name, relative, worst, top, ok ? "ok" : "FAIL");
}

/* Elements outside are as before. */
static void compare_kept(const char *name, const output *o, const void *got, dtype type, size_t first, size_t end) {
    size_t width = dtype_bytes(type);
    if (memcmp((const char *)got + first * width, (const char *)o->before + first * width, (end - first) * width)) {
        print_message("%-58s wrote beyond its rows  FAIL\n", name);
        g.failed++;
    }
}

static void *down(const output *o) {
    void *got = host(o->bytes);
    must(g.device->backend->download(g.device, got, o->device, o->bytes, &error));
    return got;
}

/* ---- every way there is ----------------------------------------------------------------------------------- */

static candidate way_names[256];

/* How many ways the device offers for the op; names them. */
static int ways_of(const op *op) {
    return g.device->backend->candidates ? g.device->backend->candidates(g.device, op, way_names, 256) : 0;
}

/* The op goes way `way` (0: as the backend's rule has it), into outputs that are as before; the name says which. */
static void run_way(op *op, int way, output **outputs, int count, char *name, size_t bytes) {
    size_t length = strcspn(name, ";");
    for (int i = 0; i < count; i++) must(g.device->backend->upload(g.device, outputs[i]->device, outputs[i]->before, outputs[i]->bytes, &error));
    op->choice = way;
    snprintf(name + length, bytes - length, "; %s", way ? way_names[way - 1].name : "rule");
    run(op);
}

/* Gives up what `down` has fetched since. */
static void give_up(int mark) {
    while (g.host_count > mark) free(g.hosts[--g.host_count]);
}

/* Which rows the definition computes: all of few, the ends and some of many. */
static void define(const op *op, int count, double cost_a_row, int *list, int *listed) {
    int most = cost_a_row * count < 5e7 ? count : (int)(5e7 / cost_a_row);
    if (most < 2) most = 2;
    *listed = 0;
    for (int i = 0; i < most && i < count; i++) {
        int r = most >= count || most < 2 ? i : (int)((int64_t)i * (count - 1) / (most - 1));
        reference_ops[op->kind](op, r, r + 1);
        list[(*listed)++] = r;
    }
}

static void finish(void) {
    drop();
    print_message("largest difference in norm: f32 %.1e, bf16 %.1e\n", g.worst[0], g.worst[1]);
    assert_int_equal(g.failed, 0);
}

static int skipped(void) {
    g.failed = 0;
    g.worst[0] = g.worst[1] = 0;
    if (g.device) return 0;
    print_message("skipped: %s\n", g.reason);
    return 1;
}

#define NEEDS_GPU()       \
    do {                  \
        if (skipped()) skip(); \
    } while (0)

static const dtype types[] = {DTYPE_F32, DTYPE_BF16};

/* ---- products --------------------------------------------------------------------------------------------- */

typedef struct shape {
    int count, capacity, n, k;
} shape;

static norm make_norm(norm_kind kind, int k, int with_bias, norm *on_device) {
    norm n = {kind, NULL, NULL, 1e-6f};
    *on_device = n;
    if (kind == NORM_NONE) return n;
    n.weight = floats((size_t)k, kind == NORM_LAYER ? 1 : 0, 0.3f);
    on_device->weight = up(n.weight, (size_t)k * sizeof(float));
    if (with_bias) {
        n.bias = floats((size_t)k, 0, 0.2f);
        on_device->bias = up(n.bias, (size_t)k * sizeof(float));
    }
    return n;
}

static void one_norm_linear(shape s, dtype type, dtype weight_type, norm_kind kind, matrix_form form, activation act, int with_bias, int mapped) {
    char name[160];
    rows r = make_rows(s.count, s.capacity, 1, 0);
    int m = form == MATRIX_GATED ? s.n / 2 : s.n, rows_out = s.capacity + 5, list[4096], listed;
    weights w = make_weights(form, weight_type, s.n, s.k, 0, 0);
    op a = {.kind = OP_NORM_LINEAR, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    void *x = acts(type, (size_t)s.capacity * (size_t)s.k, 1.5f);
    float *bias = with_bias ? floats((size_t)s.n, 0, 0.5f) : NULL;
    int32_t *map = host((size_t)s.capacity * sizeof *map);
    for (int i = 0; i < s.capacity; i++) map[i] = (i * 7 + 3) % s.capacity + 2;
    norm on_device, on_host = make_norm(kind, s.k, kind == NORM_LAYER || s.k % 3 == 0, &on_device);
    size_t out_count = (size_t)rows_out * (size_t)m, bytes = act_bytes(type, out_count);
    output o = make_output(poison(bytes), bytes);
    a.norm_linear = (op_norm_linear){r.host, x, on_host, w.host, bias, act, mapped ? map : NULL, o.host};
    b.norm_linear = (op_norm_linear){r.device, up(x, act_bytes(type, (size_t)s.capacity * (size_t)s.k)), on_device, w.device,
                                     bias ? up(bias, (size_t)s.n * sizeof(float)) : NULL, act, mapped ? up(map, (size_t)s.capacity * sizeof *map) : NULL, o.device};
    if (s.capacity % 7 == 0) mapped = 0, a.norm_linear.out_row = b.norm_linear.out_row = NULL;    /* the map is no permutation */
    define(&a, s.count, (double)s.n * s.k, list, &listed);
    snprintf(name, sizeof name, "norm_linear %dx%dx%d %s w %s norm %d form %d act %d%s", s.count, s.n, s.k, type ? "bf16" : "f32", weight_type ? "bf16" : "f32",
             (int)kind, (int)form, (int)act, mapped ? " mapped" : "");
    output *outputs[] = {&o};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 1, name, sizeof name);
        void *got = down(&o);
        for (int i = 0; i < listed; i++)
            compare(name, &o, got, type, (size_t)(mapped ? map[list[i]] : list[i]) * (size_t)m, (size_t)m);
        if (!mapped) compare_kept(name, &o, got, type, (size_t)s.count * (size_t)m, out_count);
        give_up(mark);
    }
    drop();
}

static void test_norm_linear(void **state) {
    (void)state;
    NEEDS_GPU();
    static const shape shapes[] = {
        {1, 1, 40, 40}, {3, 4, 72, 96}, {11, 11, 88, 72}, {16, 16, 1024, 1024}, {17, 20, 104, 136}, {50, 51, 216, 72}, {64, 64, 4096, 1024},
        {65, 70, 136, 40}, {256, 256, 216, 72}, {300, 513, 432, 144}, {100, 816, 2048, 1152}, {768, 768, 3456, 1152}, {788, 816, 1024, 2048},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++) {
            if (!t && (double)shapes[i].count * shapes[i].n * shapes[i].k > 2e9) continue;
            dtype type = types[t];
            one_norm_linear(shapes[i], type, type, NORM_LAYER, MATRIX_PLAIN, ACT_GELU, 1, 0);
            one_norm_linear(shapes[i], type, DTYPE_BF16, NORM_RMS, MATRIX_GATED, ACT_GEGLU, 0, 0);
            one_norm_linear(shapes[i], type, type, NORM_NONE, MATRIX_PLAIN, i & 1 ? ACT_SILU : ACT_NONE, 1, 1);
        }
    one_norm_linear((shape){10, 10, 3072, 1024}, DTYPE_F32, DTYPE_BF16, NORM_NONE, MATRIX_PLAIN, ACT_NONE, 1, 0);
    one_norm_linear((shape){10, 10, 37, 43}, DTYPE_BF16, DTYPE_BF16, NORM_RMS, MATRIX_PLAIN, ACT_NONE, 1, 0);
    one_norm_linear((shape){90, 90, 38, 43}, DTYPE_BF16, DTYPE_F32, NORM_LAYER, MATRIX_GATED, ACT_GEGLU, 1, 0);
    one_norm_linear((shape){11, 11, 8192, 1024}, DTYPE_BF16, DTYPE_BF16, NORM_RMS, MATRIX_GATED, ACT_GEGLU, 0, 0);
    one_norm_linear((shape){768, 768, 4304, 1152}, DTYPE_BF16, DTYPE_BF16, NORM_LAYER, MATRIX_PLAIN, ACT_GELU, 1, 0);
    one_norm_linear((shape){788, 816, 32768, 2048}, DTYPE_BF16, DTYPE_BF16, NORM_RMS, MATRIX_GATED, ACT_GEGLU, 0, 0);
    finish();
}

static void one_residual(shape s, dtype type, int with_bias, int with_gate) {
    char name[160];
    rows r = make_rows(s.count, s.capacity, 1, 0);
    int list[4096], listed;
    weights w = make_weights(MATRIX_PLAIN, type, s.n, s.k, 0, 0);
    op a = {.kind = OP_LINEAR_RESIDUAL, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    void *x = acts(type, (size_t)s.capacity * (size_t)s.k, 1.5f);
    float *bias = with_bias ? floats((size_t)s.n, 0, 0.5f) : NULL, *gate = with_gate ? floats((size_t)s.n, 0, 1) : NULL;
    size_t out_count = (size_t)s.capacity * (size_t)s.n;
    output o = make_output(acts(type, out_count, 2), act_bytes(type, out_count));
    a.linear_residual = (op_linear_residual){r.host, x, w.host, bias, gate, o.host};
    b.linear_residual = (op_linear_residual){r.device, up(x, act_bytes(type, (size_t)s.capacity * (size_t)s.k)), w.device,
                                             bias ? up(bias, (size_t)s.n * sizeof(float)) : NULL, gate ? up(gate, (size_t)s.n * sizeof(float)) : NULL, o.device};
    define(&a, s.count, (double)s.n * s.k, list, &listed);
    snprintf(name, sizeof name, "linear_residual %dx%dx%d %s", s.count, s.n, s.k, type ? "bf16" : "f32");
    output *outputs[] = {&o};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 1, name, sizeof name);
        void *got = down(&o);
        for (int i = 0; i < listed; i++) compare(name, &o, got, type, (size_t)list[i] * (size_t)s.n, (size_t)s.n);
        compare_kept(name, &o, got, type, (size_t)s.count * (size_t)s.n, out_count);
        give_up(mark);
    }
    drop();
}

static void test_linear_residual(void **state) {
    (void)state;
    NEEDS_GPU();
    static const shape shapes[] = {
        {1, 1, 40, 104}, {4, 6, 96, 768}, {11, 11, 1024, 2048}, {10, 10, 1024, 4096}, {51, 51, 1024, 4096}, {33, 64, 64, 144}, {90, 100, 72, 88},
        {256, 512, 144, 208}, {768, 768, 1152, 1152}, {768, 768, 1152, 4304}, {788, 816, 2048, 2048}, {532, 560, 2048, 16384}, {788, 788, 2048, 16384},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++) {
            if (!t && (double)shapes[i].count * shapes[i].n * shapes[i].k > 2e9) continue;
            one_residual(shapes[i], types[t], i & 1, i % 3 == 0);
        }
    one_residual((shape){20, 20, 41, 43}, DTYPE_BF16, 1, 1);
    finish();
}

static void one_qkv(shape s, dtype type, int heads, int head_dim, int samples, int prefix) {
    char name[160];
    rows r = make_rows(s.count, s.capacity, samples, prefix);
    int n = (heads + 2) * head_dim, each = (s.count + samples - 1) / samples, places = prefix + samples + each + 3, list[4096], listed;
    weights w = make_weights(MATRIX_QKV, type, n, s.k, heads, head_dim);
    op a = {.kind = OP_NORM_QKV, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    void *x = acts(type, (size_t)s.capacity * (size_t)s.k, 1.5f);
    float *rope = floats((size_t)places * (size_t)head_dim, 0, 1);
    norm on_device, on_host = make_norm(NORM_RMS, s.k, samples & 1, &on_device);
    size_t q_count = (size_t)s.capacity * (size_t)(heads * head_dim), kv_count = (size_t)samples * (size_t)places * (size_t)head_dim;
    output q = make_output(poison(act_bytes(type, q_count + 8)), act_bytes(type, q_count + 8));
    output k = make_output(poison(act_bytes(type, kv_count)), act_bytes(type, kv_count)), v = make_output(poison(act_bytes(type, kv_count)), act_bytes(type, kv_count));
    a.norm_qkv = (op_norm_qkv){r.host, x, on_host, w.host, rope, q.host, {k.host, v.host, places, head_dim}};
    b.norm_qkv = (op_norm_qkv){r.device, up(x, act_bytes(type, (size_t)s.capacity * (size_t)s.k)), on_device, w.device,
                               up(rope, (size_t)places * (size_t)head_dim * sizeof(float)), q.device, {k.device, v.device, places, head_dim}};
    define(&a, s.count, (double)n * s.k, list, &listed);
    snprintf(name, sizeof name, "norm_qkv %dx%dx%d %s heads %d samples %d", s.count, n, s.k, type ? "bf16" : "f32", heads, samples);
    output *outputs[] = {&q, &k, &v};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 3, name, sizeof name);
        void *got_q = down(&q), *got_k = down(&k), *got_v = down(&v);
        for (int i = 0; i < listed; i++) {
            int row = list[i];
            size_t place = (size_t)(r.host.sample[row] * places + r.host.position[row]) * (size_t)head_dim, width = (size_t)(heads * head_dim);
            if (heads) compare(name, &q, got_q, type, (size_t)row * width, width);
            compare(name, &k, got_k, type, place, (size_t)head_dim);
            compare(name, &v, got_v, type, place, (size_t)head_dim);
        }
        compare_kept(name, &k, got_k, type, 0, (size_t)prefix * (size_t)head_dim);
        compare_kept(name, &v, got_v, type, 0, (size_t)prefix * (size_t)head_dim);
        if (heads) compare_kept(name, &q, got_q, type, (size_t)s.count * (size_t)(heads * head_dim), q_count);
        give_up(mark);
    }
    drop();
}

static void test_norm_qkv(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++) {
        one_qkv((shape){4, 5, 0, 40}, types[t], 3, 256, 2, 20);
        one_qkv((shape){11, 11, 0, 1024}, types[t], 8, 256, 1, 788);
        one_qkv((shape){22, 33, 0, 64}, types[t], 8, 256, 3, 30);
        one_qkv((shape){300, 400, 0, 96}, types[t], 3, 256, 2, 0);
        one_qkv((shape){788, 816, 0, t ? 2048 : 128}, types[t], 8, 256, 1, 0);
        one_qkv((shape){788, 816, 0, t ? 2048 : 128}, types[t], 0, 256, 1, 0);
        one_qkv((shape){30, 30, 0, 48}, types[t], 2, 24, 2, 3);
        one_qkv((shape){30, 30, 0, 50}, types[t], 2, 36, 1, 3);
    }
    finish();
}

/* ---- attention -------------------------------------------------------------------------------------------- */

static void one_image_attention(int images, int capacity, int heads, int head_dim, dtype type) {
    char name[160];
    rows r = make_rows(images * 256, capacity * 256, 1, 0);
    int list[4096], listed;
    op a = {.kind = OP_IMAGE_ATTENTION, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    size_t width = (size_t)(heads * head_dim), count = (size_t)capacity * 256 * width;
    void *qkv = acts(type, count * 3, 2);
    output o = make_output(poison(act_bytes(type, count)), act_bytes(type, count));
    a.image_attention = (op_image_attention){r.host, qkv, heads, head_dim, 1 / sqrtf((float)head_dim), o.host, 0};
    b.image_attention = (op_image_attention){r.device, up(qkv, act_bytes(type, count * 3)), heads, head_dim, 1 / sqrtf((float)head_dim), o.device, 0};
    define(&a, images * 256, (double)heads * head_dim * 256 * 6, list, &listed);
    snprintf(name, sizeof name, "image_attention %d images %d heads of %d %s", images, heads, head_dim, type ? "bf16" : "f32");
    output *outputs[] = {&o};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 1, name, sizeof name);
        void *got = down(&o);
        for (int i = 0; i < listed; i++) compare(name, &o, got, type, (size_t)list[i] * width, width);
        compare_kept(name, &o, got, type, (size_t)images * 256 * width, count);
        give_up(mark);
    }
    drop();
}

static void test_image_attention(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++) {
        one_image_attention(1, 1, 1, 72, types[t]);
        one_image_attention(2, 3, 2, 72, types[t]);
        one_image_attention(3, 3, 16, 72, types[t]);
        one_image_attention(1, 2, 2, 20, types[t]);
    }
    finish();
}

static void one_cache_attention(int count, int capacity, int samples, int prefix, int heads, int head_dim, dtype type) {
    char name[160];
    rows r = make_rows(count, capacity, samples, prefix);
    int each = (count + samples - 1) / samples, places = (prefix + samples + each + 31) / 32 * 32, list[4096], listed;
    op a = {.kind = OP_CACHE_ATTENTION, .stage = OPENPI_STAGE_DENOISE, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    size_t width = (size_t)(heads * head_dim), q_count = (size_t)capacity * width, kv_count = (size_t)samples * (size_t)places * (size_t)head_dim;
    void *q = acts(type, q_count, 1.5f), *k = acts(type, kv_count, 1.5f), *v = acts(type, kv_count, 1);
    size_t width_bytes = act_bytes(type, (size_t)head_dim);
    for (int s = 0; s < samples; s++)    /* what stands behind a sample's rows must not be seen */
        for (int p = prefix + s + each; p < places; p++) {
            memset((char *)k + ((size_t)s * (size_t)places + (size_t)p) * width_bytes, 0xff, width_bytes);
            memset((char *)v + ((size_t)s * (size_t)places + (size_t)p) * width_bytes, 0xff, width_bytes);
        }
    output o = make_output(poison(act_bytes(type, q_count)), act_bytes(type, q_count));
    float scale = 1 / sqrtf((float)head_dim);
    a.cache_attention = (op_cache_attention){r.host, q, heads, scale, {k, v, places, head_dim}, o.host};
    b.cache_attention = (op_cache_attention){r.device, up(q, act_bytes(type, q_count)), heads, scale,
                                             {up(k, act_bytes(type, kv_count)), up(v, act_bytes(type, kv_count)), places, head_dim}, o.device};
    define(&a, count, (double)heads * head_dim * (prefix + each) * 6, list, &listed);
    snprintf(name, sizeof name, "cache_attention %d rows %d samples prefix %d, %d heads of %d %s", count, samples, prefix, heads, head_dim, type ? "bf16" : "f32");
    output *outputs[] = {&o};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 1, name, sizeof name);
        void *got = down(&o);
        for (int i = 0; i < listed; i++) compare(name, &o, got, type, (size_t)list[i] * width, width);
        compare_kept(name, &o, got, type, (size_t)count * width, q_count);
        give_up(mark);
    }
    drop();
}

static void test_cache_attention(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++) {
        one_cache_attention(1, 1, 1, 5, 8, 256, types[t]);
        one_cache_attention(11, 11, 1, 788, 8, 256, types[t]);
        one_cache_attention(10, 12, 1, 300, 3, 256, types[t]);
        one_cache_attention(33, 44, 3, 260, 8, 256, types[t]);
        one_cache_attention(51, 51, 1, 816, 8, 256, types[t]);
        one_cache_attention(4, 4, 4, 64, 8, 256, types[t]);
        one_cache_attention(300, 340, 1, 0, 3, 256, types[t]);
        one_cache_attention(788, 816, 1, 0, 8, 256, types[t]);
        one_cache_attention(1500, 1600, 2, 0, 8, 256, types[t]);
        one_cache_attention(640, 640, 64, 20, 8, 256, types[t]);
        one_cache_attention(20, 20, 2, 10, 2, 24, types[t]);
        one_cache_attention(20, 20, 2, 10, 2, 36, types[t]);
    }
    finish();
}

/* ---- the ends --------------------------------------------------------------------------------------------- */

static void one_patch_embed(int images, int capacity, int n, dtype type, dtype weight_type, int32_t pixels) {
    char name[160];
    rows r = make_rows(images * 256, capacity * 256, 1, 0);
    int list[4096], listed;
    weights w = make_weights(MATRIX_PLAIN, weight_type, n, 588, 0, 0);
    op a = {.kind = OP_PATCH_EMBED, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    size_t inputs = (size_t)capacity * 224 * 224 * 3, count = (size_t)capacity * 256 * (size_t)n;
    float *bias = floats((size_t)n, 0, 0.5f), *position = floats(256 * (size_t)n, 0, 0.5f), *image = floats(inputs, 0, 1);
    uint8_t *bytes = host(inputs);
    for (size_t i = 0; i < inputs; i++) bytes[i] = (uint8_t)(image[i] * 127 + 128);
    const void *from = pixels == OPENPI_PIXELS_F32 ? (const void *)image : bytes;
    int32_t *kind = host(sizeof *kind);
    *kind = pixels;
    output o = make_output(poison(act_bytes(type, count)), act_bytes(type, count));
    a.patch_embed = (op_patch_embed){r.host, from, kind, w.host, bias, position, o.host};
    b.patch_embed = (op_patch_embed){r.device, up(from, pixels == OPENPI_PIXELS_F32 ? inputs * 4 : inputs), up(kind, sizeof *kind), w.device,
                                     up(bias, (size_t)n * 4), up(position, 256 * (size_t)n * 4), o.device};
    define(&a, images * 256, (double)n * 588 * 4, list, &listed);
    snprintf(name, sizeof name, "patch_embed %d images n %d %s w %s pixels %d", images, n, type ? "bf16" : "f32", weight_type ? "bf16" : "f32", pixels);
    output *outputs[] = {&o};
    for (int way = 0, mark = g.host_count, count_ways = ways_of(&b); way <= count_ways; way++) {
        run_way(&b, way, outputs, 1, name, sizeof name);
        void *got = down(&o);
        for (int i = 0; i < listed; i++) compare(name, &o, got, type, (size_t)list[i] * (size_t)n, (size_t)n);
        compare_kept(name, &o, got, type, (size_t)images * 256 * (size_t)n, count);
        give_up(mark);
    }
    drop();
}

static void test_patch_embed(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++)
            for (int p = 0; p < 2; p++) {
                one_patch_embed(1, 1, 72, types[t], types[w], p);
                one_patch_embed(2, 3, 144, types[t], types[w], p);
            }
    one_patch_embed(3, 3, 1152, DTYPE_BF16, DTYPE_BF16, OPENPI_PIXELS_U8);
    finish();
}

static void test_embed_text(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++)
        for (int width = 41; width < 2500; width *= 7) {
            rows r = make_rows(20, 48, 1, 0);
            op a = {.kind = OP_EMBED_TEXT, .type = types[t], .step = -1, .layer = -1, .name = "test"}, b = a;
            float *text = floats(48 * (size_t)width, 0, 1);
            int32_t *map = host(48 * sizeof *map);
            for (int i = 0; i < 48; i++) map[i] = 59 - i;
            output o = make_output(poison(act_bytes(types[t], 60 * (size_t)width)), act_bytes(types[t], 60 * (size_t)width));
            a.embed_text = (op_embed_text){r.host, text, width, sqrtf((float)width), map, o.host};
            b.embed_text = (op_embed_text){r.device, up(text, 48 * (size_t)width * 4), width, sqrtf((float)width), up(map, 48 * 4), o.device};
            run(&b);
            void *got = down(&o);
            reference_embed_text(&a, 0, 20);
            compare("embed_text", &o, got, types[t], 40 * (size_t)width, 20 * (size_t)width);
            compare_kept("embed_text", &o, got, types[t], 0, 40 * (size_t)width);
            drop();
        }
    finish();
}

static void one_state_embed(int samples, int n, dtype type, dtype weight_type, int stride) {
    rows r = make_rows(samples, samples + 2, samples, 3);
    weights w = make_weights(MATRIX_PLAIN, weight_type, n, 32, 0, 0);
    op a = {.kind = OP_STATE_EMBED, .type = type, .step = -1, .layer = -1, .name = "test"}, b = a;
    size_t inputs = (size_t)(samples + 2) * 32, count = (size_t)(samples + 2) * (size_t)stride * (size_t)n;
    float *s = floats(inputs, 0, 1), *bias = floats((size_t)n, 0, 1);
    output o = make_output(poison(act_bytes(type, count)), act_bytes(type, count));
    a.state_embed = (op_state_embed){r.host, s, w.host, bias, stride, o.host};
    b.state_embed = (op_state_embed){r.device, up(s, inputs * 4), w.device, up(bias, (size_t)n * 4), stride, o.device};
    run(&b);
    void *got = down(&o);
    reference_state_embed(&a, 0, samples);
    for (int i = 0; i < samples; i++) {
        compare("state_embed", &o, got, type, (size_t)i * (size_t)stride * (size_t)n, (size_t)n);
        compare_kept("state_embed", &o, got, type, ((size_t)i * (size_t)stride + 1) * (size_t)n, (size_t)(i + 1) * (size_t)stride * (size_t)n);
    }
    drop();
}

static void test_state_embed(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++) {
            one_state_embed(1, 1024, types[t], types[w], 1);
            one_state_embed(3, 40, types[t], types[w], 11);
            one_state_embed(64, 64, types[t], types[w], 1);
            one_state_embed(70, 40, types[t], types[w], 3);
        }
    finish();
}

static void one_action_embed(int samples, int horizon, int offset, int n, dtype type, dtype weight_type, int deep) {
    int count = samples * horizon, stride = horizon + offset;
    rows r = make_rows(count, count + 3, samples, 3);
    weights in = make_weights(MATRIX_PLAIN, weight_type, n, 32, 0, 0), one = {0}, two = {0};
    op a = {.kind = OP_ACTION_EMBED, .type = type, .step = 0, .layer = -1, .name = "test"}, b = a;
    size_t inputs = (size_t)(count + 3) * 32, outputs = (size_t)((samples + 1) * stride) * (size_t)n;
    float *x = floats(inputs, 0, 1), *bias = floats((size_t)n, 0, 1), *time = floats((size_t)n, 0, 1), *bias2 = floats((size_t)n, 0, 1);
    if (deep) one = make_weights(MATRIX_PLAIN, weight_type, n, n, 0, 0), two = make_weights(MATRIX_PLAIN, weight_type, n, n, 0, 0);
    output o = make_output(poison(act_bytes(type, outputs)), act_bytes(type, outputs));
    a.action_embed = (op_action_embed){r.host, horizon, stride, offset, x, in.host, bias, one.host, two.host, time, bias2, o.host};
    b.action_embed = (op_action_embed){r.device, horizon, stride, offset, up(x, inputs * 4), in.device, up(bias, (size_t)n * 4), one.device, two.device,
                                       up(time, (size_t)n * 4), up(bias2, (size_t)n * 4), o.device};
    run(&b);
    void *got = down(&o);
    reference_action_embed(&a, 0, count);
    for (int s = 0; s < samples; s++) {
        size_t first = (size_t)(s * stride) * (size_t)n, lead = (size_t)offset * (size_t)n;
        compare("action_embed", &o, got, type, first + lead, (size_t)(horizon * n));
        compare_kept("action_embed", &o, got, type, first, first + lead);
    }
    drop();
}

static void test_action_embed(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++)
            for (int deep = 0; deep < 2; deep++) {
                one_action_embed(1, 10, 0, 1024, types[t], types[w], deep);
                one_action_embed(2, 10, 1, 40, types[t], types[w], deep);
                one_action_embed(3, 50, 1, 64, types[t], types[w], deep);
            }
    finish();
}

static void one_velocity(int samples, int horizon, int offset, int k, dtype type, dtype weight_type, int ada) {
    int count = samples * horizon, stride = horizon + offset;
    rows r = make_rows(count, count + 3, samples, 3);
    weights w = make_weights(MATRIX_PLAIN, weight_type, 32, k, 0, 0);
    op a = {.kind = OP_VELOCITY, .type = type, .step = 0, .layer = -1, .name = "test"}, b = a;
    size_t inputs = (size_t)((samples + 1) * stride) * (size_t)k, outputs = (size_t)(count + 3) * 32;
    void *x = acts(type, inputs, 3);
    float *bias = floats(32, 0, 1);
    norm on_device, on_host = make_norm(NORM_RMS, k, ada, &on_device);
    output v = make_output(poison(outputs * 4), outputs * 4), x_t = make_output(floats(outputs, 0, 1), outputs * 4);
    a.velocity = (op_velocity){r.host, horizon, stride, offset, x, on_host, w.host, bias, -0.1f, v.host, x_t.host};
    b.velocity = (op_velocity){r.device, horizon, stride, offset, up(x, act_bytes(type, inputs)), on_device, w.device, up(bias, 32 * 4), -0.1f, v.device, x_t.device};
    run(&b);
    void *got_v = down(&v), *got_x = down(&x_t);
    reference_velocity(&a, 0, count);
    /* One rounding of the norm to bf16 may fall the other way; the sums themselves are fp32. */
    double worst = 0;
    for (int i = 0; i < count * 32; i++) {
        double d = fabs(at(got_v, DTYPE_F32, (size_t)i) - at(v.host, DTYPE_F32, (size_t)i));
        if (!(d <= worst)) worst = d;
    }
    if (!(worst <= (type == DTYPE_BF16 ? 0.01 : 1e-4))) {
        print_message("velocity %d x %d k %d %s: max %.2e FAIL\n", samples, horizon, k, type ? "bf16" : "f32", worst);
        g.failed++;
    }
    g.checked++;
    if (type == DTYPE_F32) compare("velocity x_t", &x_t, got_x, DTYPE_F32, 0, (size_t)count * 32);
    for (int i = 0; i < count * 32; i++) {
        double d = fabs(at(got_x, DTYPE_F32, (size_t)i) - (at(x_t.before, DTYPE_F32, (size_t)i) - 0.1 * at(got_v, DTYPE_F32, (size_t)i)));
        if (!(d < 1e-5)) {
            print_message("velocity: x_t[%d] is off by %g FAIL\n", i, d);
            g.failed++;
            break;
        }
    }
    compare_kept("velocity", &v, got_v, DTYPE_F32, (size_t)count * 32, outputs);
    drop();
}

static void test_velocity(void **state) {
    (void)state;
    NEEDS_GPU();
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++) {
            one_velocity(1, 10, 0, 1024, types[t], types[w], 0);
            one_velocity(2, 10, 1, 40, types[t], types[w], 1);
            one_velocity(3, 50, 1, 64, types[t], types[w], 0);
        }
    finish();
}

/* ---- */

static int open_device(void **state) {
    device_options options = {.path = getenv("OPENPI_TEST_GPU_PATH")};
    (void)state;
    g.random = 12345;
    if (backend_cuda.open("cuda:0", &options, &g.device, &error) != OPENPI_OK) {
        g.device = NULL;
        snprintf(g.reason, sizeof g.reason, "%s", error.message);
    } else {
        print_message("device cuda:0, kernels: %s\n", g.device->path);
    }
    return 0;
}

static int close_device(void **state) {
    (void)state;
    if (g.device) {
        print_message("%d comparisons\n", g.checked);
        backend_cuda.close(g.device);
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_linear),     cmocka_unit_test(test_linear_residual), cmocka_unit_test(test_norm_qkv),
        cmocka_unit_test(test_image_attention), cmocka_unit_test(test_cache_attention), cmocka_unit_test(test_patch_embed),
        cmocka_unit_test(test_embed_text),      cmocka_unit_test(test_state_embed),     cmocka_unit_test(test_action_embed),
        cmocka_unit_test(test_velocity),
    };
    return cmocka_run_group_tests_name("gpu", tests, open_device, close_device);
}
