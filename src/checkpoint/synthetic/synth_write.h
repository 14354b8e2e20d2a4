/* A synthetic checkpoint's weights as safetensors files. */
#ifndef CHECKPOINT_SYNTH_WRITE_H
#define CHECKPOINT_SYNTH_WRITE_H

#include "base/threads.h"
#include "checkpoint/safetensors/safetensors_write.h"

/* Writes the weights as model.safetensors, or as shards and their index, into an existing folder. Tensors are
 * generated piece by piece: memory is one piece a thread. */
openpi_status synth_write_weights(const openpi_synthetic *synthetic, const char *folder, uint64_t shard_bytes,
                                  pool *pool, safetensors_created created, void *created_user,
                                  openpi_progress progress, void *progress_user, openpi_error *error);

#endif
