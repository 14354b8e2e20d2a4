/* labels: command long */
/* The choice of the gate, also on checkpoints with outlier channels: whatever it chooses is within its bound
 * when it is run, and saves nearly as much as the best of all tables that were predicted to be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "openpi.h"
#include "scratch.h"

#include "command.h"

enum { OF_GROUP = 5, GROUPS_TRIED = 4, TABLES = 6 * 6 * 6 * 6 };

#define SMALL "--robot aloha --horizon 4 --steps 2 --save bytes"

#define TRY_SEED "quantize seeds " SMALL " --synthetic 1 --json --out seed.json --seed %d --bound %.9g"

static json_t *printed(void) {
    json_error_t where;
    json_t *root = json_loads(out, JSON_REJECT_DUPLICATES, &where);
    if (!root) fail_msg("not JSON: %s\n%s", where.text, err);
    return root;
}

static json_t *quantized(const char *folder, const char *bound, int *status) {
    *status = run("quantize %s " SMALL " --synthetic 1 --json --bound %s --out plan.json", folder, bound);
    return printed();
}

/* Those whose rows have scales of their own, OF_GROUP a group. */
static json_t *of_own_scales(const json_t *all) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *c = json_array_get(all, i);
        if (json_is_false(json_object_get(c, "static"))) json_array_append(list, c);
    }
    assert_int_equal(json_array_size(list), OF_GROUP * GROUPS_TRIED);
    return list;
}

/* The most bytes that a table saves whose squares add up to at most the bound. */
static double best_of_all(const json_t *candidates) {
    double best = 0;
    for (int table = 0; table < TABLES; table++) {
        double squares = 0, gain = 0;
        for (int g = 0, rest = table; g < GROUPS_TRIED; g++, rest /= OF_GROUP + 1) {
            int format = rest % (OF_GROUP + 1);
            const json_t *c = json_array_get(candidates, (size_t)(g * OF_GROUP + format));
            if (format == OF_GROUP) continue;
            squares += pow(number(c, "share_of_bound"), 2);
            gain += number(c, "bytes_saved");
        }
        if (squares <= 1) best = fmax(best, gain);
    }
    return best;
}

/* Integers lose many times as much to outlier channels as they do to smoothed ones. */
static void smoothing_rescues(const json_t *candidates) {
    for (int g = 0; g < GROUPS_TRIED; g++)
        for (int format = 0; format < 4; format += 2) {
            const json_t *rough = json_array_get(candidates, (size_t)(g * OF_GROUP + format)),
                         *smooth = json_array_get(candidates, (size_t)(g * OF_GROUP + format + 1));
            assert_true(json_is_false(json_object_get(rough, "smooth")));
            assert_true(json_is_true(json_object_get(smooth, "smooth")));
            double before = number(json_object_get(rough, "sigma"), "rms"),
                   after = number(json_object_get(smooth, "sigma"), "rms");
            if (after > 0.05 || before < 2 * after)
                fail_msg("%s=%s: rms %g, smoothed %g", word(rough, "group"), word(rough, "format"), before,
                         after);
        }
}

static void check(const char *folder, const char *bound) {
    int status;
    json_t *root = quantized(folder, bound, &status), *tries = json_object_get(root, "tries"),
           *candidates = of_own_scales(json_object_get(root, "candidates"));
    size_t count = json_array_size(tries);
    const json_t *last = json_array_get(tries, count - 1);
    double best = best_of_all(candidates);
    smoothing_rescues(candidates);
    json_decref(candidates);
    if (status == 1) {
        assert_true(json_is_null(json_object_get(root, "plan")));
        assert_true(best == 0 || count > 0);         /* nothing fits, or what was predicted did not     */
        assert_int_not_equal(access(scratch_path(&box, "plan.json"), F_OK), 0);
    } else {
        assert_int_equal(status, 0);
        assert_true(number(last, "share_of_bound") <= 1 && json_is_true(json_object_get(root, "holds")));
        double saved = number(root, "bytes") - number(root, "bytes_taken");
        if (count == 1 && saved < 0.8 * best)
            fail_msg("%s: %g bytes saved, the best table saves %g", folder, saved, best);
        remove(scratch_path(&box, "plan.json"));
    }
    json_decref(root);
}

static void no_choice_is_above_its_bound(void **state) {
    (void)state;
    static const char *const kinds[] = {"64", "1024", "spread"}, *const bounds[] = {"0.06", "0.1", "0.02"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run("synth outliers%s --preset tiny --outliers %s", kinds[i], kinds[i]), 0);
        char folder[32];
        snprintf(folder, sizeof folder, "outliers%s", kinds[i]);
        check(folder, bounds[i]);
    }
}

/* Errors of groups are not wholly independent: where a table is worse together than was predicted, a bound
 * between the two lets it be chosen, and running it finds out. */
static void what_running_finds_too_much_is_given_up(void **state) {
    (void)state;
    assert_int_equal(run("synth seeds --preset tiny"), 0);
    for (int seed = 0; seed < 6; seed++) {
        assert_int_equal(run(TRY_SEED, seed, 1.0), 0);
        json_t *root = printed(), *first = json_array_get(json_object_get(root, "tries"), 0);
        double predicted = number(first, "predicted_share"), share = number(first, "share_of_bound");
        json_decref(root);
        if (share < predicted * 1.01) continue;
        int status = run(TRY_SEED, seed, (predicted + share) / 2);
        root = printed();
        json_t *tries = json_object_get(root, "tries");
        size_t count = json_array_size(tries);
        assert_true(number(json_array_get(tries, 0), "share_of_bound") > 1);
        assert_true(count > 1 && (status == 1) == json_is_false(json_object_get(root, "holds")));
        assert_true(status == 1 || number(json_array_get(tries, count - 1), "share_of_bound") <= 1);
        json_decref(root);
        return;
    }
    skip();                          /* every table is as good together as predicted                       */
}

static void the_choice_is_within_its_bound(void **state) {
    (void)state;
    assert_int_equal(run("synth plain --preset tiny"), 0);
    assert_int_equal(run("quantize plain " SMALL " --synthetic 1 --bound 0.015 --json --out chosen.json"), 0);
    json_t *root = printed(), *tries = json_object_get(root, "tries");
    assert_int_equal(json_array_size(json_object_get(root, "candidates")), 22);
    assert_int_equal(json_array_size(json_object_get(root, "dimensions")), 14);
    assert_int_equal((int)number(root, "loads"), 2);     /* fp32 and the reference: nothing else is whole */
    const json_t *last = json_array_get(tries, json_array_size(tries) - 1);
    assert_true(number(last, "share_of_bound") <= 1 && number(last, "rms") <= 0.015);
    assert_true(number(root, "bytes_taken") < number(root, "bytes"));
    assert_string_equal(word(root, "formats"), word(last, "formats"));
    json_decref(root);
    assert_int_equal(run("run plain --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --state 0 "
                         "--prompt x --weights w8=chosen.json"), 0);
    must_contain(err, "on 1 made-up observation,");
    /* A bound that no group keeps: no plan. */
    assert_int_equal(run("quantize plain " SMALL " --synthetic 1 --unit-bound 'all 0.00001' --out none.json"),
                     1);
    must_contain(out, "no plan");
    assert_int_not_equal(access(scratch_path(&box, "none.json"), F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_choice_is_above_its_bound),
                                       cmocka_unit_test(what_running_finds_too_much_is_given_up),
                                       cmocka_unit_test(the_choice_is_within_its_bound)};
    return cmocka_run_group_tests(tests, open_box, close_box);
}
