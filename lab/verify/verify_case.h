/* What the kinds of golden share: a case with its row, its memory and its result.
 *
 * A case keeps its first fault and continues, so that its row still holds the distance of the actions.
 * Tensors are compared in the order of the pipeline, so the first fault is at the first wrong stage. Memory
 * of a case is freed with it, so case code never frees. */
#ifndef MEASURE_VERIFY_CASE_H
#define MEASURE_VERIFY_CASE_H

#include <jansson.h>

#include "lab/verify/verify.h"
#include "checkpoint/open.h"

enum { DIMS = OPENPI_ACTION_DIM };
#include "checkpoint/variant.h"

/* One walk. */
typedef struct verify_walk {
    verify_options options;      /* dtype resolved                                                        */
    int every_dtype;             /* 1: no dtype is given, so recorded goldens run in f32 and bf16         */
    verify_each each;
    void *user;
    int rows;
} verify_walk;

typedef struct verify_case {
    const verify_options *options;
    verify_row row;
    void *blocks;                /* memory from case_alloc                                                */
    void *closers;               /* things for case_end to close                                          */
} verify_case;

/* Rows. case_end makes a failure a FAIL row, passes the row to the caller and frees the case. */
void case_begin(verify_case *c, const verify_walk *walk, const char *name);
void case_end(verify_case *c, verify_walk *walk, openpi_status status, const openpi_error *error);

/* Zeroed memory until case_end; NULL when there is none (report_no_memory is the caller's). */
void *case_alloc(verify_case *c, size_t count, size_t size);
/* The same as a status; `out` is a T **. */
openpi_status case_take(verify_case *c, size_t count, size_t size, void *out, openpi_error *error);

