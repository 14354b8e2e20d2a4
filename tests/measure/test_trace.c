/* labels: command links=zlib */
/* Traces: a validator of the trace-event format that must itself find what is wrong with a spoiled trace;
 * what trace_run records of a device that replays; the group of every op. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <zlib.h>

#include "lab/measure/trace.h"
#include "scratch.h"

#include "command.h"
#include "fake_replay.h"

/* ---- a validator ---------------------------------------------------------------------------------- */

enum { TRACKS = 32, DEEP = 16, FLOWS = 4096 };

typedef struct open_track {
    double pid, tid, last; /* last: start of the newest event                                       */
    double ends[DEEP];
    int depth, named;
} open_track;

typedef struct checker {
    open_track tracks[TRACKS];
    int track_count;
    struct {
        double id, from, to;
        int starts, ends;
    } flows[FLOWS];
    int flow_count, kernels, counters;
    double kernel_us;
    char wrong[200];
} checker;

/* Times are multiples of a nanosecond, in microseconds. */
#define SLACK 0.0004

static open_track *track_of(checker *c, const json_t *event) {
    double pid = json_number_value(json_object_get(event, "pid")),
           tid = json_number_value(json_object_get(event, "tid"));
    for (int i = 0; i < c->track_count; i++)
        if (c->tracks[i].pid == pid && c->tracks[i].tid == tid) return &c->tracks[i];
    assert_true(c->track_count < TRACKS);
    c->tracks[c->track_count] = (open_track){.pid = pid, .tid = tid, .last = -1e300};
    return &c->tracks[c->track_count++];
}

#define WRONG(...) return (void)snprintf(c->wrong, sizeof c->wrong, __VA_ARGS__), 0

static int needs(checker *c, const json_t *event, const char *keys) {
    for (const char *k = keys; *k; k++) {
        static const struct {
            char letter;
            const char *key;
            int text;
        } fields[] = {{'n', "name", 1}, {'c', "cat", 1}, {'t', "ts", 0}, {'d', "dur", 0},
                      {'p', "pid", 0},  {'i', "tid", 0}, {'#', "id", 0}};
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
            const json_t *value = json_object_get(event, fields[f].key);
            if (fields[f].letter != *k || (fields[f].text ? json_is_string(value) : json_is_number(value)))
                continue;
            WRONG("an event of phase %s has no %s", json_string_value(json_object_get(event, "ph")), fields[f].key);
        }
    }
    return 1;
}

/* Complete events of a track stand in order and nest. */
static int check_span(checker *c, const json_t *event) {
    if (!needs(c, event, "nctdpi")) return 0;
    double start = number(event, "ts"), dur = number(event, "dur"), end = start + dur;
    const char *name = word(event, "name");
    open_track *t = track_of(c, event);
    if (dur < 0 || start < 0) WRONG("%s: a negative time", name);
    if (start < t->last - SLACK) WRONG("%s: out of order", name);
    t->last = start;
    while (t->depth && t->ends[t->depth - 1] <= start + SLACK) t->depth--;
    if (t->depth && end > t->ends[t->depth - 1] + SLACK)
        WRONG("%s: sticks out of what it is in by %.4f µs", name, end - t->ends[t->depth - 1]);
    if (t->depth == DEEP) WRONG("%s: too deep", name);
    if (dur > SLACK) t->ends[t->depth++] = end;
    if (strcmp(word(event, "cat"), "kernel")) return 1;
    static const char *const texts[] = {"stage", "kind", "group", "shape", "kernel"};
    const json_t *arguments = json_object_get(event, "args");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!json_is_string(json_object_get(arguments, texts[i])))
            WRONG("%s: no argument %s", name, texts[i]);
    if (!json_is_number(json_object_get(arguments, "gflop")) ||
        !json_is_number(json_object_get(arguments, "mb")))
        WRONG("%s: no costs", name);
    c->kernels++;
    c->kernel_us += dur;
    if (t->depth < 1 + (dur > SLACK)) WRONG("%s: a kernel outside of its stage", name);
    return 1;
}

