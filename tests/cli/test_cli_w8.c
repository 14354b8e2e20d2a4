/* labels: command */
/* `openpi quantize` and --weights w8: a plan is measured, written, opened; a missing, foreign, cut or edited
 * one is refused, and so is one above its bound or not reproduced. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/w8_plan.h"
#include "openpi.h"
#include "scratch.h"

#include "command.h"

#define SMALL "--robot aloha --horizon 4 --steps 2 --save bytes"
#define AGAIN "; run: openpi quantize "

static json_t *printed(void) {
    json_error_t where;
    json_t *root = json_loads(out, JSON_REJECT_DUPLICATES, &where);
    if (!root) fail_msg("not JSON: line %d: %s", where.line, where.text);
    return root;
}

/* A short call, which shows the engine. */
#define RUN(more)                                                                                            \
    "run ck --robot aloha --image cam_high='" TESTS_DIR "/pictures/rgb.png' " STATE " --prompt x "           \
    "--horizon 2 --steps 1 " more
#define STATE "--state 0,0,0,0,0,0,0,0,0,0,0,0,0,0"

/* Opens the checkpoint in this process; `plan`: in the box, NULL: beside the checkpoint. */
static openpi_status try_open(const char *plan, int accept, openpi_engine **engine, openpi_error *error) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    char checkpoint[200], formats[500] = "w8";
    snprintf(checkpoint, sizeof checkpoint, "%s/ck", box.folder);
    if (plan) snprintf(formats, sizeof formats, "w8=%s", scratch_path(&box, plan));
    options.formats = formats;
    options.accept_error = accept;
    options.threads = 2;
    return openpi_engine_open(checkpoint, &options, engine, error);
}

static void must_not_open(const char *plan, const char *sentence) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine *engine = NULL;
    if (try_open(plan, 0, &engine, &error) == OPENPI_OK) fail_msg("%s opened, expected: %s", plan, sentence);
    if (!strstr(error.message, sentence) || !strstr(error.message, AGAIN))
        fail_msg("%s: %s; expected: %s", plan, error.message, sentence);
    assert_null(engine);
}

/* Opens, and notes what `note` says where it is not NULL. */
static void must_open(const char *plan, int accept, const char *note) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine *engine = NULL;
    const char *text;
    int found = !note;
    if (try_open(plan, accept, &engine, &error) != OPENPI_OK) fail_msg("%s: %s", plan, error.message);
    for (int i = 0; (text = openpi_engine_note(engine, i, NULL)); i++) found |= note && strstr(text, note);
    openpi_engine_close(engine);
    if (!found) fail_msg("no note says: %s", note);
}

/* Writes the box's plan again under a digest that fits, and gives `root` up. */
static void seal(json_t *root, const char *name) {
    char *text = w8_text(root);
    assert_non_null(text);
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
    free(text);
    json_decref(root);
}

