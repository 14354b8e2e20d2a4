/* A checkpoint's weights as openpi's PyTorch port saves them, or LeRobot's where the checkpoint is LeRobot's:
 * its names, one tensor for the embedding and the language model's head, LoRA merged (docs/convert.md). */
#ifndef MODEL_EXPORT_H
#define MODEL_EXPORT_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors/safetensors_write.h"

typedef struct export_order {
    const char *folder;                    /* exists                                                      */
    dtype type;                            /* F32, BF16 or F16: of every tensor                           */
    uint64_t shard_bytes;                  /* 0: one file                                                 */
    pool *pool;
    safetensors_created created;
    void *created_user;
    openpi_progress progress;
    openpi_cancel cancel;
    void *progress_user;                   /* context of both functions                                   */
} export_order;

/* Weights that are NaN or infinite, or would be in the type, are refused. Changes how the checkpoint's
 * tensors are rounded (tensors_round). */
openpi_status export_weights(const checkpoint *checkpoint, const export_order *order, openpi_error *error);

#endif
