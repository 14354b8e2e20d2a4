/* A device that stands for another card (as_card), over a driver that is not there: whatever it chooses and
 * launches for plans of the full model is what that card itself would, and fits it. No weight is made. */
#include <math.h>

#include "cli/cli.h"
#include "fake_gpu.h"
#include "full_plans.h"
#include "tuning/tuning.h"

enum { MOST = 64, HERE_SHARED = 228 << 10, CANDIDATES = 512 };

/* ---- a device ---------------------------------------------------------------------------------------- */

/* Of the name, on a Hopper card of 132 multiprocessors. */
static device *stand_in(const char *as_card, openpi_status expected) {
    const device_options options = {.as_card = as_card};
    device *device = NULL;
    reset();
    assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error), expected);
    return device;
}

/* The card itself. */
static device *real(const gpu_card *card) {
    const device_options options = {.path = "portable"};
    device *device = NULL;
    reset();
    fake.title = card->title;
    fake.capability = 10 * card->major + card->minor;
    fake.multiprocessors = card->multiprocessors;
    fake.all_shared_bytes = (int)card->multiprocessor_shared_bytes;
    fake.shared_bytes = fake.all_shared_bytes - GPU_BLOCK_RESERVE;
    must(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error));
    return device;
}

static void close_device(device *device) {
    backend_cuda.close(device);
    assert_int_equal(fake.alive, 0);
}

/* ---- what it launches -------------------------------------------------------------------------------- */

static struct {
    asked_launch list[MOST];
    int count, all, halves;            /* halves: choices of tiles with half an atom of k a stage   */
} launched;

static void note_launch(const cuda_launch *launch, const void *arguments) {
    (void)arguments;
    assert_in_range(launched.count, 0, MOST - 1);
    launched.all++;
    launched.list[launched.count++] = (asked_launch){.blocks = launch->grid[0] * launch->grid[1],
                                                     .threads = launch->block[0],
                                                     .shared_bytes = launch->shared_bytes};
}

static void launch_all(device *device, const op *op) {
    launched.count = 0;
    fake.on_launch = note_launch;
    must(backend_cuda.run(device, op_alone(op), NULL, NULL, &error));
    fake.on_launch = NULL;
}

/* The launches of one choice on either: the same, but for the shared memory that keeps other blocks away. */
static void compare_launches(device *as, device *itself, const gpu_card *card, const op *op) {
    static asked_launch there[MOST];
    launch_all(itself, op);
    const int count = launched.count;
    memcpy(there, launched.list, sizeof there);
    launch_all(as, op);
    assert_int_equal(launched.count, count);
    for (int i = 0; i < count; i++) {
        const asked_launch *a = &launched.list[i], *b = &there[i];
        const unsigned all = (unsigned)card->multiprocessor_shared_bytes, keeps = GPU_BLOCK_RESERVE;
        assert_int_equal(a->blocks, b->blocks);
        assert_int_equal(a->threads, b->threads);
        if (b->shared_bytes + keeps > all) fail_msg("%s: %u bytes", op->name, b->shared_bytes);
        assert_true(a->shared_bytes >= b->shared_bytes && a->shared_bytes + keeps <= HERE_SHARED);
        if (b->shared_bytes && HERE_SHARED / (a->shared_bytes + keeps) > all / (b->shared_bytes + keeps))
            fail_msg("%s as %s: %u bytes, of which more blocks fit here", op->name, card->name,
                     a->shared_bytes);
    }
}

/* ---- plans ------------------------------------------------------------------------------------------- */

static int is_product(const op *op) {
    return op->kind == OP_LINEAR_RESIDUAL || op->kind == OP_NORM_LINEAR || op->kind == OP_NORM_QKV;
}

/* Tensor cores run every product of the model's layers. */
static void check_usual(const op *op, const char *name, const gpu_card *card) {
    if (is_product(op) && (strstr(name, "linear_simt") || strstr(name, "linear_rows")))
        fail_msg("%s as %s takes %s", op->name, card->name, name);
}