static int open_plan(void **state) {
    (void)state;
    if (scratch_open(&box) || run("synth ck --preset tiny")) return -1;
    return run("quantize ck " SMALL " --synthetic 2 --weights expert=int8");
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static void a_plan_opens_and_says_so(void **state) {
    (void)state;
    assert_int_equal(run("%s", RUN("--weights w8 --json")), 0);
    json_t *root = printed(), *machine = json_object_get(root, "machine"),
           *w8 = json_object_get(machine, "w8");
    assert_string_equal(word(machine, "weights"), "bf16,expert=int8");
    assert_true(number(w8, "error") > 0 && number(w8, "error") <= number(w8, "bound"));
    assert_true(json_is_false(json_object_get(w8, "error_accepted")));
    must_contain(err, "made-up observations, which prove little");
    json_decref(root);
    assert_int_equal(run("%s", RUN("--json")), 0);       /* without the option nothing has 8 bits       */
    root = printed();
    assert_null(json_object_get(json_object_get(root, "machine"), "w8"));
    assert_null(json_object_get(json_object_get(root, "machine"), "weights"));
    json_decref(root);
}

static void a_copy_opens_too(void **state) {
    (void)state;
    char line[300];
    snprintf(line, sizeof line, "cp -r '%s/ck' '%s/moved'", box.folder, box.folder);
    assert_int_equal(system(line), 0);
    assert_int_equal(run("inspect moved --robot aloha --weights w8"), 0);
    must_contain(out, "bf16,expert=int8");
}

static void what_is_not_this_checkpoints_plan_is_refused(void **state) {
    (void)state;
    assert_int_equal(run("synth other --preset tiny --seed 8"), 0);
    must_refuse("bench other --weights w8",
                "--weights is w8, and its plan other/openpi-w8.json is not there; run: openpi quantize other "
                "--observations FOLDER");
    must_refuse("bench other --weights w8=ck/openpi-w8.json",
                "ck/openpi-w8.json: was made for other weights, of hash ");
    must_not_open("nowhere.json", "nowhere.json is not there");
    must_refuse(RUN("--weights w8 --dtype f32"),
                "was measured with bf16 activations, and dtype is f32; run: openpi quantize ck ");
    must_refuse("bench --synthetic tiny --weights w8", "expected w8=FILE");
    must_refuse(RUN("--weights w8,expert=bf16"), "\"w8\" is no format");
    must_refuse(RUN("--accept-error"), "--accept-error is 1, expected 0 where formats is not w8");
}

/* One value of one weight in the middle of the file. */
static void other_weights_of_the_same_sizes_are_foreign(void **state) {
    (void)state;
    char line[400];
    snprintf(line, sizeof line,
             "cp -r '%s/ck' '%s/tuned' && printf xyz | dd of='%s/tuned/model.safetensors' bs=1 seek=3145800 "
             "conv=notrunc 2>/dev/null", box.folder, box.folder, box.folder);
    assert_int_equal(system(line), 0);
    must_refuse("bench tuned --weights w8", "was made for other weights");
}

/* ---- what the file says ------------------------------------------------------------------------------ */

static void cut_and_edited_plans_are_refused(void **state) {
    (void)state;
    size_t bytes;
    char *text = slurp(scratch_path(&box, "ck/openpi-w8.json"), &bytes);
    for (size_t part = 0; part < 5; part++) {
        assert_int_equal(scratch_write(&box, "cut.json", text, bytes * part / 5), 0);
        must_not_open("cut.json", "cut.json");
    }
    static const struct {
        const char *from, *to, *sentence;
    } edits[] = {
        {"expert=int8", "expert=e4m3", "was changed after openpi quantize wrote it"},
        {"\"limit\": 0.02", "\"limit\": 0.08", "was changed after openpi quantize wrote it"},
        {"\"format\": 1", "\"format\": 2", "its format is 2, this program reads 1"},
        {"\"kind\": \"w8\"", "\"kind\": \"w9\"", "its kind is \"w9\", expected \"w8\""},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *edited = malloc(bytes + 1), *at;
        memcpy(edited, text, bytes + 1);
        at = strstr(edited, edits[i].from);
        if (!at) fail_msg("no %s in the plan", edits[i].from);
        memcpy(at, edits[i].to, strlen(edits[i].to));
        assert_int_equal(scratch_write(&box, "edited.json", edited, bytes), 0);
        must_not_open("edited.json", edits[i].sentence);
        free(edited);
    }
    free(text);
}

/* Fields that are gone or of another kind, under a digest that fits: refused, never read beyond. */
static void sealed_nonsense_is_refused(void **state) {
    (void)state;
    static const char *const fields[] = {"checkpoint", "formats", "dtype", "path", "bounds", "check"},
                      *const inner[] = {"rms",   "horizon", "steps",   "max_prompt", "action_dim",
                                        "state", "tokens",  "actions", "images",     "pixels"};
    enum { OUTER = sizeof fields / sizeof *fields, ALL = OUTER + sizeof inner / sizeof *inner };
    for (size_t i = 0; i < 2 * ALL; i++) {
        json_t *root = load("ck/openpi-w8.json"), *in = root;
        const char *key = i / 2 < OUTER ? fields[i / 2] : inner[i / 2 - OUTER];
        if (i / 2 >= OUTER) in = json_object_get(root, "check");
        if (i % 2) json_object_del(in, key);
        else json_object_set_new(in, key, json_pack("[s]", "nonsense"));
        seal(root, "odd.json");
        must_not_open("odd.json", "odd.json");
    }
}

/* A smoothed table opens by its plan's powers alone. */
static void powers_come_with_the_plan(void **state) {
    (void)state;
    size_t bytes;
    assert_int_equal(run("quantize ck " SMALL " --synthetic 1 --weights ffn=int8x8+smooth --out s.json"), 0);
    must_open("s.json", 0, "weights are bf16,ffn=int8x8+smooth");
    must_refuse(RUN("--weights ffn=int8x8+smooth"), "smoothing takes a plan that openpi quantize");
    for (int i = 0; i < 3; i++) {
        json_t *root = load("s.json");
        char *text = strdup(word(root, "smoothing"));
        bytes = strlen(text);
        if (i == 0) json_object_del(root, "smoothing");
        if (i == 1) text[bytes - 4] = 0;
        if (i == 2) memcpy(text, "/3//", 4);               /* -1, 127, -1                                 */
        if (i) json_object_set_new(root, "smoothing", json_string(text));
        seal(root, "odd.json");
        free(text);
        must_not_open("odd.json", "\"smoothing\" is missing or not what a plan has there");
    }
}

/* So does one whose rows have static scales, by its plan's scales: one for each layer but the last. */
static void row_scales_come_with_the_plan(void **state) {
    (void)state;
    static const struct {
        double first;
        const char *sentence;
    } cases[] = {
        {0, "\"row_scales\" has no number from 2^-100 to 2^100 for layer 0"},
        {-0.5, "\"row_scales\" has no number"},
        {1e39, "\"row_scales\" has no number"},
        {1e-39, "\"row_scales\" has no number"},
        {1, "expected within 10 %"},             /* 100 times too wide: the stored observation tells      */
    };
    assert_int_equal(
        run("quantize ck " SMALL " --synthetic 1 --weights ffn=int8x8+smooth+static --out t.json"), 0);
    must_open("t.json", 0, "weights are bf16,ffn=int8x8+smooth+static");
    must_refuse(RUN("--weights ffn=int8x8+static"), "a static scale takes a plan that openpi quantize");
    for (size_t i = 0; i < 3 + sizeof cases / sizeof *cases; i++) {
        json_t *root = load("t.json"), *list = json_object_get(root, "row_scales");
        if (i == 0) json_array_append_new(list, json_real(1));
        if (i == 1) json_array_remove(list, 0);
        if (i == 2) json_object_del(root, "row_scales");
        if (i >= 3) json_array_set_new(list, 0, json_real(cases[i - 3].first));
        seal(root, "odd.json");
        must_not_open("odd.json", i < 3 ? "\"row_scales\" has " : cases[i - 3].sentence);
    }
}

/* What static scales clip stands in the head: of the plan as it was measured little, of one whose scale is
 * too small much. */
static void losses_stand_in_the_head(void **state) {
    (void)state;
    json_t *root = load("t.json");
    double before = 100;
    json_array_set_new(json_object_get(root, "row_scales"), 0, json_real(1e-6));
    seal(root, "small.json");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run(i ? RUN("--weights w8=small.json --accept-error --json")
                               : RUN("--weights w8=t.json --json")), 0);
        root = printed();
        json_t *w8 = json_object_get(json_object_get(root, "machine"), "w8");
        double clipped = number(w8, "clipped"), rows = number(w8, "clipped_rows");
        if (rows > clipped || (i && clipped < 10 * before))
            fail_msg("%g numbers of %g rows were clipped, %g before", clipped, rows, before);
        before = clipped;
        assert_true(number(w8, "not_finite") == 0);
        json_decref(root);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------- */

/* The stored observation: recorded as better and as worse than it is. */
static void an_error_that_is_not_reproduced_is_refused(void **state) {
    (void)state;
    static const double scales[] = {0.85, 1.15, 0.95, 1.05};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        json_t *root = load("ck/openpi-w8.json"), *check = json_object_get(root, "check");
        json_object_set_new(check, "rms", json_real(number(check, "rms") * scales[i]));
        seal(root, "planted.json");
        if (i < 2) {
            must_not_open("planted.json", "expected within 10 %");
            must_open("planted.json", 1, "was accepted (accept_error)");
        } else {
            must_open("planted.json", 0, NULL);
        }
    }
}

