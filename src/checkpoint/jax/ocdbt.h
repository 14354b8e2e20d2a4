/* OCDBT, the database of keys and values that Orbax keeps a checkpoint in (google/tensorstore,
 * tensorstore/kvstore/ocdbt/index.rst): a manifest, a B+tree of nodes, values inside nodes or in data files.
 */
#ifndef MODEL_OCDBT_H
#define MODEL_OCDBT_H

#include "checkpoint/jax/values.h"

/* Reads manifest and tree of the newest version of FOLDER/manifest.ocdbt into a list of keys. Nodes are
 * checked: magic, length, CRC-32C, heights that fall by one, keys that ascend, counts, paths without "..".
 * Values are not read; where they lie is checked against the size of their file once one is. */
openpi_status ocdbt_open(const char *folder, values **out, openpi_error *error);

#endif
