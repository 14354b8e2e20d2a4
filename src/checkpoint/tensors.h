/* A checkpoint's tensors, whatever they are read from: names, shapes, elements when they are asked for.
 * source.h is what stands behind them, open.h opens a checkpoint. Any thread may read. */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

#include "base/dtype.h"
#include "openpi.h"

enum { TENSOR_RANK = 5 };       /* goldens hold pictures [batch][camera][224][224][3] */

typedef struct tensor {
    const char *name;            /* as in the file, in a checkpoint without LEROBOT_PREFIX (MODEL.md)     */
    const char *file;            /* for sentences                                                         */
    dtype type;
    int rank;
    int64_t shape[TENSOR_RANK];
    int64_t count;               /* product of shape                                                      */
    const struct tensor_source *source;    /* how its elements are read (source.h); NULL: from `data`     */
    void *place;                 /* the source's own                                                      */
    uint64_t at;                 /* the source's own: its first byte in a file                            */
    int64_t narrow_rows, narrow_columns;   /* what is stored where zeros fill the rest; 0: all is         */
    int rounded;                 /* 1: read as bf16 values whatever is stored, see tensors_round          */
    const void *data;            /* its bytes in memory (any alignment), see tensors_load; else NULL      */
} tensor;

/* How elements are made that are stored nowhere: value = offset + scale·u (tests/golden/SYNTH.md). */
typedef struct tensor_recipe {
    uint64_t key;                /* mix(fnv1a64(name) ^ seed)                                             */
    double offset, scale;
    double raise;                /* added to elements from raise_from on                                  */
    int64_t raise_from;          /* the tensor's count where none is raised                               */
} tensor_recipe;

typedef struct tensors tensors;
struct pool;

void tensors_close(tensors *tensors);
/* "BF16": as safetensors writes it. */
const char *dtype_name(dtype type);

int tensors_count(const tensors *tensors);
const tensor *tensors_at(const tensors *tensors, int index);      /* in file order                        */
const tensor *tensors_find(const tensors *tensors, const char *name);   /* NULL if absent                 */
/* A value of the file's __metadata__ map ("" key order as stored), NULL if absent. */
const char *tensors_metadata(const tensors *tensors, const char *key);

/* NULL: the tensor is read, not generated. */
const tensor_recipe *tensor_recipe_of(const tensor *tensor);
static inline int tensor_is_generated(const tensor *t) { return tensor_recipe_of(t) != NULL; }

/* When a tensor can be read. Zeros: at any place, at any time. */
typedef struct tensor_order {
    const void *array;           /* identifies the array that it has to be decoded from; NULL: none       */
    int stage;                   /* it can be read while this stage is in memory; 0: always, once staged  */
    int sequential;              /* 1: in ascending order, whole rows at a time, by one thread            */
} tensor_order;
tensor_order tensor_order_of(const tensor *tensor);

/* Stages of a list: tensors of a JAX checkpoint can be read while their stage is the one in memory (orbax.h);
 * those of other checkpoints are of stage 0, and there is no other stage. A tensor that an adapter changes
 * can be read once a stage was asked for. */
int tensors_stages(const tensors *tensors);
static inline int tensor_stage(const tensor *t) { return tensor_order_of(t).stage; }
openpi_status tensors_stage(const tensors *tensors, int stage, struct pool *pool, openpi_error *error);
static inline int tensor_is_sequential(const tensor *t) { return tensor_order_of(t).sequential; }

/* Instead of stage after stage: array after array, each in the order of its layers. tensor_hold decodes the
 * tensor's layer of its array and drops the layer before; several threads may, each with arrays of its own.
 * tensor_release drops what the array holds. */
static inline const void *tensor_array(const tensor *t) { return tensor_order_of(t).array; }
/* Called by the thread that decodes, with the bytes that it has decoded since the call before. */
typedef struct decode_watch {
    void (*decoded)(void *user, uint64_t bytes);
    void *user;
} decode_watch;
openpi_status tensor_hold(const tensor *tensor, const decode_watch *watch, openpi_error *error);
void tensor_release(const tensor *tensor);
/* As the file has them, decoded: before LoRA is merged, before rounding. */
dtype tensor_stored_type(const tensor *tensor);
uint64_t tensor_stored_bytes(const tensor *tensor);
/* 1: what is read is the sum of what is stored and of LoRA in the same checkpoint. */
int tensor_has_lora(const tensor *tensor);
static inline int64_t tensor_stored_count(const tensor *t) {
    return t->narrow_rows ? t->narrow_rows * t->narrow_columns : t->count;
}

/* openpi rounds every parameter of a JAX checkpoint to bf16 when it loads one. on 1: from here on the tensors
 * of such a checkpoint are read so, as fp32 too; 0: as they are stored. Those of others never are. What was
 * staged is forgotten. */
void tensors_round(tensors *tensors, int on);
/* 1: the tensor's elements are bf16 values. */
static inline int tensor_is_bf16(const tensor *t) { return t->type == DTYPE_BF16 || t->rounded; }

/* Reads all files whole, so that every tensor.data is there until tensors_close. For small files. */
openpi_status tensors_load(tensors *tensors, openpi_error *error);

/* Elements first … first+count-1, converted to `type`: fp32, or bf16, which rounds to nearest even. Where
 * a read fails the output is zeros, and tensors_check reports it. */
void tensor_read(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out);

static inline void tensor_read_f32(const tensor *tensor, int64_t first, int64_t count, float *to) {
    tensor_read(tensor, DTYPE_F32, first, count, to);
}

static inline void tensor_read_bf16(const tensor *tensor, int64_t first, int64_t count, bf16 *to) {
    tensor_read(tensor, DTYPE_BF16, first, count, to);
}

/* The sentence of the first read that failed, if one has. Not while another thread reads. */
openpi_status tensors_check(const tensors *tensors, openpi_error *error);
/* Lets the kernel's cached pages of the files go: for where device memory is what they take. */
void tensors_forget_pages(const tensors *tensors);
/* Closes the files. Names and shapes stay; what is not in memory can no longer be read. */
void tensors_close_files(tensors *tensors);

#endif