static void a_plan_above_its_bound_needs_a_word(void **state) {
    (void)state;
    assert_int_equal(run("quantize ck " SMALL " --synthetic 1 --weights e4m3 --out bad.json"), 1);
    must_contain(out, "ABOVE THE BOUND");
    must_contain(out, "opening it needs --accept-error");
    must_refuse(RUN("--weights w8=bad.json"),
                "which only --accept-error lets pass; run: openpi quantize ck ");
    assert_int_equal(run("%s", RUN("--weights w8=bad.json --accept-error --json")), 0);
    must_contain(err, "warning: the error of the 8-bit weights is above what was allowed, and was accepted");
    json_t *root = printed(), *w8 = json_object_get(json_object_get(root, "machine"), "w8");
    assert_true(json_is_true(json_object_get(w8, "error_accepted")));
    json_decref(root);
}

/* A golden has a synthetic model, and asks the plan whether it is that model's. */
static void a_plan_is_judged_by_a_golden(void **state) {
    (void)state;
    assert_int_equal(run("quantize --model odd:pi05:9 --robot none --horizon 4 --steps 2 --save bytes "
                         "--synthetic 1 --weights expert=int8 --bound 1 --out odd.json"), 0);
    assert_int_equal(run("verify " TESTS_DIR "/golden/model/pi05_odd.safetensors --dtype bf16 "
                         "--weights w8=odd.json"), 0);
    must_contain(out, "1 ok, 0 FAIL");
    assert_int_equal(run("verify " TESTS_DIR "/golden/model/pi0_odd.safetensors --dtype bf16 "
                         "--weights w8=odd.json"), 1);
    must_contain(out, "1 FAIL");
    must_refuse("verify " TESTS_DIR "/golden/model/pi05_odd.safetensors --weights w8x",
                "\"w8x\" is no format");
}