static void compare_op(device *as, device *itself, const gpu_card *card, const op *op) {
    static candidate here[CANDIDATES], there[CANDIDATES];
    const int count = backend_cuda.candidates(as, op, here, CANDIDATES);
    assert_int_equal(backend_cuda.candidates(itself, op, there, CANDIDATES), count);
    struct op one = *op;
    if (is_product(op)) assert_in_range(count, 1, CANDIDATES);
    for (int c = 0; c < count; c++) {
        assert_string_equal(here[c].name, there[c].name);
        if (here[c].heuristic != there[c].heuristic)
            fail_msg("%s: %s is taken only %s %s", op->name, here[c].name, there[c].heuristic ? "by" : "as",
                     card->name);
        if (here[c].heuristic) check_usual(op, here[c].name, card);
        const size_t kernel = strcspn(here[c].name, " ,");
        launched.halves +=
            !strncmp(here[c].name, "gemm_mma", 8) && !strncmp(here[c].name + kernel - 5, "_half", 5);
        one.choice = c + 1;
        compare_launches(as, itself, card, &one);
    }
}

/* An op of each name: layers and steps have the same shapes. */
static void compare_plan(const subject *s, device *as, device *itself, const gpu_card *card,
                         const plan_shape *shape) {
    plan *plan;
    const char *seen[MOST];
    int count = 0;
    must(plan_create(s->model, shape, PLAN_ORDINARY, &plan, &error));
    for (int i = 0; i < plan->count; i++) {
        int known = 0;
        while (known < count && strcmp(seen[known], plan->ops[i].name)) known++;
        if (known < count) continue;
        assert_in_range(count, 0, MOST - 1);
        seen[count++] = plan->ops[i].name;
        compare_op(as, itself, card, &plan->ops[i]);
    }
    plan_close(plan);
}

static const struct {
    const char *spec;
    plan_shape shape;
} workloads[] = {
    {"full:pi0", {.batch = 1, .horizon = 10, .steps = 2, .max_prompt = 20}},
    {"full:pi0", {.batch = 8, .horizon = 50, .steps = 1, .max_prompt = 48}},
    {"full:pi05", {.batch = 1, .horizon = 50, .steps = 2, .max_prompt = 200}},
    {"full:pi05", {.batch = 64, .horizon = 10, .steps = 1, .max_prompt = 60}},
};

/* The subject's model is measured for a device of the same layout. */
static void compare(const gpu_card *card) {
    for (size_t w = 0; w < sizeof workloads / sizeof *workloads; w++) {
        device *itself = real(card);
        device *as = NULL;
        const int alive = fake.alive;
        const device_options options = {.as_card = card->name};
        fake.title = NULL, fake.capability = fake.multiprocessors = fake.shared_bytes = 0;
        fake.all_shared_bytes = 0;
        must(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &as, &error));
        assert_string_equal(as->path, "portable");
        subject s = open_subject_on(as, workloads[w].spec, NULL, OPENPI_BF16, NULL, 0);
        compare_plan(&s, as, itself, card, &workloads[w].shape);
        close_subject(&s);
        assert_int_equal(fake.alive, alive);
        close_device(itself);
    }
}

static void test_choices_are_the_cards_own(void **state) {
    (void)state;
    for (const gpu_card *card = cuda_cards; card->name; card++) {
        launched.all = launched.halves = 0;
        compare(card);
        assert_true(launched.all > 1000);
        assert_true(launched.halves > 0);
    }
}

/* ---- the table --------------------------------------------------------------------------------------- */

/* KB of a block and threads of a multiprocessor, of NVIDIA's table of compute capabilities. */
static void test_the_chips_limits(void **state) {
    static const struct { int chip, kb, threads; } chips[] = {
        {80, 163, 2048}, {86, 99, 1536}, {87, 163, 1536}, {89, 99, 1536}, {90, 227, 2048},
        {110, 227, 1536}, {120, 99, 1536}, {121, 99, 1536},
    };
    (void)state;
    for (const gpu_card *card = cuda_cards; card->name; card++) {
        size_t c = 0;
        while (c < sizeof chips / sizeof *chips && chips[c].chip != 10 * card->major + card->minor) c++;
        assert_in_range(c, 0, sizeof chips / sizeof *chips - 1);
        assert_int_equal(card->multiprocessor_shared_bytes, (chips[c].kb + 1) << 10);
        assert_int_equal(card->threads, chips[c].threads);
        assert_int_equal(card->overlap, card->major >= 9);
        assert_non_null(strstr(AS_HELP, card->name));
        for (const gpu_card *other = cuda_cards; other < card; other++) {
            assert_string_not_equal(other->name, card->name);
            assert_string_not_equal(other->title, card->title);
        }
        assert_ptr_equal(cuda_card_of(card->title, card->major, card->minor), card);
    }
    assert_string_equal(cuda_card_of("NVIDIA RTX A4000", 8, 6)->name, "rtx3090");
    assert_null(cuda_card_of("NVIDIA B200", 10, 0));
}

