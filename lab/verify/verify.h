/* Runs golden files through the engine: how the project is tested and how a user checks a machine.
 *
 * A golden holds inputs, the checkpoint's recipe and what openpi (or LeRobot) computed from them; verify
 * makes the checkpoint, computes everything again and compares within the bounds of tests/golden/README.md.
 * The caller receives one row a case.
 *
 * Note: the default dtype is f32, not the engine's bf16, because the bf16 bound does not detect every wrong
 * mask. */
#ifndef MEASURE_VERIFY_H
#define MEASURE_VERIFY_H

#include "openpi.h"

typedef struct verify_options {
    const char *device;          /* NULL: "cpu"                                                           */
    const char *isa;             /* NULL: the best that the machine runs                                  */
    const char *path;            /* kernel path of a GPU; NULL: its best                                  */
    const char *as_card;         /* as the engine's                                                       */
    const char *without;         /* switches that are off; NULL: none                                     */
    const char *table;           /* tuner's table; NULL: the device's own                                 */
    openpi_dtype dtype;          /* default f32; with a checkpoint f32 and then bf16                      */
    openpi_weights weights;      /* default as the dtype's                                                */
    const char *formats;         /* by group, as openpi_engine_options.formats; NULL: none                */
    int threads;                 /* 0: all                                                                */
    const char *tokenizer;       /* NULL: the tokenizer.model beside the case or up to two folders above  */
    openpi_progress progress;    /* told while full-size weights are made; may be NULL                    */
    void *progress_user;

    /* Called after opening, before anything runs: for notes, and for tests that plant faults. May be NULL. */
    void (*on_engine)(void *user, openpi_engine *engine);
    void (*on_session)(void *user, openpi_session *session);
    void (*on_policy)(void *user, openpi_policy *policy);
    void *hook_user;

    /* Goldens that a user recorded (docs/verify.md): their weights, and what the policy level needs beside
     * them. */
    const char *checkpoint;      /* NULL: goldens of the project only                                     */
    const char *adapter;         /* added to its weights; NULL: none                                      */
    int without_lora;            /* 1: the base of the checkpoint                                         */
    int missing_chunks_are_zero; /* as the engine's                                                       */
    int accept_error;            /* likewise                                                              */
    const char *robot, *config;  /* NULL: the config that the golden names                                */
    const char *norm_stats;      /* NULL: the checkpoint's                                                */
    const char *assets;          /* NULL: the robot's                                                      */
    const char *tokenizer_cache; /* a folder for a tokenizer that is not there; NULL: none                */

    int batch_only;              /* 1: do not also run the samples of a batch alone                       */
    int state_every_step;        /* 1: π0's state token in every step, as openpi runs it, not once        */
} verify_options;

#define VERIFY_OPTIONS_INIT {.dtype = OPENPI_DTYPE_DEFAULT}

typedef enum verify_result { VERIFY_OK, VERIFY_FAIL, VERIFY_SKIPPED } verify_result;

typedef struct verify_row {
    char name[128];              /* "model/pi0_tiny", "policy/droid_pi0", "steps/resize"                  */
    char device[48];             /* "cpu/avx512"; "-" where no model ran                                  */
    char dtype[8];               /* "f32", "bf16"; "f64" or "exact" where no model ran                    */
    double max, rms;             /* distance of the final actions from the golden's; NaN: none            */
    double bound_max, bound_rms; /* what is allowed; bound_rms 0: not bounded                             */
    verify_result result;
    char detail[256];            /* FAIL: the first stage or tensor beyond its bound; SKIPPED: why        */
} verify_row;

typedef void (*verify_each)(void *user, const verify_row *row);

/* `path`: a model/NAME.safetensors file, a golden that tools/record-golden wrote, a policy/NAME or
 * lerobot/NAME folder, a steps.json, encode.json or synth_hashes.json, or a folder of such, walked in name
 * order. `row` is called once a case, on this thread. A case that cannot be read, or runs into an error, is a
 * FAIL row that says so. Returns a failure only where there is nothing to give rows for: `path` does not
 * exist or holds no golden, options are bad, no memory to walk. */
openpi_status verify_path(const char *path, const verify_options *options, verify_each row, void *user,
                          openpi_error *error);

/* A call that was computed before. */
typedef struct verify_call {
    const uint8_t *request;      /* [request_bytes] msgpack, as a client sends it                         */
    size_t request_bytes;
    uint64_t seed, stream;       /* openpi_noise's, where the request has no noise of its own             */
    const openpi_rtc *rtc;       /* what it follows on from                                               */
    int horizon;
    const float *actions;        /* [horizon][32], the model's                                            */
} verify_call;

enum { VERIFY_CALLS = 64 };                /* at most; a day has many that look alike                      */

/* Calls of one model on any machine, read in order. */
typedef struct verify_calls {
    const char *name;                      /* a row's                                                     */
    const char *robot, *config;            /* what was served; NULL: not known                            */
    const char *hash, *weights;            /* openpi_engine_info's checkpoint_hash and formats            */
    openpi_dtype dtype;
    int count, horizon, steps;
    openpi_status (*read)(void *user, int index, verify_call *call, openpi_error *error);
    void *user;
} verify_calls;

/* Computes them again from options->checkpoint: a row for f32 and one for bf16, or for the options' dtype.
 * Bounds: verify_calls.c. What goes wrong is a FAIL row, as in verify_path. */
openpi_status verify_recording(const verify_calls *calls, const verify_options *options, verify_each row,
                               void *user, openpi_error *error);
/* One of them: noise and actions [call->horizon][32] are written. The session has rtc and batch 1. */
openpi_status verify_call_run(openpi_session *session, openpi_request *request, const verify_call *call,
                              float *noise, float *actions, openpi_error *error);

/* 1: a list of formats (verify_options) that is a plan of 8-bit weights, which is one model's. */
int verify_asks_plan(const char *formats);

/* "ok", "FAIL", "skipped" */
const char *verify_result_text(verify_result result);

#endif