static void a_golden_needs_the_word_too(void **state) {
    (void)state;
    assert_int_equal(run("quantize --model odd:pi05:9 --robot none --horizon 4 --steps 2 --save bytes "
                         "--synthetic 1 --weights expert=int8 --bound 1e-6 --out tight.json"), 1);
    assert_int_equal(run("verify " TESTS_DIR "/golden/model/pi05_odd.safetensors --dtype bf16 "
                         "--weights w8=tight.json"), 1);
    must_contain(out, "which only accept_error lets pass");
    assert_int_equal(run("verify " TESTS_DIR "/golden/model/pi05_odd.safetensors --dtype bf16 "
                         "--weights w8=tight.json --accept-error"), 0);
    must_contain(out, "1 ok, 0 FAIL");
}

/* ---- observations ----------------------------------------------------------------------------------- */

static void observations_are_asked_for(void **state) {
    (void)state;
    must_refuse("quantize ck --robot aloha", "no observations: give --observations FOLDER");
    must_refuse("quantize ck --robot aloha --observations nowhere", "nowhere: nothing of that name is there");
    must_refuse("quantize ck --robot aloha --observations ck/assets", "no file ends in .msgpack");
    must_refuse("quantize ck --robot aloha --synthetic 1 --bound none", "--bound is 'none'");
    must_refuse("quantize ck --robot aloha --synthetic 1 --weights bf16", "there is nothing to judge");
    must_refuse("quantize ck --robot aloha --synthetic 1 --unit-bound 'jont 1'",
                "--unit-bound names \"jont\"");
}

/* Requests as clients send them: files of one and of two, in the order of names. */
static void recorded_requests_are_read(void **state) {
    (void)state;
    size_t bytes;
    char *request = slurp(GOLDEN "/policy/aloha_sim/request.msgpack", &bytes), *twice = malloc(2 * bytes);
    memcpy(twice, request, bytes);
    memcpy(twice + bytes, request, bytes);
    assert_int_equal(mkdir(scratch_path(&box, "requests"), 0700), 0);
    assert_int_equal(scratch_write(&box, "requests/a.msgpack", request, bytes), 0);
    assert_int_equal(scratch_write(&box, "requests/b.msgpack", twice, 2 * bytes), 0);
    assert_int_equal(scratch_write(&box, "requests/note.txt", "x", 1), 0);
    assert_int_equal(run("quantize ck --robot aloha_sim --horizon 2 --steps 1 --observations requests "
                         "--weights expert=int8 --out r.json"), 0);
    must_contain(out, "3 observations are few");
    assert_int_equal(scratch_write(&box, "requests/c.msgpack", twice, bytes - 1), 0);
    must_refuse("quantize ck --robot aloha_sim --observations requests --weights expert=int8 --out r.json",
                "requests/c.msgpack: byte 0 begins no whole msgpack value");
    free(request);
    free(twice);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_opens_and_says_so),
        cmocka_unit_test(a_copy_opens_too),
        cmocka_unit_test(what_is_not_this_checkpoints_plan_is_refused),
        cmocka_unit_test(other_weights_of_the_same_sizes_are_foreign),
        cmocka_unit_test(cut_and_edited_plans_are_refused),
        cmocka_unit_test(sealed_nonsense_is_refused),
        cmocka_unit_test(powers_come_with_the_plan),
        cmocka_unit_test(row_scales_come_with_the_plan),
        cmocka_unit_test(losses_stand_in_the_head),
        cmocka_unit_test(an_error_that_is_not_reproduced_is_refused),
        cmocka_unit_test(a_plan_above_its_bound_needs_a_word),
        cmocka_unit_test(a_plan_is_judged_by_a_golden),
        cmocka_unit_test(a_golden_needs_the_word_too),
        cmocka_unit_test(observations_are_asked_for),
        cmocka_unit_test(recorded_requests_are_read)};
    return cmocka_run_group_tests(tests, open_plan, close_box);
}
