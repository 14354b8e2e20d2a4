/* Transform (openpi.h's policy), Request, and a whole inference: observations to robot actions.
 *
 * Note: the GIL is released once, from the first picture's resize to the last action. */
#include <string.h>

#include "extension.h"

/* ---- Transform ----------------------------------------------------------------------------------------- */

static void let_go(shared_policy *policy) {
    if (!policy || --policy->users) return;
    openpi_policy_close(policy->handle);
    PyMem_Free(policy);
}

typedef struct policy_values {
    PyObject *checkpoint, *robot, *norm_stats, *tokenizer, *cache;
    const char *synthetic;
    int prompt_state;
    openpi_policy_options options;
} policy_values;

static int open_policy(PyObject *object, policy_values *v) {
    transform_object *self = (transform_object *)object;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy *handle = NULL;
    openpi_status status = OPENPI_OK;
    if (self->opened) return raise_opened("the policy"), -1;
    self->opened = 1;
    v->options.robot = path_text(v->robot);
    v->options.norm_stats = path_text(v->norm_stats);
    v->options.tokenizer = path_text(v->tokenizer);
    v->options.tokenizer_cache = path_text(v->cache);
    Py_BEGIN_ALLOW_THREADS
    if (v->synthetic) {
        status = openpi_synthetic_parse(v->synthetic, &synthetic, &error);
        v->options.synthetic = &synthetic;
    }
    if (status == OPENPI_OK)
        status = openpi_policy_open(path_text(v->checkpoint), &v->options, &handle, &error);
    if (status == OPENPI_OK) status = openpi_policy_get_info(handle, &info, &error);
    Py_END_ALLOW_THREADS
    if (status != OPENPI_OK) {
        openpi_policy_close(handle);
        return raise_status(state_of(object), "", &error), -1;
    }
    shared_policy *policy = PyMem_Calloc(1, sizeof *policy);
    if (!policy) {
        openpi_policy_close(handle);
        PyErr_NoMemory();
        return -1;
    }
    *policy = (shared_policy){.handle = handle, .users = 1, .action_dim = info.action_dim};
    self->policy = policy;
    return 0;
}

static int transform_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"checkpoint", "synthetic",       "robot",        "config",     "norm_stats",
                            "tokenizer",  "tokenizer_cache", "prompt_state", "max_prompt", "assets",
                            NULL};
    policy_values v = {.options = OPENPI_POLICY_OPTIONS_INIT, .prompt_state = OPENPI_PROMPT_STATE_DEFAULT};
    openpi_policy_options *o = &v.options;
    PyObject *prompt_state = Py_None;
    int failed = -1;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$zO&zO&O&O&Oiz:Transform", names, path_or_none,
                                    &v.checkpoint, &v.synthetic, path_or_none, &v.robot, &o->config,
                                    path_or_none, &v.norm_stats, path_or_none, &v.tokenizer, path_or_none,
                                    &v.cache, &prompt_state, &o->max_prompt, &o->assets)) {
        int on = prompt_state == Py_None ? -1 : PyObject_IsTrue(prompt_state);
        if (on >= 0) o->prompt_state = on ? OPENPI_PROMPT_STATE_ON : OPENPI_PROMPT_STATE_OFF;
        failed = PyErr_Occurred() ? -1 : open_policy(object, &v);
    }
    Py_XDECREF(v.checkpoint);
    Py_XDECREF(v.robot);
    Py_XDECREF(v.norm_stats);
    Py_XDECREF(v.tokenizer);
    Py_XDECREF(v.cache);
    return failed;
}

static PyObject *transform_close(PyObject *object, PyObject *nothing) {
    transform_object *self = (transform_object *)object;
    shared_policy *policy = self->policy;
    (void)nothing;
    self->policy = NULL;
    let_go(policy);
    Py_RETURN_NONE;
}

static void transform_dealloc(PyObject *object) {
    let_go(((transform_object *)object)->policy);
    free_object(object);
}

/* [count] strings of `text`. */
static PyObject *text_tuple(const openpi_policy *policy, int count,
                            const char *(*text)(const openpi_policy *, int)) {
    PyObject *tuple = PyTuple_New(count);
    for (int d = 0; tuple && d < count; d++) {
        const char *word = text(policy, d);
        if (PyTuple_SetItem(tuple, d, PyUnicode_FromString(word ? word : ""))) Py_CLEAR(tuple);
    }
    return tuple;
}

