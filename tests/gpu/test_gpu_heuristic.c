/* How far the portable kernels' heuristic is from the best choices that a tuner found on an H200: 5 % at most
 * of the operations of a plan. Without a GPU: the table has the times, the heuristic runs over a driver that
 * is not there. A table of a card that stood for another one (--as) would be no judge: its tensor cores are
 * its own, the heuristic counts with those of the other. */
#include "fake_gpu.h"
#include "full_plans.h"
#include "tuning/call_kinds.h"
#include "tuning/tuning.h"

static const double most_loss = 0.05;

typedef struct judgement {
    int known, unknown;          /* shapes whose choice the table has a time for, and others of the table  */
    double taken_us, best_us;    /* sums over all that have a time                                         */
    double worst;                /* the largest loss of one                                                */
    char what[200];
} judgement;

static double loss(const judgement *j) { return j->best_us > 0 ? j->taken_us / j->best_us - 1 : 0; }

static const char *usual_of(device *device, const op *op) {
    static candidate list[TUNING_CANDIDATES];
    const int count = backend_cuda.candidates(device, op, list, TUNING_CANDIDATES);
    for (int i = 0; i < count; i++)
        if (list[i].heuristic) return list[i].name;
    return NULL;
}

static void judge_entry(const tuning_entry *e, const char *op, const char *usual, judgement *j) {
    const struct { const char *name; double us; } timed[] = {
        {e->choice, e->time_us}, {e->heuristic, e->heuristic_us}, {e->runner_up, e->runner_up_us}};
    double best = 0, taken = 0;
    for (int i = 0; i < 3; i++) {
        if (timed[i].us <= 0) continue;
        if (best <= 0 || timed[i].us < best) best = timed[i].us;
        if (!strcmp(timed[i].name, usual)) taken = timed[i].us;
    }
    if (taken <= 0) {
        j->unknown++;
        return;
    }
    j->known++;
    j->taken_us += taken;
    j->best_us += best;
    if (taken / best - 1 <= j->worst) return;
    j->worst = taken / best - 1;
    snprintf(j->what, sizeof j->what, "%s of %d rows: %s takes %.2f us, the best %.2f", op, e->key.m, usual,
             taken, best);
}

/* The op with the rows of a call of that number of cameras. */
static struct op fewer_rows(const op *op, int cameras) {
    struct op fewer = *op;
    row_set *rows = tuning_rows(&fewer);
    if (rows && rows->capacity >= OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS)
        rows->capacity -= OPENPI_IMAGE_TOKENS * (OPENPI_CAMERAS - cameras);
    return fewer;
}

static void judge_plan(device *device, const tuning *table, const plan *plan, judgement *j) {
    const int own = plan->shape.batch == 1;                 /* kinds of calls for numbers of cameras */
    for (int i = 0; i < plan->count; i++) {
        const tuning_key key = tuning_key_of(&plan->ops[i]);
        for (int cameras = 1; cameras <= OPENPI_CAMERAS; cameras++) {
            const struct op fewer = fewer_rows(&plan->ops[i], own ? cameras : OPENPI_CAMERAS);
            const tuning_entry *entry = tuning_find(table, &key, cameras);
            const char *usual = entry ? usual_of(device, &fewer) : NULL;
            if (usual) judge_entry(entry, plan->ops[i].name, usual, j);
        }
    }
}

/* A step is enough: all have the same shapes. */
static const plan_shape shapes[] = {
    {.batch = 1, .horizon = 10, .steps = 1, .max_prompt = 20},
    {.batch = 1, .horizon = 50, .steps = 1, .max_prompt = 48},
    {.batch = 1, .horizon = 10, .steps = 1, .max_prompt = 60},
    {.batch = 1, .horizon = 50, .steps = 1, .max_prompt = 200},
    {.batch = 8, .horizon = 10, .steps = 1, .max_prompt = 20},
};

static void judge_model(const gpu_card *card, const char *spec, const tuning *table, judgement *j) {
    const device_options options = {.as_card = card->name};
    device *device = NULL;
    reset();
    must(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error));
    subject s = open_subject_on(device, spec, NULL, OPENPI_BF16, NULL, 0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        plan *plan;
        must(plan_create(s.model, &shapes[i], PLAN_ORDINARY, &plan, &error));
        judge_plan(device, table, plan, j);
        plan_close(plan);
    }
    close_subject(&s);
}

/* "NVIDIA H200 as rtx4090", or the card itself. */
static const gpu_card *card_of(const tuning *table) {
    const char *as = strstr(table->machine.device, " as ");
    for (const gpu_card *card = cuda_cards; card->name; card++)
        if (!strcmp(as ? as + 4 : table->machine.device, as ? card->name : card->title)) return card;
    return NULL;
}

static judgement judge(const tuning *table) {
    judgement j = {0};
    const gpu_card *card = card_of(table);
    if (!card) fail_msg("the table of %s is for no card that is known", table->machine.device);
    judge_model(card, "full:pi0", table, &j);
    judge_model(card, "full:pi05", table, &j);
    return j;
}

