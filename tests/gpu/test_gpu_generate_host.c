/* labels: threads */
/* Synthetic weights that the device makes, over a driver that is not there (fake_gpu.h) and that runs the
 * kernel's C: the bytes, what is launched and what is still uploaded. tests/gpu/test_gpu_generate.c is the
 * same on a card. */
#include "fake_gpu.h"
#include "generated_matrix.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static device *open_device(pool **threads) {
    device_options options = {0};
    device *device = NULL;
    reset();
    generated_ok(pool_create(1, 0, threads, &error), &error);        /* the fake counts without locks */
    options.pool = *threads;
    generated_ok(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error), &error);
    return device;
}

static void close_device(device *device, pool *threads) {
    device->backend->close(device);
    pool_close(threads);
    assert_int_equal(fake.alive, 0);
    assert_int_equal(fake.memory, 0);
}

/* ---- the bytes ------------------------------------------------------------------------------------ */

static void test_matrices(void **state) {
    pool *threads;
    device *device = open_device(&threads);
    (void)state;
    check_generated_cases(device);
    assert_int_equal(fake.generated, 4 * GENERATED_CASES);
    close_device(device, threads);
}

/* With everything on, and with each switch of the model off and all of them. */
static void test_models(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    pool *threads;
    device *device = open_device(&threads);
    (void)state;
    for (int i = 0; i < 4; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        checkpoint *weights = NULL;
        generated_ok(openpi_synthetic_parse(specs[i], &synthetic, &error), &error);
        generated_ok(checkpoint_open(NULL, &synthetic, &weights, &error), &error);
        check_generated_model(device, threads, weights, 0, specs[i]);
        for (uint32_t off = 1; off < 1u << SWITCHES; off <<= 1)
            if (off & MODEL_SWITCHES) check_generated_model(device, threads, weights, off, specs[i]);
        check_generated_model(device, threads, weights, MODEL_SWITCHES, specs[i]);
        checkpoint_close(weights);
    }
    close_device(device, threads);
}

/* ---- the order of rows ---------------------------------------------------------------------------- */

/* The row of packed column p as kernels/args.h has it, -1: padding. */
static int row_told(const matrix *m, int p) {
    int per_head = gpu_head_columns(m->head_dim), paired = (m->heads + 1) * per_head, half = m->n / 2,
        first = 0;
    if (m->form == MATRIX_PLAIN) return p < m->n ? p : -1;
    if (m->form == MATRIX_QKV) {
        first = (m->heads + 1) * m->head_dim;
        if (p >= paired) return first + p - paired < m->n ? first + p - paired : -1;
        first = p / per_head * m->head_dim;
        half = m->head_dim / 2;
        p %= per_head;
    }
    int unit = p / 16, in = p % 16, i = 8 * unit + in % 8;
    return i < half ? first + i + (in < 8 ? 0 : half) : -1;
}

/* Host and kernels share the function, so that comparing their bytes would not see a fault in it. */
static void test_row_order(void **state) {
    (void)state;
    for (int number = 0; number < GENERATED_CASES; number++) {
        const generated_case *c = &generated_cases[number];
        matrix m = {.n = c->rows[0] + c->rows[1] + c->rows[2],
                    .k = c->k,
                    .type = WEIGHT_BF16,
                    .form = c->form,
                    .heads = c->heads,
                    .head_dim = c->head_dim};
        gpu_row_order order = gpu_row_order_of(&m);
        gpu_weights packed = gpu_weights_of(&m);
        int seen = 0;
        for (int p = 0; p < packed.columns; p++) {
            int rows, row = gpu_group_rows(&order, p / 8, &rows) + p % 8;
            assert_int_equal(p % 8 < rows ? row : -1, row_told(&m, p));
            seen += p % 8 < rows;
        }
        assert_int_equal(seen, m.n);
    }
}

/* ---- what is uploaded ----------------------------------------------------------------------------- */

enum { MOST = 256 };

static int add(const matrix **list, int count, const matrix *from, int n) {
    for (int i = 0; i < n; i++)
        if (from[i].data) list[count++] = &from[i];
    return count;
}

static int matrices_of(const model *m, const matrix **list) {
    const matrix heads[] = {m->patch,     m->projector,  m->embedding, m->expert_ada, m->state,
                            m->action_in, m->action_out, m->mlp_in,    m->time_in,    m->mlp_out};
    static matrix kept[sizeof heads / sizeof *heads];
    memcpy(kept, heads, sizeof heads);
    int count = add(list, 0, kept, (int)(sizeof heads / sizeof *heads));
    for (int i = 0; i < m->dims.vision_depth; i++) {
        const vision_layer *v = &m->vision[i];
        count = add(list, count, &v->qkv, 1);
        count = add(list, count, &v->out, 1);
        count = add(list, count, &v->fc1, 1);
        count = add(list, count, &v->fc2, 1);
    }
    for (int i = 0; i < 2 * m->dims.depth; i++) {
        const gemma_layer *g = i & 1 ? &m->expert[i / 2] : &m->prefix[i / 2];
        const matrix *of[] = {&g->qkv, &g->o, &g->gate_up, &g->down, &g->ada_in, &g->ada_post};
        for (int j = 0; j < 6; j++) count = add(list, count, of[j], 1);
    }
    assert_true(count <= MOST);
    return count;
}

