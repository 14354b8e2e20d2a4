/* The product of two weights, when a model loads: a row of it is one row of action_time_mlp_in times all
 * of action_in_proj. */
#include "model/merged.h"

#include <stdlib.h>

#include "base/report.h"

enum { K = OPENPI_ACTION_DIM };

typedef struct product {
    const tensor *mlp_in, *mlp_bias;
    const float *in, *in_bias;             /* [width][K] [width]                                            */
    float *rows;                           /* [threads][width]: a row of mlp_in each                        */
    int width;
    const merged *out;
} product;

static void row_task(void *argument, int o, int worker) {
    const product *p = argument;
    int width = p->width;
    float *row = p->rows + (size_t)worker * (size_t)width, start;
    double sums[K] = {0}, bias;
    tensor_read_f32(p->mlp_in, (int64_t)o * 2 * width, width, row);         /* its other half is the time's */
    tensor_read_f32(p->mlp_bias, o, 1, &start);
    bias = start;
    for (int j = 0; j < width; j++) {
        const float *in = p->in + (size_t)j * K;
        for (int i = 0; i < K; i++) sums[i] += (double)row[j] * in[i];
        bias += (double)row[j] * p->in_bias[j];
    }
    for (int i = 0; i < K; i++) p->out->weight[(size_t)o * K + (size_t)i] = (float)sums[i];
    p->out->bias[o] = (float)bias;
}

const char *const merged_names[MERGED_PARTS] = {"action_time_mlp_in.weight", "action_time_mlp_in.bias",
                                                "action_in_proj.weight", "action_in_proj.bias"};

openpi_status merged_make(const tensor *const parts[MERGED_PARTS], int width, pool *pool, merged *out,
                          openpi_error *error) {
    size_t w = (size_t)width, threads = (size_t)pool_threads(pool), floats = 2 * w * (K + 1) + threads * w;
    float *block = malloc(floats * sizeof *block);
    if (!block) return report_no_memory(error, floats * sizeof *block, "merging π0's action matrices");
    *out = (merged){block, block + w * K, block};
    float *in = out->bias + w, *in_bias = in + w * K;
    product p = {parts[0],
                 parts[1],
                 in,
                 in_bias,
                 in_bias + w,
                 width,
                 out};
    tensor_read_f32(parts[2], 0, (int64_t)(w * K), in);
    tensor_read_f32(parts[3], 0, width, in_bias);
    pool_run(pool, row_task, &p, width);
    return OPENPI_OK;
}

void merged_free(merged *merged) {
    free(merged->block);
    *merged = (struct merged){0};
}