/* A made-up table of one shape, the gate and up of the first plan. */
static judgement judge_made(const char *device, const char *usual, double usual_us, double best_us) {
    tuning_entry entry = {.key = {.op = OP_NORM_LINEAR,
                                  .form = MATRIX_GATED,
                                  .norm = NORM_RMS,
                                  .type = DTYPE_BF16,
                                  .weights = WEIGHT_BF16,
                                  .m = 788,
                                  .n = 32768,
                                  .k = 2048,
                                  .cameras = OPENPI_CAMERAS},
                          .time_us = best_us,
                          .heuristic_us = usual_us};
    tuning table = {.entries = &entry, .count = 1};
    snprintf(entry.choice, sizeof entry.choice, "another");
    snprintf(entry.heuristic, sizeof entry.heuristic, "%s", usual);
    snprintf(table.machine.device, sizeof table.machine.device, "%s", device);
    return judge(&table);
}

static void test_the_judge(void **state) {
    static const char usual[] = "gemm_mma_160_256_half, norm 1";
    (void)state;
    judgement j = judge_made("NVIDIA H200 as rtx4090", usual, 104, 100);
    assert_true(j.known > 0 && j.unknown == 0 && j.worst > 0.03 && loss(&j) > 0.03 && loss(&j) <= most_loss);
    j = judge_made("NVIDIA GeForce RTX 4090", usual, 106, 100);
    assert_true(loss(&j) > most_loss);
    assert_non_null(strstr(j.what, "gate_up of 788 rows: gemm_mma_160_256_half, norm 1 takes 106.00 us"));
    j = judge_made("NVIDIA H200", usual, 106, 100);        /* takes a tile that the table has no time of */
    assert_true(j.known == 0 && j.unknown > 0);
}

/* The H200's times with these kernels. Its kernels may have changed since: a heuristic is judged by names. */
static void test_the_table(void **state) {
    tuning *table = NULL;
    (void)state;
    must(tuning_read(TESTS_DIR "/../docs/results/h200-portable/tune-portable.json", NULL, NULL, &table,
                     &error));
    const judgement j = judge(table);
    print_message("%s: %d shapes, %d without a time, %.1f %% lost, most of it %.1f %%: %s\n",
                  table->machine.device, j.known, j.unknown, 100 * loss(&j), 100 * j.worst, j.what);
    assert_true(j.known > 5 * j.unknown && j.best_us > 0);
    if (loss(&j) > most_loss) fail_msg("%.1f %% lost", 100 * loss(&j));
    tuning_close(table);
}

/* ---- fewer cameras ----------------------------------------------------------------------------------- */

/* The op's heuristic choice, or the given one. */
static candidate choice_of(device *device, const op *op, int choice) {
    static candidate choices[TUNING_CANDIDATES];
    const int count = backend_cuda.candidates(device, op, choices, TUNING_CANDIDATES);
    for (int i = 0; i < count; i++)
        if (choice ? i + 1 == choice : choices[i].heuristic) return choices[i];
    return (candidate){.name = ""};
}

/* Returns whether the op's choice is another than for three cameras. */
static int check_fewer(device *device, const op *op, int cameras, int batch) {
    const struct op fewer = fewer_rows(op, batch == 1 ? cameras : OPENPI_CAMERAS);
    const candidate taken = choice_of(device, op, op->choice), expected = choice_of(device, &fewer, 0);
    if (strcmp(taken.name, expected.name))
        fail_msg("%s, %d cameras: %s, not %s", op->name, cameras, taken.name, expected.name);
    return strcmp(taken.name, choice_of(device, op, 0).name) != 0;
}

/* Without a table, calls of one and two cameras take what the heuristic takes for their rows; a batch what it
 * takes for all. */
static void test_fewer_cameras_without_a_table(void **state) {
    const device_options options = {.as_card = "rtx4090"};
    device *device = NULL;
    (void)state;
    reset();
    must(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error));
    subject s = open_subject_on(device, "full:pi0", NULL, OPENPI_BF16, NULL, 0);
    for (int batch = 1; batch <= 2; batch++) {
        const plan_shape shape = {.batch = batch, .horizon = 10, .steps = 1, .max_prompt = 20};
        call_kinds kinds;
        plan *plan;
        int others = 0;
        must(plan_create(s.model, &shape, PLAN_ORDINARY, &plan, &error));
        must(call_kinds_open(&kinds, plan, &error));
        for (int cameras = 1; cameras <= OPENPI_CAMERAS; cameras++) {
            call_kinds_choose(&kinds, batch == 1 ? cameras - 1 : CALL_ANY);
            for (int i = 0; i < plan->count; i++)
                others += check_fewer(device, &plan->ops[i], cameras, batch);
        }
        assert_int_equal(others > 0, batch == 1);
        call_kinds_close(&kinds);
        plan_close(plan);
    }
    close_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_judge),
        cmocka_unit_test(test_the_table),
        cmocka_unit_test(test_fewer_cameras_without_a_table),
    };
    return cmocka_run_group_tests_name("gpu heuristic", tests, NULL, NULL);
}