static int check_flow(checker *c, const json_t *event, int end) {
    if (!needs(c, event, "nctpi#")) return 0;
    double id = number(event, "id"), at = number(event, "ts");
    const open_track *t = track_of(c, event);
    if (end && strcmp(word(event, "bp"), "e"))
        WRONG("flow %g: its end binds to the next event, not to the one around it", id);
    if (at < t->last - SLACK || !t->depth || at > t->ends[t->depth - 1] + SLACK)
        WRONG("flow %g is tied to no event", id);
    int f = 0;
    while (f < c->flow_count && c->flows[f].id != id) f++;
    assert_true(f < FLOWS);
    if (f == c->flow_count) c->flows[c->flow_count++].id = id;
    if (end) c->flows[f].to = at;
    else c->flows[f].from = at;
    c->flows[f].starts += !end;
    c->flows[f].ends += end;
    return 1;
}

static int check_event(checker *c, const json_t *event) {
    const char *phase = json_string_value(json_object_get(event, "ph"));
    if (!phase) WRONG("an event without a phase");
    if (!strcmp(phase, "X")) return check_span(c, event);
    if (!strcmp(phase, "s") || !strcmp(phase, "f")) return check_flow(c, event, *phase == 'f');
    if (!strcmp(phase, "C")) {
        const char *key;
        json_t *value;
        if (!needs(c, event, "ntp")) return 0;
        if (!json_object_size(json_object_get(event, "args"))) WRONG("a counter without a value");
        json_object_foreach(json_object_get(event, "args"), key, value) if (!json_is_number(value))
            WRONG("counter %s is no number", key);
        c->counters++;
        return 1;
    }
    if (strcmp(phase, "M")) WRONG("an event of phase %s", phase);
    if (!needs(c, event, "npi")) return 0;
    if (!strcmp(word(event, "name"), "thread_name")) track_of(c, event)->named = 1;
    return 1;
}

/* 1, or 0 with the reason in c->wrong. */
static int validate(checker *c, const json_t *root) {
    const json_t *events = json_object_get(root, "traceEvents"),
                 *totals = json_object_get(json_object_get(root, "otherData"), "totals");
    memset(c, 0, sizeof *c);
    if (!json_array_size(events)) WRONG("no events");
    for (size_t i = 0; i < json_array_size(events); i++)
        if (!check_event(c, json_array_get(events, i))) return 0;
    for (int i = 0; i < c->track_count; i++)
        if (c->tracks[i].last > -1e300 && !c->tracks[i].named)
            WRONG("track %g/%g has no name", c->tracks[i].pid, c->tracks[i].tid);
    for (int i = 0; i < c->flow_count; i++)
        if (c->flows[i].starts != 1 || c->flows[i].ends != 1 || c->flows[i].from > c->flows[i].to)
            WRONG("flow %g: %d starts, %d ends, from %g to %g", c->flows[i].id, c->flows[i].starts,
                  c->flows[i].ends, c->flows[i].from, c->flows[i].to);
    if (!c->flow_count) WRONG("no flows");
    if (number(totals, "kernels") != c->kernels)
        WRONG("%d kernels, the totals say %g", c->kernels, number(totals, "kernels"));
    if (number(totals, "launches") != c->kernels)
        WRONG("%d kernels, the totals say %g launches", c->kernels, number(totals, "launches"));
    if (fabs(number(totals, "kernel_ms") * 1e3 - c->kernel_us) > 1e-6 * c->kernel_us)
        WRONG("kernels take %.6f µs, the totals say %.6f ms", c->kernel_us, number(totals, "kernel_ms"));
    return 1;
}

static void must_be_valid(const json_t *root) {
    checker c;
    if (!validate(&c, root)) fail_msg("not a valid trace: %s", c.wrong);
}

/* The n-th event of a phase (and category, where it is not NULL). */
static json_t *pick(const json_t *root, const char *phase, const char *category, int n) {
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        if (strcmp(word(e, "ph"), phase) || (category && strcmp(word(e, "cat"), category)) || n--) continue;
        return e;
    }
    fail_msg("no event of phase %s", phase);
    return NULL;
}

/* ---- our own -------------------------------------------------------------------------------------- */

#define TINY "--synthetic tiny --steps 2 --horizon 4 --warmup 1"

static double sum_of(const json_t *root, const char *category) {
    const json_t *events = json_object_get(root, "traceEvents");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i), *cat = json_object_get(e, "cat");
        if (!strcmp(word(e, "ph"), "X") && !strcmp(json_string_value(cat), category)) sum += number(e, "dur");
    }
    return sum;
}

