/* Kinds of call: which kernel choices a call takes, and which recording replays it.
 *
 * A tuning table may name other kernels for other numbers of cameras and for shorter prompts: fewer rows,
 * fewer waves of tiles. What no table knows, a device that chooses by rows takes for fewer cameras as its
 * heuristic would for fewer rows. So a session of one sample has six kinds of call: 1, 2 or 3 cameras
 * with a prompt of any length, then the same with a short prompt. CALL_ANY (3 cameras, any prompt) serves
 * every call. A session of several samples has that kind only, because a sample's result must not depend
 * on its neighbours.
 *
 * Note: kinds with equal choices share one recording. */
#ifndef MODEL_CALL_KINDS_H
#define MODEL_CALL_KINDS_H

#include "model/plan.h"

enum { CALL_KINDS = 2 * OPENPI_CAMERAS, CALL_ANY = OPENPI_CAMERAS - 1 };

typedef struct call_kinds {
    plan *plan;
    int *choices;                /* [CALL_KINDS][plan->count] op.choice; NULL: all are 0                   */
    int short_prompt;            /* most tokens of a short prompt; 0: no prompt is short                   */
    int same_as[CALL_KINDS];     /* the kind whose choices are equal and whose recording is shared         */
    struct recording *recordings[CALL_KINDS]; /* NULL: shared, or the device could not record the kind     */
    char no_recording[200];      /* why the plan runs op by op on a device that can record                 */
    int chosen;                  /* the kind whose choices the plan's ops have now                         */
    int tuned;                   /* ops whose shape the table knows                                        */
    int unknown;                 /* ops with several candidates whose shape it does not know               */
    size_t work_bytes;           /* of the work block: enough for every kind                               */
} call_kinds;

/* What runs an op of the plan where no table names anything: op.choice of what the device's heuristic takes
 * for as many rows as so many cameras have; 0: the usual choice. */
int call_kinds_usual(const plan *plan, const op *op, int cameras);
/* Looks every op of the plan up in the model's table; what it does not know, call_kinds_usual. The ops have
 * the choices of CALL_ANY afterwards. On failure nothing is left to close. */
openpi_status call_kinds_open(call_kinds *kinds, plan *plan, openpi_error *error);
/* Records the bound plan once for every kind that has choices of its own. A device that cannot record is no
 * failure: calls then run op by op (no_recording says why), or, where only a special kind failed, replay the
 * recording of CALL_ANY. After a failure no recording is left. */
openpi_status call_kinds_record(call_kinds *kinds, void *work, openpi_error *error);
/* The kind of a call with so many pictures and prompt tokens. */
int call_kinds_find(const call_kinds *kinds, int pictures, int tokens);
/* Sets every op's choice for calls of this kind. */
void call_kinds_choose(call_kinds *kinds, int kind);
/* What replays calls of this kind; NULL: the plan runs op by op. */
struct recording *call_kinds_recording(const call_kinds *kinds, int kind);
/* Gives the recordings back to the device. */
void call_kinds_forget(call_kinds *kinds);
/* Frees host memory only: a forked child must not touch the device. */
void call_kinds_close(call_kinds *kinds);

#endif
