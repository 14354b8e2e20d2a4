/* labels: cost no_asan */
/* Every golden on every level of kernels that this machine has, in fp32 and bf16.
 *
 * The scalar reference takes a second where the others take hundredths: it runs the model goldens of one
 * sample and no policies. openpi_ops holds the levels that run all of them to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/isa.h"
#include "verify_rows.h"

static const char *const models[] = {"pi0_tiny", "pi0_tiny_droid", "pi05_tiny",      "pi0_odd",
                                     "pi05_odd", "pi0_tiny_batch", "pi05_tiny_batch"};
static const struct {
    const char *path;
    int rows, skipped;           /* as many as the goldens hold                                            */
} around[] = {{"policy", 6, 0}, {"lerobot", 23, 0}};
static const struct {
    const char *path;
    int rows;
} alone[] = {{"steps.json", 4}, {"synth_hashes.json", 7}};

enum { PI0_ODD = 3, FIRST_BATCH = 5 };
enum {
    MOST_ISAS = 8,
    MODELS = sizeof models / sizeof *models,
    AROUND = sizeof around / sizeof *around,
    ALONE = sizeof alone / sizeof *alone,
    CASES = MOST_ISAS * 2 * (2 * MODELS + AROUND) + ALONE
};

typedef struct golden_case {
    char name[96], path[256];
    const char *isa;             /* NULL: no model runs                                                    */
    openpi_dtype dtype;
    openpi_weights weights;
    int rows, skipped;
} golden_case;

/* Does this machine run that level? An engine says which one it took. */
static int has_isa(const char *isa) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(openpi_synthetic_parse("odd", &synthetic, &error), OPENPI_OK);
    options.synthetic = &synthetic;
    options.isa = isa;
    options.threads = 1;
    if (openpi_engine_open(NULL, &options, &engine, &error) != OPENPI_OK) return 0;
    openpi_engine_get_info(engine, &info, NULL);
    openpi_engine_close(engine);
    return !strcmp(info.path, isa);
}

static void golden_holds(void **state) {
    const golden_case *g = *state;
    verify_options options = VERIFY_OPTIONS_INIT;
    rows r = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    if (g->isa && !has_isa(g->isa)) {
        print_message("           skipped: this machine has no %s\n", g->isa);
        skip();
    }
    options.isa = g->isa;
    options.dtype = g->dtype;
    options.weights = g->weights;
    if (verify_path(g->path, &options, rows_take, &r, &error) != OPENPI_OK) fail_msg("%s", error.message);
    for (int i = 0; i < r.count && i < ROWS; i++) {
        const verify_row *row = &r.row[i];
        if (row->max >= 0)
            print_message("           %-24s max %.2e of %.2e, rms %.2e\n", row->name, row->max,
                          row->bound_max, row->rms);
        if (row->result == VERIFY_FAIL) fail_msg("%s: %s", row->name, row->detail);
    }
    assert_int_equal(r.count, g->rows);
    assert_int_equal(r.results[VERIFY_SKIPPED], g->skipped);
}

static golden_case cases[CASES];
static struct CMUnitTest tests[CASES];
static int count;

static golden_case *add(const char *isa, openpi_dtype dtype, const char *path) {
    golden_case *g = &cases[count];
    *g = (golden_case){.isa = isa, .dtype = dtype, .rows = 1};
    snprintf(g->path, sizeof g->path, GOLDEN "/%s", path);
    snprintf(g->name, sizeof g->name, "%s %s %s", path, isa ? isa : "",
             isa ? dtype == OPENPI_F32 ? "f32" : "bf16" : "");
    tests[count++] = (struct CMUnitTest){g->name, golden_holds, NULL, NULL, g};
    return g;
}

/* Goldens' weights are bf16 numbers, so that the others keep them in bf16. */
static void add_f32_weights(const char *isa, openpi_dtype dtype, const char *path) {
    golden_case *g = add(isa, dtype, path);
    size_t used = strlen(g->name);
    g->weights = OPENPI_WEIGHTS_F32;
    snprintf(g->name + used, sizeof g->name - used, ", f32 weights");
}

int main(void) {
    static const openpi_dtype dtypes[] = {OPENPI_F32, OPENPI_BF16};
    for (int i = 0; i < ALONE; i++) add(NULL, OPENPI_DTYPE_DEFAULT, alone[i].path)->rows = alone[i].rows;
    for (int isa = cpu_isa_count() - 1; isa >= 0; isa--)
        for (int d = 0; d < 2; d++) {
            for (int m = 0; m < (isa ? MODELS : FIRST_BATCH); m++) {
                char path[64];
                snprintf(path, sizeof path, "model/%s.safetensors", models[m]);
                add(cpu_isa_name(isa), dtypes[d], path);
                if (isa || m == PI0_ODD) add_f32_weights(cpu_isa_name(isa), dtypes[d], path);
            }
            for (int a = 0; a < AROUND && isa > 0; a++) {
                golden_case *g = add(cpu_isa_name(isa), dtypes[d], around[a].path);
                g->rows = around[a].rows;
                g->skipped = around[a].skipped;
            }
        }
    return _cmocka_run_group_tests("goldens", tests, (size_t)count, NULL, NULL);
}