static void test_own(void **state) {
    (void)state;
    static const char *const spans[] = {"picture", "prompt", "upload", "run", "download", "actions"};
    assert_int_equal(run("trace t.json %s --calls 3", TINY), 0);
    must_contain(out, "3 calls from made-up pictures and words, 20 prompt tokens");
    must_contain(out, "ui.perfetto.dev");
    json_t *root = load("t.json"), *head = json_object_get(root, "otherData");
    must_be_valid(root);
    assert_string_equal(word(head, "kind"), "trace");
    assert_true(number(head, "calls") == 3);
    assert_string_equal(word(head, "level"), "policy");
    for (int call = 0; call < 3; call++)
        for (int i = 0; i < 6; i++)
            assert_string_equal(word(pick(root, "X", "host", call * 6 + i), "name"), spans[i]);
    /* On a CPU kernels follow each other: they fill their stages, and the stages the run. */
    double kernels = sum_of(root, "kernel"), stages = sum_of(root, "stage");
    assert_true(fabs(stages - kernels) <= 1e-3 * stages);
    double run_ms = number(json_object_get(head, "totals"), "run_ms");
    assert_true(stages <= run_ms * 1e3 && stages >= run_ms * 1e3 * 0.98);
    json_decref(root);

    assert_int_equal(run("trace m.json %s --prompt 0", TINY), 0);
    must_contain(out, "from made-up tensors");
    must_contain(out, "not from pictures and words: --prompt 0 leaves a policy nothing to read");
    root = load("m.json");
    must_be_valid(root);
    assert_string_equal(word(pick(root, "X", "host", 0), "name"), "upload");
    json_decref(root);
}

/* Each spoils a valid trace differently. */
static void cut_parent(json_t *root) {
    json_object_set_new(pick(root, "X", "stage", 0), "dur", json_real(0.5));
}
static void move_kernel(json_t *root) {
    json_object_set_new(pick(root, "X", "kernel", 5), "ts", json_real(0));
}
static void no_process(json_t *root) { json_object_del(pick(root, "X", "kernel", 0), "pid"); }
static void no_duration(json_t *root) { json_object_del(pick(root, "X", "host", 0), "dur"); }
static void longer_kernel(json_t *root) {
    json_t *last = pick(root, "X", "kernel", 3);
    json_object_set_new(last, "dur", json_real(number(last, "dur") * 0.5));
}
static void other_flow(json_t *root) {
    json_object_set_new(pick(root, "f", NULL, 0), "id", json_integer(4711));
}
static void early_flow(json_t *root) { json_object_set_new(pick(root, "f", NULL, 0), "ts", json_real(0)); }
static void no_name(json_t *root) {
    json_object_set_new(pick(root, "M", NULL, 2), "name", json_string("nothing"));
}
static void no_shape(json_t *root) {
    json_object_del(json_object_get(pick(root, "X", "kernel", 2), "args"), "shape");
}

static void test_validator(void **state) {
    (void)state;
    void (*const spoilers[])(json_t *) = {cut_parent, move_kernel, no_process, no_duration, longer_kernel,
                                          other_flow, early_flow,  no_name,    no_shape};
    assert_int_equal(run("trace v.json %s", TINY), 0);
    for (size_t i = 0; i < sizeof spoilers / sizeof *spoilers; i++) {
        checker c;
        json_t *root = load("v.json");
        must_be_valid(root);
        spoilers[i](root);
        if (validate(&c, root)) fail_msg("spoiler %zu was not found", i);
        json_decref(root);
    }
}

/* ---- gzip ----------------------------------------------------------------------------------------- */

static void unpack(const char *from, const char *to) {
    char path[400], block[4096];
    snprintf(path, sizeof path, "%s", scratch_path(&box, from));
    gzFile in = gzopen(path, "rb");
    FILE *file = fopen(scratch_path(&box, to), "wb");
    int got;
    assert_true(in && file && !gzdirect(in));
    while ((got = gzread(in, block, sizeof block)) > 0)
        assert_int_equal(fwrite(block, 1, (size_t)got, file), got);
    assert_int_equal(gzclose(in), Z_OK);
    assert_int_equal(fclose(file), 0);
}

static void test_gzip(void **state) {
    (void)state;
    assert_int_equal(run("trace g.json.gz %s --calls 2", TINY), 0);
    unpack("g.json.gz", "g.json");
    json_t *root = load("g.json");
    must_be_valid(root);
    json_decref(root);
}

