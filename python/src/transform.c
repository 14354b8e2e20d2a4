/* Transform (openpi.h's openpi_policy) and Request: what turns an observation into a prepared sample, and
 * model actions into the robot's. */
#include "extension.h"

/* ---- Transform -------------------------------------------------------------------------------------- */

void shared_policy_let_go(shared_policy *policy) {
    if (!policy || --policy->users) return;
    openpi_policy_close(policy->handle);
    PyMem_Free(policy);
}

typedef struct policy_values {
    PyObject *checkpoint, *robot, *norm_stats, *tokenizer, *cache, *adapter;
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
    v->options.adapter = path_text(v->adapter);
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
                            "adapter",    "horizon",         NULL};
    policy_values v = {.options = OPENPI_POLICY_OPTIONS_INIT, .prompt_state = OPENPI_PROMPT_STATE_DEFAULT};
    openpi_policy_options *o = &v.options;
    PyObject *prompt_state = Py_None;
    int failed = -1;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$zO&zO&O&O&OizO&i:Transform", names,
                                    path_or_none, &v.checkpoint, &v.synthetic, path_or_none, &v.robot,
                                    &o->config, path_or_none, &v.norm_stats, path_or_none, &v.tokenizer,
                                    path_or_none, &v.cache, &prompt_state, &o->max_prompt, &o->assets,
                                    path_or_none, &v.adapter, &o->horizon)) {
        int on = prompt_state == Py_None ? -1 : PyObject_IsTrue(prompt_state);
        if (on >= 0) o->prompt_state = on ? OPENPI_PROMPT_STATE_ON : OPENPI_PROMPT_STATE_OFF;
        failed = PyErr_Occurred() ? -1 : open_policy(object, &v);
    }
    Py_XDECREF(v.checkpoint);
    Py_XDECREF(v.robot);
    Py_XDECREF(v.norm_stats);
    Py_XDECREF(v.tokenizer);
    Py_XDECREF(v.cache);
    Py_XDECREF(v.adapter);
    return failed;
}

static PyObject *transform_close(PyObject *object, PyObject *nothing) {
    transform_object *self = (transform_object *)object;
    shared_policy *policy = self->policy;
    (void)nothing;
    self->policy = NULL;
    shared_policy_let_go(policy);
    Py_RETURN_NONE;
}

