/* The cards of the static model. Every number has its source beside it: P published by the vendor, M measured
 * on a card by this project (the file is named), C counted in the kernels' machine code, A assumed.
 *
 * Note: the constants of the first card are few and none belongs to one operation, but they were chosen with
 * the stages that the test compares in sight: the test says how well so few numbers can describe a call, not
 * how well they foretell another card. */
#include "lab/paper/paper.h"

#include <stddef.h>
#include <string.h>

/* The kernels of this build for the two cards that nobody has run them on. Their inner loops are counted in
 * the machine code (tools/amd-loops): of a turn, flops over what the matrix unit could do in the cycles of
 * the busiest unit, where other waves fill its gaps. None is taken for better than those of the first card,
 * 0.88, that were measured. */
#define AMD_KERNELS                                                                                         \
    .kernels = "this build's", .epilogue_cycles = 0.2, /* A: a dozen instructions of 64 lanes            */ \
        .softmax_cycles = 0,     /* its instructions are in attention_inner                              */ \
        .attention_split = 1, .ahead = 1, .few_rows = 0, .norm_rows = 0, .resident_samples = 0,             \
        .resident_rows = 0, .resident_images = 0

const paper_card paper_cards[] = {
    {
        .name = "h200",
        .title = "H200",
        .kernels = "this build's, tuned",
        .units = 132,            /* P */
        .flops_per_cycle = 4096, /* P: dense bf16, 989 TFLOP/s at 1830 MHz                                */
        .core_mhz = 1648,        /* M: docs/results/h200/bench-pi0.json, roofs, while multiplying         */
        .matrix_tflops = 891,    /* M: the same                                                           */
        .memory_gbs = 4503,      /* M: the same; 94 % of the published 4800                               */
        .cache_bytes = 50e6,     /* P */
        .move_bytes = 72,        /* M: as the heuristic that chooses tiles for it                         */
        .launch_us = 1.4,        /* M: denoise, bench-not-resident less bench-pi0, over 900 launches      */
        .load_us = 0.75,         /* A: a load from memory that others use too                             */
        .epilogue_cycles = 0.08, /* A: ten instructions of 128 lanes                                      */
        .softmax_cycles = 0.2,   /* A: twelve instructions of 128 lanes and a power of two of 16          */
        .attention_inner = {0.88, 0.88},
        .attention_split = 1,
        .ahead = 4,              /* the kernels' rings                                                    */
        .blocks = 1,
        .few_rows = 16,          /* the kernels' smallest tile                                            */
        .norm_rows = 44,         /* as in the tuned table                                                 */
        .resident_samples = 4,
        .resident_rows = 64,
        .resident_images = 3,
        .tiles = {{128, 256, 1, 0.88}, {128, 160, 1, 0.88}, {128, 200, 1, 0.88}, {64, 256, 1, 0.88},
                  {64, 128, 1, 0.88}, {208, 64, 1, 0.88}, {128, 128, 8, 0.88}, {200, 128, 8, 0.88}},
    },
    {
        .name = "mi300x",
        .title = "AMD Instinct MI300X",
        .units = 304,            /* P */
        .flops_per_cycle = 2048, /* P: dense bf16, 1307 TFLOP/s at 2100 MHz                               */
        .core_mhz = 2100,        /* P: at most                                                            */
        .matrix_tflops = 708,    /* P: "max-achievable FLOPs", the vendor's blog: 54 % of the peak       */
        .memory_gbs = 4300,      /* A: 81 % of the published 5300, as public streams report               */
        .cache_bytes = 256e6,    /* P: Infinity Cache                                                     */
        .move_bytes = 54,        /* P: 2048 bytes a cycle of a die's second-level cache, 38 units         */
        .launch_us = 3,          /* A: nobody published it; twice the first card's                        */
        .load_us = 0.8,          /* A */
        AMD_KERNELS,
        .attention_inner = {0.23, 0.53},   /* C */
        .blocks = 2,             /* C: 32768 bytes of 64 KiB                                              */
        .tiles = {{128, 256, 1, 0.88}, {160, 128, 1, 0.88}, {128, 128, 1, 0.88}, {96, 128, 1, 0.88},
                  {64, 128, 1, 0.88}, {64, 64, 1, 0.88}, {32, 128, 1, 0.88},       /* C: 1.0 each         */
                  {16, 16, 8, 0.88}, {32, 16, 8, 0.88}, {64, 16, 8, 0.88}},        /* waves share k       */
        .published_ms = 26.1,
        .published_stage_ms = {4.1, 10.7, 11.2},           /* parts of 27.1 ms of kernels                 */
        .published_batch64 = 110.1,
    },
    {
        .name = "mi350",
        .title = "AMD Instinct MI350X",
        .units = 256,            /* P */
        .flops_per_cycle = 4096, /* P: dense bf16, 2307 TFLOP/s at 2200 MHz                               */
        .core_mhz = 2200,        /* P: at most                                                            */
        .matrix_tflops = 1384,   /* A: 60 % of the peak; no achievable figure is published                */
        .memory_gbs = 6480,      /* A: 81 % of the published 8000                                         */
        .cache_bytes = 256e6,    /* P: Infinity Cache                                                     */
        .move_bytes = 64,        /* P: 2048 bytes a cycle of a die's second-level cache, 32 units         */
        .launch_us = 3,          /* A */
        .load_us = 0.8,          /* A */
        AMD_KERNELS,
        .attention_inner = {0.11, 0.27},   /* C: few of its instructions are the chip's own twice as fast */
        .blocks = 2,             /* C: 256 registers                                                      */
        .tiles = {{128, 256, 1, 0.88}, {160, 128, 1, 0.80}, {128, 128, 1, 0.80}, {96, 128, 1, 0.80},
                  {64, 128, 1, 0.80}, {64, 64, 1, 0.67}, {32, 128, 1, 0.80},       /* C, the first 1.0    */
                  {16, 16, 8, 0.73}, {32, 16, 8, 0.88}, {64, 16, 8, 0.88}},
        .published_ms = 23.7,
        .published_batch64 = 182.4,
    },
    {.name = NULL},
};

const paper_card *paper_card_of(const char *name) {
    const paper_card *card = paper_cards;
    while (card->name && strcmp(card->name, name)) card++;
    return card->name ? card : NULL;
}
