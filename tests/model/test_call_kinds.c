/* Kinds of call over a plan of three ops, on a device that only counts: which kinds share a recording, what a
 * call replays, and what is left after a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/report.h"
#include "tuning/call_kinds.h"
#include "tuning/tuning.h"

enum { OPS = 3, LONGEST = 10, SHORT = 4, PICTURE_ROWS = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS, MOST = 16 };

/* ---- a device that counts --------------------------------------------------------------------------- */

struct recording {
    int choices[OPS], alive;
};

static struct {
    struct recording made[MOST];
    int count, alive;
    int fails_at; /* the recording that fails, from 1 on; 0: none                              */
    openpi_status failure;
} fake;

static int fake_candidates(const device *device, const op *op, candidate *out, int capacity) {
    static const char *const names[] = {"usual", "wide", "narrow"};
    (void)device;
    if (op->kind != OP_NORM_LINEAR) return 0;
    for (int i = 0; i < 3 && i < capacity; i++) {
        out[i] = (candidate){.heuristic = !i};
        snprintf(out[i].name, sizeof out[i].name, "%s", names[i]);
    }
    return 3;
}

/* The heuristic takes another kernel for one camera's rows, and for two. */
static int fake_candidates_by_rows(const device *device, const op *op, candidate *out, int capacity) {
    const int count = fake_candidates(device, op, out, capacity),
              cameras = op->norm_linear.rows.capacity / OPENPI_IMAGE_TOKENS;
    for (int i = 0; i < count && i < capacity; i++) out[i].heuristic = i == OPENPI_CAMERAS - cameras;
    return count;
}

static int fake_by_rows(const device *device) {
    (void)device;
    return 1;
}

/* The more, the further an op's choice is down the list. */
static size_t fake_work_bytes(const device *device, const op *ops, int count) {
    size_t bytes = 0;
    (void)device;
    for (int i = 0; i < count; i++) bytes += 100 * (size_t)(ops[i].choice + 1);
    return bytes;
}

static openpi_status fake_record(device *device, op_list list, void *work, struct recording **out,
                                 openpi_error *error) {
    (void)device, (void)work;
    assert_int_equal(list.count, OPS);
    if (fake.count + 1 == fake.fails_at) {
        fake.fails_at = 0;
        return report(error, fake.failure, "recording %d failed", fake.count + 1);
    }
    struct recording *r = &fake.made[fake.count++];
    assert_true(fake.count < MOST);
    for (int i = 0; i < list.count; i++) r->choices[i] = list.ops[i].choice;
    r->alive = 1;
    fake.alive++;
    *out = r;
    return OPENPI_OK;
}

static void fake_forget(device *device, struct recording *recording) {
    (void)device;
    assert_int_equal(recording->alive, 1);
    recording->alive = 0;
    fake.alive--;
}

static const backend fake_backend = {.name = "fake",
                                     .candidates = fake_candidates,
                                     .work_bytes = fake_work_bytes,
                                     .record = fake_record,
                                     .forget = fake_forget};
static const backend no_record = {
    .name = "fake", .candidates = fake_candidates, .work_bytes = fake_work_bytes};

static const backend by_rows = {.name = "fake",
                                .candidates = fake_candidates_by_rows,
                                .chooses_by_rows = fake_by_rows,
                                .work_bytes = fake_work_bytes,
                                .record = fake_record,
                                .forget = fake_forget};

/* ---- a plan ----------------------------------------------------------------------------------------- */

typedef struct bench {
    device device;
    model model;
    tuning table;
    tuning_entry entries[8];
    op ops[OPS], setup[1];
    plan plan;
    call_kinds kinds;
    openpi_error error;
} bench;

/* A product of vision, one of the prefix, and an op without candidates. */
static void set_up(bench *b, int batch) {
    memset(&fake, 0, sizeof fake);
    *b = (bench){.device = {.backend = &fake_backend}, .error = OPENPI_ERROR_INIT};
    b->model = (model){.device = &b->device, .tuning = &b->table};
    b->table.entries = b->entries;
    b->ops[0] = (op){.kind = OP_NORM_LINEAR};
    b->ops[0].norm_linear.rows.capacity = batch * PICTURE_ROWS;
    b->ops[1] = (op){.kind = OP_NORM_LINEAR};
    b->ops[1].norm_linear.rows.capacity = batch * (PICTURE_ROWS + LONGEST);
    b->ops[2] = (op){.kind = OP_EMBED_TEXT};
    b->plan = (plan){.model = &b->model,
                     .shape = {.batch = batch, .horizon = 10, .steps = 10, .max_prompt = LONGEST},
                     .ops = b->ops,
                     .count = OPS,
                     .capacity = OPS,
                     .setup = b->setup,
                     .setup_count = 1};
}

/* An entry for an op's shape; rows 0: as many as the op has. */
static void add_entry(bench *b, int op, int rows, int cameras, const char *choice) {
    tuning_entry *e = &b->entries[b->table.count++];
    *e = (tuning_entry){.key = tuning_key_of(&b->ops[op])};
    if (rows) e->key.m = rows;
    e->key.cameras = cameras;
    snprintf(e->choice, sizeof e->choice, "%s", choice);
}

