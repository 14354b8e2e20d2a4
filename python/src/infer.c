/* A whole inference: observations to robot actions.
 *
 * Note: the GIL is released once, from the first picture's resize to the last action. What a call takes in
 * Python is short on purpose: after the model has run the processor's caches are cold, and each function that
 * runs then is read from memory again. */
#include <string.h>

#include "extension.h"

/* An observation of a call, and its answer. */
typedef struct part {
    observation seen;
    request_object *request;
    openpi_request *handle;
    PyObject *actions, *chunk; /* numpy's, float64 [H][a] and [H][32]; no chunk without real-time chunking */
    Py_buffer actions_view, chunk_view;
    following follows;
} part;

/* A call: what it was given, what it took. */
typedef struct call {
    const module_state *state;
    session_object *session;
    PyObject *requests, *observations, *rtc;   /* tuples; rtc may be None                            */
    openpi_session *session_handle;
    openpi_policy *policy;
    int count, action_dim, horizon;
    Py_buffer noise;                 /* float32 [count][H][32] or none                               */
    unsigned long long seed, stream; /* of the noise where none is given                             */
    float *memory, *drawn, *model;   /* memory: drawn [count][H][32], model [count][H][32], previous */
    float *previous;                 /* [count][64][32], with real-time chunking                     */
    openpi_timing timing;
    double model_ms;
    int failed;                      /* the observation that an error is about, -1: none             */
    openpi_error error;
    part parts[];                    /* [count]                                                      */
} call;

/* ---- before ----------------------------------------------------------------------------------------- */

static int check_requests(call *c) {
    for (int b = 0; b < c->count; b++) {
        PyObject *item = PyTuple_GetItem(c->requests, b);
        int fits = PyObject_IsInstance(item, c->state->request_type);
        request_object *request = (request_object *)item;
        if (fits > 0 && request->handle && (!b || request->policy->handle == c->policy)) {
            c->parts[b].request = request;
            c->policy = request->policy->handle;
            c->action_dim = request->policy->action_dim;
            continue;
        }
        if (fits >= 0)
            PyErr_Format(PyExc_ValueError, "request %d is %s", b,
                         !fits              ? "no Request"
                         : !request->handle ? "closed"
                                            : "of another policy than the first");
        return -1;
    }
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
    PyObject *array = PyObject_CallFunction(c->state->empty, "((ii))", c->horizon, columns);
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
        p->chunk = c->session->rtc ? new_array(c, OPENPI_ACTION_DIM, &p->chunk_view) : NULL;
        if (c->session->rtc && !p->chunk) return -1;
    }
    return 0;
}

/* Session and requests, marked busy. After it no Python runs until they are let go. */
static int take_handles(call *c) {
    if (!c->session->handle) return raise_closed("the session"), -1;
    if (c->session->busy) return raise_busy(c->state, "the session"), -1;
    for (int b = 0; b < c->count; b++) {
        request_object *request = c->parts[b].request;
        int closed = !request->handle;
        if (closed || request->busy || request->policy->handle != c->policy) {
            while (b-- > 0) c->parts[b].request->busy = 0;
            if (closed) raise_closed("the request");
            else raise_busy(c->state, "the request");
            return -1;
        }
        request->busy = 1;
        c->parts[b].handle = request->handle;
    }
    c->session_handle = c->session->handle;
    c->session->busy = 1;
    return 0;
}

static void let_handles_go(call *c) {
    for (int b = 0; b < c->count; b++) c->parts[b].request->busy = 0;
    c->session->busy = 0;
}

/* ---- the call, without the GIL ---------------------------------------------------------------------- */

static openpi_status prepare_part(call *c, int b, openpi_sample *sample, openpi_timing *all) {
    part *p = &c->parts[b];
    size_t chunk = (size_t)c->horizon * OPENPI_ACTION_DIM;
    openpi_timing one = OPENPI_TIMING_INIT;
    openpi_status status = observation_prepare(&p->seen, p->handle, &one, &c->error);
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

/* [{"actions": …, "policy_timing": …}, …] and with real-time chunking "chunk". */
static PyObject *answers(const call *c) {
    PyObject *const *words = c->state->words;
    PyObject *timing = timing_dict(c), *list = timing ? PyList_New(c->count) : NULL;
    for (int b = 0; list && b < c->count; b++) {
        const part *p = &c->parts[b];
        PyObject *answer = PyDict_New();
        int failed = !answer || PyDict_SetItem(answer, words[WORD_ACTIONS], p->actions) ||
                     PyDict_SetItem(answer, words[WORD_POLICY_TIMING], timing) ||
                     (p->chunk && PyDict_SetItem(answer, words[WORD_CHUNK], p->chunk));
        if (failed) Py_CLEAR(answer);
        if (!answer || PyList_SetItem(list, b, answer)) Py_CLEAR(list);
    }
    Py_XDECREF(timing);
    return list;
}

static PyObject *answer(call *c, PyObject *noise) {
    char before[40] = "";
    if (check_requests(c) || read_observations(c) || take_memory(c, noise) || take_handles(c)) return NULL;
    openpi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = run_call(c);
    Py_END_ALLOW_THREADS
    let_handles_go(c);
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
    PyMem_Free(c->memory);
    PyMem_Free(c);
}

/* infer(session, requests, observations, noise, seed, stream, rtc) -> the answers, a list. Requests that are
 * more than the observations are left alone. */
PyObject *extension_infer(PyObject *module, PyObject *arguments) {
    module_state *state = PyModule_GetState(module);
    PyObject *session, *requests, *observations, *noise, *rtc;
    unsigned long long seed, stream;
    if (!PyArg_ParseTuple(arguments, "O!O!O!OKKO:infer", state->session_type, &session, &PyTuple_Type,
                          &requests, &PyTuple_Type, &observations, &noise, &seed, &stream, &rtc))
        return NULL;
    Py_ssize_t count = PyTuple_Size(observations);
    if (count < 1 || count > OPENPI_MAX_BATCH || PyTuple_Size(requests) < count) {
        PyErr_Format(PyExc_ValueError,
                     "%zd observations and %zd requests, expected a request each and 1 to %d", count,
                     PyTuple_Size(requests), OPENPI_MAX_BATCH);
        return NULL;
    }
    call *c = PyMem_Calloc(1, sizeof *c + (size_t)count * sizeof *c->parts);
    if (!c) return PyErr_NoMemory();
    *c = (call){
        .state = state,
        .session = (session_object *)session,
        .requests = requests,
        .observations = observations,
        .rtc = rtc,
        .count = (int)count,
        .horizon = ((session_object *)session)->horizon,
        .seed = seed,
        .stream = stream,
        .timing = OPENPI_TIMING_INIT,
        .error = OPENPI_ERROR_INIT,
        .failed = -1,
    };
    PyObject *result = answer(c, noise);
    free_call(c);
    return result;
}