/* The first fault of a case. */
void case_fail(verify_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
int case_failed(const verify_case *c);

/* ---- distances ------------------------------------------------------------------------------------- */

typedef struct distance {
    double max, sum;             /* sum of squares; infinity where a value is not a number                */
    int64_t count, worst;        /* index of max                                                          */
} distance;

void distance_add(distance *d, double got, double expected);
double distance_rms(const distance *d);

/* What an engine's bf16 may be off where openpi's bf16 is off by `d`: so many times its rms and max, or more
 * where few numbers tell less of either. */
void distance_bounds(const distance *d, double rms_factor, double max_factor, double *bound_max,
                     double *bound_rms);

/* Sets the row's numbers and fails the case where they are beyond the bounds (bound_rms 0: only max). */
void case_actions(verify_case *c, const char *what, const distance *d, double bound_max, double bound_rms);
/* The bounds of a policy's or LeRobot's golden, tests/golden/README.md: in fp32 `f32` for the largest
 * distance; in bf16, and with 8 bits on any dtype, also one for the rms. Truth and noise [count] are in the
 * unit of the distance. */
typedef struct action_bounds {
    double max, rms;             /* rms 0: not bounded                                                     */
} action_bounds;
action_bounds case_bounds(const verify_case *c, const openpi_engine *engine, double f32, const float *truth,
                          const float *noise, size_t count);

/* Exact comparisons; `what` names the tensor. Fails the case with index, found and expected value. case_near:
 * within `bound`, or within `bound` times the value where that is larger than 1 (a state of 1e6, if its std
 * is 0). */
void case_same_i32(verify_case *c, const char *what, const int32_t *got, const int32_t *expected,
                   int64_t count);
void case_same_u8(verify_case *c, const char *what, const uint8_t *got, const uint8_t *expected,
                  int64_t count);
void case_same_f32(verify_case *c, const char *what, const float *got, const float *expected, int64_t count);
void case_near(verify_case *c, const char *what, const double *got, const double *expected, int64_t count,
               double bound);

/* The prepared prompt against a padded row of ids and its mask: [length] each. */
void case_prompt(verify_case *c, const char *what, const int32_t *ids, int count, const int32_t *tokens,
                 const uint8_t *mask, int length);

/* ---- reading goldens ------------------------------------------------------------------------------- */

/* Opens a safetensors file until case_end. */
openpi_status case_open(verify_case *c, const char *path, tensors **out, openpi_error *error);

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

/* A tensor of that type and shape (-1: any, filled in), in the case's memory. An absent one is an error. */
openpi_status golden_f32(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         float **out, openpi_error *error);
openpi_status golden_f64(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         double **out, openpi_error *error);
openpi_status golden_i32(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         int32_t **out, openpi_error *error);
openpi_status golden_u8(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                        uint8_t **out, openpi_error *error);

/* Metadata: integers, booleans (0 or 1) and arrays of JSON text. An absent integer is `absent`, or an error
 * if absent < low. */
openpi_status golden_integer(const tensors *file, const char *name, const char *key, int64_t low,
                             int64_t high, int64_t absent, int64_t *out, openpi_error *error);
openpi_status golden_boolean(const tensors *file, const char *name, const char *key, int absent, int *out,
                             openpi_error *error);
/* openpi's own flag, "pi05": true or false. */
openpi_status golden_variant(const tensors *file, const char *name, openpi_variant *out,
                             openpi_error *error);
openpi_status golden_json(verify_case *c, const tensors *file, const char *name, const char *key,
                          json_t **out, openpi_error *error);

/* A JSON file until case_end. */
openpi_status case_json(verify_case *c, const char *path, json_t **out, openpi_error *error);
/* "folder/name" in the case's memory. */
openpi_status case_join(verify_case *c, const char *folder, const char *name, char **out,
                        openpi_error *error);
/* The file's whole bytes in the case's memory. */
openpi_status case_read(verify_case *c, const char *path, char **data, size_t *bytes, openpi_error *error);

/* The tokenizer of a case in `folder`: the option, else tokenizer.model there or up to two folders above. */
openpi_status case_tokenizer(verify_case *c, const char *folder, char **out, openpi_error *error);

/* ---- running --------------------------------------------------------------------------------------- */

/* Opens an engine on a synthetic checkpoint as the options say, and a session; hooks are called. Closed by
 * case_end. */
openpi_status case_engine(verify_case *c, const openpi_synthetic *synthetic, openpi_engine **out,
                          openpi_error *error);
/* The same on options->checkpoint. The caller closes it. */
openpi_status case_checkpoint(verify_case *c, openpi_engine **out, openpi_error *error);
/* Sets the row's device to the engine's. */
void case_on_engine(verify_case *c, const openpi_engine *engine);
openpi_status case_session(verify_case *c, openpi_engine *engine, int batch, int horizon, int steps,
                           int max_prompt, openpi_session **out, openpi_error *error);
/* One for openpi_session_run_rtc, of batch 1. */
openpi_status case_chunking_session(verify_case *c, openpi_engine *engine, int horizon, int steps,
                                    int max_prompt, openpi_session **out, openpi_error *error);
openpi_status case_policy(verify_case *c, const char *checkpoint, const openpi_policy_options *options,
                          openpi_policy **policy, openpi_request **request, openpi_error *error);
/* Calls close(thing) at case_end, last first. Closes at once where there is no memory. */
openpi_status case_close_later(verify_case *c, void (*close)(void *thing), void *thing, openpi_error *error);
/* For case_close_later. */
void case_close_tensors(void *thing);
void case_close_json(void *thing);

/* ---- integrity ------------------------------------------------------------------------------------- */

uint64_t fnv1a64(const void *bytes, size_t count);

/* If `path` (a file or folder), or one of the two folders above it, has a MANIFEST ("16 hex digits, two
 * spaces, path" a line): every file in it at or below `path` must exist and have that FNV-1a64. */
openpi_status case_manifest(verify_case *c, const char *path, openpi_error *error);

/* A model golden's pictures and state against the generator that its metadata's input_seed names.
 * images [batch][3][224][224][3], mask [batch][3], state [batch][32]. */
openpi_status case_generated(verify_case *c, uint64_t input_seed, int batch, const uint8_t *images,
                             const uint8_t *mask, const float *state, openpi_error *error);

/* ---- kinds ----------------------------------------------------------------------------------------- */

openpi_status verify_model(verify_walk *walk, const char *path, openpi_error *error); /* NAME.safetensors */
openpi_status verify_policy(verify_walk *walk, const char *folder, openpi_error *error);
openpi_status verify_steps(verify_walk *walk, const char *path, openpi_error *error);  /* steps.json  */
openpi_status verify_hashes(verify_walk *walk, const char *path, openpi_error *error); /* synth_hashes.json */
openpi_status verify_encode(verify_walk *walk, const char *path,
                            openpi_error *error); /* lerobot/encode.json */
openpi_status verify_lerobot(verify_walk *walk, const char *folder, openpi_error *error);
openpi_status verify_recorded(verify_walk *walk, const char *path, openpi_error *error); /* a user's own */
/* 1: a safetensors file whose metadata say that tools/record-golden wrote it. */
int verify_is_recorded(const char *path);

/* The last two parts of a path without ".safetensors" or ".json": a row's name. */
void verify_name(const char *path, char *name, size_t bytes);

#endif
