/* Runner: observations in when they come, an action out at the robot's rate (openpi_runner.h). Over an engine
 * and a transform, or over a function of Python, which is called on the runner's thread.
 *
 * Note: openpi_runner_next waits for nothing, so the GIL is kept there. Calls that copy pictures or wait
 * release it. A close while other threads observe takes effect when the last of them is done. */
#include <stddef.h>
#include <string.h>

#include "extension.h"

typedef struct runner_object {
    PyObject_HEAD
    openpi_runner *handle;
    engine_object *engine;       /* NULL: over a function                                                 */
    shared_policy *policy;
    PyObject *infer, *cancel;    /* the function; NULL: over an engine                                    */
    int users;                   /* calls that run without the GIL                                        */
    int closing, opened, dims;
} runner_object;

/* ---- a source in Python ----------------------------------------------------------------------------- */

static PyObject *shape_tuple(const openpi_field *field) {
    PyObject *shape = PyTuple_New(field->rank);
    for (int i = 0; shape && i < field->rank; i++)
        if (PyTuple_SetItem(shape, i, PyLong_FromLongLong(field->shape[i]))) Py_CLEAR(shape);
    return shape;
}

/* (name, text) or (name, bytes, format, shape). */
static PyObject *field_tuple(const openpi_field *field) {
    static const struct {
        const char *format;
        Py_ssize_t bytes;
    } elements[] = {[OPENPI_U8] = {"B", 1}, [OPENPI_FLOAT32] = {"f", 4},
                    [OPENPI_FLOAT64] = {"d", 8}, [OPENPI_FLOAT16] = {"e", 2}};
    if (field->text)
        return Py_BuildValue("(ss#)", field->name, field->text, (Py_ssize_t)field->text_length);
    Py_ssize_t bytes = elements[field->element].bytes;
    for (int i = 0; i < field->rank; i++) bytes *= (Py_ssize_t)field->shape[i];
    return Py_BuildValue("(sy#sN)", field->name, (const char *)field->data, bytes,
                         elements[field->element].format, shape_tuple(field));
}

static PyObject *field_list(const openpi_chunk_call *call) {
    PyObject *list = PyList_New(call->field_count);
    for (int f = 0; list && f < call->field_count; f++)
        if (PyList_SetItem(list, f, field_tuple(&call->fields[f]))) Py_CLEAR(list);
    return list;
}

static void say(openpi_error *error, openpi_status status, const char *sentence) {
    PyOS_snprintf(error->message, sizeof error->message, "%.490s", sentence);
    error->status = status;
}

/* What is raised becomes the sentence. */
static void say_raised(openpi_error *error) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    say(error, OPENPI_SYSTEM, utf8 && *utf8 ? utf8 : "the runner's function raised an exception");
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* (lost, sentence): no chunk. */
static openpi_status take_failure(PyObject *answer, openpi_chunk *chunk, openpi_error *error) {
    const char *sentence;
    if (!PyArg_ParseTuple(answer, "ps", &chunk->lost, &sentence))
        return say_raised(error), OPENPI_SYSTEM;
    say(error, OPENPI_SYSTEM, sentence);
    return OPENPI_SYSTEM;
}

/* Doubles [rows][action_dim]. */
static openpi_status take_actions(const runner_object *self, PyObject *answer, openpi_chunk *chunk,
                                  openpi_error *error) {
    Py_buffer view;
    if (typed_view(state_of((PyObject *)self), answer, "actions", 'd', -1, 0, &view))
        return say_raised(error), OPENPI_SYSTEM;
    Py_ssize_t row = chunk->action_dim * (Py_ssize_t)sizeof(double), rows = view.len / row;
    openpi_status status = OPENPI_OK;
    if (rows < 1 || rows > OPENPI_MAX_HORIZON || rows * row != view.len) {
        PyOS_snprintf(error->message, sizeof error->message,
                      "\"actions\" has %zd numbers, expected 1 to %d rows of %d", view.len / 8,
                      OPENPI_MAX_HORIZON, chunk->action_dim);
        status = error->status = OPENPI_BAD_INPUT;
    } else {
        memcpy(chunk->actions, view.buf, (size_t)view.len);
        chunk->rows = (int)rows;
    }
    PyBuffer_Release(&view);
    return status;
}

