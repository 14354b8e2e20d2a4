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

/* A and B (its columns as rows) are [M][32], of which an instruction takes the first k; the result is [M][M].
 * What goes where is AMD's tables once more, written out for each shape. */
static short narrow(float x) {
    union {
        float f;
        u32 u;
    } bits = {x};
    return (short)(bits.u >> 16);
}

KERNEL(64, multiply_16x16x16, arguments) {
    int lane = thread_id(), row = lane & 15, from = (lane >> 4) * 4;
    bf16x4 a, b;
    f32x4 c = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++)
        a[i] = narrow(p->a[row * 32 + from + i]), b[i] = narrow(p->b[row * 32 + from + i]);
    c = mma_bf16(a, b, c);
    for (int i = 0; i < 4; i++) p->out[(from + i) * 16 + row] = c[i];
}

KERNEL(64, multiply_16x16x32, arguments) {
    int lane = thread_id(), row = lane & 15;
    bf16x8 a, b;
    f32x4 c = {1, 1, 1, 1};
    for (int i = 0; i < 8; i++) {
        a[i] = narrow(p->a[row * 32 + (lane >> 4) * 8 + i]);
        b[i] = narrow(p->b[row * 32 + (lane >> 4) * 8 + i]);
    }
    c = mma_wide_bf16(a, b, c);
    for (int i = 0; i < 4; i++) p->out[((lane >> 4) * 4 + i) * 16 + row] = c[i];
}

/* Rows of a lane's sixteen results of 32 x 32, of the upper half of the wave 4 further. */
static const int large_rows[16] = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};

KERNEL(64, multiply_32x32x16, arguments) {
    int lane = thread_id(), row = lane & 31;
    bf16x8 a, b;
    f32x16 c = {0};
    for (int i = 0; i < 8; i++) {
        a[i] = narrow(p->a[row * 32 + (lane >> 5) * 8 + i]);
        b[i] = narrow(p->b[row * 32 + (lane >> 5) * 8 + i]);
    }
    c = mma_large_bf16(a, b, c + 1);
    for (int i = 0; i < 16; i++) p->out[(large_rows[i] + (lane >> 5) * 4) * 32 + row] = c[i];
}

KERNEL(64, multiply_f32, arguments) {
    int lane = thread_id();
    f32x4 c = {1, 1, 1, 1};
    for (int k = 0; k < 16; k += 4)
        c = mma_f32(p->a[lane % 16 * 32 + k + lane / 16], p->b[lane % 16 * 32 + k + lane / 16], c);
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

static const struct {
    const char *kernel;
    int m, k;
    emu_shape shapes[2];                   /* shape on a gfx942, on a gfx950                               */
} products[] = {
    {"multiply_16x16x16", 16, 16, {EMU_16X16X16_BF16, EMU_16X16X16_BF16}},
    {"multiply_16x16x32", 16, 32, {EMU_16X16X16_BF16, EMU_16X16X32_BF16}},
    {"multiply_32x32x16", 32, 16, {EMU_32X32X8_BF16, EMU_32X32X16_BF16}},
    {"multiply_f32", 16, 16, {EMU_16X16X4_F32, EMU_16X16X4_F32}},
};

static float product_a[32 * 32], product_b[32 * 32];

/* Numbers of a product that are not exact. */
static int wrong_numbers(size_t n) {
    int m = products[n].m, wrong = 0;
    float out[32 * 32] = {0};
    assert_null(launch(products[n].kernel, 1, 64, &(arguments){.out = out, .a = product_a, .b = product_b}));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < m; j++) {
            float sum = 1;
            for (int k = 0; k < products[n].k; k++) sum += product_a[i * 32 + k] * product_b[j * 32 + k];
            wrong += out[i * m + j] != sum;
        }
    return wrong;
}

/* On both chips; and with a wrong lane map of the instruction that the chip has most numbers are wrong. */
static void test_products(void **state) {
    (void)state;
    for (int i = 0; i < 32 * 32; i++)
        product_a[i] = (float)(i * 37 % 29 - 14), product_b[i] = (float)(i * 53 % 31 - 15);
    for (size_t n = 0; n < sizeof products / sizeof *products; n++)
        for (int gfx950 = 0; gfx950 < 2; gfx950++) {
            emu_set_gfx950(gfx950);
            assert_int_equal(wrong_numbers(n), 0);
            emu_set_fault(EMU_WRONG_LANES, products[n].shapes[gfx950]);
            assert_true(wrong_numbers(n) > products[n].m * products[n].m / 2);
            emu_set_fault(EMU_SOUND, 0);
        }
    emu_set_gfx950(0);
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
