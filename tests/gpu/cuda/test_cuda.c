/* NVIDIA's backend over the fake libcuda: what it says of drivers and devices that it cannot use, that its
 * portable kernels give openpi's actions, that everything is given back, that it survives what the driver
 * refuses, that faults of the machine do not pass, and what resident_mma does where a table names it.
 *
 *   test_cuda device | goldens | faults | resident | pairs | codes   with the fake library on the loader's
 *                                         path
 *   test_cuda missing                     without it
 *   test_cuda old                         with the library of old.c
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/gpu/cuda/vendor.h"
#include "emulation.h"

#define EMULATED "cuda"
#define EMULATED_CAPTURE "cuStreamBeginCapture_v2"
#define EMULATED_COPY_ROWS "cuMemcpy2DAsync_v2"
#define EMULATED_ON_THE_WAY "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"
#include "emulated_tests.h"
#include "left_codes.h"

/* ---- devices that cannot be used ----------------------------------------------------------------------- */

static void test_listed(void **state) {
    openpi_device d = listed();
    (void)state;
    assert_string_equal(d.name, "cuda:0");
    assert_string_equal(d.path, "portable");
    assert_string_equal(d.reason, "");
    assert_true(d.usable && d.memory_bytes == fake->memory_bytes);
    assert_string_equal(d.description, "Emulated GPU, compute capability 8.6, driver for CUDA 13.0");
}

static void test_unusable(void **state) {
    (void)state;
    snprintf(fake->architecture, sizeof fake->architecture, "sm_75");
    unusable("cuda:0", "its compute capability is 7.5, expected 8.0 or newer");
    set_up(NULL);
    fake->devices = 0;
    unusable("cuda", "the NVIDIA driver sees no GPU");
    says("there is no device \"cuda:0\", the driver sees 0");
    set_up(NULL);
    fake->version = 11080;
    unusable("cuda:0", "the driver is for CUDA 11.8, expected 12.0 or newer");
}