static openpi_status infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                           openpi_error *error) {
    runner_object *self = user;
    openpi_status status = OPENPI_SYSTEM;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *fields = field_list(call);
    PyObject *answer = fields ? PyObject_CallFunction(self->infer, "OOiididi", fields,
                                                      call->follows ? Py_True : Py_False, call->executed,
                                                      call->delay, call->deadline_ms, call->used,
                                                      call->held_ms, (int)call->reason)
                              : NULL;
    if (!answer) say_raised(error);
    else if (PyTuple_Check(answer)) status = take_failure(answer, chunk, error);
    else status = take_actions(self, answer, chunk, error);
    Py_XDECREF(answer);
    Py_XDECREF(fields);
    PyGILState_Release(gil);
    return status;
}

/* On any thread, without the GIL. */
static void cancel(void *user) {
    runner_object *self = user;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallFunctionObjArgs(self->cancel, NULL);
    if (!answer) PyErr_Clear();
    Py_XDECREF(answer);
    PyGILState_Release(gil);
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

typedef struct runner_values {
    PyObject *engine, *transform, *infer, *cancel, *robot;
    openpi_runner_options options;
    openpi_session_options session;
} runner_values;

/* What it is over, held until it is closed. */
static int take_parts(runner_object *self, const runner_values *v) {
    engine_object *engine = (engine_object *)v->engine;
    transform_object *transform = (transform_object *)v->transform;
    if (v->engine == Py_None) {
        if (PyCallable_Check(v->infer) && PyCallable_Check(v->cancel)) {
            self->infer = Py_NewRef(v->infer);
            self->cancel = Py_NewRef(v->cancel);
            return 0;
        }
        PyErr_SetString(PyExc_TypeError, "the runner has no engine, expected functions infer and cancel");
        return -1;
    }
    const module_state *state = state_of((PyObject *)self);
    if (!Py_IS_TYPE(v->engine, (PyTypeObject *)state->engine_type) ||
        !Py_IS_TYPE(v->transform, (PyTypeObject *)state->transform_type)) {
        PyErr_SetString(PyExc_TypeError, "the runner wants an Engine and a Transform");
        return -1;
    }
    if (!engine->handle || engine->closing) return raise_closed("the engine"), -1;
    if (!transform->policy) return raise_closed("the policy"), -1;
    self->engine = (engine_object *)Py_NewRef(v->engine);
    engine->users++;
    self->policy = transform->policy;
    self->policy->users++;
    return 0;
}

static void let_parts_go(runner_object *self) {
    engine_object *engine = self->engine;
    self->engine = NULL;
    shared_policy_let_go(self->policy);
    self->policy = NULL;
    if (engine) {
        engine->users--;
        engine_close_unused(engine);
        Py_DECREF((PyObject *)engine);
    }
    Py_CLEAR(self->infer);
    Py_CLEAR(self->cancel);
}

/* Without the GIL: waits for the call that runs. */
static void close_unused(runner_object *self) {
    openpi_runner *handle = self->handle;
    if (self->users || !self->closing) return;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    openpi_runner_close(handle);
    Py_END_ALLOW_THREADS
    let_parts_go(self);
}

static openpi_status open_runner(runner_object *self, const runner_values *v, openpi_error *error) {
    openpi_source source = {.size = sizeof source, .user = self, .infer = infer, .cancel = cancel,
                            .wants_fields = 1};
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    openpi_runner *handle = NULL;
    openpi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = self->engine ? openpi_runner_open(self->engine->handle, self->policy->handle, &v->session,
                                               &v->options, &handle, error)
                          : openpi_runner_over_source(&source, &v->options, &handle, error);
    if (status == OPENPI_OK) status = openpi_runner_get_info(handle, &info, error);
    Py_END_ALLOW_THREADS
    self->handle = handle;
    self->dims = info.action_dim;
    return status;
}

static int start_runner(runner_object *self, runner_values *v) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (self->opened) return raise_opened("the runner"), -1;
    v->options.robot = path_text(v->robot);
    if (take_parts(self, v)) return -1;
    self->opened = 1;
    if (open_runner(self, v, &error) == OPENPI_OK) return 0;
    raise_status(state_of((PyObject *)self), "", &error);
    let_parts_go(self);
    return -1;
}