static void transform_dealloc(PyObject *object) {
    shared_policy_let_go(((transform_object *)object)->policy);
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

/* Where each action starts in the state: numbers, None where it starts nowhere. */
static PyObject *action_states(const openpi_policy *policy, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int d = 0; tuple && d < count; d++) {
        int at = openpi_policy_action_state(policy, d);
        PyObject *item = at < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(at);
        if (PyTuple_SetItem(tuple, d, item)) Py_CLEAR(tuple);
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

/* A list of numbers; None: the config has no reset pose. */
static PyObject *reset_pose(const openpi_policy *policy) {
    int count = 0;
    const double *pose = openpi_policy_reset_pose(policy, &count);
    if (!pose) Py_RETURN_NONE;
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++)
        if (PyList_SetItem(list, i, PyFloat_FromDouble(pose[i]))) Py_CLEAR(list);
    return list;
}

static const char *policy_note(const void *handle, int index, int *warning) {
    return openpi_policy_note(handle, index, warning);
}

static PyObject *transform_info(PyObject *object, PyObject *nothing) {
    const shared_policy *policy = ((transform_object *)object)->policy;
    static const char *const verbs[] = {"clamp", "hold", "stop"};
    openpi_policy_info i = OPENPI_POLICY_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (!policy) return raise_closed("the policy"), NULL;
    if (openpi_policy_get_info(policy->handle, &i, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return Py_BuildValue(
        "{s:s,s:(sss),s:i,s:i,s:i,s:i,s:O,s:O,s:s,s:s,s:s,s:N,s:N,s:N,s:N,s:d,s:N,s:N,s:i,s:s}", "robot",
        i.robot, "cameras", i.cameras[0], i.cameras[1], i.cameras[2], "state_length", i.state_length,
        "action_dim",
        i.action_dim, "horizon", i.horizon, "max_prompt", i.max_prompt, "prompt_state",
        i.prompt_state ? Py_True : Py_False,
        "lerobot", i.lerobot ? Py_True : Py_False, "tokenizer", i.tokenizer, "tokenizer_kind",
        i.tokenizer_kind, "statistics", i.statistics, "state", state_parts(policy->handle), "action_names",
        text_tuple(policy->handle, i.action_dim, openpi_policy_action_name),
        "action_units", text_tuple(policy->handle, i.action_dim, openpi_policy_action_unit), "action_states",
        action_states(policy->handle, i.action_dim), "rate_hz",
        openpi_policy_rate(policy->handle), "reset_pose", reset_pose(policy->handle),
        "notes", note_tuple(policy->handle, policy_note), "limits", i.limits, "on_violation",
        verbs[i.on_violation]);
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

/* ---- Request ---------------------------------------------------------------------------------------- */

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
    shared_policy_let_go(self->policy);
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

/* Two buffers of a request's method, `in` of one element and `out` of another. 0, or -1 with an exception. */
static int take_pair(const module_state *state, PyObject *in, const char *in_name, char in_element,
                     PyObject *out, const char *out_name, char out_element, Py_buffer views[2]) {
    if (typed_view(state, in, in_name, in_element, -1, 0, &views[0])) return -1;
    if (!typed_view(state, out, out_name, out_element, -1, 1, &views[1])) return 0;
    PyBuffer_Release(&views[0]);
    return -1;
}

/* How many steps of 32 numbers a buffer holds; above 64 all are 65. */
static int steps_of(const Py_buffer *view) {
    Py_ssize_t rows = view->len / (OPENPI_ACTION_DIM * view->itemsize);
    return rows > OPENPI_MAX_HORIZON ? OPENPI_MAX_HORIZON + 1 : (int)rows;
}

typedef openpi_status transform(const openpi_request *request, const float *model_actions, int horizon,
                                double *out, size_t capacity, openpi_error *error);

/* (float32 model actions, float64 out) through one of the engine's transforms. */
static PyObject *run_transform(PyObject *object, PyObject *arguments, const char *format,
                               const char *out_name, transform *run) {
    request_object *self = (request_object *)object;
    const module_state *state = state_of(object);
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    PyObject *model, *out;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(arguments, format, &model, &out) ||
        take_pair(state, model, "model_actions", 'f', out, out_name, 'd', views))
        return NULL;
    int failed = request_take(self);
    if (!failed) {
        status = run(self->handle, views[0].buf, steps_of(&views[0]), views[1].buf,
                     (size_t)views[1].len / sizeof(double), &error);
        self->busy = 0;
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    if (failed) return NULL;
    if (status != OPENPI_OK) return raise_status(state, "", &error);
    Py_RETURN_NONE;
}

static PyObject *request_finish(PyObject *object, PyObject *arguments) {
    return run_transform(object, arguments, "OO:finish_into", "actions", openpi_request_finish);
}

static PyObject *request_keep(PyObject *object, PyObject *arguments) {
    return run_transform(object, arguments, "OO:keep_into", "kept", openpi_request_keep);
}

/* (kept, executed, out) -> (rows, dims) that `out` begins with. */
static PyObject *request_previous(PyObject *object, PyObject *arguments) {
    request_object *self = (request_object *)object;
    const module_state *state = state_of(object);
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    int executed, rows = 0, dims = 0;
    PyObject *kept, *out;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(arguments, "OiO:previous_into", &kept, &executed, &out) ||
        take_pair(state, kept, "kept", 'd', out, "previous", 'f', views))
        return NULL;
    int failed = request_take(self);
    if (!failed) {
        status =
            openpi_request_previous(self->handle, views[0].buf, steps_of(&views[0]), executed, views[1].buf,
                                    (size_t)views[1].len / sizeof(float), &rows, &dims, &error);
        self->busy = 0;
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    if (failed) return NULL;
    return status == OPENPI_OK ? Py_BuildValue("(ii)", rows, dims) : raise_status(state, "", &error);
}

PyObject *limited_dict(const openpi_limited *l) {
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i}", "changed", l->changed, "below_min", l->below_min,
                         "above_max", l->above_max, "beyond_step", l->beyond_step, "beyond_start",
                         l->beyond_start, "held", l->held);
}

static PyObject *request_limited(PyObject *object, void *nothing) {
    openpi_limited limited = OPENPI_LIMITED_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (openpi_request_get_limited(((request_object *)object)->handle, &limited, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return limited_dict(&limited);
}

static PyObject *request_truncated(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(openpi_request_prompt_truncated(((request_object *)object)->handle));
}

static const char *request_note(const void *handle, int index, int *warning) {
    return openpi_request_note(handle, index, warning);
}

static PyObject *request_notes(PyObject *object, void *nothing) {
    (void)nothing;
    return note_tuple(((request_object *)object)->handle, request_note);
}

static PyMethodDef request_methods[] = {
    {"close", request_close, METH_NOARGS, "Frees the request's memory."},
    {"prepare", request_prepare, METH_O, "Prepares an observation."},
    {"sample", request_sample, METH_NOARGS, "What was prepared, as bytes."},
    {"finish_into", request_finish, METH_VARARGS, "Model actions to robot actions: (float32, float64 out)."},
    {"keep_into", request_keep, METH_VARARGS, "What the next call follows on from: (float32, float64 out)."},
    {"previous_into", request_previous, METH_VARARGS,
     "What is left of a kept chunk: (float64, executed, float32 out) -> (rows, dims)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef request_getset[] = {{"prompt_truncated", request_truncated, NULL, NULL, NULL},
                                       {"notes", request_notes, NULL, NULL, NULL},
                                       {"limited", request_limited, NULL, NULL, NULL},
                                       {0}};

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
