/* labels: command */
/* openpi ladder as a user meets it: words, table, JSON, picture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "openpi.h"
#include "scratch.h"
#include "command.h"

#define QUICK "ladder --synthetic odd --steps 1 --horizon 2 --prompt 3 --cameras 100 --warmup 0 --runs 1"

static void test_list(void **state) {
    (void)state;
    openpi_switch names[32] = {OPENPI_SWITCH_INIT};
    int count, lines = 0;
    const char *at;
    assert_int_equal(openpi_switches(names, 32, &count, NULL), OPENPI_OK);
    assert_int_equal(run("ladder --list"), 0);
    at = out;
    for (int i = 0; i < count; i++) {      /* all of them, in order, with their texts */
        at = strstr(at, names[i].name);
        if (!at) fail_msg("%s is not in its place:\n%s", names[i].name, out);
        must_contain(at, names[i].text);
    }
    for (const char *c = out; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, count);
}

static void test_bad_words(void **state) {
    (void)state;
    static const struct {
        const char *args, *sentence;
    } bad[] = {
        {"ladder --synthetic odd --without speed", "there is no switch \"speed\", expected names such as fused-qkv"},
        {"ladder --runs 0", "--runs is '0', expected a whole number from 1 to 100000"},
        {"ladder --warmup -1", "--warmup is '-1'"},
        {"ladder --batch 65", "--batch is '65', expected a whole number from 1 to 64"},
        {"ladder --cameras 2", "--cameras is '2'"},
        {"ladder --synthetic small", "small"},
        {"ladder folder --synthetic odd", "CHECKPOINT and --synthetic contradict each other"},
        {"ladder absent", "absent"},
        {"ladder --synthetic odd --json absent/l.json", "absent/l.json: cannot be written: No such file or directory"},
        {"ladder --synthetic odd --svg absent/l.svg", "absent/l.svg: cannot be written: No such file or directory"},
        {"ladder --synthetic odd --isa sse9", "sse9"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) must_refuse(bad[i].args, bad[i].sentence);
    assert_int_equal(run("ladder --synthetic odd --device tpu"), 3);
}

static const json_t *rung_of(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *rung = json_array_get(list, i);
        const char *is = json_string_value(json_object_get(rung, "switch"));
        if (is && !strcmp(is, name)) return rung;
    }
    fail_msg("no rung %s", name);
    return NULL;
}

static int applies(const json_t *rung) { return json_is_true(json_object_get(rung, "applies")); }

/* What is printed as a gain, a factor or a cost is what the times say. */
static void test_json(void **state) {
    (void)state;
    assert_int_equal(run(QUICK " --json l.json"), 0);
    json_t *root = load("l.json");
    const json_t *climb = json_object_get(root, "climb"), *one = json_object_get(root, "leave_one_out");
    double below = 0, foot = number(root, "foot_ms"), top = number(root, "top_ms");
    assert_string_equal(word(root, "kind"), "ladder");
    int count;
    assert_int_equal(openpi_switches(NULL, 0, &count, NULL), OPENPI_OK);
    assert_int_equal((int)json_array_size(climb), count + 1);
    assert_int_equal((int)json_array_size(one), count);
    must_be_ratio(root, "total_ratio", foot, top);
    for (size_t i = 0; i < json_array_size(climb); i++) {
        const json_t *rung = json_array_get(climb, i);
        if (!applies(rung)) {
            assert_true(strlen(word(rung, "reason")) > 5);
            continue;
        }
        double ms = number(rung, "p50_ms");
        if (i) {
            must_be_difference(rung, "gain_ms", below, ms);
            must_be_ratio(rung, "gain_ratio", below, ms);
        } else {
            assert_true(json_is_null(json_object_get(rung, "switch")));
            assert_true(ms == foot);
        }
        must_be_ratio(rung, "total_ratio", foot, ms);
        assert_true(number(rung, "weight_bytes") > 0 && number(rung, "session_bytes") > 0 &&
                    number(rung, "operations") > 0);
        assert_true(json_is_true(json_object_get(rung, "within_bound")));
        assert_true(number(rung, "deviation_max") <= number(root, "bound_max"));
        below = ms;
    }
    assert_true(below == top);
    for (size_t i = 0; i < json_array_size(one); i++) {
        const json_t *rung = json_array_get(one, i);
        if (!applies(rung)) continue;
        must_be_difference(rung, "cost_ms", number(rung, "p50_ms"), top);
        must_be_ratio(rung, "cost_ratio", number(rung, "p50_ms"), top);
    }
    assert_true(applies(rung_of(one, "masked-cameras-dropped")) && applies(rung_of(climb, "state-token-"
                                                                                          "once")));
    assert_false(applies(rung_of(one, "precomputed-modulations")));
    assert_false(applies(rung_of(climb, "graph-replay")));
    json_decref(root);
}

static void test_text_and_picture(void **state) {
    (void)state;
    assert_int_equal(run(QUICK " --variant pi05 --dtype f32 --without fused-qkv --svg l.svg"), 0);
    must_contain(out, "synthetic odd:pi05:7: π0.5, f32 with bf16 weights on cpu");
    must_contain(out, "; without fused-qkv");
    must_contain(out, "all off");
    must_contain(out, "+ precomputed-modulations");
    must_contain(out, "all on but one");
    must_contain(out, "  fused-qkv: off on every rung, as asked");
    must_contain(out, "  state-token-once: π0.5 has no state token");
    must_contain(out, "0 rungs beyond it");
    char *svg = slurp(scratch_path(&box, "l.svg"), NULL);
    must_contain(svg, "<svg");
    must_contain(svg, "Ladder: ");
    must_contain(svg, "+ dead-work-removal");
    assert_null(strstr(svg, "+ fused-qkv"));                   /* n/a has no bar */
    must_contain(svg, "</svg>");
    free(svg);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_bad_words),
                                       cmocka_unit_test(test_json), cmocka_unit_test(test_text_and_picture)};
    return cmocka_run_group_tests(tests, open_box, close_box);
}