static int runner_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"engine", "transform", "infer", "cancel", "robot", "rate_hz", "calls_per_step",
                            "interpolate", "kind", "seam", "blend_steps", "ending", "decelerate_steps",
                            "ask_after", "rtc", "max_age_ms", "deadline_ms", "retry_ms", "frozen_after",
                            "black_allowed", "horizon", "steps", "max_prompt", "seed", NULL};
    static const char *const kinds[] = {"position", "velocity", NULL};
    static const char *const seams[] = {"replace", "blend", "append", NULL};
    static const char *const endings[] = {"hold", "decelerate", "stop", NULL};
    static const char *const modes[] = {"off", "guided", "trained", NULL};
    runner_values v = {.engine = Py_None, .transform = Py_None, .infer = Py_None, .cancel = Py_None,
                       .options = OPENPI_RUNNER_OPTIONS_INIT, .session = OPENPI_SESSION_OPTIONS_INIT};
    openpi_runner_options *o = &v.options;
    const char *kind = NULL, *seam = NULL, *ending = NULL, *rtc = NULL;
    unsigned long long seed = 0;
    int a = 0, b = 0, c = 0, d = 0, failed = -1;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O$OOOO&dipzziziizdddipiiiK:Runner", names,
                                    &v.engine, &v.transform, &v.infer, &v.cancel, path_or_none, &v.robot,
                                    &o->rate_hz, &o->calls_per_step, &o->interpolate, &kind, &seam,
                                    &o->blend_steps, &ending, &o->decelerate_steps, &o->ask_after, &rtc,
                                    &o->max_age_ms, &o->deadline_ms, &o->retry_ms, &o->frozen_after,
                                    &o->black_allowed, &v.session.horizon, &v.session.steps,
                                    &v.session.max_prompt, &seed) &&
        !word_of("kind", kind, kinds, &a) && !word_of("seam", seam, seams, &b) &&
        !word_of("ending", ending, endings, &c) && !word_of("rtc", rtc, modes, &d)) {
        o->kind = (openpi_action_kind)a;
        o->seam = (openpi_seam)(b ? b - 1 : 0);
        o->ending = (openpi_ending)(c ? c - 1 : 0);
        o->rtc = (openpi_rtc_mode)(d ? d - 1 : 0);
        v.session.seed = seed;
        failed = start_runner((runner_object *)object, &v);
    }
    Py_XDECREF(v.robot);
    return failed;
}

static void runner_dealloc(PyObject *object) {
    runner_object *self = (runner_object *)object;
    self->closing = 1;
    close_unused(self);
    free_object(object);
}

