/* The cards of the static model. Every number has its source beside it: P published by the vendor, M measured
 * on a card by this project (the file is named), C counted in the kernels' machine code, A assumed.
 *
 * Note: the constants of the first card are the test's. They are few, none belongs to one operation, and they
 * were set by what the code does, not by the stages that the test compares. */
#include "measure/paper.h"

#include <stddef.h>
#include <string.h>

/* What is common to the kernels of this build for the two cards that nobody has run them on. Counted in the
 * machine code (tools/amd-loops): of a turn of the inner loop, flops over what the matrix unit could do in
 * the cycles of the busiest unit, where other waves fill its gaps. */
#define PLAIN_KERNELS                                                                                       \
    .kernels = "the first, plain", .epilogue_cycles = 0.2, /* A: a dozen instructions of 64 lanes        */ \
        .softmax_cycles = 0,     /* its instructions are in attention_inner                              */ \
        .attention_split = 0, .ahead = 1, .few_rows = 0, .norm_rows = 0, .resident_rows = 0

const paper_card paper_cards[] = {
    {
        .name = "h200",
        .title = "H200",
        .kernels = "this build's, tuned",
        .units = 132,            /* P */
        .flops_per_cycle = 4096, /* P: dense bf16, 989 TFLOP/s at 1830 MHz                                */
        .core_mhz = 1634,        /* M: docs/results/h200/bench-pi0.json, roofs, while multiplying         */
        .matrix_tflops = 884,    /* M: the same                                                           */
        .memory_gbs = 4608,      /* M: the same; 96 % of the published 4800                               */
        .cache_bytes = 50e6,     /* P */
        .move_bytes = 72,        /* M: as the heuristic that chooses tiles for it                         */
        .launch_us = 1.4,        /* M: bench-not-resident less bench-pi0, over the 900 launches between   */
        .load_us = 0.75,         /* A: a load from memory that others use too                             */
        .epilogue_cycles = 0.08, /* A: ten instructions of 128 lanes                                      */
        .softmax_cycles = 0.2,   /* A: twelve instructions of 128 lanes and a power of two of 16          */
        .attention_inner = {0.88, 0.88},
        .attention_split = 1,
        .ahead = 4,              /* the kernels' rings                                                    */
        .blocks = 1,
        .few_rows = 16,          /* the kernels' smallest tile                                            */
        .norm_rows = 44,         /* of the tuned table                                                    */
        .resident_rows = 16,
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
        PLAIN_KERNELS,
        .attention_inner = {0.18, 0.26},   /* C: 40 % less the other turns of the loop that fetches keys */
        .blocks = 3,             /* C: 17408 bytes of 64 KiB                                              */
        .tiles = {{64, 64, 1, 0.35}, {16, 64, 1, 0.14}},   /* C */
        .published_ms = 26.1,
        .published_stage_ms = {4.1, 10.7, 11.2},           /* of 27.1 ms of kernels                       */
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
        PLAIN_KERNELS,
        .attention_inner = {0.09, 0.13},   /* C: instructions of the older chip, half of this one's rate  */
        .blocks = 6,             /* C */
        .tiles = {{64, 64, 1, 0.17}, {16, 64, 1, 0.07}},   /* C */
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
