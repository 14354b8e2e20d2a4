/* What a level of instructions has: products of packed operands, and the functions that work element by
 * element.
 *
 * Operands of a product
 *   A   a block of rows, packed by product.pack.
 *   B   panels of 32 columns. bf16: [k/2][32][2], pairs of k beside each other, k padded with zeros to a
 *       multiple of 32; f32: [k][32]. Weights, keys and values all have this one form (layout.h). Codes of
 *       8 bits, k padded to a multiple of 64: [k][32]; for rows of integers [k/4][32][4], `bias` added to
 *       each.
 *   C   fp32 [rows][32]; of rows of integers int32, exact but for the bias.
 * A row's result depends neither on the number of rows in its block nor on how k is cut: every element of
 * C is summed over k in ascending order, whatever the block. */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include "base/sanitizer.h"
#include "ops/reference.h"

enum { PANEL = 32, HALF_PANEL = 16, K_PAD = 32, INT8_K_PAD = 64, MAX_BLOCK_ROWS = 32 };

/* What the rows of A are, before they are packed. */
typedef enum cpu_input { CPU_F32, CPU_BF16, CPU_INT8, CPU_INPUTS } cpu_input;

/* Lines of memory that a later call reads: a kernel may prefetch them. */
typedef struct cpu_ahead {
    const char *from;
    int lines;                   /* lines of 64 bytes; 0: none                                             */
} cpu_ahead;

typedef struct cpu_product {
    int rows;                    /* most rows of a block                                                   */
    int row_step;                /* a block is stored with its rows rounded up to this                     */
    int k_step;                  /* k of a call is a multiple of this                                      */
    int a_bytes, b_bytes;        /* bytes of an element                                                    */
    int bias;                    /* integers: what is added to B's, so that none is negative; 0: nothing    */
    int k_block;                 /* k that a block of A and a panel of B are best cut to                   */
    int panels;                  /* most panels that share one pass over A                                 */
    int panel_outer;             /* 1: a panel stays in L1 while blocks of A are read; 0: the reverse      */
    int a_fit;                   /* bytes of A that are read again for every panel (fit L2); 0: no limit */
    double a_cost, b_cost;       /* cost of loading a piece of A or B, in units of one `run` on it       */

    /* rows[0 … count-1] point to k elements of A's type; what is between k and its k_step is made zero. */
    void (*pack)(void *to, const void *const *rows, int count, int k);
    /* C (+)= A·B over k; called by cpu_product_run. */
    void (*run)(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead);
    /* Before the first and after the last `run` of a task on a thread; may be NULL. */
    void (*enter)(void);
    void (*leave)(void);
    /* Multiply-adds on registers alone; returns how many floating-point operations `loops` of them are. */
    double (*peak)(long loops);
} cpu_product;

/* C (+)= A·B over k: `rows` rows of A, k of a panel of B. */
static inline void cpu_product_run(const cpu_product *p, int rows, int k, const void *a, const void *b,
                                   float *c, int accumulate, cpu_ahead ahead) {
    size_t stored = (size_t)((rows + p->row_step - 1) / p->row_step * p->row_step);
    sanitizer_reads(a, stored * (size_t)k * (size_t)p->a_bytes);
    sanitizer_reads(b, (size_t)k * PANEL * (size_t)p->b_bytes);
    sanitizer_writes(c, stored * PANEL * sizeof *c);
    p->run(rows, k, a, b, c, accumulate, ahead);
}

/* What happens to a tile of C: rows first_row … first_row+rows-1, columns of one panel. */
typedef struct cpu_finish {
    dtype type;                  /* type of out                                                            */
    int n;                       /* columns of out                                                         */
    activation activation;
    const float *bias, *gate;    /* may be NULL                                                            */
    const float *row_add;        /* [row_add_period][n], may be NULL                                       */
    int row_add_period;
    const int32_t *out_row;      /* NULL: row_at                                                            */
    int group, stride, offset;   /* out row of r: r / group · stride + offset + r % group; group 0: r       */
    void *out;
    float dt, *x_t;              /* velocity                                                               */
    const float *own_dt;         /* velocity: NULL, or each row's                                          */
    const row_set *set;          /* residual, velocity: some rows may be known; linear: NULL, or each row
                                    has a bias of its own                                                  */
    const op_norm_qkv *qkv;
} cpu_finish;

typedef void (*cpu_finisher)(const cpu_finish *finish, int panel, int first_row, int rows, const float *c);

static inline int finish_row(const cpu_finish *f, int row) {
    if (f->out_row) return f->out_row[row];
    return f->group ? row / f->group * f->stride + f->offset + row % f->group : row;
}

/* Statistics of a row: y = (x - mean)·factor. */
typedef struct cpu_statistics {
    float mean, factor;
} cpu_statistics;

typedef struct cpu_elements {
    cpu_statistics (*statistics)(const norm *norm, const void *x, dtype type, int k);
    /* Elements at … at+count-1 of a row, normalised, rounded to `type` (as x is stored), written as
     * `out_type`. */
    void (*normalise)(const norm *norm, cpu_statistics s, const void *x, dtype type, int at, int count,
                      void *out, dtype out_type);
    /* to[word][32] = rows[column][word]: 32 rows of `words` 32-bit words become columns; a NULL row
     * becomes zeros. */
    void (*columns)(uint32_t *to, const void *const *rows, int words);
    /* to[i] = even[i], odd[i] as a pair of bf16: two rows of values beside each other. */
    void (*pairs)(uint32_t *to, const bf16 *even, const bf16 *odd, int count);
    /* Scores of one row, chunks of 32 `stride` floats apart, the first `keys` of them valid; p[0 …
     * padded-1] = softmax(score·scale) rounded to `type`, zeros from `keys` on. */
    void (*softmax)(float *scores, int stride, int keys, int padded, float scale, dtype type, void *p,
                    dtype p_type);
    void (*scale)(const void *x, dtype x_type, int count, float scale, void *out, dtype type);
    void (*store)(const float *x, int count, void *out, dtype type);
    /* Rows of integers (ops/int8_rows.h): bits of the largest magnitude, or of one above, or of a NaN where a
     * number is not finite; codes, at the place of x too, and their sum. */
    uint32_t (*int8_top)(const float *x, int count, uint32_t top);
    int32_t (*int8_codes)(const float *x, int count, float inverse, int8_t *out);
    /* c[row][32] = sums[row][32]·scales[32], `accumulate`: + c. */
    void (*scale_add)(float *c, const float *sums, int count, const float *scales, int accumulate);
    /* c[row][32]: sums of integers become numbers, (sum - bias[row])·(rows[row]·columns[i]). */
    void (*int8_scale)(float *c, int count, const int32_t *bias, const float *rows, const float *columns);
    /* Reads a multiple of 1 KB and keeps nothing: the memory's speed. */
    void (*read)(const void *memory, size_t bytes);
    cpu_finisher linear, gated, residual, qkv, velocity;
    /* For the tests of their error: 0 exp, 1 gelu, 2 silu. */
    void (*function)(int which, const float *x, int count, float *out);
} cpu_elements;

typedef struct cpu_kernels {
    const cpu_elements *elements;
    const cpu_product *product[CPU_INPUTS][WEIGHT_TYPES];  /* [A][format of B]; NULL: there is none        */
} cpu_kernels;

#endif