static PyObject *runner_close(PyObject *object, PyObject *nothing) {
    runner_object *self = (runner_object *)object;
    (void)nothing;
    if (self->closing) Py_RETURN_NONE;
    self->closing = 1;
    close_unused(self);
    Py_RETURN_NONE;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static int is_open(const runner_object *self) {
    if (self->handle && !self->closing) return 1;
    raise_closed("the runner");
    return 0;
}

static PyObject *runner_observe(PyObject *object, PyObject *arguments) {
    runner_object *self = (runner_object *)object;
    openpi_error error = OPENPI_ERROR_INIT;
    observation seen = {0};
    openpi_status status = OPENPI_OK;
    PyObject *given;
    double taken_ms;
    if (!PyArg_ParseTuple(arguments, "Od:observe", &given, &taken_ms)) return NULL;
    int failed = observation_read(state_of(object), given, &seen);
    if (!failed && seen.message) {
        PyErr_SetString(PyExc_TypeError, "the observation is of bytes, expected a dict");
        failed = 1;
    }
    if (!failed) failed = !is_open(self);
    if (!failed) {
        self->users++;
        Py_BEGIN_ALLOW_THREADS
        status = openpi_runner_observe_fields(self->handle, seen.fields, seen.count, taken_ms, &error);
        Py_END_ALLOW_THREADS
        self->users--;
        close_unused(self);
    }
    observation_free(&seen);
    if (failed) return NULL;
    return status == OPENPI_OK ? Py_NewRef(Py_None) : raise_status(state_of(object), "", &error);
}

/* (now_ms, action) -> what a state of a runner is, a tuple. */
static PyObject *runner_next(PyObject *object, PyObject *arguments) {
    runner_object *self = (runner_object *)object;
    openpi_runner_state s = OPENPI_RUNNER_STATE_INIT;
    PyObject *out;
    Py_buffer view;
    double now_ms;
    if (!PyArg_ParseTuple(arguments, "dO:next_into", &now_ms, &out)) return NULL;
    if (typed_view(state_of(object), out, "action", 'd', self->dims, 1, &view)) return NULL;
    int open = is_open(self);
    if (open) openpi_runner_next(self->handle, now_ms, view.buf, &s);
    PyBuffer_Release(&view);
    if (!open) return NULL;
    return Py_BuildValue("(iiKKiiOiiOd)", (int)s.move, (int)s.reason, (unsigned long long)s.step,
                         (unsigned long long)s.chunk, s.row, s.delay, s.fresh ? Py_True : Py_False, s.left,
                         s.limited, s.known ? Py_True : Py_False, s.age_ms);
}

static PyObject *runner_info(PyObject *object, PyObject *nothing) {
    runner_object *self = (runner_object *)object;
    openpi_runner_info i = OPENPI_RUNNER_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status;
    (void)nothing;
    if (!is_open(self)) return NULL;
    self->users++;
    Py_BEGIN_ALLOW_THREADS
    status = openpi_runner_get_info(self->handle, &i, &error);
    Py_END_ALLOW_THREADS
    self->users--;
    close_unused(self);
    if (status != OPENPI_OK) return raise_status(state_of(object), "", &error);
    return Py_BuildValue(
        "{s:i,s:i,s:d,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:i,s:i,s:s,s:s}", "action_dim", i.action_dim,
        "calls_per_step", i.calls_per_step, "rate_hz", i.rate_hz, "observed", (unsigned long long)i.observed,
        "replaced", (unsigned long long)i.replaced, "calls", (unsigned long long)i.calls, "failed",
        (unsigned long long)i.failed, "late", (unsigned long long)i.late, "ticks",
        (unsigned long long)i.ticks, "held", (unsigned long long)i.held, "steps",
        (unsigned long long)i.steps, "limited", (unsigned long long)i.limited, "call_ms", i.call_ms,
        "limits", i.limits, "delay", i.delay, "failure", i.failure, "camera", i.camera);
}

static PyObject *runner_stop(PyObject *object, PyObject *nothing) {
    (void)nothing;
    if (!is_open((runner_object *)object)) return NULL;
    openpi_runner_stop(((runner_object *)object)->handle);
    Py_RETURN_NONE;
}

static PyObject *runner_resume(PyObject *object, PyObject *nothing) {
    (void)nothing;
    if (!is_open((runner_object *)object)) return NULL;
    openpi_runner_resume(((runner_object *)object)->handle);
    Py_RETURN_NONE;
}

/* Calls a function of Python on this thread, which holds the GIL already. */
static PyObject *runner_cancel(PyObject *object, PyObject *nothing) {
    (void)nothing;
    if (!is_open((runner_object *)object)) return NULL;
    openpi_runner_cancel(((runner_object *)object)->handle);
    Py_RETURN_NONE;
}

static PyObject *runner_closed(PyObject *object, void *nothing) {
    const runner_object *self = (const runner_object *)object;
    (void)nothing;
    return PyBool_FromLong(!self->handle || self->closing);
}

static PyMethodDef runner_methods[] = {
    {"observe", runner_observe, METH_VARARGS, "Gives an observation: (dict, taken_ms)."},
    {"next_into", runner_next, METH_VARARGS, "The action of now: (now_ms, action) -> the runner's state."},
    {"info", runner_info, METH_NOARGS, "What it has done so far, a dict."},
    {"stop", runner_stop, METH_NOARGS, "Holds the robot until resume."},
    {"resume", runner_resume, METH_NOARGS, "Ends a stop."},
    {"cancel", runner_cancel, METH_NOARGS, "Gives up the call that runs."},
    {"close", runner_close, METH_NOARGS, "Ends the runner and waits for its thread."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef runner_getset[] = {
    {"closed", runner_closed, NULL, NULL, NULL},
    {0},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_doc, "From chunks to a robot that moves."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, runner_init},
    {Py_tp_dealloc, runner_dealloc},
    {Py_tp_methods, runner_methods},
    {Py_tp_getset, runner_getset},
    {0, NULL},
};

PyType_Spec runner_spec = {
    .name = "openpi_c._openpi.Runner",
    .basicsize = sizeof(runner_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = runner_slots,
};

PyObject *extension_reasons(void) {
    PyObject *dict = PyDict_New();
#define X(name, value, text)                                                          \
    if (dict) {                                                                       \
        PyObject *pair = Py_BuildValue("(ss)", #name, text), *key = PyLong_FromLong(value); \
        if (!pair || !key || PyDict_SetItem(dict, key, pair)) Py_CLEAR(dict);         \
        Py_XDECREF(pair);                                                             \
        Py_XDECREF(key);                                                              \
    }
    OPENPI_REASON_LIST(X)
#undef X
    return dict;
}
