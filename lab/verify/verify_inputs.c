/* Generates the pictures and states of model goldens from their seed, so that a changed byte is detected even
 * if the actions do not depend on it.
 *
 * The goldens' inputs were drawn with PCG64 XSL-RR (O'Neill 2014) seeded through a hash of input_seed:
 * bounded integers by multiply-and-reject (Lemire 2019) on halves of the output, uniforms from its upper 53
 * bits. Order of the draws:
 *   blocks   integers 0 … 199, [batch][3][15][15][3], each spread over 16 × 16 pixels
 *   grain    integers 0 … 9, [batch][3][224][224][3]
 *   state    uniform -1 … 1, [batch][32]
 * pixel = block + 30·y/224 + 15·x/224 + grain; pictures of masked cameras are black. */
#include <inttypes.h>

#include "base/report.h"
#include "lab/verify/verify_case.h"

enum {
    SIDE = OPENPI_IMAGE_SIZE,
    BLOCK = 16,
    BLOCKS = SIDE / BLOCK + 1,
    PIXELS = SIDE * SIDE * 3,
    CAMERA_BLOCKS = BLOCKS * BLOCKS * 3
};

typedef struct generator {
    uint64_t high, low;              /* 128-bit state */
    uint64_t step_high, step_low;    /* 128-bit increment, odd */
    uint32_t half;                   /* the unused upper half of an output */
    int has_half;
} generator;

/* ---- seeding ---------------------------------------------------------------------------------------- */

enum { POOL = 4 };

static uint32_t hash_word(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix_words(uint32_t x, uint32_t y) {
    uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;
    return z ^ z >> 16;
}

/* 256 bits from a seed of at most 64. */
static void seed_words(uint64_t seed, uint64_t out[4]) {
    uint32_t pool[POOL], constant = 0x43b0d7e5u, word;
    const uint32_t entropy[POOL] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0};
    for (int i = 0; i < POOL; i++) pool[i] = hash_word(entropy[i], &constant, 0x931e8875u);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to) pool[to] = mix_words(pool[to], hash_word(pool[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        word = hash_word(pool[i % POOL], &constant, 0x58f38dedu);
        out[i / 2] = i % 2 ? out[i / 2] | (uint64_t)word << 32 : word;
    }
}

/* ---- drawing ---------------------------------------------------------------------------------------- */

/* a·b in 128 bits. */
static void multiply(uint64_t a, uint64_t b, uint64_t *high, uint64_t *low) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    *high = a1 * b1 + (middle >> 32) + (other >> 32);
    *low = a * b;
}

static void advance(generator *g, uint64_t add_high, uint64_t add_low) {
    g->low += add_low;
    g->high += add_high + (g->low < add_low);
}

static void step(generator *g) {
    static const uint64_t by_high = UINT64_C(0x2360ED051FC65DA4), by_low = UINT64_C(0x4385DF649FCCF645);
    uint64_t high, low;
    multiply(g->low, by_low, &high, &low);
    g->high = high + g->high * by_low + g->low * by_high;
    g->low = low;
    advance(g, g->step_high, g->step_low);
}

static void start(generator *g, uint64_t seed) {
    uint64_t words[4];
    seed_words(seed, words);
    *g = (generator){.step_high = words[2] << 1 | words[3] >> 63, .step_low = words[3] << 1 | 1};
    step(g);
    advance(g, words[0], words[1]);
    step(g);
}

static uint64_t draw64(generator *g) {
    step(g);
    uint64_t x = g->high ^ g->low;
    int turn = (int)(g->high >> 58);
    return x >> turn | x << (-turn & 63);
}

static uint32_t draw32(generator *g) {
    g->has_half = !g->has_half;
    if (!g->has_half) return g->half;
    uint64_t x = draw64(g);
    g->half = (uint32_t)(x >> 32);
    return (uint32_t)x;
}

/* 0 … count-1. */
static uint32_t draw_below(generator *g, uint32_t count) {
    uint64_t m = (uint64_t)draw32(g) * count;
    if ((uint32_t)m < count)
        for (uint32_t least = (UINT32_MAX - (count - 1)) % count; (uint32_t)m < least;)
            m = (uint64_t)draw32(g) * count;
    return (uint32_t)(m >> 32);
}

static double draw_uniform(generator *g) { return (double)(draw64(g) >> 11) * 0x1p-53; }

/* ---- comparing -------------------------------------------------------------------------------------- */

openpi_status case_generated(verify_case *c, uint64_t input_seed, int batch, const uint8_t *images,
                             const uint8_t *mask, const float *state, openpi_error *error) {
    generator g;
    int64_t cameras = (int64_t)batch * OPENPI_CAMERAS;
    uint8_t *blocks;
    TRY(case_take(c, (size_t)cameras, CAMERA_BLOCKS, &blocks, error));
    start(&g, input_seed);
    for (int64_t i = 0; i < cameras * CAMERA_BLOCKS; i++) blocks[i] = (uint8_t)draw_below(&g, 200);
    for (int64_t i = 0; i < cameras * PIXELS; i++) {
        int64_t camera = i / PIXELS;
        int at = (int)(i % PIXELS), y = at / (SIDE * 3), x = at / 3 % SIDE, channel = at % 3;
        int block = blocks[camera * CAMERA_BLOCKS + (y / BLOCK * BLOCKS + x / BLOCK) * 3 + channel];
        int pixel = block + y * 30 / SIDE + x * 15 / SIDE + (int)draw_below(&g, 10),
            expected = mask[camera] ? pixel : 0;
        if (images[i] == expected) continue;
        case_fail(c, "in.images: byte %" PRId64 " is %d, the generator of input_seed %" PRIu64 " gives %d", i,
                  images[i], input_seed, expected);
        return OPENPI_OK;
    }
    for (int i = 0; i < batch * OPENPI_ACTION_DIM; i++) {
        float expected = (float)(-1.0 + 2.0 * draw_uniform(&g));
        if (state[i] == expected) continue;
        case_fail(c, "in.state: element %d is %.9g, the generator of input_seed %" PRIu64 " gives %.9g", i,
                  (double)state[i], input_seed, (double)expected);
        return OPENPI_OK;
    }
    return OPENPI_OK;
}
