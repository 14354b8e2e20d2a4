/* What a call would take on a card that is not here: a static model, without a device and without weights.
 *
 * Note: every time in here is PREDICTED. Nothing runs; whatever shows such a time says so.
 *
 * The model knows a card (paper_card: published rates, what part of them is reached, latencies) and the
 * kernels that would run there (their tiles, how much of the matrix units' time the inner loop uses, how many
 * steps are on their way). A product is cut into tiles, which the units take in waves; a wave takes what its
 * multiplications, its bytes from the cache or the latency of memory take, whichever is longest. No constant
 * belongs to one operation: what is wrong in the model is wrong for all operations alike, and
 * tests/measure/test_paper.c compares it with measurements. */
#ifndef MEASURE_PAPER_H
#define MEASURE_PAPER_H

#include "lab/measure/costs.h"
#include "lab/measure/profile.h"

enum { PAPER_TILES = 10, PAPER_STAGES = 3 };

typedef struct paper_tile {
    int rows, columns;
    int parts;                   /* most blocks that share k, each with a part of it                      */
    double inner;                /* share of the matrix units' peak that the inner loop reaches           */
} paper_tile;

typedef struct paper_card {
    const char *name, *title;    /* "mi300x", "AMD Instinct MI300X"                                       */
    const char *kernels;         /* whose tiles and inner loops these are                                 */
    /* The card: published, or measured where a card was at hand (paper_cards.c has the sources).         */
    int units;
    double flops_per_cycle;      /* one unit, bf16                                                        */
    double core_mhz;
    double matrix_tflops;        /* that all units hold within the card's power                           */
    double memory_gbs;           /* that a pass over memory reaches                                       */
    double cache_bytes;          /* size of the cache that all units share                                */
    double move_bytes;           /* from that cache to a unit, a cycle                                    */
    double launch_us;            /* between one kernel and the next one of a graph                        */
    double load_us;              /* a load from memory under load                                         */
    /* Its kernels. */
    double epilogue_cycles;      /* cycles an element of a tile: bias, activation, rounding, store        */
    double softmax_cycles;       /* cycles a score, beside its products                                   */
    double attention_inner[2];   /* as paper_tile.inner: heads of up to 128 dimensions, larger ones       */
    int attention_split;         /* 1: keys are split where there are fewer blocks than units             */
    int ahead;                   /* steps of k on their way while one is multiplied; 0: attention too     */
    int blocks;                  /* a product's blocks that a unit holds at once                          */
    int few_rows;                /* products of so many rows spread k over all units: they run as fast as
                                    memory is read. 0: no such kernels                                    */
    int norm_rows;               /* up to so many rows a norm is inside its product, else a launch        */
    int resident_samples;        /* with so many samples at most, and                                     */
    int resident_rows;           /* so many rows of all of them, the layers of a step are one launch      */
    int resident_images;         /* with so many images at most, the layers of vision, norms inside       */
    paper_tile tiles[PAPER_TILES];         /* rows 0 ends them                                            */
    /* What others published for the workload that bench runs by default; 0: nothing. */
    double published_ms, published_stage_ms[PAPER_STAGES], published_batch64;
} paper_card;

extern const paper_card paper_cards[];                     /* a NULL name ends                            */
const paper_card *paper_card_of(const char *name);         /* NULL: there is none of that name            */

/* What one operation would take. */
typedef struct paper_time {
    double us;
    int launches;
} paper_time;

/* `rows` and `keys` as costs_of_op gives them; `samples` share the rows evenly. */
paper_time paper_predict(const paper_card *card, const op *op, int rows, double keys, int samples);

typedef struct paper_call {
    openpi_variant variant;      /* variant of the checkpoint                                             */
    uint64_t parameters;
    profile profile;             /* its times are predictions; profile_free                               */
} paper_call;

/* A call of this model and workload, operation by operation. Reads a checkpoint's shapes, no weights. */
openpi_status paper_run(const char *checkpoint, const openpi_synthetic *synthetic, const workload *workload,
                        int horizon, int steps, const paper_card *card, paper_call *out, openpi_error *error);
/* What the card holds at most, for floors. */
bench_roofs paper_roofs(const paper_card *card);

#endif