/* ((key, length), …) of the state's parts. */
static PyObject *state_parts(const openpi_policy *policy) {
    int length, count = 0;
    while (openpi_policy_state_key(policy, count, NULL)) count++;
    PyObject *tuple = PyTuple_New(count);
    for (int p = 0; tuple && p < count; p++) {
        const char *key = openpi_policy_state_key(policy, p, &length);
        if (PyTuple_SetItem(tuple, p, Py_BuildValue("(si)", key, length))) Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *transform_info(PyObject *object, PyObject *nothing) {
    const shared_policy *policy = ((transform_object *)object)->policy;
    openpi_policy_info i = OPENPI_POLICY_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (!policy) return raise_closed("the policy"), NULL;
    if (openpi_policy_get_info(policy->handle, &i, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return Py_BuildValue(
        "{s:s,s:(sss),s:i,s:i,s:i,s:i,s:O,s:O,s:s,s:s,s:s,s:N,s:N,s:N,s:d}", "robot", i.robot, "cameras",
        i.cameras[0], i.cameras[1], i.cameras[2], "state_length", i.state_length, "action_dim", i.action_dim,
        "horizon", i.horizon, "max_prompt", i.max_prompt, "prompt_state", i.prompt_state ? Py_True : Py_False,
        "lerobot", i.lerobot ? Py_True : Py_False, "tokenizer", i.tokenizer, "tokenizer_kind",
        i.tokenizer_kind, "statistics", i.statistics, "state", state_parts(policy->handle), "action_names",
        text_tuple(policy->handle, i.action_dim, openpi_policy_action_name),
        "action_units", text_tuple(policy->handle, i.action_dim, openpi_policy_action_unit), "rate_hz",
        openpi_policy_rate(policy->handle));
}

static PyObject *transform_closed(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(!((transform_object *)object)->policy);
}

static PyMethodDef transform_methods[] = {
    {"close", transform_close, METH_NOARGS, "Closes it. Requests of it keep working."},
    {"info", transform_info, METH_NOARGS, "Robot, cameras, sizes, a dict."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef transform_getset[] = {{"closed", transform_closed, NULL, NULL, NULL}, {0}};

static PyType_Slot transform_slots[] = {
    {Py_tp_doc, "Robot transform, statistics and tokenizer: openpi.h's openpi_policy."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, transform_init},
    {Py_tp_dealloc, transform_dealloc},
    {Py_tp_methods, transform_methods},
    {Py_tp_getset, transform_getset},
    {0, NULL},
};

PyType_Spec transform_spec = {
    .name = "openpi_c._openpi.Transform",
    .basicsize = sizeof(transform_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = transform_slots,
};

/* ---- Request ------------------------------------------------------------------------------------------- */

static int request_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"transform", NULL};
    request_object *self = (request_object *)object;
    module_state *state = state_of(object);
    openpi_error error = OPENPI_ERROR_INIT;
    transform_object *transform;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!:Request", names, state->transform_type,
                                     &transform))
        return -1;
    if (self->opened) return raise_opened("the request"), -1;
    if (!transform->policy) return raise_closed("the policy"), -1;
    if (openpi_request_create(transform->policy->handle, &self->handle, &error) != OPENPI_OK)
        return raise_status(state, "", &error), -1;
    self->opened = 1;
    self->policy = transform->policy;
    self->policy->users++;
    return 0;
}

static void close_request(request_object *self) {
    openpi_request_close(self->handle);
    self->handle = NULL;
    let_go(self->policy);
    self->policy = NULL;
}

static PyObject *request_close(PyObject *object, PyObject *nothing) {
    (void)nothing;
    if (((request_object *)object)->busy) return raise_busy(state_of(object), "the request"), NULL;
    close_request((request_object *)object);
    Py_RETURN_NONE;
}

static void request_dealloc(PyObject *object) {
    close_request((request_object *)object);
    free_object(object);
}

/* 0, or -1 with an exception: the handle is closed or busy. */
static int request_take(request_object *self) {
    if (!self->handle) return raise_closed("the request"), -1;
    if (self->busy) return raise_busy(state_of((PyObject *)self), "the request"), -1;
    self->busy = 1;
    return 0;
}

static PyObject *request_prepare(PyObject *object, PyObject *given) {
    request_object *self = (request_object *)object;
    const module_state *state = state_of(object);
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    observation seen = {0};
    int failed = observation_read(state, given, &seen) || request_take(self);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        status = observation_prepare(&seen, self->handle, NULL, &error);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    observation_free(&seen);
    if (failed) return NULL;
    if (status != OPENPI_OK) return raise_status(state, "", &error);
    Py_RETURN_NONE;
}

/* (three pictures, bytes or None; 1: they are float32; tokens; the sample's state; the state in double). */
static PyObject *request_sample(PyObject *object, PyObject *nothing) {
    enum { PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };
    request_object *self = (request_object *)object;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    int count = 0;
    (void)nothing;
    if (request_take(self)) return NULL;
    self->busy = 0;
    if (openpi_request_sample(self->handle, &sample, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    const double *state = openpi_request_state(self->handle, &count);
    Py_ssize_t bytes = sample.pixels == OPENPI_PIXELS_F32 ? PIXELS * (Py_ssize_t)sizeof(float) : PIXELS;
    const char *pictures[OPENPI_CAMERAS];
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++)
        pictures[slot] = sample.image_mask[slot] ? sample.images[slot] : NULL;
    return Py_BuildValue("(y#y#y#iy#y#y#)", pictures[0], bytes, pictures[1], bytes, pictures[2], bytes,
                         sample.pixels == OPENPI_PIXELS_F32, (const char *)sample.tokens,
                         (Py_ssize_t)sample.token_count * (Py_ssize_t)sizeof(int32_t),
                         (const char *)sample.state, (Py_ssize_t)(OPENPI_ACTION_DIM * sizeof(float)),
                         (const char *)state, (Py_ssize_t)count * (Py_ssize_t)sizeof(double));
}

static PyObject *request_finish(PyObject *object, PyObject *arguments) {
    request_object *self = (request_object *)object;
    const module_state *state = state_of(object);
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    PyObject *model, *out;
    Py_buffer from = {0}, to = {0};
    if (!PyArg_ParseTuple(arguments, "OO:finish_into", &model, &out)) return NULL;
    if (typed_view(state, model, "model_actions", 'f', -1, 0, &from)) return NULL;
    int failed = typed_view(state, out, "actions", 'd', -1, 1, &to) || request_take(self);
    if (!failed) {
        Py_ssize_t rows = from.len / (Py_ssize_t)(OPENPI_ACTION_DIM * sizeof(float));
        if (rows > OPENPI_MAX_HORIZON) rows = OPENPI_MAX_HORIZON + 1;
        status = openpi_request_finish(self->handle, from.buf, (int)rows, to.buf,
                                       (size_t)to.len / sizeof(double), &error);
        self->busy = 0;
    }
    PyBuffer_Release(&from);
    if (to.obj) PyBuffer_Release(&to);
    if (failed) return NULL;
    if (status != OPENPI_OK) return raise_status(state, "", &error);
    Py_RETURN_NONE;
}

static PyObject *request_truncated(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(openpi_request_prompt_truncated(((request_object *)object)->handle));
}

static PyMethodDef request_methods[] = {
    {"close", request_close, METH_NOARGS, "Frees the request's memory."},
    {"prepare", request_prepare, METH_O, "Prepares an observation."},
    {"sample", request_sample, METH_NOARGS, "What was prepared, as bytes."},
    {"finish_into", request_finish, METH_VARARGS, "Model actions to robot actions: (float32, float64 out)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef request_getset[] = {{"prompt_truncated", request_truncated, NULL, NULL, NULL}, {0}};

static PyType_Slot request_slots[] = {
    {Py_tp_doc, "The scratch that turns an observation into a prepared sample."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, request_init},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_getset},
    {0, NULL},
};

PyType_Spec request_spec = {
    .name = "openpi_c._openpi.Request",
    .basicsize = sizeof(request_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = request_slots,
};

/* ---- a whole inference --------------------------------------------------------------------------------- */

/* A call: what it was given, what it took. */
typedef struct call {
    const module_state *state;
    session_object *session;
    PyObject *requests, *observations; /* tuples                                                   */
    int count;
    openpi_session *session_handle;
    openpi_request *request_handles[OPENPI_MAX_BATCH];
    openpi_policy *policy;
    int action_dim, horizon;
    observation seen[OPENPI_MAX_BATCH];
    Py_buffer noise, actions; /* float32 [count][H][32] or none, float64 [count][H][a]    */
    uint64_t seed, stream;    /* of the noise where none is given                         */
    float *drawn, *chunk;     /* [count][H][32]                                           */
    openpi_timing timing;
    int failed; /* the observation that an error is about, -1: none         */
    double model_ms;
    openpi_error error;
} call;

static int read_observations(call *c) {
    for (int b = 0; b < c->count; b++)
        if (observation_read(c->state, PyTuple_GetItem(c->observations, b), &c->seen[b])) return -1;
    return 0;
}

/* Buffers of the sizes that session and requests ask for. */
static int take_arrays(call *c, PyObject *noise, PyObject *actions) {
    Py_ssize_t steps = (Py_ssize_t)c->count * c->horizon;
    size_t bytes = (size_t)steps * OPENPI_ACTION_DIM * sizeof(float);
    if (noise != Py_None &&
        typed_view(c->state, noise, "noise", 'f', steps * OPENPI_ACTION_DIM, 0, &c->noise))
        return -1;
    if (typed_view(c->state, actions, "actions", 'd', steps * c->action_dim, 1, &c->actions)) return -1;
    c->chunk = PyMem_Malloc(bytes);
    c->drawn = c->noise.obj ? NULL : PyMem_Malloc(bytes);
    if (c->chunk && (c->drawn || c->noise.obj)) return 0;
    PyErr_NoMemory();
    return -1;
}

/* Session and requests, marked busy. After it no Python runs until they are let go. */
static int take_handles(call *c) {
    if (!c->session->handle) return raise_closed("the session"), -1;
    if (c->session->busy) return raise_busy(c->state, "the session"), -1;
    for (int b = 0; b < c->count; b++) {
        request_object *request = (request_object *)PyTuple_GetItem(c->requests, b);
        int closed = !request->handle;
        if (closed || request->busy || request->policy->handle != c->policy) {
            while (b-- > 0) ((request_object *)PyTuple_GetItem(c->requests, b))->busy = 0;
            if (closed) raise_closed("the request");
            else raise_busy(c->state, "the request");
            return -1;
        }
        request->busy = 1;
        c->request_handles[b] = request->handle;
    }
    c->session_handle = c->session->handle;
    c->session->busy = 1;
    return 0;
}

static void let_handles_go(call *c) {
    for (int b = 0; b < c->count; b++) ((request_object *)PyTuple_GetItem(c->requests, b))->busy = 0;
    c->session->busy = 0;
}

/* prepare, run and finish: without the GIL. */
static openpi_status run_call(call *c) {
    openpi_sample samples[OPENPI_MAX_BATCH];
    openpi_timing all = OPENPI_TIMING_INIT, one = OPENPI_TIMING_INIT;
    openpi_error *error = &c->error;
    size_t chunk = (size_t)c->horizon * OPENPI_ACTION_DIM, actions = (size_t)(c->horizon * c->action_dim);
    double start = extension_clock_ms();
    openpi_status status = openpi_policy_match(c->policy, c->session_handle, error);
    for (int b = 0; b < c->count && status == OPENPI_OK; b++) {
        c->failed = b;
        samples[b] = (openpi_sample)OPENPI_SAMPLE_INIT;
        status = observation_prepare(&c->seen[b], c->request_handles[b], &one, error);
        if (status == OPENPI_OK) status = openpi_request_sample(c->request_handles[b], &samples[b], error);
        all.stage_ms[OPENPI_STAGE_PICTURE] += one.stage_ms[OPENPI_STAGE_PICTURE];
        all.stage_ms[OPENPI_STAGE_PROMPT] += one.stage_ms[OPENPI_STAGE_PROMPT];
        if (c->drawn) openpi_noise(c->seed, c->stream + (uint64_t)b, c->drawn + (size_t)b * chunk, chunk);
    }
    if (status != OPENPI_OK) return status;
    c->failed = -1;
    status = openpi_session_run(c->session_handle, samples, c->count, c->drawn ? c->drawn : c->noise.buf,
                                c->chunk, &c->timing, error);
    double finish = extension_clock_ms();
    c->model_ms = c->timing.total_ms;
    for (int b = 0; b < c->count && status == OPENPI_OK; b++) {
        c->failed = b;
        status = openpi_request_finish(c->request_handles[b], c->chunk + (size_t)b * chunk, c->horizon,
                                       (double *)c->actions.buf + (size_t)b * actions, actions, error);
    }
    c->timing.stage_ms[OPENPI_STAGE_PICTURE] = all.stage_ms[OPENPI_STAGE_PICTURE];
    c->timing.stage_ms[OPENPI_STAGE_PROMPT] = all.stage_ms[OPENPI_STAGE_PROMPT];
    c->timing.stage_ms[OPENPI_STAGE_ACTIONS] = extension_clock_ms() - finish;
    c->timing.total_ms = extension_clock_ms() - start;
    return status;
}

static int check_tuples(call *c) {
    Py_ssize_t count = PyTuple_Size(c->observations);
    if (count < 1 || count > OPENPI_MAX_BATCH || PyTuple_Size(c->requests) != count) {
        PyErr_Format(PyExc_ValueError, "%zd observations and %zd requests, expected as many, 1 to %d", count,
                     PyTuple_Size(c->requests), OPENPI_MAX_BATCH);
        return -1;
    }
    for (Py_ssize_t b = 0; b < count; b++) {
        PyObject *item = PyTuple_GetItem(c->requests, b);
        int fits = PyObject_IsInstance(item, c->state->request_type);
        const request_object *request = (request_object *)item;
        if (fits > 0 && request->handle && (!b || request->policy->handle == c->policy)) {
            c->policy = request->policy->handle;
            c->action_dim = request->policy->action_dim;
            continue;
        }
        if (fits >= 0)
            PyErr_Format(PyExc_ValueError, "request %zd is %s", b,
                         !fits              ? "no Request"
                         : !request->handle ? "closed"
                                            : "of another policy than the first");
        return -1;
    }
    c->count = (int)count;
    c->horizon = c->session->horizon;
    return 0;
}

static PyObject *answer(call *c, PyObject *noise, PyObject *actions) {
    char before[40] = "";
    if (check_tuples(c) || read_observations(c) || take_arrays(c, noise, actions) || take_handles(c))
        return NULL;
    openpi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = run_call(c);
    Py_END_ALLOW_THREADS
    let_handles_go(c);
    if (status == OPENPI_OK) return timing_tuple(&c->timing, c->model_ms);
    if (c->failed >= 0 && c->count > 1) PyOS_snprintf(before, sizeof before, "observation %d: ", c->failed);
    return raise_status(c->state, before, &c->error);
}

/* infer(session, requests, observations, noise, actions, seed, stream) -> the times of stages, device, total.
 */
PyObject *extension_infer(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"session", "requests", "observations", "noise",
                            "actions", "seed",     "stream",       NULL};
    PyObject *noise, *actions;
    unsigned long long seed = 0, stream = 0;
    call *c = PyMem_Calloc(1, sizeof *c);
    if (!c) return PyErr_NoMemory();
    c->state = PyModule_GetState(module);
    c->timing = (openpi_timing)OPENPI_TIMING_INIT;
    c->error = (openpi_error)OPENPI_ERROR_INIT;
    PyObject *result = NULL;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O!OO|KK:infer", names, c->state->session_type,
                                    &c->session, &PyTuple_Type, &c->requests, &PyTuple_Type, &c->observations,
                                    &noise, &actions, &seed, &stream)) {
        c->seed = seed;
        c->stream = stream;
        result = answer(c, noise, actions);
    }
    for (int b = 0; b < OPENPI_MAX_BATCH; b++) observation_free(&c->seen[b]);
    if (c->noise.obj) PyBuffer_Release(&c->noise);
    if (c->actions.obj) PyBuffer_Release(&c->actions);
    PyMem_Free(c->drawn);
    PyMem_Free(c->chunk);
    PyMem_Free(c);
    return result;
}