static void open_and_record(bench *b) {
    assert_int_equal(call_kinds_open(&b->kinds, &b->plan, &b->error), OPENPI_OK);
    assert_int_equal(call_kinds_record(&b->kinds, NULL, &b->error), OPENPI_OK);
}

static void tear_down(bench *b) {
    call_kinds_forget(&b->kinds);
    call_kinds_close(&b->kinds);
    assert_int_equal(fake.alive, 0);
}

/* A call: its kind is chosen, and what would replay it is returned. */
static struct recording *call(bench *b, int pictures, int tokens) {
    int kind = call_kinds_find(&b->kinds, pictures, tokens);
    call_kinds_choose(&b->kinds, kind);
    return call_kinds_recording(&b->kinds, kind);
}

/* Whatever a call replays was recorded with the choices that the ops have for it. */
static void recordings_fit_their_calls(bench *b) {
    for (int pictures = 0; pictures <= OPENPI_CAMERAS; pictures++)
        for (int tokens = 0; tokens <= LONGEST; tokens++) {
            struct recording *r = call(b, pictures, tokens);
            assert_non_null(r);
            assert_int_equal(r->alive, 1);
            for (int i = 0; i < OPS; i++) assert_int_equal(r->choices[i], b->ops[i].choice);
        }
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void without_a_table(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    b.model.tuning = NULL;
    open_and_record(&b);
    recordings_fit_their_calls(&b);
    assert_int_equal(fake.count, 1);
    assert_int_equal(b.kinds.tuned + b.kinds.unknown, 0);
    assert_int_equal(b.kinds.work_bytes, 300);
    tear_down(&b);
}

/* What no table knows, the heuristic chooses by the rows of each number of cameras: without a table, and with
 * one for the op that it does not name. */
static void fewer_cameras_have_fewer_rows(void **state) {
    (void)state;
    for (int table = 0; table < 2; table++) {
        bench b;
        set_up(&b, 1);
        b.device.backend = &by_rows;
        if (table) add_entry(&b, 1, 0, 0, "narrow");
        else b.model.tuning = NULL;
        open_and_record(&b);
        recordings_fit_their_calls(&b);
        for (int cameras = 1; cameras <= OPENPI_CAMERAS; cameras++) {
            call(&b, cameras, LONGEST);
            const int fewer = OPENPI_CAMERAS - cameras, usual = fewer ? fewer + 1 : 0;
            assert_int_equal(b.ops[0].choice, usual);
            assert_int_equal(b.ops[1].choice, table ? 3 : usual);
        }
        assert_int_equal(b.kinds.tuned, table);
        tear_down(&b);
    }
}

static void equal_choices_share(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    add_entry(&b, 0, 0, 1, "wide");
    add_entry(&b, 0, 0, 2, "wide");
    add_entry(&b, 0, 0, 3, "narrow");
    open_and_record(&b);
    recordings_fit_their_calls(&b);
    assert_int_equal(fake.count, 2); /* 1 and 2 cameras alike, 3 apart                  */
    assert_ptr_equal(call(&b, 1, LONGEST), call(&b, 2, 1));
    assert_int_equal(b.ops[0].choice, 2);
    assert_ptr_not_equal(call(&b, 3, LONGEST), call(&b, 1, LONGEST));
    assert_ptr_equal(call(&b, 3, LONGEST), b.kinds.recordings[CALL_ANY]);
    assert_int_equal(b.ops[0].choice, 3);
    assert_int_equal(b.kinds.short_prompt, 0);
    assert_int_equal(b.kinds.tuned, 1);
    assert_int_equal(b.kinds.unknown, 1); /* the prefix product                              */
    assert_int_equal(b.kinds.work_bytes, 400 + 100 + 100); /* of 3 cameras */
    tear_down(&b);
}

/* One camera with a short prompt has the choices of three cameras with a long one. */
static void any_two_kinds_share(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    add_entry(&b, 1, 0, 1, "wide");
    add_entry(&b, 1, PICTURE_ROWS + SHORT, 2, "wide");
    open_and_record(&b);
    recordings_fit_their_calls(&b);
    assert_int_equal(fake.count, 2);
    assert_ptr_equal(call(&b, 1, SHORT), call(&b, 3, LONGEST));
    assert_ptr_equal(call(&b, 2, SHORT), call(&b, 1, LONGEST));
    tear_down(&b);
}

static void short_prompts(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    add_entry(&b, 1, PICTURE_ROWS + SHORT - 1, 0, "narrow"); /* the longest of the short serves */
    add_entry(&b, 1, PICTURE_ROWS + SHORT, 0, "wide");
    open_and_record(&b);
    recordings_fit_their_calls(&b);
    assert_int_equal(b.kinds.short_prompt, SHORT);
    assert_int_equal(fake.count, 2);
    for (int tokens = 0; tokens <= LONGEST; tokens++) {
        call(&b, 2, tokens);
        assert_int_equal(b.ops[1].choice, tokens <= SHORT ? 2 : 0);
    }
    tear_down(&b);
}

/* Whatever its neighbours in the batch are, a sample takes the same choices. */
static void batches_have_one_kind(void **state) {
    (void)state;
    bench b;
    set_up(&b, 2);
    add_entry(&b, 0, 0, 1, "wide");
    add_entry(&b, 0, 0, 3, "narrow");
    add_entry(&b, 1, PICTURE_ROWS + SHORT, 0, "wide");
    open_and_record(&b);
    recordings_fit_their_calls(&b);
    assert_int_equal(fake.count, 1);
    assert_int_equal(call_kinds_find(&b.kinds, 1, 1), CALL_ANY);
    assert_int_equal(b.ops[0].choice, 3);
    assert_int_equal(b.kinds.short_prompt, 0);
    tear_down(&b);
}

/* The second of three cannot be recorded: its calls replay the recording that serves any call. */
static void one_cannot_record(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    add_entry(&b, 0, 0, 1, "wide");
    add_entry(&b, 0, 0, 2, "narrow");
    fake.fails_at = 2;
    fake.failure = OPENPI_UNSUPPORTED;
    open_and_record(&b);
    assert_int_equal(fake.count, 2);
    assert_string_equal(b.kinds.no_recording, "");
    assert_null(b.kinds.recordings[0]);
    assert_ptr_equal(call(&b, 1, 1), b.kinds.recordings[CALL_ANY]);
    assert_ptr_equal(call(&b, 3, 1), b.kinds.recordings[CALL_ANY]);
    assert_ptr_equal(call(&b, 2, 1), b.kinds.recordings[1]);
    assert_int_equal(b.kinds.recordings[1]->choices[0], 3);
    tear_down(&b);
}

/* No recording at all: calls run op by op, with the choices of their kind. */
static void none_can_record(void **state) {
    (void)state;
    for (int asks = 0; asks < 2; asks++) {
        bench b;
        set_up(&b, 1);
        if (!asks) b.device.backend = &no_record;
        add_entry(&b, 0, 0, 1, "wide");
        fake.fails_at = 1;
        fake.failure = OPENPI_UNSUPPORTED;
        open_and_record(&b);
        assert_int_equal(fake.count, 0);
        assert_string_equal(b.kinds.no_recording, asks ? "recording 1 failed" : "");
        assert_null(call(&b, 1, 1));
        assert_int_equal(b.ops[0].choice, 2);
        assert_null(call(&b, 2, 1));
        assert_int_equal(b.ops[0].choice, 0);
        tear_down(&b);
    }
}

/* Whichever recording fails, the ones before it are given back. */
static void a_failure_releases_all(void **state) {
    (void)state;
    for (int at = 1; at <= 4; at++) {
        bench b;
        char sentence[40];
        set_up(&b, 1);
        add_entry(&b, 0, 0, 1, "wide");
        add_entry(&b, 0, 0, 2, "narrow");
        add_entry(&b, 1, PICTURE_ROWS + SHORT, 3, "wide");
        fake.fails_at = at;
        fake.failure = OPENPI_DEVICE_LOST;
        snprintf(sentence, sizeof sentence, "recording %d failed", at);
        assert_int_equal(call_kinds_open(&b.kinds, &b.plan, &b.error), OPENPI_OK);
        assert_int_equal(call_kinds_record(&b.kinds, NULL, &b.error), OPENPI_DEVICE_LOST);
        assert_string_equal(b.error.message, sentence);
        assert_int_equal(fake.count, at - 1);
        assert_int_equal(fake.alive, 0);
        for (int kind = 0; kind < CALL_KINDS; kind++) assert_null(b.kinds.recordings[kind]);
        tear_down(&b);
    }
}

/* A name that the device does not offer for a shape counts as an unknown shape. */
static void unknown_names(void **state) {
    (void)state;
    bench b;
    set_up(&b, 1);
    add_entry(&b, 0, 0, 0, "no such kernel");
    open_and_record(&b);
    assert_int_equal(fake.count, 1);
    assert_int_equal(b.kinds.tuned, 0);
    assert_int_equal(b.kinds.unknown, 2);
    assert_int_equal(b.ops[0].choice, 0);
    tear_down(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_table),
        cmocka_unit_test(fewer_cameras_have_fewer_rows),
        cmocka_unit_test(equal_choices_share),
        cmocka_unit_test(any_two_kinds_share),
        cmocka_unit_test(short_prompts),
        cmocka_unit_test(batches_have_one_kind),
        cmocka_unit_test(one_cannot_record),
        cmocka_unit_test(none_can_record),
        cmocka_unit_test(a_failure_releases_all),
        cmocka_unit_test(unknown_names),
    };
    return cmocka_run_group_tests_name("call kinds", tests, NULL, NULL);
}
