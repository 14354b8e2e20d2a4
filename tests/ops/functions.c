/* The error of exp, gelu and silu over their whole range, against double precision: the figures that
 * src/backend/cpu/elements.h states. And the rounding to bf16, which must be that of base/dtype.h on every
 * bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/device.h"
#include "harness.h"

enum { STEPS = 1 << 16, BATCH = 1 << 10 };

static double exact_exp(double x) { return exp(x); }
static double exact_gelu(double x) {
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
static double exact_silu(double x) { return x / (1 + exp(-x)); }

static const struct {
    const char *name;
    double (*exact)(double x);
    double low, high, bound;
    int relative;                /* the bound is relative to the value; otherwise to |x|                  */
} functions[] = {
    {"exp", exact_exp, -87, 80, 2 * 0x1p-23, 1},
    {"gelu", exact_gelu, -20, 20, 3e-7, 0},
    {"silu", exact_silu, -80, 80, 3e-7, 0},
};

/* Every upper half with the lower halves that decide: below, at and above the middle, for both neighbours. */
static void check_rounding(const cpu_elements *elements, verdict *v) {
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234};
    enum { LOWER = sizeof lower / sizeof *lower, HALVES = 16 };
    for (uint32_t upper = 0; upper < 0x10000; upper += HALVES) {
        float x[HALVES * LOWER];
        bf16 y[HALVES * LOWER];
        for (int i = 0; i < HALVES * LOWER; i++) {
            uint32_t bits = (upper + (uint32_t)(i / LOWER)) << 16 | lower[i % LOWER];
            memcpy(&x[i], &bits, sizeof bits);
        }
        elements->store(x, HALVES * LOWER - 1, y, DTYPE_BF16);
        for (int i = 0; i < HALVES * LOWER - 1; i++) {
            if (y[i] == float_to_bf16(x[i])) continue;
            v->ok = 0;
            snprintf(v->detail, sizeof v->detail, "%a becomes bf16 %04x, expected %04x", x[i], y[i],
                     float_to_bf16(x[i]));
        }
    }
}

verdict functions_run(device *device) {
    const cpu_kernels *kernels = ((const cpu_device *)device)->kernels;
    verdict v = {.ok = 1};
    float x[BATCH], y[BATCH];
    check_rounding(kernels->elements, &v);
    for (int f = 0; f < 3; f++)
        for (int first = 0; first < STEPS; first += BATCH) {
            for (int i = 0; i < BATCH; i++)
                x[i] = (float)(functions[f].low +
                               (functions[f].high - functions[f].low) * (first + i + 0.37) / STEPS);
            kernels->elements->function(f, x, BATCH - 3, y);
            for (int i = 0; i < BATCH - 3; i++) {
                double exact = functions[f].exact(x[i]),
                       scale = fabs(functions[f].relative ? exact : (double)x[i]);
                double distance = fabs(y[i] - exact) / (functions[f].bound * scale);
                if (!(distance <= v.worst)) v.worst = distance;
                if (distance <= 1) continue;
                v.ok = 0;
                snprintf(v.detail, sizeof v.detail, "%s(%.8g) is %.8g, expected %.8g", functions[f].name,
                         x[i], y[i], exact);
            }
        }
    /* What is not a number stays so; what is too large stays finite or becomes infinite, never NaN. */
    const float odd[4] = {NAN, 1e4f, -1e4f, 0};
    for (int f = 0; f < 3; f++) {
        kernels->elements->function(f, odd, 4, y);
        if (isnan(y[0]) && !isnan(y[1]) && !isnan(y[2]) && y[2] <= 0x1p-100f && y[3] == (f == 0)) continue;
        v.ok = 0;
        snprintf(v.detail, sizeof v.detail, "%s of NaN, 1e4, -1e4, 0 is %g, %g, %g, %g", functions[f].name,
                 y[0], y[1], y[2], y[3]);
    }
    return v;
}
