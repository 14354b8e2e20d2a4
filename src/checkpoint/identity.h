/* Which weights a checkpoint holds, without reading all of them: a hash that a weight plan keeps, so that it
 * is not applied to another checkpoint. */
#ifndef CHECKPOINT_IDENTITY_H
#define CHECKPOINT_IDENTITY_H

#include "checkpoint/checkpoint.h"

enum { IDENTITY_TEXT = 17 };

/* 16 hexadecimal digits, FNV-1a64 over
 *   for each file that tensors are read from, in order: its name without folders, its size, of every MiB the
 *   first 4 KiB, and its last 4 KiB
 *   what an adapter's config says, but for its folder; whether LoRA is left out
 * A synthetic checkpoint: its recipe. 26 MB of a full model are read. Moving or copying a checkpoint does not
 * change the hash. */
openpi_status checkpoint_identity(const checkpoint *checkpoint, char text[IDENTITY_TEXT],
                                  openpi_error *error);

/* Whether its files are still those that were opened: a number over place, size and time of change of each,
 * none of which is read. */
openpi_status checkpoint_stamp(const checkpoint *checkpoint, uint64_t *stamp, openpi_error *error);

#endif
