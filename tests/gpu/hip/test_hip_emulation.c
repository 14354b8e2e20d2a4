/* The emulated GPU itself: its collectives do what AMD's documents say, and every thing that a kernel must
 * not do is reported with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "machine.h"

typedef struct arguments {
    float *out;
    const float *a, *b;
    int how;
} arguments;

/* ---- kernels ------------------------------------------------------------------------------------------- */

enum { THREADS = 128, ELEMENTS = 128 };

LOCAL(float, shelf, ELEMENTS);

enum {
    FINE, NO_WAIT, PUT_OVER, BEYOND, BELOW, OF_ANOTHER_BLOCK, LANES_APART, ENDED, WAVES_APART, FAR_LANE
};

/* Neighbours exchange a number through local memory, and so does the whole block. */
KERNEL(THREADS, exchange, arguments) {
    int t = thread_id();
    if (p->how == OF_ANOTHER_BLOCK && block_x() == 1) p->out[t] = local_get(shelf, t);
    if (p->how == ENDED && t == 77) return;
    local_put(shelf, p->how == BEYOND && t == 5 ? ELEMENTS : t, (float)t);
    if (p->how != NO_WAIT) block_wait();
    float x = local_get(shelf, p->how == BELOW && t == 9 ? -1 : t ^ 1);
    if (p->how == PUT_OVER) local_put(shelf, t, x);
    block_wait();
    if (p->how == LANES_APART && t % 2) x = lane_from(x, t % 64);
    if (p->how == WAVES_APART && t / 64) block_wait();
    p->out[t] = lane_from(x, p->how == FAR_LANE ? 64 : (t + 1) % 64);
}

LOCAL(float, untouched, ELEMENTS);

KERNEL(THREADS, get_untouched, arguments) { p->out[thread_id()] = local_get(untouched, thread_id()); }

/* A is [16][16], B [16][16] with its columns as rows; the result [16][16]. */
KERNEL(64, multiply_bf16, arguments) {
    int lane = thread_id();
    bf16x4 a, b;
    for (int i = 0; i < 4; i++) {
        union {
            float f;
            u32 u;
        } x = {p->a[lane % 16 * 16 + lane / 16 * 4 + i]}, y = {p->b[lane % 16 * 16 + lane / 16 * 4 + i]};
        a[i] = (short)(x.u >> 16);
        b[i] = (short)(y.u >> 16);
    }
    f32x4 c = {1, 1, 1, 1};
    c = mma_bf16(a, b, c);
    for (int i = 0; i < 4; i++) p->out[(lane / 16 * 4 + i) * 16 + lane % 16] = c[i];
}

KERNEL(64, multiply_f32, arguments) {
    int lane = thread_id();
    f32x4 c = {1, 1, 1, 1};
    for (int k = 0; k < 16; k += 4)
        c = mma_f32(p->a[lane % 16 * 16 + k + lane / 16], p->b[lane % 16 * 16 + k + lane / 16], c);
    for (int i = 0; i < 4; i++) p->out[(lane / 16 * 4 + i) * 16 + lane % 16] = c[i];
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static const char *launch(const char *name, int blocks, int threads, const arguments *a) {
    const emu_kernel *kernel = emu_find(name);
    assert_non_null(kernel);
    return emu_launch(kernel, (const int[2]){blocks, 1}, threads, a);
}

static void test_exchange(void **state) {
    float out[THREADS];
    (void)state;
    assert_null(launch("exchange", 3, THREADS, &(arguments){.out = out}));
    for (int t = 0; t < THREADS; t++) assert_int_equal((int)out[t], ((t / 64 * 64 + (t + 1) % 64) ^ 1));
}

static void test_products(void **state) {
    static const char *const names[] = {"multiply_bf16", "multiply_f32"};
    float a[256], b[256], out[256];
    (void)state;
    for (int i = 0; i < 256; i++) a[i] = (float)(i * 37 % 29 - 14), b[i] = (float)(i * 53 % 31 - 15);
    for (int n = 0; n < 2; n++) {
        assert_null(launch(names[n], 1, 64, &(arguments){.out = out, .a = a, .b = b}));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                float sum = 1;
                for (int k = 0; k < 16; k++) sum += a[i * 16 + k] * b[j * 16 + k];
                assert_true(out[i * 16 + j] == sum);
            }
    }
}

static void test_reported(void **state) {
    static const struct {
        const char *kernel;
        int how, blocks;
        const char *says[2];
    } cases[] = {
        {"exchange", NO_WAIT, 1, {"thread 0", "gets element 1 of shelf, which nobody has put"}},
        {"exchange", PUT_OVER, 1, {"element", "with no block_wait after thread"}},
        {"exchange", BEYOND, 1, {"thread 5", "element 128 of shelf, which has 128"}},
        {"exchange", BELOW, 1, {"thread 9", "element -1 of shelf"}},
        {"exchange", OF_ANOTHER_BLOCK, 2, {"block 1·0", "gets element 0 of shelf, which nobody has put"}},
        {"exchange", LANES_APART, 1, {"divergence", "waits for lane_from"}},
        {"exchange", ENDED, 1, {"divergence", "thread 77 has ended"}},
        {"exchange", WAVES_APART, 1, {"divergence", "waits for the block"}},
        {"exchange", FAR_LANE, 1, {"exchange:", "a lane beyond 63"}},
        {"get_untouched", FINE, 1, {"get_untouched:", "which nobody has put"}},
    };
    float out[THREADS];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *trouble =
            launch(cases[i].kernel, cases[i].blocks, THREADS, &(arguments){.out = out, .how = cases[i].how});
        for (int part = 0; part < 2; part++)
            if (!trouble || !strstr(trouble, cases[i].says[part]))
                fail_msg("case %zu: %s", i, trouble ? trouble : "not reported");
        assert_null(launch("exchange", 1, THREADS, &(arguments){.out = out}));    /* and the next one runs */
    }
}

static void test_launches(void **state) {
    arguments a = {0};
    (void)state;
    assert_non_null(launch("exchange", 1, THREADS + 64, &a));
    assert_non_null(launch("exchange", 1, 65, &a));
    assert_non_null(launch("exchange", 0, 64, &a));
    assert_null(emu_find("no_such_kernel"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_reported),
        cmocka_unit_test(test_launches),
    };
    return cmocka_run_group_tests_name("emulated GPU", tests, NULL, NULL);
}
