/* A checkpoint's tensors: safetensors files, read when elements are asked for, or a generator of synthetic
 * ones. Any thread may read. */
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
    struct tensor_file *stored;  /* the file that has its bytes; NULL: none has                           */
    uint64_t at;                 /* stored: its first byte in the file                                    */
    struct orbax_part *part;     /* its place in an array of a JAX checkpoint; NULL: none                 */
    int64_t narrow_rows, narrow_columns;   /* what is stored where zeros fill the rest; 0: all is         */
    int rounded;                 /* 1: read as bf16 values whatever is stored, see tensors_round          */
    const struct adapter_change *change;   /* what an adapter adds to its elements (adapter.h); NULL: none */
    const void *data;            /* its bytes in memory (any alignment), see tensors_load; else NULL      */
    uint64_t key;                /* generated: mix(fnv1a64(name) ^ seed)                                  */
    double offset, scale;        /* generated: value = offset + scale·u                                   */
    int64_t raise_from;          /* generated: elements from here on get +0.7 (dense.bias); else count    */
} tensor;

typedef struct tensors tensors;
struct pool;

/* Opens a folder (model.safetensors, or the shards that model.safetensors.index.json names) or one
 * .safetensors file. */
openpi_status tensors_open(const char *path, tensors **out, openpi_error *error);
/* The same with options about a JAX checkpoint. */
typedef enum missing_chunks {
    MISSING_REFUSED,             /* unless the checkpoint says that chunks of zeros were not saved        */
    MISSING_ZERO,                /* zeros, unless the checkpoint says that every chunk was saved          */
    MISSING_UNSEEN,              /* nobody looks: names and shapes only are wanted                        */
} missing_chunks;
struct notes;
typedef struct tensors_options {
    int without_lora;            /* 1: its LoRA pairs are left out: the base as it was before the training */
    missing_chunks missing;
    struct notes *notes;         /* what is to be told; NULL: nobody                                      */
} tensors_options;
openpi_status tensors_open_with(const char *path, const tensors_options *options, tensors **out,
                                openpi_error *error);
/* The tensors of a synthetic checkpoint: nothing is stored. */
openpi_status tensors_synthetic(const openpi_synthetic *synthetic, tensors **out, openpi_error *error);
void tensors_close(tensors *tensors);
/* "BF16": as safetensors writes it. */
const char *dtype_name(dtype type);

int tensors_count(const tensors *tensors);
const tensor *tensors_at(const tensors *tensors, int index);      /* in file order                        */
const tensor *tensors_find(const tensors *tensors, const char *name);   /* NULL if absent                 */
/* A value of the file's __metadata__ map ("" key order as stored), NULL if absent. */
const char *tensors_metadata(const tensors *tensors, const char *key);

/* Neither in a file nor in memory: made by its recipe. */
static inline int tensor_is_generated(const tensor *t) { return !t->stored && !t->data && !t->part; }

/* Tensors of a JAX checkpoint can be read while their stage is the one in memory (orbax.h); those of other
 * checkpoints are of stage 0, always in reach, and there is no other stage. A tensor that an adapter changes
 * can be read once a stage was asked for. */
int tensors_stages(const tensors *tensors);
int tensor_stage(const tensor *tensor);
openpi_status tensors_stage(const tensors *tensors, int stage, struct pool *pool, openpi_error *error);
/* 1: to be read in ascending order, whole rows at a time, by one thread. */
int tensor_is_sequential(const tensor *tensor);

/* Another way through a JAX checkpoint than its stages: array after array, each in the order of its layers.
 * tensor_array identifies the array that a tensor has to be decoded from; NULL: it is of stage 0. tensor_hold
 * decodes the tensor's layer of it and drops the layer before; several threads may, each with arrays of its
 * own. tensor_release drops what the array holds. */
const void *tensor_array(const tensor *tensor);
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
static inline int64_t tensor_stored_count(const tensor *t) {
    return t->narrow_rows ? t->narrow_rows * t->narrow_columns : t->count;
}

/* The rank of the index-th array of a JAX checkpoint that LoRA changes, its name and its layers; 0: there are
 * not so many. */
int tensors_lora(const tensors *tensors, int index, const char **array, int *layers);
/* The arrays of LoRA that tensors_open_with has left out. */
int tensors_lora_left_out(const tensors *tensors);
/* The chunks of a JAX checkpoint that are zeros because they are not there; *why: the sentence that says so,
 * which is the list's. */
int tensors_missing_chunks(const tensors *tensors, const char **why);
/* NULL: none. */
const struct adapter *tensors_adapter(const tensors *tensors);
/* Heads of the vision tower where the checkpoint's layout tells; else 0. */
int tensors_vision_heads(const tensors *tensors);

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
/* Closes the files. Names and shapes stay; what is not in memory can no longer be read. */
void tensors_close_files(tensors *tensors);

#endif
