/* openpi_ops: checks every operation at every level of every backend against its definition, or times them.
 *
 *   openpi_ops [--device cpu|BACKEND:N] [--isa LEVEL] [--op KIND or part of a case's name] [--seed N]
 *              [--list]  (no device: the processor and the first of every GPU backend)
 *              [--as CARD]   GPUs of NVIDIA's, portable: with the kernels that would run on that card
 *              [--shrunk]    no shape whole, also on a GPU: for one that is emulated
 *              [--part I/N]  the I-th of N parts, which together are everything: for several side by side
 *   openpi_ops --bench [--isa LEVEL] [--op …] [--dtype f32|bf16] [--size full] [--threads N] [--quick]
 *              (roofs are measured anew for each op, but for --quick)
 *              [--cut K] [--panels N] [--fit BYTES] [--no-ahead]  how the bf16 product is blocked, for tuning
 *
 * The definition is slow, so large shapes are cut down; a GPU, whose kernels are chosen by size, also gets
 * them whole, and then the definition does some of their rows. Levels that this machine lacks are named and
 * counted. Inputs differ from run to run; a failure's seed repeats it. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/device.h"
#include "backend/cpu/isa.h"
#include "base/clock.h"
#include "harness.h"
#include "isa_emulated.h"

static const op_shape real_shapes[] = {SHAPES_FULL(SHAPE_ROW) SHAPES_TINY(SHAPE_ROW) SHAPES_ODD(SHAPE_ROW)};

/* Shapes that no model has: odd k, columns that fill no panel, few and many rows, every head_dim's end. */
static const op_shape made_shapes[] = {
    {"made copy of pixels", OP_PATCH_EMBED, 256, 588, 588, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_COPY},
    {"made three pictures", OP_PATCH_EMBED, 768, 37, 588, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made copy", OP_NORM_LINEAR, 29, 70, 70, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_COPY},
    {"made k 1", OP_LINEAR_RESIDUAL, 7, 5, 1, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made k 5", OP_NORM_LINEAR, 13, 33, 5, 0, 0, 0, NORM_LAYER, ACT_GELU, SHAPE_BIAS | SHAPE_SCATTER},
    {"made k 40", OP_NORM_LINEAR, 33, 17, 40, 0, 0, 0, NORM_RMS, ACT_SILU, SHAPE_SHIFT},
    {"made k 641", OP_NORM_LINEAR, 2, 47, 641, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS},
    {"made k 4303", OP_LINEAR_RESIDUAL, 26, 31, 4303, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_GATE},
    {"made gated 1", OP_NORM_LINEAR, 1, 2, 31, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_BIAS},
    {"made gated 35", OP_NORM_LINEAR, 40, 70, 588, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_SCATTER},
    {"made hard k 4304", OP_LINEAR_RESIDUAL, 10, 31, 4304, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_HARD},
    {"made hard fixed k 37", OP_LINEAR_RESIDUAL, 40, 70, 37, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_GATE | SHAPE_HARD | SHAPE_FIXED},
    {"made hard k 37", OP_LINEAR_RESIDUAL, 40, 70, 37, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE | SHAPE_HARD},
    {"made few gated 11", OP_NORM_LINEAR, 11, 128, 912, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT | SHAPE_KNOWN},
    {"made few residual 13", OP_LINEAR_RESIDUAL, 13, 72, 2064, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_GATE},
    {"made qkv 50 d 32", OP_NORM_QKV, 50, 128, 200, 2, 32, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made gated 33", OP_NORM_LINEAR, 33, 128, 1000, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_SCATTER},
    {"made known gated 64", OP_NORM_LINEAR, 64, 64, 520, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT | SHAPE_KNOWN},
    {"made parts 17", OP_LINEAR_RESIDUAL, 17, 64, 2048, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_GATE},
    {"made parts 50", OP_LINEAR_RESIDUAL, 50, 64, 3336, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE | SHAPE_KNOWN},
    {"made attention 250", OP_CACHE_ATTENTION, 50, 0, 0, 3, 40, 250, NORM_NONE, ACT_NONE, 0},
    {"made rows 300", OP_LINEAR_RESIDUAL, 300, 70, 2080, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"made rows 1100", OP_NORM_LINEAR, 1100, 35, 96, 0, 0, 0, NORM_LAYER, ACT_GELU, SHAPE_BIAS},
    {"made rows 2500", OP_NORM_LINEAR, 2500, 9, 33, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made qkv d 2", OP_NORM_QKV, 13, 8, 40, 2, 2, 0, NORM_RMS, ACT_NONE, 0},
    {"made qkv d 6", OP_NORM_QKV, 33, 18, 72, 1, 6, 0, NORM_NONE, ACT_NONE, 0},
    {"made qkv d 34", OP_NORM_QKV, 12, 170, 41, 3, 34, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT},
    {"made qkv d 72", OP_NORM_QKV, 50, 144, 96, 0, 72, 0, NORM_RMS, ACT_NONE, 0},
    {"made attention 1", OP_CACHE_ATTENTION, 1, 0, 0, 1, 2, 1, NORM_NONE, ACT_NONE, 0},
    {"made attention 7", OP_CACHE_ATTENTION, 13, 0, 0, 3, 6, 7, NORM_NONE, ACT_NONE, 0},
    {"made attention 33", OP_CACHE_ATTENTION, 33, 0, 0, 5, 34, 33, NORM_NONE, ACT_NONE, 0},
    {"made attention 64", OP_CACHE_ATTENTION, 7, 0, 0, 60, 72, 64, NORM_NONE, ACT_NONE, 0},
    {"made attention 1001", OP_CACHE_ATTENTION, 5, 0, 0, 2, 256, 1001, NORM_NONE, ACT_NONE, 0},
    {"made loud attention 33", OP_CACHE_ATTENTION, 33, 0, 0, 5, 34, 33, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"made loud attention 801", OP_CACHE_ATTENTION, 11, 0, 0, 8, 256, 801, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"made loud image d 72", OP_IMAGE_ATTENTION, 256, 0, 0, 1, 72, 256, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"made loud softmax 45", OP_SOFTMAX, 33, 0, 0, 2, 0, 45, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"made loud softmax 801", OP_SOFTMAX, 11, 0, 0, 8, 0, 801, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"made image d 5", OP_IMAGE_ATTENTION, 512, 0, 0, 3, 5, 256, NORM_NONE, ACT_NONE, 0},
    {"made image d 64", OP_IMAGE_ATTENTION, 256, 0, 0, 1, 64, 256, NORM_NONE, ACT_NONE, 0},
    {"made action 33", OP_ACTION_EMBED, 33, 41, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP},
    {"made merged action 33", OP_ACTION_EMBED, 33, 41, 32, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_MLP | SHAPE_MERGED},
    {"made state 7", OP_STATE_EMBED, 7, 37, 13, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made state 66", OP_STATE_EMBED, 66, 70, 12, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made state 5", OP_STATE_EMBED, 5, 70, 12, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made velocity 50", OP_VELOCITY, 50, 37, 72, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS},
    {"made velocity shift", OP_VELOCITY, 18, 32, 1024, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS | SHAPE_SHIFT},
    {"made velocity plain", OP_VELOCITY, 9, 33, 1000, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made velocity layer", OP_VELOCITY, 10, 5, 40, 0, 0, 0, NORM_LAYER, ACT_NONE, SHAPE_BIAS},
    {"made velocity k 100", OP_VELOCITY, 7, 32, 100, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS | SHAPE_SHIFT},
    {"made velocity k 1032", OP_VELOCITY, 3, 16, 1032, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS},
    {"made velocity 160", OP_VELOCITY, 160, 32, 264, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS},
    {"made guide 50", OP_GUIDE, 50, 32, 0, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made guide 33", OP_GUIDE, 33, 7, 0, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made guide batch", OP_GUIDE, 640, 32, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"made text 7", OP_EMBED_TEXT, 7, 41, 3, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made text 200", OP_EMBED_TEXT, 200, 264, 70000, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made text of one row", OP_EMBED_TEXT, 5, 2056, 1, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"made raw 33", OP_NORM_LINEAR, 13, 33, 45, 0, 0, 0, NORM_RMS, ACT_SILU, SHAPE_BIAS | SHAPE_RAW},
    {"made raw gated 35", OP_NORM_LINEAR, 40, 70, 588, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_RAW},
    {"made raw qkv", OP_NORM_QKV, 12, 170, 41, 3, 34, 0, NORM_RMS, ACT_NONE, SHAPE_RAW},
    {"made raw down", OP_LINEAR_RESIDUAL, 10, 96, 256, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE | SHAPE_RAW},
    {"made raw rows 300", OP_LINEAR_RESIDUAL, 300, 72, 136, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_BIAS | SHAPE_RAW},
    {"made raw action", OP_ACTION_EMBED, 33, 41, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP | SHAPE_RAW},
    {"made raw merged action", OP_ACTION_EMBED, 33, 41, 32, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_MLP | SHAPE_MERGED | SHAPE_RAW},
    {"made raw velocity", OP_VELOCITY, 10, 32, 1024, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS | SHAPE_RAW},
    {"made norm 7", OP_NORM, 13, 0, 7, 0, 0, 0, NORM_RMS, ACT_NONE, 0},
    {"made norm 1024", OP_NORM, 10, 0, 1024, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT},
    {"made norm 1152", OP_NORM, 300, 0, 1152, 0, 0, 0, NORM_LAYER, ACT_NONE, 0},
    {"made norm 641", OP_NORM, 3, 0, 641, 0, 0, 0, NORM_LAYER, ACT_NONE, 0},
    {"made gelu 4304", OP_ACTIVATE, 70, 4304, 0, 0, 0, 0, NORM_NONE, ACT_GELU, SHAPE_BIAS},
    {"made bias 33", OP_ACTIVATE, 13, 33, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_SCATTER},
    {"made silu 41", OP_ACTIVATE, 7, 41, 0, 0, 0, 0, NORM_NONE, ACT_SILU, SHAPE_SCATTER},
    {"made geglu 4096", OP_ACTIVATE, 10, 4096, 0, 0, 0, 0, NORM_NONE, ACT_GEGLU, SHAPE_GATED},
    {"made up 1", OP_ACTIVATE, 29, 1, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATED},
    {"made add 1024", OP_ADD, 10, 1024, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"made add 47", OP_ADD, 33, 47, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"made add 1153", OP_ADD, 300, 1153, 0, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS | SHAPE_GATE},
    {"made rope d 256", OP_ROPE_CACHE, 51, 0, 0, 3, 256, 0, NORM_NONE, ACT_NONE, 0},
    {"made rope d 34", OP_ROPE_CACHE, 12, 0, 0, 3, 34, 0, NORM_NONE, ACT_NONE, 0},
    {"made rope kv", OP_ROPE_CACHE, 50, 0, 0, 0, 72, 0, NORM_NONE, ACT_NONE, 0},
    {"made rope batch", OP_ROPE_CACHE, 640, 0, 0, 1, 24, 0, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"made scores 1", OP_SCORES, 1, 0, 0, 1, 2, 1, NORM_NONE, ACT_NONE, 0},
    {"made scores 33", OP_SCORES, 33, 0, 0, 5, 34, 33, NORM_NONE, ACT_NONE, 0},
    {"made scores 801", OP_SCORES, 11, 0, 0, 8, 256, 801, NORM_NONE, ACT_NONE, 0},
    {"made scores batch", OP_SCORES, 640, 0, 0, 2, 24, 45, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"made image scores d 5", OP_SCORES, 512, 0, 0, 3, 5, 256, NORM_NONE, ACT_NONE, SHAPE_IMAGE},
    {"made image scores d 72", OP_SCORES, 256, 0, 0, 2, 72, 200, NORM_NONE, ACT_NONE, SHAPE_IMAGE},
    {"made softmax 1", OP_SOFTMAX, 7, 0, 0, 3, 0, 1, NORM_NONE, ACT_NONE, 0},
    {"made softmax 45", OP_SOFTMAX, 33, 0, 0, 2, 0, 45, NORM_NONE, ACT_NONE, 0},
    {"made softmax 801", OP_SOFTMAX, 11, 0, 0, 8, 0, 801, NORM_NONE, ACT_NONE, 0},
    {"made values 1", OP_VALUES, 1, 0, 0, 1, 2, 1, NORM_NONE, ACT_NONE, 0},
    {"made values 33", OP_VALUES, 33, 0, 0, 5, 34, 33, NORM_NONE, ACT_NONE, 0},
    {"made values 801", OP_VALUES, 11, 0, 0, 8, 256, 801, NORM_NONE, ACT_NONE, 0},
    {"made values batch", OP_VALUES, 640, 0, 0, 2, 24, 45, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"made image values d 5", OP_VALUES, 512, 0, 0, 3, 5, 256, NORM_NONE, ACT_NONE, SHAPE_IMAGE},
    {"made image values d 72", OP_VALUES, 256, 0, 0, 2, 72, 200, NORM_NONE, ACT_NONE, SHAPE_IMAGE},
    {"made loud attention batch", OP_CACHE_ATTENTION, 640, 0, 0, 2, 24, 45, NORM_NONE, ACT_NONE,
     SHAPE_BATCH | SHAPE_LOUD},
    {"made attention batch", OP_CACHE_ATTENTION, 640, 0, 0, 2, 24, 45, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"made known 41", OP_NORM_LINEAR, 33, 17, 41, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known gated 128", OP_NORM_LINEAR, 21, 64, 128, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known k 704", OP_NORM_LINEAR, 15, 32, 704, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known rows 90", OP_NORM_LINEAR, 90, 48, 72, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made qkv known", OP_NORM_QKV, 19, 96, 64, 2, 24, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made qkv known raw", OP_NORM_QKV, 10, 170, 41, 3, 34, 0, NORM_RMS, ACT_NONE, SHAPE_RAW | SHAPE_KNOWN},
    {"made known residual 47", OP_LINEAR_RESIDUAL, 33, 47, 31, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_BIAS | SHAPE_GATE | SHAPE_KNOWN},
    {"made known residual 96", OP_LINEAR_RESIDUAL, 15, 96, 256, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_GATE | SHAPE_KNOWN},
    {"made known rows 300", OP_LINEAR_RESIDUAL, 300, 72, 136, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_GATE | SHAPE_KNOWN},
    {"made known velocity 50", OP_VELOCITY, 50, 32, 72, 0, 0, 0, NORM_RMS, ACT_NONE,
     SHAPE_BIAS | SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known velocity 37", OP_VELOCITY, 7, 37, 41, 0, 0, 0, NORM_RMS, ACT_NONE,
     SHAPE_BIAS | SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known norm 41", OP_NORM, 13, 0, 41, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known norm 1024", OP_NORM, 10, 0, 1024, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"made known add 47", OP_ADD, 33, 47, 0, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_BIAS | SHAPE_GATE | SHAPE_KNOWN},
    {"made qkv batch", OP_NORM_QKV, 640, 72, 40, 1, 24, 0, NORM_RMS, ACT_NONE, SHAPE_BATCH},
};

/* Kernels of a GPU that only such sizes choose: rows between the tiles' ends, long suffixes, many samples. */
static const op_shape large_shapes[] = {
    {"large rows 64", OP_NORM_LINEAR, 64, 4096, 1024, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS},
    {"large rows 90", OP_LINEAR_RESIDUAL, 90, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"large gated 51", OP_NORM_LINEAR, 51, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED},
    {"large residual 51", OP_LINEAR_RESIDUAL, 51, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"large qkv 51", OP_NORM_QKV, 51, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, 0},
    {"large qkv 17", OP_NORM_QKV, 17, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT},
    {"large qkv 50", OP_NORM_QKV, 50, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT},
    {"large gated 29", OP_NORM_LINEAR, 29, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT},
    {"large gated 60", OP_NORM_LINEAR, 60, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT},
    {"large residual 22", OP_LINEAR_RESIDUAL, 22, 1024, 2048, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_BIAS | SHAPE_GATE},
    {"large residual 61", OP_LINEAR_RESIDUAL, 61, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"large attention 51", OP_CACHE_ATTENTION, 51, 0, 0, 8, 256, 867, NORM_NONE, ACT_NONE, 0},
    {"large attention batch", OP_CACHE_ATTENTION, 640, 0, 0, 8, 256, 84, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"large attention 704 batch", OP_CACHE_ATTENTION, 704, 0, 0, 8, 256, 800, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"large attention 1500", OP_CACHE_ATTENTION, 1500, 0, 0, 8, 256, 800, NORM_NONE, ACT_NONE, 0},
    {"large attention 2403", OP_CACHE_ATTENTION, 2403, 0, 0, 8, 256, 788, NORM_NONE, ACT_NONE, 0},
    {"large attention 4500 batch", OP_CACHE_ATTENTION, 4500, 0, 0, 5, 256, 161, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"large loud attention 2300", OP_CACHE_ATTENTION, 2300, 0, 0, 8, 256, 333, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large loud attention 51", OP_CACHE_ATTENTION, 51, 0, 0, 8, 256, 867, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large loud attention 788", OP_CACHE_ATTENTION, 788, 0, 0, 8, 256, 788, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large loud images", OP_IMAGE_ATTENTION, 768, 0, 0, 16, 72, 256, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large images 3072", OP_IMAGE_ATTENTION, 3072, 0, 0, 16, 72, 256, NORM_NONE, ACT_NONE, 0},
    {"large images of 5 heads", OP_IMAGE_ATTENTION, 7936, 0, 0, 5, 72, 256, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large rows 4500", OP_LINEAR_RESIDUAL, 4500, 520, 128, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"large gated 6500", OP_NORM_LINEAR, 6500, 512, 128, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED},
    {"large rows 2400", OP_NORM_LINEAR, 2400, 3456, 1152, 0, 0, 0, NORM_LAYER, ACT_GELU, SHAPE_BIAS},
    /* several tiles a block, the last ones in part */
    {"large residual 4700", OP_LINEAR_RESIDUAL, 4700, 2056, 128, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS},
    {"large known qkv 15", OP_NORM_QKV, 15, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT | SHAPE_KNOWN},
    {"large known gated 33", OP_NORM_LINEAR, 33, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU,
     SHAPE_GATED | SHAPE_SHIFT | SHAPE_KNOWN},
    {"large known residual 51", OP_LINEAR_RESIDUAL, 51, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_GATE | SHAPE_KNOWN},
    {"large known residual 640", OP_LINEAR_RESIDUAL, 640, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_GATE | SHAPE_KNOWN},
    {"large known qkv 640", OP_NORM_QKV, 640, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE,
     SHAPE_SHIFT | SHAPE_KNOWN},
    {"large qkv 30", OP_NORM_QKV, 30, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT},
    {"large qkv 61", OP_NORM_QKV, 61, 2560, 1024, 8, 256, 0, NORM_RMS, ACT_NONE, 0},
    {"large gated 18", OP_NORM_LINEAR, 18, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_SHIFT},
    {"large gated 45", OP_NORM_LINEAR, 45, 8192, 1024, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED},
    {"large gated 61", OP_NORM_LINEAR, 61, 8192, 1024, 0, 0, 0, NORM_NONE, ACT_GEGLU, SHAPE_GATED},
    {"large residual 17", OP_LINEAR_RESIDUAL, 17, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    {"large residual 37", OP_LINEAR_RESIDUAL, 37, 1024, 2048, 0, 0, 0, NORM_NONE, ACT_NONE, 0},
    {"large residual 640", OP_LINEAR_RESIDUAL, 640, 1024, 4096, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE},
    /* image attention with four tiles a unit, several units a block: batches of 8 and more */
    {"large images 6144", OP_IMAGE_ATTENTION, 6144, 0, 0, 16, 72, 256, NORM_NONE, ACT_NONE, 0},
    {"large images of 7 heads", OP_IMAGE_ATTENTION, 16384, 0, 0, 7, 72, 256, NORM_NONE, ACT_NONE, SHAPE_LOUD},
    {"large images of 1 head", OP_IMAGE_ATTENTION, 25600, 0, 0, 1, 72, 256, NORM_NONE, ACT_NONE, 0},
    /* attention in units of 128 rows: several units a block, samples that end inside a unit, and in the
     * denoise stage one to four units a sample */
    {"large attention 6304", OP_CACHE_ATTENTION, 6304, 0, 0, 8, 256, 788, NORM_NONE, ACT_NONE, 0},
    {"large attention 6405 batch", OP_CACHE_ATTENTION, 6405, 0, 0, 8, 256, 201, NORM_NONE, ACT_NONE, SHAPE_BATCH},
    {"large suffix 640", OP_CACHE_ATTENTION, 640, 0, 0, 8, 256, 798, NORM_NONE, ACT_NONE, SHAPE_BATCH | SHAPE_SUFFIX},
    {"large suffix 1029", OP_CACHE_ATTENTION, 1029, 0, 0, 8, 256, 95, NORM_NONE, ACT_NONE, SHAPE_BATCH | SHAPE_SUFFIX},
    {"large suffix 3264", OP_CACHE_ATTENTION, 3264, 0, 0, 8, 256, 839, NORM_NONE, ACT_NONE, SHAPE_BATCH | SHAPE_SUFFIX},
    {"large loud suffix 3200", OP_CACHE_ATTENTION, 3200, 0, 0, 5, 256, 250, NORM_NONE, ACT_NONE,
     SHAPE_BATCH | SHAPE_SUFFIX | SHAPE_LOUD},
    {"large suffix 51", OP_CACHE_ATTENTION, 51, 0, 0, 8, 256, 867, NORM_NONE, ACT_NONE, SHAPE_SUFFIX},
    {"large action 50", OP_ACTION_EMBED, 50, 1024, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP},
    {"large action 90", OP_ACTION_EMBED, 90, 1024, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP},
    {"large merged action 640", OP_ACTION_EMBED, 640, 1024, 32, 0, 0, 0, NORM_NONE, ACT_NONE,
     SHAPE_MLP | SHAPE_MERGED},
    {"large merged action 50", OP_ACTION_EMBED, 50, 1024, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP | SHAPE_MERGED},
};

/* Levels of every architecture; one that this machine has not is skipped. amx_emulated is level amx with
 * tiles in plain C (isa_emulated.h); those after it are paths of a GPU, `plain` that of tests/gpu/host. */
static const struct {
    const char *name, *device;
} levels[] = {{"reference", "cpu"},   {"avx2", "cpu"},        {"avx512", "cpu"},
              {"avx512_vnni", "cpu"}, {"avx512_bf16", "cpu"}, {"amx", "cpu"},
              {"amx_emulated", "cpu"}, {"neon", "cpu"},       {"neon_dot", "cpu"},    {"neon_bf16", "cpu"},
              {"plain", "host:0"},    {"mfma", "hip:0"},
              {"portable", "cuda:0"}, {"hopper", "cuda:0"}};

/* A GPU rounds probabilities before it divides them by their sum, which is other rounding of the same size:
 * about half of an attention's results are the neighbour of what is expected. */
static const allowance processor = {0.08, 0.08}, graphics = {0.08, 0.6};

enum {
    REAL = sizeof real_shapes / sizeof *real_shapes,
    MADE = sizeof made_shapes / sizeof *made_shapes,
    LARGE = sizeof large_shapes / sizeof *large_shapes,
    LEVELS = sizeof levels / sizeof *levels,
    GPU_LEVELS = LEVELS - 4,
    WHOLE_LEVELS = LEVELS - 2    /* those that are fast enough for full sizes                             */
};
enum { THREADS = 3 };
static const double budget = 6e6;          /* multiply-adds of the definition that one case may take        */
static const double whole_budget = 5e7;    /* the same of a case that it does some rows of                  */

typedef struct options {
    const char *device, *isa, *as, *op, *size, *dtype;
    uint64_t seed;
    int part, parts;             /* which of every `parts` shapes to check, from 0                          */
    int list, bench, threads, quick, no_ahead, shrunk;
    int cut, panels, fit;        /* 0: as the level has it                                                */
} options;

typedef struct level {
    const char *name;
    device *many, *single;       /* NULL: this machine lacks it                                           */
    int run, failed;
    double worst[2], neighbours; /* worst: f32, bf16                                                      */
    char reason[300];            /* why it is skipped                                                     */
    allowance allowed;
} level;

static int chosen(const options *o, const op_shape *s) {
    return !o->op || strstr(s->name, o->op) || !strcmp(op_kind_name(s->kind), o->op);
}

/* ---- checking ------------------------------------------------------------------------------------- */

static double work_of(const op_shape *s) {
    double width = (double)s->heads * s->head_dim;
    switch (s->kind) {
    case OP_IMAGE_ATTENTION: return 4.0 * s->rows * 256 * width;
    case OP_CACHE_ATTENTION: return 4.0 * s->rows * s->keys * width;
    case OP_SCORES:
    case OP_VALUES: return 2.0 * s->rows * s->keys * width;
    case OP_SOFTMAX: return 8.0 * s->rows * s->keys * s->heads;
    case OP_ACTION_EMBED:
        return (double)s->rows * s->n *
               (s->k + (s->options & SHAPE_MERGED ? 1.0
                        : s->options & SHAPE_MLP  ? 2.0
                                                  : 0) *
                           s->n);
    default: return (double)s->rows * s->n * (s->k ? s->k : 1);
    }
}

static int least(int a, int b) { return a < b ? a : b; }

/* A real shape that the definition can do in time: k stays, columns and heads become fewer, and then rows. */
static op_shape shrink(op_shape s, dice *r) {
    static const int few[] = {1, 2, 7, 10, 13, 33, 50};
    int images = s.kind == OP_PATCH_EMBED || s.kind == OP_IMAGE_ATTENTION;
    if (work_of(&s) <= budget) return s;
    if (s.kind == OP_NORM_QKV) {
        s.heads = least(s.heads, 1);
        s.n = (s.heads + 2) * s.head_dim;
    } else if (s.kind == OP_IMAGE_ATTENTION) {
        s.heads = 1;
        s.rows = 256;
    } else if (s.kind == OP_PATCH_EMBED) {
        s.rows = 256;
        s.n = least(s.n, 37);
    } else if (s.kind == OP_ACTION_EMBED) {
        s.n = least(s.n, 390);
    } else if (s.n) {
        s.n = least(s.n, 2 * (33 + random_below(r, 16)));
    }
    if (!images && work_of(&s) > budget)
        s.rows = least(s.rows, few[random_below(r, sizeof few / sizeof *few)]);
    while (!images && work_of(&s) > 2 * budget && s.rows > 1) s.rows = (s.rows + 1) / 2;
    return s;
}

static void check_one(const options *o, const op_shape *shape, dtype type, weight_type weights, level *first,
                      level *end, int checked, pool *pool, dice *r) {
    problem p;
    int samples = 1 + random_below(r, 3);
    if (!problem_make(&p, shape, type, weights, samples, r, pool, checked)) {
        fprintf(stderr, "out of memory: %s\n", shape->name);
        exit(2);
    }
    for (level *l = first; l < end; l++) {
        double *worst = &l->worst[type == DTYPE_BF16];
        if (!l->many || !l->many->backend->takes_weights(l->many, type, weights, p.input)) continue;
        dice own = *r;                     /* the same for all levels, whichever there are          */
        verdict v = trial_run(&p, l->many, l->single, l->allowed, &own);
        l->run++;
        if (v.worst > *worst) *worst = v.worst;
        if (v.neighbours > l->neighbours) l->neighbours = v.neighbours;
        if (v.ok && !o->list) continue;
        printf("%-4s %-11s %-22s %-16s rows %d, n %d, k %d, heads %d·%d, keys %d, samples %d, %s, weights "
               "%s: "
               "%s%s%.2f of the bound\n",
               v.ok ? "ok" : "FAIL", l->name, shape->name, op_kind_name(shape->kind), shape->rows, shape->n,
               shape->k, shape->heads, shape->head_dim, shape->keys, p.samples,
               type == DTYPE_BF16 ? "bf16" : "f32", weight_formats[weights].name, v.detail,
               *v.detail ? ", " : "", v.worst);
        l->failed += !v.ok;
    }
    problem_free(&p);
}

static int gpu_takes(const level *all, dtype type, weight_type weights) {
    int takes = 0;
    for (const level *l = all + GPU_LEVELS; l < all + LEVELS; l++)
        takes |= l->many && l->many->backend->takes_weights(l->many, type, weights, INPUT_ACT);
    return takes;
}

static void check_shape(const options *o, const op_shape *shape, level *all, pool *pool, dice *r) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16};
    op of_kind = {.kind = shape->kind};
    matrix *list[OP_MATRICES];
    int products = op_matrices(&of_kind, list), table = shape->kind == OP_EMBED_TEXT, eight = 0;
    if (!chosen(o, shape)) return;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (weight_type weights = 0; weights < WEIGHT_TYPES; weights++) {
            int plain = !weight_formats[weights].encode, same = weights == weight_of(types[i]);
            /* Rows that stay as they are: formats of 8 bits differ in their decoder alone, but where a GPU
             * has kernels for one. */
            if (weights == WEIGHT_INT8) eight = !gpu_takes(all, types[i], weights) && random_below(r, 2);
            if (weights == (eight ? WEIGHT_INT8 : WEIGHT_E4M3)) continue;
            if (products || (table ? plain : same))
                check_one(o, shape, types[i], weights, all, all + LEVELS, shape->rows, pool, r);
        }
}

/* Whether an op's product may have rows of 8 bits. */
static int may_have_int8_rows(op_kind kind) {
    return kind == OP_NORM_LINEAR || kind == OP_LINEAR_RESIDUAL || kind == OP_NORM_QKV;
}

/* A shape at its full size, on the GPU: with weights of bf16 and, where it may have them, rows of 8 bits. */
static void check_whole(const options *o, const op_shape *shape, level *all, pool *pool, dice *r) {
    double row = work_of(shape) / shape->rows;
    int checked = row * shape->rows <= whole_budget ? shape->rows : (int)(whole_budget / row);
    if (o->shrunk || !chosen(o, shape) || (!all[WHOLE_LEVELS].many && !all[LEVELS - 1].many)) return;
    checked = checked < 3 ? 3 : checked;
    check_one(o, shape, DTYPE_BF16, WEIGHT_BF16, all + WHOLE_LEVELS, all + LEVELS, checked, pool, r);
    if (may_have_int8_rows(shape->kind))
        check_one(o, shape, DTYPE_BF16, WEIGHT_INT8_ROW, all + WHOLE_LEVELS, all + LEVELS, checked, pool,
                  r);
}

static int check_functions(const options *o, level *all) {
    int failed = 0;
    for (level *l = all; l < all + LEVELS; l++) {
        if (!l->many || l >= all + GPU_LEVELS || !strcmp(l->name, "reference") ||
            (o->op && strcmp(o->op, "functions")))
            continue;
        verdict v = functions_run(l->many);
        l->run++;
        l->failed += !v.ok;
        failed += !v.ok;
        if (!v.ok) printf("FAIL %-11s functions: %s, %.2f of the bound\n", l->name, v.detail, v.worst);
    }
    return failed;
}

static int summarise(const level *all, uint64_t seed, double ms) {
    int failed = 0, run = 0, lacking = 0;
    for (const level *l = all; l < all + LEVELS; l++) {
        if (l->many)
            printf(
                "%-12s %4d checks, %d failed, worst of its bound f32 %.2f, bf16 %.2f, "
                "bf16 results off by a bit: at most %.1f %%\n",
                l->name, l->run, l->failed, l->worst[0], l->worst[1], 100 * l->neighbours);
        if (!l->many && l->name)
            printf("%-12s skipped: %s\n", l->name, l->run < 0 ? "not asked for" : l->reason);
        lacking += !l->many && l->run >= 0;
        failed += l->failed;
        run += l->many ? l->run : 0;
    }
    printf("%d checks, %d failed, %d levels skipped for want of the machine; seed %llu, %.1f s\n", run,
           failed, lacking, (unsigned long long)seed, ms * 1e-3);
    return failed || !run;
}

/* ---- starting ------------------------------------------------------------------------------------- */

static int same_backend(const char *device, const char *other) {
    size_t length = strcspn(device, ":");
    return strcspn(other, ":") == length && !strncmp(device, other, length);
}

/* NULL: this build has none for such a device. */
static const backend *backend_of(const char *device) {
    for (const backend *const *b = backends; *b; b++)
        if (same_backend((*b)->name, device)) return *b;
    return NULL;
}

/* A GPU has no number of threads: it runs everything twice. */
static void open_gpu(level *l, const backend *backend, const char *which, const char *as) {
    openpi_error error = OPENPI_ERROR_INIT;
    device_options options = {.path = l->name, .as_card = as};
    if (backend->open(which, &options, &l->many, &error) != OPENPI_OK) {
        l->many = NULL;
        snprintf(l->reason, sizeof l->reason, "%.290s", error.message);
    }
    l->single = l->many;
}

static int open_cpu(const char *isa, pool *pool, device **to) {
    openpi_error error = OPENPI_ERROR_INIT;
    device_options options = {.isa = isa, .pool = pool};
    if (backend_cpu.open("cpu", &options, to, &error) == OPENPI_OK) return 1;
    fprintf(stderr, "%s\n", error.message);
    return 0;
}

/* A level's name is that of a level, or of one that is emulated: "amx_emulated". */
static int open_level(level *l, pool *many, pool *single) {
    int emulated = !strcmp(l->name, "amx_emulated"), found = cpu_isa_find(emulated ? "amx" : l->name);
    const cpu_kernels *kernels = emulated ? isa_emulated(found) : NULL;
    if (found < 0 || (emulated ? !kernels : !cpu_isa_available(found))) {
        snprintf(l->reason, sizeof l->reason, "this machine lacks it");
        return 1;
    }
    if (!open_cpu(emulated ? NULL : l->name, many, &l->many) ||
        !open_cpu(emulated ? NULL : l->name, single, &l->single))
        return 0;
    if (emulated) ((cpu_device *)l->many)->kernels = ((cpu_device *)l->single)->kernels = kernels;
    return 1;
}

static const cpu_product *plain;

static void run_without_ahead(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                              cpu_ahead ahead) {
    plain->run(rows, k, a, b, c, accumulate, (cpu_ahead){ahead.from, 0});
}

/* Replaces the device's bf16 product by one that is blocked as the options say. */
static void tune(const options *o, device *device, cpu_kernels *kernels, cpu_product *product) {
    cpu_device *self = (cpu_device *)device;
    if (!self->kernels || !self->kernels->product[1][WEIGHT_BF16]) return;
    *kernels = *self->kernels;
    plain = kernels->product[1][WEIGHT_BF16];
    *product = *plain;
    if (o->cut) product->k_block = o->cut;
    if (o->panels) product->panels = o->panels;
    if (o->fit) product->a_fit = o->fit;
    if (o->no_ahead) product->run = run_without_ahead;
    kernels->product[1][WEIGHT_BF16] = product;
    self->kernels = kernels;
}

static int bench(const options *o, const char *isa) {
    dtype type = o->dtype && !strcmp(o->dtype, "f32") ? DTYPE_F32 : DTYPE_BF16;
    cpu_kernels kernels;
    cpu_product product;
    device_roofs roofs;
    openpi_error error = OPENPI_ERROR_INIT;
    pool *pool;
    device *device;
    dice r = {o->seed};
    device_options options = {.isa = isa};
    if (pool_create(o->threads, 1, &pool, &error) != OPENPI_OK) return 2;
    options.pool = pool;
    if (backend_cpu.open("cpu", &options, &device, &error) != OPENPI_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    tune(o, device, &kernels, &product);
    timing_head(device, pool, type, &roofs);
    for (int i = 0; i < REAL; i++)
        if (chosen(o, &real_shapes[i]) && !strncmp(real_shapes[i].name, o->size, strlen(o->size)))
            timing_run(&real_shapes[i], type, device, pool, &r, roofs, !o->quick);
    backend_cpu.close(device);
    pool_close(pool);
    return 0;
}

static int check(const options *o) {
    openpi_error error = OPENPI_ERROR_INIT;
    pool *many, *single;
    level all[LEVELS];
    double start = clock_ms();
    int known = !o->isa, cpu = !o->device || same_backend(o->device, "cpu");
    if (pool_create(cpu ? THREADS : 0, 0, &many, &error) != OPENPI_OK ||
        pool_create(1, 0, &single, &error) != OPENPI_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    for (int i = 0; i < LEVELS; i++) {
        const backend *backend = backend_of(levels[i].device);
        all[i] = (level){.name = backend ? levels[i].name : NULL,
                         .allowed = i < GPU_LEVELS ? processor : graphics};
        int named = !o->isa || !strcmp(o->isa, levels[i].name);
        known |= named;
        if (!named || !backend || (o->device && !same_backend(o->device, levels[i].device))) all[i].run = -1;
        else if (i >= GPU_LEVELS) open_gpu(&all[i], backend, o->device ? o->device : levels[i].device, o->as);
        else if (!open_level(&all[i], many, single)) return 2;
    }
    if (!known) {
        fprintf(stderr, "there is no level \"%s\"\n", o->isa);
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)o->seed);
    if (!o->part) check_functions(o, all);
    for (int i = 0; i < REAL + MADE; i++) {
        if (i % o->parts != o->part) continue;
        dice r = {o->seed + (uint64_t)i * 1000003};
        op_shape shape = i < REAL ? shrink(real_shapes[i], &r) : made_shapes[i - REAL];
        check_shape(o, &shape, all, many, &r);
        if (i < REAL && work_of(&real_shapes[i]) > budget) check_whole(o, &real_shapes[i], all, many, &r);
    }
    for (int i = 0; i < LARGE; i++) {
        if (i % o->parts != o->part) continue;
        dice r = {o->seed + (uint64_t)i * 7000003};
        check_whole(o, &large_shapes[i], all, many, &r);
    }
    int failed = summarise(all, o->seed, clock_ms() - start);
    for (int i = 0; i < LEVELS; i++) {
        if (all[i].single && all[i].single != all[i].many) all[i].single->backend->close(all[i].single);
        if (all[i].many) all[i].many->backend->close(all[i].many);
    }
    pool_close(many);
    pool_close(single);
    return failed ? 1 : 0;
}

int main(int count, char **arguments) {
    static const struct option known[] = {
        {"isa", 1, NULL, 'i'},     {"op", 1, NULL, 'o'},     {"seed", 1, NULL, 's'},
        {"list", 0, NULL, 'l'},    {"bench", 0, NULL, 'b'},  {"dtype", 1, NULL, 'd'},
        {"threads", 1, NULL, 't'}, {"size", 1, NULL, 'z'},   {"cut", 1, NULL, 'c'},
        {"panels", 1, NULL, 'p'},  {"fit", 1, NULL, 'f'},    {"no-ahead", 0, NULL, 'a'},
        {"quick", 0, NULL, 'q'},   {"device", 1, NULL, 'D'}, {"part", 1, NULL, 'P'},
        {"shrunk", 0, NULL, 'S'},
        {"as", 1, NULL, 'A'},      {NULL, 0, NULL, 0}};
    options o = {.seed = (uint64_t)time(NULL), .size = "full", .parts = 1};
    for (int c; (c = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (c) {
        case 'D': o.device = optarg; break;
        case 'i': o.isa = optarg; break;
        case 'A': o.as = optarg; break;
        case 'o': o.op = optarg; break;
        case 's': o.seed = strtoull(optarg, NULL, 10); break;
        case 'l': o.list = 1; break;
        case 'b': o.bench = 1; break;
        case 'd': o.dtype = optarg; break;
        case 't': o.threads = atoi(optarg); break;
        case 'z': o.size = optarg; break;
        case 'c': o.cut = atoi(optarg); break;
        case 'p': o.panels = atoi(optarg); break;
        case 'S': o.shrunk = 1; break;
        case 'f': o.fit = atoi(optarg); break;
        case 'a': o.no_ahead = 1; break;
        case 'q': o.quick = 1; break;
        case 'P':
            if (sscanf(optarg, "%d/%d", &o.part, &o.parts) == 2 && o.part >= 1 && o.part <= o.parts) {
                o.part--;
                break;
            }
            /* fallthrough */
        default:
            fprintf(stderr, "usage: openpi_ops [--device cpu|BACKEND:N] [--isa LEVEL] [--as CARD] "
                            "[--op PART] [--seed N] [--shrunk] [--part I/N] [--list]\n"
                            "       openpi_ops --bench [--dtype T] [--size S] [--threads N]\n");
            return 2;
        }
    }
    return o.bench ? bench(&o, o.isa) : check(&o);
}
