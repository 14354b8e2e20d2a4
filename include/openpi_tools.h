/* openpi_tools.h - looking at a checkpoint, converting one, making one up; pictures, names and switches.
 * The rules of openpi.h hold here.
 */
#ifndef OPENPI_TOOLS_H
#define OPENPI_TOOLS_H

#include "openpi_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- looking at a checkpoint ---------------------------------------------------------------------- */

/* *json: an object that describes a checkpoint, for openpi_free: variant, dims, parameters, dtypes, cameras,
 * robot, stats, prompt format, steps, horizon, real-time chunking; the ranks and factors of LoRA and of an
 * adapter; and for every device the memory that weights (each group of them) and a default session need, the
 * memory that is free, and whether it fits; "notes", the sentences of openpi_engine_note and
 * openpi_policy_note, warnings with "warning: " in front. `options` may be NULL. */
OPENPI_API openpi_status openpi_inspect(const char *checkpoint, const openpi_policy_options *options,
                                        char **json, openpi_error *error);

/* ---- converting a checkpoint ---------------------------------------------------------------------- */

/* What every tensor of a converted checkpoint is stored in. */
typedef enum openpi_file_dtype {
    OPENPI_FILE_BF16 = 0,        /* default, as openpi's converter                                   */
    OPENPI_FILE_F32 = 1,         /* nothing is rounded                                               */
    OPENPI_FILE_F16 = 2,
} openpi_file_dtype;

typedef struct openpi_convert_options {
    size_t size;                 /* sizeof(openpi_convert_options)                                   */
    openpi_file_dtype dtype;
    int threads;                 /* default all that this process may use                            */
    uint64_t shard_bytes;        /* default 0: model.safetensors; else shards of at most so many bytes of
                                    tensors and model.safetensors.index.json                         */
    openpi_progress progress;    /* "writing weights", in bytes                                      */
    void *progress_user;
    const char *adapter;         /* as the engine's: merged in fp32; default none                    */
    openpi_cancel cancel;        /* asked with progress_user while the weights are written           */
    int without_lora;            /* as the engine's                                                  */
    int missing_chunks_are_zero; /* as the engine's                                                  */
    openpi_tell tell;            /* what openpi_engine_note would tell of the checkpoint, which the new one
                                    does not say any more; default nobody                            */
    void *tell_user;
} openpi_convert_options;

#define OPENPI_CONVERT_OPTIONS_INIT \
    {sizeof(openpi_convert_options), OPENPI_FILE_BF16, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL}

/* Writes the checkpoint (any that openpi_engine_open takes) into a new or empty folder outside of it, as
 * openpi's PyTorch port saves it (docs/convert.md): weights, config.json, assets and tokenizer; LoRA is
 * merged. A checkpoint of LeRobot's stays one, with all its processors. Each value is rounded once; the files
 * are the same bytes on every run, with any number of threads. `options` may be NULL. On failure the files
 * written so far are removed.
 *   OPENPI_BAD_FILE      also a weight that is NaN, infinite or too large for the type
 *   OPENPI_CANCELLED     options->cancel said so
 *   OPENPI_SYSTEM        a file cannot be written, or less space is free than the weights need */
OPENPI_API openpi_status openpi_convert(const char *checkpoint, const char *folder,
                                        const openpi_convert_options *options, openpi_error *error);

/* ---- synthetic checkpoints ------------------------------------------------------------------------ */

/* Fills *synthetic from "full|tiny|odd[:pi0|pi05[:SEED]]"; what is omitted is that of "full:pi0:7". Other
 * text is OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_synthetic_parse(const char *spec, openpi_synthetic *synthetic,
                                                openpi_error *error);

/* Fills *dims from {"vision":[width,depth,heads,mlp],"vlm":[width,depth,heads,head_dim,mlp],
 * "expert":[width,mlp],"vocab":n}, or from a preset's name: "full", "tiny", "odd". */
OPENPI_API openpi_status openpi_dims_parse(const char *json, openpi_dims *dims, openpi_error *error);

/* Writes the checkpoint into a new or empty folder: model.safetensors (if shard_bytes is not 0: shards of at
 * most `shard_bytes` and model.safetensors.index.json), config.json, assets/synthetic/norm_stats.json,
 * tokenizer.model; if synthetic->lerobot, LeRobot's files instead. `threads` 0: all that this process may
 * use. On failure the files written so far are removed. */
OPENPI_API openpi_status openpi_synthetic_write(const openpi_synthetic *synthetic, const char *folder,
                                                uint64_t shard_bytes, int threads, openpi_progress progress,
                                                void *progress_user, openpi_error *error);

/* ---- pictures, names and switches ----------------------------------------------------------------- */

/* Decodes bytes[count] of a PNG or JPEG file into *pixels, RGB uint8 [*height][*width][3], for openpi_free. A
 * picture with an orientation in its EXIF or XMP is rotated or mirrored upright, as Pillow's exif_transpose
 * does; height and width are those of the upright picture. Pixels are those of Pillow's convert("RGB").
 * Error sentences begin with `name` (may be NULL). Damaged files, other formats, more than 64 megapixels and
 * 16 bits of gray with a value above 255, which are white to Pillow, are OPENPI_BAD_FILE. */
OPENPI_API openpi_status openpi_image_decode(const void *bytes, size_t count, const char *name,
                                             uint8_t **pixels, int *height, int *width, openpi_error *error);

/* The word of known[count] that was probably meant by `word`, which is none of them: a few letters missing,
 * added, changed or swapped, or another case. Its index; -1: none is near, or `word` is one of them. For
 * names that a program reads itself; the library's own sentences end in 'did you mean "…"?'. */
OPENPI_API int openpi_near_word(const char *word, const char *const *known, int count);

/* An optimisation that can be switched off, to measure its effect. Actions are equal to rounding whichever
 * are off. */
typedef struct openpi_switch {
    size_t size;                 /* sizeof(openpi_switch)                                            */
    const char *name;            /* "fused-qkv"                                                      */
    const char *text;            /* what it does, in a line                                          */
} openpi_switch;

#define OPENPI_SWITCH_INIT {sizeof(openpi_switch), NULL, NULL}

/* Fills switches[0 … capacity-1] in the order in which `openpi ladder` switches them on; *count is their
 * number (may exceed capacity). `switches` may be NULL if capacity is 0. The strings are constants. */
OPENPI_API openpi_status openpi_switches(openpi_switch *switches, int capacity, int *count,
                                         openpi_error *error);

#ifdef __cplusplus
}
#endif
#endif
