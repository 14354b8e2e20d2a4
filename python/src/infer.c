/* A whole inference: observations to robot actions.
 *
 * A call runs in a lane of its policy: a session, and a request for each observation of a batch. It takes the
 * first lane that no other call uses, after it has read everything, so none is held while Python code runs.
 *
 * Note: the GIL is released once, from the first picture's resize to the last action. What a call takes in
 * Python is short on purpose: after the model has run the processor's caches are cold, and each function that
 * runs then is read from memory again. */
#include <string.h>

#include "extension.h"

enum { NOTES = 4 };

/* An observation of a call, and its answer. */
typedef struct part {
    observation seen;
    request_object *request;
    openpi_request *handle;
    PyObject *actions, *chunk; /* numpy's, float64 [H][a] and [H][32]; no chunk without real-time chunking */
    Py_buffer actions_view, chunk_view;
    following follows;
    int truncated;             /* 1: the prompt was cut                                                */
    openpi_limited limited;    /* what the robot's limits changed                                      */
    char notes[NOTES][400];    /* the request's, "" after the last                                     */
} part;

/* A call: what it was given, what it took. */
typedef struct call {
    const module_state *state;
    PyObject *lanes;                 /* a list of tuples (session, requests, …)                      */
    PyObject *observations, *rtc;    /* tuples; rtc may be None                                      */
    PyObject *lane;                  /* the one that the call runs in, held                          */
    session_object *session;         /* the lane's                                                   */
    openpi_session *session_handle;
    openpi_policy *policy;
    int count, action_dim, horizon;
    int keeps;                       /* 1: sessions for real-time chunking, whose chunks are answered */
    Py_buffer noise;                 /* float32 [count][H][32] or none                               */
    unsigned long long seed, stream; /* what noise is drawn from where none is given                 */
    float *memory, *drawn, *model;   /* memory: drawn [count][H][32], model [count][H][32], previous */
    float *previous;                 /* [count][64][32], with real-time chunking                     */
    openpi_timing timing;
    double model_ms;
    int failed;                      /* the observation that an error is about, -1: none             */
    openpi_error error;
    part parts[];                    /* [count]                                                      */
} call;

/* ---- before ----------------------------------------------------------------------------------------- */

static int refuse_lane(void) {
    PyErr_SetString(PyExc_TypeError, "a lane is not a tuple of a session and its requests");
    return -1;
}

/* Lane i of the list, borrowed, with the session and as many requests as there are observations. Runs no
 * Python code. */
static int lane_at(const call *c, Py_ssize_t i, PyObject **lane, session_object **session,
                   request_object **requests) {
    *lane = PyList_GetItem(c->lanes, i);
    if (!PyTuple_Check(*lane) || PyTuple_Size(*lane) < 2) return refuse_lane();
    PyObject *first = PyTuple_GetItem(*lane, 0), *second = PyTuple_GetItem(*lane, 1);
    if (!Py_IS_TYPE(first, (PyTypeObject *)c->state->session_type) || !PyTuple_Check(second))
        return refuse_lane();
    if (PyTuple_Size(second) < c->count) {
        PyErr_Format(PyExc_ValueError, "a lane has %zd requests, expected one for each of %d observations",
                     PyTuple_Size(second), c->count);
        return -1;
    }
    *session = (session_object *)first;
    for (int b = 0; b < c->count; b++) {
        PyObject *item = PyTuple_GetItem(second, b);
        if (!Py_IS_TYPE(item, (PyTypeObject *)c->state->request_type)) return refuse_lane();
        requests[b] = (request_object *)item;
    }
    return 0;
}

/* The sizes of the answers, which are those of every lane. */
static int read_sizes(call *c) {
    request_object *requests[OPENPI_MAX_BATCH];
    session_object *session;
    PyObject *lane;
    if (lane_at(c, 0, &lane, &session, requests)) return -1;
    if (!requests[0]->handle) return raise_closed("the request"), -1;
    c->policy = requests[0]->policy->handle;
    c->action_dim = requests[0]->policy->action_dim;
    c->horizon = session->horizon;
    c->keeps = session->rtc;
    return 0;
}

static int read_observations(call *c) {
    if (c->rtc != Py_None && (!PyTuple_Check(c->rtc) || PyTuple_Size(c->rtc) != c->count)) {
        PyErr_Format(PyExc_ValueError, "real-time chunking is of %R, expected None or a tuple of %d",
                     Py_TYPE(c->rtc), c->count);
        return -1;
    }
    for (int b = 0; b < c->count; b++) {
        part *p = &c->parts[b];
        if (observation_read(c->state, PyTuple_GetItem(c->observations, b), &p->seen)) return -1;
        if (c->rtc != Py_None && following_read(c->state, PyTuple_GetItem(c->rtc, b), &p->follows)) return -1;
    }
    return 0;
}

