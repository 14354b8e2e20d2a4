/* The tuner's table: which of a backend's kernel choices runs an op of a given shape fastest on one device.
 *
 * A small versioned JSON text that `openpi tune` writes (docs/tune.md):
 *   {"kind": "tuning", "format": 2, "openpi": "0.1.0",
 *    "device": "A GPU", "path": "portable", "threads": 0,
 *    "kernels": {"gemm_mma_128_128, norm 4": "91c0b4d2a85e6f37", …},
 *    "entries": [{"op": "norm_linear", …, "m": 788, "n": 32768, "k": 2048,
 *                 "choice": "gemm_mma_128_128, norm 4", …}, …]}
 * Choices are named, not numbered: a name that the backend does not offer for a shape counts as an unknown
 * shape. `kernels` has the hash of every choice's kernels when they were timed (backend.kernel_hash). Where
 * this build's differs the entry is ignored; "openpi", the version that wrote the table, decides nothing. */
#ifndef MODEL_TUNING_H
#define MODEL_TUNING_H

#include <jansson.h>

#include "backend/backend.h"

enum { TUNING_FORMAT = 2, TUNING_CANDIDATES = 512 };

/* What an entry is looked up by; 0 where an op has no such number. */
typedef struct tuning_key {
    op_kind op;
    matrix_form form;
    norm_kind norm;
    dtype type;                  /* type of activations                                                   */
    weight_type weights;         /* packed                                                                */
    int m, n, k;                 /* rows at capacity, outputs, inputs                                     */
    int heads, head_dim, capacity;         /* attention; qkv: of the matrix; capacity: of the cache       */
    int layers;                  /* action_embed: products, 1 to 3                                        */
    int cameras;                 /* 1 … 3: for calls of one sample with so many cameras; 0: for all       */
} tuning_key;

typedef struct tuning_entry {
    tuning_key key;
    char choice[56], heuristic[56], runner_up[56];
    double time_us, heuristic_us, runner_up_us;          /* 0: not measured                               */
    int confirmed;               /* 1: faster inside the whole plan too                                   */
} tuning_entry;

/* Which machine a table is for. */
typedef struct tuning_machine {
    char device[96], path[32];
    int threads;                 /* CPU; 0 elsewhere                                                      */
} tuning_machine;

typedef struct tuning {
    tuning_machine machine;
    char source[128];            /* the file, or "built in"                                               */
    tuning_entry *entries;
    int count, capacity;
    char ignored[160];           /* a sentence on entries that were left out; "": there are none          */
} tuning;

/* The machine that this device is. */
tuning_machine tuning_machine_of(device *device, int threads);

/* Reads a table. Refuses one of another machine or format, leaves out entries whose kernels have changed. */
openpi_status tuning_read(const char *path, const tuning_machine *machine, const device *device, tuning **out,
                          openpi_error *error);
/* The table that openpi contains for the machine; *out NULL where it contains none. */
openpi_status tuning_shipped(const tuning_machine *machine, const device *device, tuning **out,
                             openpi_error *error);
/* A sentence for a user whose device has no table: what `openpi tune` may win; "": not known. */
enum { TUNING_ADVICE = 256 };
void tuning_advice(device *device, char text[TUNING_ADVICE]);
/* A table in JSON; `name` begins the sentences. machine NULL: any machine's. device NULL: kernels are not
 * compared, and a table of format 1, which does not tell them, is read too. */
openpi_status tuning_parse(const json_t *root, const char *name, const tuning_machine *machine,
                           const device *device, tuning **out, openpi_error *error);
void tuning_close(tuning *table);

/* One entry; sentences begin with `name`. */
openpi_status tuning_entry_parse(const json_t *object, const char *name, tuning_entry *out,
                                 openpi_error *error);
/* New references; NULL: out of memory. */
json_t *tuning_entry_json(const tuning_entry *entry);
/* With the hashes of the device's kernels. */
json_t *tuning_json(const tuning *table, const device *device);

/* Adds the hash of a choice's kernels to a `kernels` object; 0, or -1: out of memory. */
int tuning_kernels_add(json_t *kernels, const device *device, const char *choice);
/* 1 where this build's kernels of a choice are those of the object, or where the object does not tell. */
int tuning_kernels_same(const json_t *kernels, const device *device, const char *choice);
/* Refuses what is no object of hashes. */
openpi_status tuning_kernels_check(const json_t *kernels, const char *name, openpi_error *error);
/* Appends a copy. */
openpi_status tuning_add(tuning *table, const tuning_entry *entry, openpi_error *error);

/* The rows of an op that pictures or a prefix may have; NULL: another op's. */
row_set *tuning_rows(op *op);
/* The shape of an op; cameras 0. */
tuning_key tuning_key_of(const op *op);
int tuning_same(const tuning_key *a, const tuning_key *b);
/* The entry of a shape for so many cameras, else the one for all; NULL where the shape is unknown. */
const tuning_entry *tuning_find(const tuning *table, const tuning_key *shape, int cameras);
/* op.choice that a name stands for; 0: the device does not offer it. */
int tuning_choice(const device *device, const op *op, const char *name);

/* The shipped tables' text (tuning_shipped.c); ended by one without text. */
typedef struct tuning_text {
    const char *text, *end;
} tuning_text;
extern const tuning_text tuning_texts[];

#endif
