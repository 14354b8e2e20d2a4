/* The resident kernel's launch in parts: where they begin, what they take, and stamps that are not to be believed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/gpu/parts.h"

enum { STEPS = 2, DEPTH = 2, PER_LAYER = 3, PER_STEP = 1 + DEPTH * PER_LAYER + 1, PARTS = STEPS * (DEPTH + 1), BEFORE = 4 };

/* BEFORE ops of something else, then steps: one op without a layer, layers, one op without a layer. */
static void make(op ops[BEFORE + STEPS * PER_STEP]) {
    for (int i = 0; i < BEFORE; i++) ops[i] = (op){.step = -1, .layer = i};
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < PER_STEP; i++) {
            int inside = i > 0 && i < PER_STEP - 1;
            ops[BEFORE + s * PER_STEP + i] = (op){.step = s, .layer = inside ? (i - 1) / PER_LAYER : -1};
        }
}

static void test_parts(void **state) {
    (void)state;
    op ops[BEFORE + STEPS * PER_STEP];
    launch_record out[PARTS], launch = {.op = BEFORE, .ops = STEPS * PER_STEP, .kernel = "k", .start_ms = 5, .end_ms = 6};
    uint64_t stamps[PARTS + 1];
    static const int first[PARTS] = {0, 4, 7, 8, 12, 15}, count[PARTS] = {4, 3, 1, 4, 3, 1};
    make(ops);
    assert_int_equal(gpu_parts(ops + BEFORE, STEPS * PER_STEP), PARTS);
    for (int i = 0; i <= PARTS; i++) stamps[i] = 1000000 + (uint64_t)i * 100000;
    assert_int_equal(gpu_parts_fill(ops, &launch, stamps, out), PARTS);
    for (int i = 0; i < PARTS; i++) {
        assert_int_equal(out[i].op, BEFORE + first[i]);
        assert_int_equal(out[i].ops, count[i]);
        assert_int_equal(out[i].part, i > 0);
        assert_string_equal(out[i].kernel, "k");
        assert_true(fabs(out[i].start_ms - (i ? 5.4 + 0.1 * i : 5)) < 1e-9);     /* what is in front belongs to the first */
        assert_true(out[i].end_ms == (i + 1 < PARTS ? out[i + 1].start_ms : 6));
    }
    launch.start_ms = 5.6;                                 /* they tell of more time than it took               */
    assert_int_equal(gpu_parts_fill(ops, &launch, stamps, out), -1);
    launch.start_ms = 5;
    stamps[3] = stamps[2] - 1;
    assert_int_equal(gpu_parts_fill(ops, &launch, stamps, out), -1);
    stamps[3] = 0;
    assert_int_equal(gpu_parts_fill(ops, &launch, stamps, out), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