/* A new array of numpy's and its memory. */
static PyObject *new_array(const call *c, int columns, Py_buffer *view) {
    PyObject *rows = PyLong_FromLong(c->horizon), *width = PyLong_FromLong(columns);
    PyObject *shape = rows && width ? PyTuple_Pack(2, rows, width) : NULL;
    PyObject *array = shape ? PyObject_CallFunctionObjArgs(c->state->empty, shape, NULL) : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(rows);
    Py_XDECREF(width);
    if (array && PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) Py_CLEAR(array);
    return array;
}

static int take_memory(call *c, PyObject *noise) {
    size_t chunk = (size_t)c->count * (size_t)c->horizon * OPENPI_ACTION_DIM;
    size_t previous = c->rtc == Py_None ? 0 : (size_t)c->count * OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM;
    if (noise != Py_None && typed_view(c->state, noise, "noise", 'f', (Py_ssize_t)chunk, 0, &c->noise))
        return -1;
    c->memory = PyMem_Malloc((2 * chunk + previous) * sizeof(float));
    if (!c->memory) return PyErr_NoMemory(), -1;
    c->model = c->memory;
    c->drawn = c->noise.obj ? NULL : c->memory + chunk;
    c->previous = c->memory + 2 * chunk;
    for (int b = 0; b < c->count; b++) {
        part *p = &c->parts[b];
        p->actions = new_array(c, c->action_dim, &p->actions_view);
        if (!p->actions) return -1;
        p->chunk = c->keeps ? new_array(c, OPENPI_ACTION_DIM, &p->chunk_view) : NULL;
        if (c->keeps && !p->chunk) return -1;
    }
    return 0;
}

/* 1: the lane is free and as large as the call needs it, 0: another call uses it, -1 with an exception. */
static int is_free(const call *c, const session_object *session, request_object *const *requests) {
    if (session->busy) return 0;
    if (!session->handle) return raise_closed("the session"), -1;
    if (session->horizon != c->horizon || session->rtc != c->keeps) {
        PyErr_SetString(PyExc_ValueError, "the sessions of the lanes differ, expected one horizon");
        return -1;
    }
    for (int b = 0; b < c->count; b++) {
        if (!requests[b]->handle) return raise_closed("the request"), -1;
        if (requests[b]->busy) return 0;
        if (requests[b]->policy->handle != c->policy || requests[b]->policy->action_dim != c->action_dim) {
            PyErr_Format(PyExc_ValueError, "request %d is of another policy than the first", b);
            return -1;
        }
        for (int other = 0; other < b; other++) {
            if (requests[other] != requests[b]) continue;
            PyErr_Format(PyExc_ValueError, "requests %d and %d are one, expected one each", other, b);
            return -1;
        }
    }
    return 1;
}

/* Takes the first lane that is free and marks its session and requests busy. After it no Python code runs
 * until they are let go. 1; 0: none is free; -1 with an exception. */
static int take_lane(call *c) {
    request_object *requests[OPENPI_MAX_BATCH];
    for (Py_ssize_t i = 0; i < PyList_Size(c->lanes); i++) {
        PyObject *lane;
        int free = lane_at(c, i, &lane, &c->session, requests) ? -1 : is_free(c, c->session, requests);
        if (free < 0) return -1;
        if (!free) continue;
        c->lane = Py_NewRef(lane);
        c->session->busy = 1;
        c->session_handle = c->session->handle;
        for (int b = 0; b < c->count; b++) {
            requests[b]->busy = 1;
            c->parts[b].request = requests[b];
            c->parts[b].handle = requests[b]->handle;
        }
        return 1;
    }
    return 0;
}

static void let_lane_go(call *c) {
    for (int b = 0; b < c->count; b++) c->parts[b].request->busy = 0;
    c->session->busy = 0;
}

/* ---- the call, without the GIL ---------------------------------------------------------------------- */

static openpi_status prepare_part(call *c, int b, openpi_sample *sample, openpi_timing *all) {
    part *p = &c->parts[b];
    size_t chunk = (size_t)c->horizon * OPENPI_ACTION_DIM;
    openpi_timing one = OPENPI_TIMING_INIT;
    openpi_status status = observation_prepare(&p->seen, p->handle, &one, &c->error);
    const char *note;
    p->truncated = openpi_request_prompt_truncated(p->handle);
    for (int i = 0; i < NOTES && (note = openpi_request_note(p->handle, i, NULL)); i++)
        PyOS_snprintf(p->notes[i], sizeof p->notes[i], "%s", note);
    if (status == OPENPI_OK) status = openpi_request_sample(p->handle, sample, &c->error);
    if (status == OPENPI_OK)
        status =
            following_prepare(&p->follows, p->handle,
                              c->previous + (size_t)b * OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM, &c->error);
    all->stage_ms[OPENPI_STAGE_PICTURE] += one.stage_ms[OPENPI_STAGE_PICTURE];
    all->stage_ms[OPENPI_STAGE_PROMPT] += one.stage_ms[OPENPI_STAGE_PROMPT];
    if (c->drawn) openpi_noise(c->seed, c->stream + (uint64_t)b, c->drawn + (size_t)b * chunk, chunk);
    return status;
}