/* ---- groups --------------------------------------------------------------------------------------- */

/* Every op of the vocabulary has a group of its own but the copy of the prompt's rows and sums. */
static void test_groups(void **state) {
    (void)state;
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const char *name = op_kind_name((op_kind)kind);
        int none = kind == OP_EMBED_TEXT || kind == OP_GUIDE || !strcmp(name, "add");
        if (!none && !strcmp(trace_group(name), "other")) fail_msg("%s has no group", name);
    }
    assert_string_equal(trace_group("norm_qkv"), "GEMM");
    assert_string_equal(trace_group("norm"), "norm");
    assert_string_equal(trace_group("image_attention"), "attention");
    assert_string_equal(trace_group("cake"), "other");
}

/* ---- bad words ------------------------------------------------------------------------------------ */

static void test_bad(void **state) {
    (void)state;
    must_refuse("trace absent/t.json --synthetic tiny", "absent/t.json: cannot be written: No such file or "
                                                        "directory");
    must_refuse("trace t.json model --synthetic tiny", "CHECKPOINT and --synthetic contradict each other");
    must_refuse("trace t.json --synthetic tiny --calls 0", "--calls is '0', expected a whole number from 1 "
                                                           "to 1000");
    must_refuse("trace", "FILE is missing");
    assert_int_equal(run("trace /dev/full %s", TINY), 2);
    must_contain(err, "/dev/full: cannot be written: No space left on device");
}

/* ---- a device that replays ------------------------------------------------------------------------ */

static void test_replay(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine;
    openpi_session *session;
    openpi_engine_options with = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    backend fake;
    trace t;
    shape.steps = 2;
    shape.max_prompt = 16;
    assert_int_equal(openpi_synthetic_parse("tiny", &tiny, &error), OPENPI_OK);
    with.synthetic = &tiny;
    assert_int_equal(openpi_engine_open(NULL, &with, &engine, &error), OPENPI_OK);
    fake_replays(engine, &fake);
    assert_int_equal(openpi_session_create(engine, &shape, &session, &error), OPENPI_OK);
    trace_options options = {.call = {.batch = 1, .cameras = {1, 1, 1}, .prompt = 9},
                             .calls = 2,
                             .warmup = 1,
                             .not_policy = "none is wanted"};
    assert_int_equal(trace_run(session, &options, &t, &error), OPENPI_OK);
    assert_int_equal(t.method, TIMED_REPLAY);
    assert_int_equal(t.policy, 0);
    assert_string_equal(t.not_policy, "none is wanted");
    assert_int_equal(t.count, 2);
    assert_int_equal(t.launches[FAKE_SPLIT].places, 2);
    assert_int_equal(t.launches[FAKE_SPLIT + 1].place, 2);
    assert_string_equal(t.launches[FAKE_JOINED + 1].group, "several in one");
    assert_string_equal(t.launches[0].group, "GEMM");
    assert_int_equal(t.launch_count, session->plan->count + 1 - (FAKE_JOIN - 1));
    for (int n = 0; n < t.count; n++) {
        const trace_call *c = &t.calls[n];
        const trace_span *ran = &c->spans[c->run];
        assert_string_equal(ran->name, "replay");
        assert_true(c->device_ms >= ran->start_ms &&
                    c->device_ms + c->ends[t.launch_count - 1] <= ran->end_ms + 0.05);
        assert_true(c->spans[0].start_ms >= c->start_ms && c->spans[c->span_count - 1].end_ms <= c->end_ms);
        for (int i = 1; i < c->span_count; i++) assert_true(c->spans[i].start_ms >= c->spans[i - 1].end_ms);
        for (int i = 1; i < t.launch_count; i++) assert_true(c->starts[i] >= c->ends[i - 1]);
        if (n) assert_true(c->start_ms >= t.calls[n - 1].end_ms);
    }
    trace_free(&t);
    options.calls = 0;
    assert_int_equal(trace_run(session, &options, &t, &error), OPENPI_BAD_ARGUMENT);
    trace_free(&t);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own),   cmocka_unit_test(test_validator), cmocka_unit_test(test_gzip),
        cmocka_unit_test(test_groups), cmocka_unit_test(test_bad),      cmocka_unit_test(test_replay),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