static void test_refused(void **state) {
    static const refusal cases[] = {
        {"cuInit", 0, 3, OPENPI_NO_DEVICE, "the NVIDIA driver does not start: some error (error 3)"},
        {"cuModuleLoadData", 1, 209, OPENPI_NO_DEVICE, "cuda:0"},
        {"cuModuleGetFunction", 0, 500, OPENPI_NO_DEVICE, "does not open: some error (error 500) at attention"},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 0, 3, OPENPI_NO_DEVICE, "(error 3) at resident_mma"},
        {"cuMemHostAlloc", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0 while opening it"},
        {"cuMemAlloc_v2", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0 while opening it (resident_mma)"},
        {"cuMemAlloc_v2", 1, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0: "},
        {"cuMemcpyHtoDAsync_v2", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
        {"cuLaunchKernelEx", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
    };
    (void)state;
    check_refused(cases, sizeof cases / sizeof *cases);
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static void test_goldens(void **state) {
    static const golden_case cases[] = {
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, "sm_86", NULL},
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_F32, "sm_90", NULL},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "sm_80", NULL},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "sm_86", "int8x8,expert=int8"},
    };
    (void)state;
    check_goldens(cases, sizeof cases / sizeof *cases, "cuda/portable");
}

/* ---- faults -------------------------------------------------------------------------------------------- */

/* A fault of the machine makes the golden fail, or a kernel is stopped with a sentence. */
static void test_faults(void **state) {
    static const struct {
        emu_fault fault;
        int n;
    } cases[] = {
        {EMU_SKIPPED_BARRIER, 0}, {EMU_SKIPPED_BARRIER, 1}, {EMU_EARLY_COPIES, 0},
        {EMU_WRONG_ROWS, 0},      {EMU_WRONG_SWIZZLE, 0},   {EMU_SWAPPED_LANES, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_up(NULL);
        fake->set_fault((int)cases[i].fault, cases[i].n);
        verify_row row = verify(GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, NULL);
        if (row.result != VERIFY_FAIL) fail_msg("case %zu passes", i);
    }
}

/* ---- the layers of a denoise step as one launch -------------------------------------------------------- */

enum { STEPS = 2, LAYERS = 2, CACHE_ROUND = 32 };           /* as the model has them                        */

static uint64_t hash_of(const char *family) {
    const gpu_module *m = cuda_modules;
    while (m->family && strcmp(m->family->name, family)) m++;
    return m->hash;
}

/* The expert's sizes: the odd ones, and those of the models, whose warps have whole blocks of 64 k. */
typedef struct expert_sizes {
    int heads, width, mlp;
} expert_sizes;
static const expert_sizes odd = {3, 40, 0}, large = {8, 1024, 4096};

/* A table in which the expert's first product, of `rows` rows, is resident_mma's, and attention reads tiles
 * of 64 keys apart, as that does. */
static void write_table(char *path, int rows, expert_sizes expert) {
    FILE *file = fdopen(mkstemp(strcpy(path, "/tmp/openpi-table-XXXXXX")), "w");
    assert_non_null(file);
    fprintf(file,
            "{\"kind\": \"tuning\", \"format\": 2, \"openpi\": \"\", \"device\": \"Emulated GPU\", "
            "\"path\": \"portable\", \"threads\": 0, \"kernels\": {\"resident_mma_6\": \"%016llx\", "
            "\"attention_cache_1 x16\": \"%016llx\"}, \"entries\": ["
            "{\"op\": \"norm_qkv\", \"form\": \"qkv\", \"norm\": \"rms\", \"dtype\": \"bf16\", \"m\": %d, "
            "\"n\": %d, \"k\": %d, \"heads\": %d, \"head_dim\": 256, \"choice\": \"resident_mma_6\"}, "
            "{\"op\": \"cache_attention\", \"dtype\": \"bf16\", \"m\": %d, \"heads\": %d, "
            "\"head_dim\": 256, \"capacity\": %d, \"choice\": \"attention_cache_1 x16\"}]}",
            (unsigned long long)hash_of("resident_mma"), (unsigned long long)hash_of("attention_mma"), rows,
            (expert.heads + 2) * 256, expert.width, expert.heads, rows, expert.heads,
            (3 * OPENPI_IMAGE_TOKENS + 200 + rows + CACHE_ROUND - 1) / CACHE_ROUND * CACHE_ROUND);
    fclose(file);
}

/* Actions of π0.5 with and without resident kernels; returns how many launches the call has. */
static int table_call(const char *table, const char *without, expert_sizes expert, float *actions) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options choices = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_session *session;
    must(openpi_synthetic_parse("odd:pi05", &synthetic, &error));
    if (expert.mlp) {
        synthetic.dims.heads = expert.heads;
        synthetic.dims.expert_width = expert.width;
        synthetic.dims.expert_mlp = expert.mlp;
    }
    options.synthetic = &synthetic;
    options.device = EMULATED ":0";
    options.table = table;
    options.without = without;
    choices.horizon = 10;
    choices.steps = STEPS;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    must(openpi_session_create(engine, &choices, &session, &error));
    const int before = fake->launches;
    must(infer(session, actions));
    const int launches = fake->launches - before;
    openpi_session_close(session);
    openpi_engine_close(engine);
    return launches;
}

/* Bit for bit the plain kernels' actions, in one launch for the layers of a step. Each layer has 5
 * operations, and attention's splits are joined by one launch more. */
static void same_bits(const char *table, expert_sizes expert) {
    float together[VALUES], apart[VALUES];
    const int few = table_call(table, NULL, expert, together),
              many = table_call(table, "persistent-denoise", expert, apart);
    assert_int_equal(many - few, STEPS * (LAYERS * 6 - 1));
    assert_memory_equal(together, apart, sizeof together);
}

static void test_resident(void **state) {
    float actions[VALUES];
    char table[64];
    (void)state;
    write_table(table, 10, odd);
    same_bits(table, odd);
    fake->held = 0;                        /* a card that does not hold the grid at once                    */
    assert_int_equal(table_call(table, NULL, odd, actions), table_call(NULL, NULL, odd, actions));
    remove(table);
}

static void test_resident_large(void **state) {
    char table[64];
    (void)state;
    write_table(table, 10, large);
    same_bits(table, large);
    remove(table);
}

/* π0's state is one row more in the first step, which is an entry of its own. */
static void test_resident_golden(void **state) {
    static const char golden[] = GOLDEN "/model/pi0_odd.safetensors";
    static const char *const without[] = {NULL, "graph-replay"};
    char tables[2][64];
    (void)state;
    write_table(tables[0], 7, odd);
    write_table(tables[1], 8, odd);
    for (int i = 0; i < 2; i++) {
        verify_options options = VERIFY_OPTIONS_INIT;
        rows r = {0};
        options.device = EMULATED ":0";
        options.dtype = OPENPI_BF16;
        options.batch_only = 1;
        options.table = tables[i];
        options.without = without[i];
        must(verify_path(golden, &options, rows_take, &r, &error));
        if (r.row[0].result != VERIFY_OK) fail_msg("%s: %s", r.row[0].name, r.row[0].detail);
        remove(tables[i]);
    }
}

/* ---- the join of a residual's parts with the norm after it ------------------------------------------ */

/* How many launches a call of always the same inputs has. */
static int launches_of(openpi_session *session, float *actions) {
    static uint8_t image[224 * 224 * 3];
    static float noise[40 * OPENPI_ACTION_DIM];
    static const int32_t tokens[] = {2, 5, 9};
    const openpi_sample sample = {
        .size = sizeof sample, .images = {image}, .image_mask = {1}, .tokens = tokens, .token_count = 3};
    const int before = fake->launches;
    openpi_noise(3, 0, noise, sizeof noise / sizeof *noise);
    for (size_t i = 0; i < sizeof image; i++) image[i] = (uint8_t)(i * 7 + i / 224);
    must(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error));
    return fake->launches - before;
}