static openpi_status run_model(call *c, const openpi_sample *samples) {
    const float *noise = c->drawn ? c->drawn : c->noise.buf;
    openpi_rtc rtc[OPENPI_MAX_BATCH];
    if (c->rtc == Py_None)
        return openpi_session_run(c->session_handle, samples, c->count, noise, c->model, &c->timing,
                                  &c->error);
    for (int b = 0; b < c->count; b++) rtc[b] = c->parts[b].follows.rtc;
    return openpi_session_run_rtc(c->session_handle, samples, rtc, c->count, noise, c->model, &c->timing,
                                  &c->error);
}

static openpi_status finish_part(call *c, int b) {
    part *p = &c->parts[b];
    const float *model = c->model + (size_t)b * (size_t)c->horizon * OPENPI_ACTION_DIM;
    openpi_status status =
        openpi_request_finish(p->handle, model, c->horizon, p->actions_view.buf,
                              (size_t)p->actions_view.len / sizeof(double), &c->error);
    p->limited = (openpi_limited)OPENPI_LIMITED_INIT;
    if (status == OPENPI_OK) status = openpi_request_get_limited(p->handle, &p->limited, &c->error);
    if (status != OPENPI_OK || !p->chunk) return status;
    return openpi_request_keep(p->handle, model, c->horizon, p->chunk_view.buf,
                               (size_t)p->chunk_view.len / sizeof(double), &c->error);
}

/* prepare, run and finish. */
static openpi_status run_call(call *c) {
    openpi_sample samples[OPENPI_MAX_BATCH];
    openpi_timing all = OPENPI_TIMING_INIT;
    double start = extension_clock_ms();
    openpi_status status = openpi_policy_match(c->policy, c->session_handle, &c->error);
    for (int b = 0; b < c->count && status == OPENPI_OK; b++) {
        c->failed = b;
        samples[b] = (openpi_sample)OPENPI_SAMPLE_INIT;
        status = prepare_part(c, b, &samples[b], &all);
    }
    if (status != OPENPI_OK) return status;
    c->failed = -1;
    status = run_model(c, samples);
    double finish = extension_clock_ms();
    c->model_ms = c->timing.total_ms;
    for (int b = 0; b < c->count && status == OPENPI_OK; b++) {
        c->failed = b;
        status = finish_part(c, b);
    }
    c->timing.stage_ms[OPENPI_STAGE_PICTURE] = all.stage_ms[OPENPI_STAGE_PICTURE];
    c->timing.stage_ms[OPENPI_STAGE_PROMPT] = all.stage_ms[OPENPI_STAGE_PROMPT];
    c->timing.stage_ms[OPENPI_STAGE_ACTIONS] = extension_clock_ms() - finish;
    c->timing.total_ms = extension_clock_ms() - start;
    return status;
}

/* ---- after ------------------------------------------------------------------------------------------ */

/* dict[key] = value, which it takes over. */
static int put(PyObject *dict, PyObject *key, PyObject *value) {
    int failed = !value || PyDict_SetItem(dict, key, value);
    Py_XDECREF(value);
    return failed;
}

static PyObject *timing_dict(const call *c) {
    PyObject *const *words = c->state->words;
    const openpi_timing *t = &c->timing;
    PyObject *stages = PyDict_New(), *dict = PyDict_New();
    int failed = !stages || !dict;
    for (int s = 0; s < OPENPI_STAGES && !failed; s++)
        failed = put(stages, c->state->stages[s], PyFloat_FromDouble(t->stage_ms[s]));
    if (!failed)
        failed = put(dict, words[WORD_INFER_MS], PyFloat_FromDouble(c->model_ms)) ||
                 put(dict, words[WORD_DEVICE_MS], PyFloat_FromDouble(t->device_ms)) ||
                 put(dict, words[WORD_TOTAL_MS], PyFloat_FromDouble(t->total_ms)) ||
                 PyDict_SetItem(dict, words[WORD_STAGES], stages);
    Py_XDECREF(stages);
    if (failed) Py_CLEAR(dict);
    return dict;
}

