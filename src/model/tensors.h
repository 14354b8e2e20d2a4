/* A checkpoint's tensors: mapped safetensors files, or a generator of synthetic ones. Read-only, any thread. */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

#include "base/dtype.h"
#include "openpi.h"

enum { TENSOR_RANK = 5 };       /* goldens hold pictures [batch][camera][224][224][3] */

typedef struct tensor {
    const char *name;            /* as in the file, without one leading "model." (SPEC 5.2)               */
    const char *file;            /* for sentences                                                         */
    dtype type;
    int rank;
    int64_t shape[TENSOR_RANK];
    int64_t count;               /* product of shape                                                      */
    const void *data;            /* mapped bytes (any alignment), NULL: generated                         */
    uint64_t key;                /* generated: mix(fnv1a64(name) ^ seed)                                  */
    double offset, scale;        /* generated: value = offset + scale·u                                   */
    int64_t raise_from;          /* generated: elements from here on get +0.7 (dense.bias); else count    */
} tensor;

typedef struct tensors tensors;

/* Opens a folder (model.safetensors, or the shards that model.safetensors.index.json names) or one .safetensors file. */
openpi_status tensors_open(const char *path, tensors **out, openpi_error *error);
/* The tensors of a synthetic checkpoint: nothing is stored. */
openpi_status tensors_synthetic(const openpi_synthetic *synthetic, tensors **out, openpi_error *error);
void tensors_close(tensors *tensors);

int tensors_count(const tensors *tensors);
const tensor *tensors_at(const tensors *tensors, int index);      /* in file order                        */
const tensor *tensors_find(const tensors *tensors, const char *name);   /* NULL if absent                 */
/* A value of the file's __metadata__ map ("" key order as stored), NULL if absent. */
const char *tensors_metadata(const tensors *tensors, const char *key);

/* Elements first … first+count-1, converted. bf16 output rounds to nearest even. */
void tensor_read_f32(const tensor *tensor, int64_t first, int64_t count, float *out);
void tensor_read_bf16(const tensor *tensor, int64_t first, int64_t count, bf16 *out);

#endif