/* A table in which residuals of those rows, outputs and inputs are made in two parts. */
static void write_parts(char *path, const int (*shapes)[3], int count) {
    FILE *file = fdopen(mkstemp(strcpy(path, "/tmp/openpi-table-XXXXXX")), "w");
    assert_non_null(file);
    fprintf(file,
            "{\"kind\": \"tuning\", \"format\": 2, \"openpi\": \"\", \"device\": \"Emulated GPU\", "
            "\"path\": \"portable\", \"threads\": 0, \"kernels\": {\"gemm_mma_64_64_half x2\": "
            "\"%016llx\"}, \"entries\": [",
            (unsigned long long)hash_of("gemm_mma"));
    for (int i = 0; i < count; i++)
        fprintf(file,
                "%s{\"op\": \"linear_residual\", \"form\": \"plain\", \"norm\": \"none\", \"dtype\": "
                "\"bf16\", \"m\": %d, \"n\": %d, \"k\": %d, \"choice\": \"gemm_mma_64_64_half x2\"}",
                i ? ", " : "", shapes[i][0], shapes[i][1], shapes[i][2]);
    fprintf(file, "]}");
    fclose(file);
}

/* k of 1,024 and more is shared by blocks; the widths need one warp a row and two. Together and apart the
 * same bits, and a launch less for each pair: of a vision layer fc2 with the next norm, of a prefix layer o
 * and down, of an expert layer the same, with a norm's shift and a gate. */
static void test_joined_norms(void **state) {
    static const char dims[] = "{\"vision\":[72,2,1,1024],\"vlm\":[264,2,8,256,1024],"
                               "\"expert\":[72,1024],\"vocab\":2048}";
    enum { VISION = 2, PREFIX = 2, EXPERT = 3, ACTIONS = 40, IMAGES = 768, TOKENS = IMAGES + 200 };
    static const int shapes[][3] = {{IMAGES, 72, 1024},
                                    {TOKENS, 264, 2048},
                                    {TOKENS, 264, 1024},
                                    {ACTIONS, 72, 2048},
                                    {ACTIONS, 72, 1024}};
    static float together[ACTIONS * OPENPI_ACTION_DIM], apart[ACTIONS * OPENPI_ACTION_DIM];
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options choices = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_session *session;
    char table[64];
    (void)state;
    fake->multiprocessors = 132;           /* so that tiles leave some idle                                 */
    write_parts(table, shapes, (int)(sizeof shapes / sizeof *shapes));
    must(openpi_dims_parse(dims, &synthetic.dims, &error));
    synthetic.variant = OPENPI_PI05;
    options.synthetic = &synthetic;
    options.device = EMULATED ":0";
    options.table = table;
    options.without = "graph-replay";
    choices.horizon = ACTIONS;
    choices.steps = 1;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    must(openpi_session_create(engine, &choices, &session, &error));
    const int few = launches_of(session, together);
    for (int i = 0; i < session->plan->count; i++)
        if (session->plan->ops[i].kind == OP_LINEAR_RESIDUAL)
            session->plan->ops[i].linear_residual.normed_next = 0;
    const int many = launches_of(session, apart);
    assert_int_equal(many - few, VISION + PREFIX + EXPERT);
    assert_memory_equal(together, apart, sizeof together);
    openpi_session_close(session);
    openpi_engine_close(engine);
    remove(table);
}

/* ---- a gated product that leaves codes, and the product that reads them ------------------------------- */

/* 192 packed columns fill no tile, 2,048 k are shared by blocks. */
static void test_codes(void **state) {
    openpi_engine *engine;
    (void)state;
    fake->multiprocessors = 132;
    must(codes_open(EMULATED ":0", CODES_RAGGED, NULL, &engine));
    assert_true(codes_check(engine, 1) > 8);             /* tiles, whole and in parts */
    openpi_engine_close(engine);
}

/* The plan's products leave numbers, which a kernel of their own makes into codes. */
static void apart(openpi_session *session) {
    for (int i = 0; i < session->plan->count; i++) {
        op *op = &session->plan->ops[i];
        if (op->kind == OP_NORM_LINEAR) op->norm_linear.next_scale = 0;
        if (op->kind == OP_LINEAR_RESIDUAL) op->linear_residual.coded = 0;
    }
}