static PyObject *notes_list(const part *p) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < NOTES && p->notes[i][0]; i++) {
        PyObject *text = PyUnicode_FromString(p->notes[i]);
        if (!text || PyList_Append(list, text)) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

/* [{"actions": …, "policy_timing": …}, …], with real-time chunking "chunk"; "prompt_truncated" where it was,
 * "limited" where the robot's limits changed it, and "notes", for Python to warn. */
static PyObject *answers(const call *c) {
    PyObject *const *words = c->state->words;
    PyObject *timing = timing_dict(c), *list = timing ? PyList_New(c->count) : NULL;
    for (int b = 0; list && b < c->count; b++) {
        const part *p = &c->parts[b];
        PyObject *answer = PyDict_New();
        int failed = !answer || PyDict_SetItem(answer, words[WORD_ACTIONS], p->actions) ||
                     PyDict_SetItem(answer, words[WORD_POLICY_TIMING], timing) ||
                     (p->chunk && PyDict_SetItem(answer, words[WORD_CHUNK], p->chunk));
        if (!failed && p->truncated) failed = PyDict_SetItem(answer, words[WORD_PROMPT_TRUNCATED], Py_True);
        if (!failed && p->limited.changed)
            failed = put(answer, words[WORD_LIMITED], limited_dict(&p->limited));
        if (!failed && p->notes[0][0]) failed = put(answer, words[WORD_NOTES], notes_list(p));
        if (failed) Py_CLEAR(answer);
        if (!answer || PyList_SetItem(list, b, answer)) Py_CLEAR(list);
    }
    Py_XDECREF(timing);
    return list;
}

static PyObject *answer(call *c, PyObject *noise) {
    char before[40] = "";
    if (!PyList_Size(c->lanes)) return Py_NewRef(Py_None);
    if (read_sizes(c) || read_observations(c) || take_memory(c, noise)) return NULL;
    int taken = take_lane(c);
    if (taken < 0) return NULL;
    if (!taken) return Py_NewRef(Py_None);
    openpi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = run_call(c);
    Py_END_ALLOW_THREADS
    let_lane_go(c);
    if (status == OPENPI_OK) return answers(c);
    if (c->failed >= 0 && c->count > 1) PyOS_snprintf(before, sizeof before, "observation %d: ", c->failed);
    return raise_status(c->state, before, &c->error);
}

static void free_call(call *c) {
    for (int b = 0; b < c->count; b++) {
        part *p = &c->parts[b];
        observation_free(&p->seen);
        following_free(&p->follows);
        if (p->actions_view.obj) PyBuffer_Release(&p->actions_view);
        if (p->chunk_view.obj) PyBuffer_Release(&p->chunk_view);
        Py_XDECREF(p->actions);
        Py_XDECREF(p->chunk);
    }
    if (c->noise.obj) PyBuffer_Release(&c->noise);
    Py_XDECREF(c->lane);
    PyMem_Free(c->memory);
    PyMem_Free(c);
}

/* infer(lanes, observations, noise, seed, stream, rtc) -> the answers, a list; None where no lane is free.
 * Requests of a lane that are more than the observations are left alone. */
PyObject *extension_infer(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    enum { LANES, OBSERVATIONS, NOISE, SEED, STREAM, RTC, ARGUMENTS };
    if (given != ARGUMENTS || !PyList_Check(arguments[LANES]) || !PyTuple_Check(arguments[OBSERVATIONS])) {
        PyErr_SetString(PyExc_TypeError, "infer takes a list of lanes, a tuple of observations, noise, seed, "
                                         "stream and rtc");
        return NULL;
    }
    module_state *state = PyModule_GetState(module);
    PyObject *observations = arguments[OBSERVATIONS];
    unsigned long long seed = PyLong_AsUnsignedLongLongMask(arguments[SEED]);
    unsigned long long stream = PyLong_AsUnsignedLongLongMask(arguments[STREAM]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t count = PyTuple_Size(observations);
    if (count < 1 || count > OPENPI_MAX_BATCH) {
        PyErr_Format(PyExc_ValueError, "%zd observations, expected 1 to %d", count, OPENPI_MAX_BATCH);
        return NULL;
    }
    call *c = PyMem_Calloc(1, sizeof *c + (size_t)count * sizeof *c->parts);
    if (!c) return PyErr_NoMemory();
    *c = (call){
        .state = state,
        .lanes = arguments[LANES],
        .observations = observations,
        .rtc = arguments[RTC],
        .count = (int)count,
        .seed = seed,
        .stream = stream,
        .timing = OPENPI_TIMING_INIT,
        .error = OPENPI_ERROR_INIT,
        .failed = -1,
    };
    PyObject *result = answer(c, arguments[NOISE]);
    free_call(c);
    return result;
}