/* Bytes of the matrix that came by copies. */
static size_t uploaded_to(const device *device, const matrix *m) {
    const char *from = m->data, *end = from + device->backend->matrix_bytes(device, m);
    size_t sum = 0;
    for (int i = 0; i < fake.upload_count; i++) {
        const char *a = fake.uploads[i].to, *e = a + fake.uploads[i].bytes;
        if (a < from) a = from;
        if (e > end) e = end;
        if (a < e) sum += (size_t)(e - a);
    }
    return sum;
}

/* The last progress, and how often it went backwards. */
static struct { uint64_t done, total, back; } told;
static int tell(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    assert_string_equal(what, "packing weights");
    told.back += done < told.done || (told.total && told.total != total);
    told.done = done;
    told.total = total;
    return 0;
}

/* Without files no matrix is uploaded but the merged one, which is computed from two; from files every one
 * is. */
static void test_uploads(void **state) {
    static const openpi_variant variants[] = {OPENPI_PI0, OPENPI_PI05};
    static const matrix *list[MOST];
    (void)state;
    for (int v = 0; v < 2; v++) {
        unsigned char *bytes[2];
        size_t total = 0;
        for (int files = 0; files < 2; files++) {
            openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
            checkpoint *weights = NULL;
            model *m;
            pool *threads;
            scratch s;
            device *device = open_device(&threads);
            generated_ok(openpi_synthetic_parse("tiny", &synthetic, &error), &error);
            synthetic.variant = variants[v];
            assert_int_equal(scratch_open(&s), 0);
            if (files)
                generated_ok(openpi_synthetic_write(&synthetic, s.folder, 0, 1, NULL, NULL, &error), &error);
            generated_ok(
                checkpoint_open(files ? s.folder : NULL, files ? NULL : &synthetic, &weights, &error),
                &error);
            memset(&told, 0, sizeof told);
            model_types types = formats_all(DTYPE_BF16, FORMAT_BF16);
            generated_ok(model_load(weights, device, types, 0, threads, tell, NULL, &m, &error), &error);
            int count = matrices_of(m, list), computed = 0;
            assert_true(fake.upload_count > 0 && fake.upload_count < LOG);
            for (int i = 0; i < count; i++) {
                int merged = list[i]->data == m->action_in.data && !m->mlp_in.data && !v;
                computed += merged;
                assert_int_equal(uploaded_to(device, list[i]),
                                 files || merged ? device->backend->matrix_bytes(device, list[i]) : 0);
            }
            assert_int_equal(fake.generated, files ? 0 : count - computed);
            assert_true(count > 20 && computed <= 1);
            assert_true(told.total > 0 && told.done == told.total && !told.back);
            total = m->bytes;
            bytes[files] = generated_bytes(device, m->block, total);
            model_close(m);
            checkpoint_close(weights);
            scratch_close(&s);
            close_device(device, threads);
        }
        generated_same(bytes[0], bytes[1], total, v ? "pi05 from files" : "pi0 from files");
        free(bytes[0]);
        free(bytes[1]);
    }
}

/* ---- failures --------------------------------------------------------------------------------------- */

static void test_refused(void **state) {
    pool *threads;
    device *device = open_device(&threads);
    generated_matrix from = {.parts = {{.rows = 3}, {.rows = 4}}, .count = 2, .row_length = 8};
    matrix m = {.n = 8, .k = 8, .type = WEIGHT_BF16};
    void *memory = generated_poisoned(device, device->backend->matrix_bytes(device, &m));
    (void)state;
    assert_int_equal(device->backend->matrix_generate(device, &m, &from, memory, &error),
                     OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "a generated weight's parts have 7 rows, expected 8");
    from.count = GENERATED_PARTS + 1;
    assert_int_equal(device->backend->matrix_generate(device, &m, &from, memory, &error),
                     OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "a generated weight has 4 parts, expected 1 to 3");
    assert_int_equal(fake.generated, 0);
    from.count = 2;
    from.parts[1].rows = 5;
    fake.fail_at = fake.calls + 1;         /* the launch */
    assert_int_equal(device->backend->matrix_generate(device, &m, &from, memory, &error), OPENPI_DEVICE_LOST);
    assert_non_null(strstr(error.message, "while making synthetic weights"));
    fake.fail_at = -1;
    device->backend->release(device, memory);
    close_device(device, threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_row_order),
        cmocka_unit_test(test_uploads),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("gpu generate host", tests, NULL, NULL);
}