static void same(const json_t *row, const char *key, double value) {
    const json_t *number = json_object_get(row, key);
    if (!json_is_number(number) || fabs(json_number_value(number) - value) > 1e-9)
        fail_msg("%s of %s is %g", key, json_string_value(json_object_get(row, "name")), value);
}

/* docs/cards.md is written from this file, which is not there where the program was carried to. */
static void test_the_page(void **state) {
    json_t *root = json_load_file(TESTS_DIR "/../docs/results/cards.json", 0, NULL);
    size_t i;
    json_t *row;
    (void)state;
    if (!root) skip();
    json_array_foreach(json_object_get(root, "cards"), i, row) {
        const gpu_card *card = &cuda_cards[i];
        char capability[16];
        assert_non_null(card->name);
        snprintf(capability, sizeof capability, "%d.%d", card->major, card->minor);
        assert_string_equal(json_string_value(json_object_get(row, "name")), card->name);
        assert_string_equal(json_string_value(json_object_get(row, "capability")), capability);
        same(row, "multiprocessors", card->multiprocessors);
        same(row, "multiprocessor_kb", (double)(card->multiprocessor_shared_bytes >> 10));
        same(row, "block_kb", (double)(card->multiprocessor_shared_bytes - GPU_BLOCK_RESERVE) / 1024);
        same(row, "threads", card->threads);
        same(row, "cache_mb", card->cache_mb);
        same(row, "memory_gbs", card->memory_gbs);
        same(row, "bf16_tflops", card->bf16_tflops);
        same(row, "int8_tops", card->int8_tops);
        same(row, "memory_gb", card->memory_gb);
        same(row, "watts", card->watts);
    }
    assert_null(cuda_cards[i].name);
    json_decref(root);
}

/* ---- which card -------------------------------------------------------------------------------------- */

static void test_names(void **state) {
    const uint32_t early = 1u << SWITCH_DEPENDENT_LAUNCH;
    device_facts facts;
    char advice[TUNING_ADVICE];
    (void)state;
    device *device = stand_in("rtx4090", OPENPI_OK);
    must(backend_cuda.facts(device, &facts, &error));
    assert_string_equal(facts.name, "Paper GPU as rtx4090");       /* tables are for that pair            */
    assert_int_equal(facts.multiprocessors, 132);
    tuning_advice(device, advice);
    assert_string_equal(advice, "no tuning table for this card (Paper GPU as rtx4090, portable kernels): "
                                "`openpi tune` may win 3 % of a call");
    assert_true(backend_cuda.missing(device) & early);
    close_device(device);
    device = stand_in("rtx5090", OPENPI_OK);
    assert_false(backend_cuda.missing(device) & early);
    close_device(device);
    assert_null(stand_in("rtx4091", OPENPI_BAD_ARGUMENT));
    assert_non_null(strstr(error.message, "as_card is \"rtx4091\", expected rtx3090, rtx4090"));
    assert_non_null(strstr(error.message, "h100 or h200"));
    assert_int_equal(fake.alive, 0);
}

/* On a card that has less than the one that is named, or with kernels that the named one has not. */
static void test_refusals(void **state) {
    const device_options larger = {.as_card = "a100"}, hopper = {.as_card = "rtx4090", .path = "hopper"};
    device *device = NULL;
    (void)state;
    reset();
    fake.capability = 89;
    fake.shared_bytes = 99 << 10;
    assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &larger, &device, &error),
                     OPENPI_UNSUPPORTED);
    assert_string_equal(error.message, "as_card is \"a100\", where a block has 163 KB of shared memory: on "
                                       "cuda:0 it has 99 KB");
    assert_int_equal(fake.alive, 0);
    reset();
    assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &hopper, &device, &error),
                     OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "path is \"hopper\", expected portable or none with the card rtx4090");
    assert_int_equal(fake.alive, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_the_cards_own),
        cmocka_unit_test(test_the_chips_limits),
        cmocka_unit_test(test_the_page),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("gpu cards", tests, NULL, NULL);
}