/* What a call lost comes back with the actions: as one graph, op by op, and with codes made apart, which is a
 * launch more a layer, in which two warps have numbers of a row, and the same bits. */
static void test_codes_are_counted(void **state) {
    enum { FFNS = 2, CALLS = 4 };
    static const char dims[] = "{\"vision\":[72,1,1,64],\"vlm\":[264,3,1,256,288],"
                               "\"expert\":[72,64],\"vocab\":256}";
    static const char *const without[CALLS] = {NULL, NULL, "graph-replay", "graph-replay"};
    float actions[CALLS][2 * OPENPI_ACTION_DIM];
    openpi_session_info info = OPENPI_SESSION_INFO_INIT, first = OPENPI_SESSION_INFO_INIT;
    openpi_engine *engine;
    openpi_session *session;
    int launches[CALLS];
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        if (i != 1) must(codes_open(EMULATED ":0", dims, without[i], &engine));
        if (i != 1) session = codes_session(engine);
        if (i == 3) apart(session);
        launches[i] = launches_of(session, actions[i]);
        must(openpi_session_get_info(session, i ? &info : &first, &error));
        assert_memory_equal(actions[i], actions[0], sizeof *actions);
        const uint64_t calls = i == 1 ? 2 : 1;
        assert_true(!i || (info.w8_clipped == calls * first.w8_clipped &&
                           info.w8_clipped_rows == calls * first.w8_clipped_rows && !info.w8_not_finite));
        if (!i) continue;
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
    assert_true(first.recorded && first.w8_clipped > first.w8_clipped_rows && first.w8_clipped_rows > 10);
    assert_int_equal(launches[3] - launches[2], FFNS);
}

/* ---- without a driver ---------------------------------------------------------------------------------- */

static void test_missing(void **state) {
    (void)state;
    unusable("cuda", "no NVIDIA driver on this machine (libcuda.so.1 does not open)");
    says("cuda:0: no NVIDIA driver on this machine");
}

static void test_old(void **state) {
    (void)state;
    unusable("cuda", "the NVIDIA driver is too old: it has no cuGraphDestroy (12.4 or newer is needed)");
    says("cuda:0: the NVIDIA driver is too old");
}

int main(int count, char **words) {
    const struct CMUnitTest missing[] = {cmocka_unit_test(test_missing)};
    const struct CMUnitTest old[] = {cmocka_unit_test(test_old)};
    const struct CMUnitTest device[] = {
        cmocka_unit_test_setup_teardown(test_listed, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_unusable, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_refused, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_replays, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_chunks, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_ranges, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_times, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_lost, set_up, nothing_left),
    };
    const struct CMUnitTest goldens[] = {cmocka_unit_test_setup_teardown(test_goldens, set_up, nothing_left)};
    const struct CMUnitTest resident[] = {
        cmocka_unit_test_setup_teardown(test_resident, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_resident_large, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_resident_golden, set_up, nothing_left),
    };
    const struct CMUnitTest pairs[] = {
        cmocka_unit_test_setup_teardown(test_joined_norms, set_up, nothing_left)};
    const struct CMUnitTest codes[] = {
        cmocka_unit_test_setup_teardown(test_codes, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_codes_are_counted, set_up, nothing_left),
    };
    const struct CMUnitTest faults[] = {cmocka_unit_test_setup_teardown(test_faults, set_up, nothing_left)};
    const char *mode = count > 1 ? words[1] : "device";
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    fake = library ? dlsym(library, "fake_cuda_state") : NULL;
    if (!strcmp(mode, "old")) return cmocka_run_group_tests_name("cuda, old", old, NULL, NULL);
    if (!strcmp(mode, "missing")) {
        if (library) return 77;            /* a machine that has one                                       */
        return cmocka_run_group_tests_name("cuda, missing", missing, NULL, NULL);
    }
    if (!fake) {
        fprintf(stderr, "test_cuda: the fake libcuda.so.1 is not on the loader's path\n");
        return 2;
    }
    original = *fake;
    if (!strcmp(mode, "goldens")) return cmocka_run_group_tests_name("cuda, goldens", goldens, NULL, NULL);
    if (!strcmp(mode, "resident")) return cmocka_run_group_tests_name("cuda, resident", resident, NULL, NULL);
    if (!strcmp(mode, "pairs")) return cmocka_run_group_tests_name("cuda, pairs", pairs, NULL, NULL);
    if (!strcmp(mode, "codes")) return cmocka_run_group_tests_name("cuda, codes", codes, NULL, NULL);
    if (!strcmp(mode, "faults")) return cmocka_run_group_tests_name("cuda, faults", faults, NULL, NULL);
    return cmocka_run_group_tests_name("cuda, device", device, NULL, NULL);
}
