/* What the files of the extension `_openpi` share: its types, its exceptions, arrays that come in.
 *
 * Each object of Python holds one handle of openpi.h. A handle is used by one call at a time: the call marks
 * the object busy under the GIL before it releases the GIL, so that a second thread is refused with a
 * sentence.
 *
 * Note: the limited API of CPython 3.11, so one file serves 3.11 and every later release. */
#ifndef OPENPI_EXTENSION_H
#define OPENPI_EXTENSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "openpi_runner.h"

/* Keys of an answer: X(name, text). */
#define WORD_LIST(X)                          \
    X(WORD_ACTIONS, "actions")                \
    X(WORD_CHUNK, "chunk")                    \
    X(WORD_POLICY_TIMING, "policy_timing")    \
    X(WORD_INFER_MS, "infer_ms")              \
    X(WORD_DEVICE_MS, "device_ms")            \
    X(WORD_TOTAL_MS, "total_ms")              \
    X(WORD_STAGES, "stages")                  \
    X(WORD_PROMPT_TRUNCATED, "prompt_truncated") \
    X(WORD_NOTES, "notes") \
    X(WORD_LIMITED, "limited")

enum {
#define X(name, text) name,
    WORD_LIST(X)
#undef X
    WORDS
};

typedef struct module_state {
    PyObject *error;             /* openpi_c.Error */
    PyObject *as_array, *empty;  /* numpy.asarray, numpy.empty */
    PyObject *words[WORDS];      /* keys of an answer          */
    PyObject *stages[OPENPI_STAGES];   /* their names            */
    PyObject *engine_type, *session_type, *transform_type, *request_type, *runner_type;
} module_state;

/* ---- objects ---------------------------------------------------------------------------------------- */

/* opened, in each: 1: __init__ ran, which it may only once. */
typedef struct engine_object {
    PyObject_HEAD
    openpi_engine *handle;       /* NULL: closed                                                          */
    int users;                   /* calls that run                                                        */
    int closing;                 /* 1: close was called; the last call that runs closes the handle        */
    int opened;
} engine_object;

typedef struct session_object {
    PyObject_HEAD
    openpi_session *handle;
    int busy, opened;
    int batch, horizon;
    int rtc;                     /* 1: made for real-time chunking */
} session_object;

/* A policy of openpi.h outlives the object that opened it as long as requests of it are open. */
typedef struct shared_policy {
    openpi_policy *handle;
    int users;
    int action_dim;
} shared_policy;

typedef struct transform_object {
    PyObject_HEAD
    shared_policy *policy;       /* NULL: closed */
    int opened;
} transform_object;

typedef struct request_object {
    PyObject_HEAD
    shared_policy *policy;
    openpi_request *handle;
    int busy, opened;
} request_object;

extern PyType_Spec engine_spec, session_spec, transform_spec, request_spec, runner_spec;

/* One user less; the last one closes it. NULL is allowed. */
void shared_policy_let_go(shared_policy *policy);

/* {number: (name, text)} of openpi_reason. */
PyObject *extension_reasons(void);

/* Runs a batch of observations through requests and a session, from dicts to robot actions: infer.c. */
PyObject *extension_infer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

double extension_clock_ms(void);

/* Where no call uses the handle and close was called: closes it. */
void engine_close_unused(engine_object *engine);

/* ---- exceptions ------------------------------------------------------------------------------------- */

void free_object(PyObject *object);

/* The module's state, from an object of one of its types. */
module_state *state_of(PyObject *object);

/* Raises the exception of a status with the engine's sentence; `before` (may be "") precedes it. Returns
 * NULL. */
/* What limits changed, counts by name. */
PyObject *limited_dict(const openpi_limited *limited);
PyObject *raise_status(const module_state *state, const char *before, const openpi_error *error);
/* A handle that is closed, whose __init__ is called twice (ValueError), or that another call uses (Error). */
void raise_closed(const char *what);
void raise_opened(const char *what);
void raise_busy(const module_state *state, const char *what);

/* ---- values from Python ----------------------------------------------------------------------------- */

/* An argument that is a path or None, for PyArg_Parse's O&: *bytes_object stays NULL for None. */
int path_or_none(PyObject *object, void *bytes_object);
const char *path_text(PyObject *bytes_object);

/* A C-contiguous buffer of anything that is an array or becomes one by __array__: as it is where it is
 * contiguous, else numpy copies it once. `name` is for sentences. 0, or -1 with an exception. */
int array_view(const module_state *state, PyObject *object, const char *name, Py_buffer *view);

/* *value: the place of `word` in `words`, which NULL ends, from 1 on; 0 for NULL. 0, or -1 with an exception.
 */
int word_of(const char *what, const char *word, const char *const *words, int *value);

/* The element of a buffer's format: one of struct's characters, '>' for big-endian numbers, 0 for all else.
 */
char array_element(const Py_buffer *view);

/* A contiguous buffer of `count` elements of struct's character `element`, or an exception that says what was
 * found. `writable`: it is an output, which must not be copied. */
int typed_view(const module_state *state, PyObject *object, const char *name, char element, Py_ssize_t count,
               int writable, Py_buffer *view);

/* ---- observations ----------------------------------------------------------------------------------- */

/* An observation that is a dict, as fields; or bytes, a message of openpi's client. Holds what the fields
 * point to. All zeros: empty. */
typedef struct observation {
    const void *message; /* not NULL: msgpack                                                    */
    Py_ssize_t message_bytes;
    openpi_field *fields; /* [count]                                                              */
    int count, capacity;
    struct held *held; /* [capacity], what field i points to                                   */
    PyObject *owner;   /* owner of the message                                                 */
} observation;

/* Reads a dict (or bytes) into `out`; 0, or -1 with an exception. Free it in either case. */
int observation_read(const module_state *state, PyObject *object, observation *out);
void observation_free(observation *out);
/* openpi_request_prepare of it. Needs no GIL. */
openpi_status observation_prepare(const observation *observation, openpi_request *request,
                                  openpi_timing *timing, openpi_error *error);

/* ---- real-time chunking ----------------------------------------------------------------------------- */

/* What a sample follows on from, and where its numbers lie. All zeros: nothing. */
typedef struct following {
    openpi_rtc rtc;
    const double *kept;          /* not NULL: rows of a kept chunk, of which rtc.previous is made later  */
    Py_buffer previous;
} following;

/* Reads a tuple (previous, mode, delay, schedule or None, horizon, max_weight); None: an ordinary sample. 0,
 * or -1 with an exception. Free it in either case. */
int following_read(const module_state *state, PyObject *tuple, following *out);
void following_free(following *out);
/* Makes rtc.previous of a kept chunk, in scratch [64][32], for the request's observation. Needs no GIL. */
openpi_status following_prepare(following *out, const openpi_request *request, float *scratch,
                                openpi_error *error);

/* "guided"; "off": no mode. "linear"; "": no schedule. */
/* A tuple of (warning, sentence): the notes of an engine or a policy, by its public function. */
typedef const char *(*note_function)(const void *handle, int index, int *warning);
PyObject *note_tuple(const void *handle, note_function note);
const char *rtc_mode_text(openpi_rtc_mode mode);
const char *rtc_schedule_text(openpi_rtc_schedule schedule);

#endif
