/* Engine and Session: a loaded model, and the buffers of one stream of inferences. */
#include <string.h>
#include <time.h>

#include "extension.h"

void free_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

module_state *state_of(PyObject *object) { return PyType_GetModuleState(Py_TYPE(object)); }

/* ---- progress ------------------------------------------------------------------------------------------ */

/* The engine loads without the GIL and takes it back for each report: signals are looked at (Ctrl-C) and the
 * caller's function is called. */
typedef struct watch {
    PyThreadState *thread;
    PyObject *function;             /* or None                                                              */
    PyObject *type, *value, *trace; /* what was raised                                          */
} watch;

static void report_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    watch *w = user;
    PyObject *result = NULL;
    if (w->type) return;
    PyEval_RestoreThread(w->thread);
    int failed = PyErr_CheckSignals();
    if (!failed && w->function != Py_None) {
        result = PyObject_CallFunction(w->function, "sKK", what, (unsigned long long)done,
                                       (unsigned long long)total);
        failed = !result;
        Py_XDECREF(result);
    }
    if (failed) PyErr_Fetch(&w->type, &w->value, &w->trace);
    w->thread = PyEval_SaveThread();
}

static int is_raised(void *user) { return ((const watch *)user)->type != NULL; }

/* ---- Engine -------------------------------------------------------------------------------------------- */

typedef struct engine_values {
    PyObject *checkpoint, *table, *adapter, *progress;
    const char *synthetic, *dtype, *weights;
    openpi_engine_options options;
} engine_values;

/* Where no call uses the handle: closes it. */
static void close_unused(engine_object *self) {
    openpi_engine *handle = self->handle;
    if (self->users || !self->closing) return;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    openpi_engine_close(handle);
    Py_END_ALLOW_THREADS
}

/* A word of a table; 0: not there, with an exception. */
static int word_in(const char *what, const char *word, const char *const *words, int *value) {
    *value = 0;
    for (int i = 0; word && words[i]; i++)
        if (!strcmp(word, words[i])) return *value = i + 1;
    if (!word) return 1;
    PyErr_Format(PyExc_ValueError, "%s is \"%s\", expected \"%s\" or \"%s\"", what, word, words[0], words[1]);
    return 0;
}

/* Without the GIL but in reports. */
static openpi_status open_engine(engine_object *self, engine_values *v, watch *w, openpi_error *error) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_status status = OPENPI_OK;
    w->thread = PyEval_SaveThread();
    if (v->synthetic) {
        status = openpi_synthetic_parse(v->synthetic, &synthetic, error);
        v->options.synthetic = &synthetic;
    }
    if (status == OPENPI_OK)
        status = openpi_engine_open(path_text(v->checkpoint), &v->options, &self->handle, error);
    PyEval_RestoreThread(w->thread);
    return status;
}

static int start_engine(PyObject *object, engine_values *v) {
    static const char *const types[] = {"bf16", "f32", NULL};
    engine_object *self = (engine_object *)object;
    openpi_error error = OPENPI_ERROR_INIT;
    watch w = {.function = v->progress ? v->progress : Py_None};
    int dtype, weights;
    if (!word_in("dtype", v->dtype, types, &dtype) || !word_in("weights", v->weights, types, &weights))
        return -1;
    if (self->opened) return raise_opened("the engine"), -1;
    v->options.dtype = (openpi_dtype)dtype;
    v->options.weights = (openpi_weights)weights;
    v->options.table = path_text(v->table);
    v->options.adapter = path_text(v->adapter);
    v->options.progress = report_progress;
    v->options.cancel = is_raised;
    v->options.progress_user = &w;
    self->opened = self->users = 1;
    openpi_status status = open_engine(self, v, &w, &error);
    self->users = 0;
    close_unused(self);
    if (w.type) {
        PyErr_Restore(w.type, w.value, w.trace);
        openpi_engine_close(self->handle);
        self->handle = NULL;
        return -1;
    }
    return status == OPENPI_OK ? 0 : (raise_status(state_of(object), "", &error), -1);
}

static int engine_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"checkpoint", "synthetic", "device", "dtype",   "threads", "isa",      "pin",
                            "path",       "without",   "table",  "adapter", "weights", "progress", NULL};
    engine_values v = {.options = OPENPI_ENGINE_OPTIONS_INIT};
    openpi_engine_options *o = &v.options;
    int failed = -1;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$zzzizpzzO&O&zO:Engine", names, path_or_none,
                                    &v.checkpoint, &v.synthetic, &o->device, &v.dtype, &o->threads, &o->isa,
                                    &o->pin, &o->path, &o->without, path_or_none, &v.table, path_or_none,
                                    &v.adapter, &v.weights, &v.progress))
        failed = start_engine(object, &v);
    Py_XDECREF(v.checkpoint);
    Py_XDECREF(v.table);
    Py_XDECREF(v.adapter);
    return failed;
}

static void engine_dealloc(PyObject *object) {
    openpi_engine_close(((engine_object *)object)->handle);
    free_object(object);
}

static PyObject *engine_close(PyObject *object, PyObject *nothing) {
    (void)nothing;
    ((engine_object *)object)->closing = 1;
    close_unused((engine_object *)object);
    Py_RETURN_NONE;
}

static PyObject *engine_info(PyObject *object, PyObject *nothing) {
    engine_object *self = (engine_object *)object;
    openpi_engine_info i = OPENPI_ENGINE_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (!self->handle || self->closing) return raise_closed("the engine"), NULL;
    if (openpi_engine_get_info(self->handle, &i, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:i,s:O,s:i,s:i,s:i,s:K,s:K,s:s,s:s,s:s}", "variant",
                         i.variant == OPENPI_PI05 ? "pi05" : "pi0", "dtype",
                         i.dtype == OPENPI_F32 ? "f32" : "bf16", "device", i.device, "path", i.path,
                         "threads", i.threads, "lerobot", i.lerobot ? Py_True : Py_False, "default_horizon",
                         i.default_horizon, "default_steps", i.default_steps, "default_prompt",
                         i.default_prompt, "parameters", (unsigned long long)i.parameters, "weight_bytes",
                         (unsigned long long)i.weight_bytes, "without", i.without, "table", i.table,
                         "weights", i.weights == OPENPI_WEIGHTS_F32 ? "f32" : "bf16");
}

static PyObject *engine_closed(PyObject *object, void *nothing) {
    (void)nothing;
    const engine_object *self = (engine_object *)object;
    return PyBool_FromLong(!self->handle || self->closing);
}

static PyMethodDef engine_methods[] = {
    {"close", engine_close, METH_NOARGS, "Closes the engine. Its sessions keep working."},
    {"info", engine_info, METH_NOARGS, "What was loaded, a dict."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_getset[] = {{"closed", engine_closed, NULL, NULL, NULL}, {0}};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, "A loaded model and its worker threads."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, engine_init},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_getset},
    {0, NULL},
};

PyType_Spec engine_spec = {
    .name = "openpi_c._openpi.Engine",
    .basicsize = sizeof(engine_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = engine_slots,
};

/* ---- Session ------------------------------------------------------------------------------------------- */

static int session_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"engine", "batch", "horizon", "steps", "max_prompt", "seed", NULL};
    session_object *self = (session_object *)object;
    module_state *state = state_of(object);
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session *handle = NULL;
    unsigned long long seed = 0;
    engine_object *engine;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|$iiiiK:Session", names, state->engine_type,
                                     &engine, &options.batch, &options.horizon, &options.steps,
                                     &options.max_prompt, &seed))
        return -1;
    if (!engine->handle || engine->closing) return raise_closed("the engine"), -1;
    if (self->opened) return raise_opened("the session"), -1;
    options.seed = seed;
    engine->users++;
    self->opened = self->busy = 1;
    openpi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = openpi_session_create(engine->handle, &options, &handle, &error);
    if (status == OPENPI_OK) status = openpi_session_get_info(handle, &info, &error);
    Py_END_ALLOW_THREADS
    engine->users--;
    close_unused(engine);
    self->busy = 0;
    if (status != OPENPI_OK) {
        openpi_session_close(handle);
        return raise_status(state, "", &error), -1;
    }
    self->handle = handle;
    self->batch = info.batch;
    self->horizon = info.horizon;
    return 0;
}

static void session_dealloc(PyObject *object) {
    openpi_session_close(((session_object *)object)->handle);
    free_object(object);
}

static PyObject *session_close(PyObject *object, PyObject *nothing) {
    session_object *self = (session_object *)object;
    (void)nothing;
    if (self->busy) return raise_busy(state_of(object), "the session"), NULL;
    openpi_session *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    openpi_session_close(handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *session_info(PyObject *object, PyObject *nothing) {
    session_object *self = (session_object *)object;
    openpi_session_info i = OPENPI_SESSION_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (!self->handle) return raise_closed("the session"), NULL;
    if (self->busy) return raise_busy(state_of(object), "the session"), NULL;
    if (openpi_session_get_info(self->handle, &i, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:K,s:K,s:i,s:O,s:s}", "batch", i.batch, "horizon", i.horizon,
                         "steps", i.steps, "max_prompt", i.max_prompt, "bytes", (unsigned long long)i.bytes,
                         "runs", (unsigned long long)i.runs, "operations", i.operations, "recorded",
                         i.recorded ? Py_True : Py_False, "not_recorded", i.not_recorded);
}

/* ---- the model level ----------------------------------------------------------------------------------- */

/* The samples of a run and the buffers that they point to. */
typedef struct sample_list {
    openpi_sample samples[OPENPI_MAX_BATCH];
    Py_buffer views[OPENPI_MAX_BATCH][OPENPI_CAMERAS + 2];
    Py_buffer noise, actions;
    int count;
} sample_list;

static void release(Py_buffer *view) {
    if (view->obj) PyBuffer_Release(view);
    view->obj = NULL;
}

static void free_samples(sample_list *list) {
    for (int b = 0; b < list->count; b++)
        for (int v = 0; v < OPENPI_CAMERAS + 2; v++) release(&list->views[b][v]);
    release(&list->noise);
    release(&list->actions);
    PyMem_Free(list);
}

/* A picture, uint8 or float32 [224][224][3]; None: masked. */
static int take_picture(const module_state *state, PyObject *picture, int slot, openpi_sample *sample,
                        Py_buffer *view) {
    enum { ELEMENTS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };
    char name[32];
    if (picture == Py_None) return 0;
    PyOS_snprintf(name, sizeof name, "images[%d]", slot);
    if (array_view(state, picture, name, view)) return -1;
    int floats = array_element(view) == 'f', first = 1;
    for (int s = 0; s < slot; s++) first &= !sample->image_mask[s];
    if ((!floats && array_element(view) != 'B') || view->len != ELEMENTS * view->itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "\"%s\" has %zd bytes of format \"%s\", expected uint8 or float32 "
                     "[224, 224, 3]",
                     name, view->len, view->format ? view->format : "B");
        return -1;
    }
    if (!first && (sample->pixels == OPENPI_PIXELS_F32) != floats) {
        PyErr_Format(PyExc_ValueError, "\"%s\" is %s and a picture before is not: expected one type", name,
                     floats ? "float32" : "uint8");
        return -1;
    }
    sample->pixels = floats ? OPENPI_PIXELS_F32 : OPENPI_PIXELS_U8;
    sample->images[slot] = view->buf;
    sample->image_mask[slot] = 1;
    return 0;
}

/* (picture or None) x 3, tokens, state or None. */
static int take_sample(const module_state *state, PyObject *tuple, openpi_sample *sample, Py_buffer *views) {
    PyObject *parts[OPENPI_CAMERAS + 2];
    *sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "OOOOO", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a sample is no tuple of five");
        return -1;
    }
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++)
        if (take_picture(state, parts[slot], slot, sample, &views[slot])) return -1;
    Py_buffer *tokens = &views[OPENPI_CAMERAS], *numbers = tokens + 1;
    if (typed_view(state, parts[OPENPI_CAMERAS], "tokens", 'i', -1, 0, tokens)) return -1;
    if (tokens->len > INT32_MAX) return PyErr_SetString(PyExc_ValueError, "\"tokens\" is too long"), -1;
    sample->tokens = tokens->buf;
    sample->token_count = (int)(tokens->len / (Py_ssize_t)sizeof(int32_t));
    if (parts[OPENPI_CAMERAS + 1] == Py_None) return 0;
    if (typed_view(state, parts[OPENPI_CAMERAS + 1], "state", 'f', OPENPI_ACTION_DIM, 0, numbers)) return -1;
    sample->state = numbers->buf;
    return 0;
}

static int take_samples(PyObject *object, PyObject *tuples, PyObject *noise, PyObject *actions,
                        sample_list *list) {
    const session_object *self = (session_object *)object;
    const module_state *state = state_of(object);
    Py_ssize_t count = PyTuple_Size(tuples), elements = count * self->horizon * OPENPI_ACTION_DIM;
    if (count < 1 || count > OPENPI_MAX_BATCH) {
        PyErr_Format(PyExc_ValueError, "%zd samples, expected 1 to %d", count, OPENPI_MAX_BATCH);
        return -1;
    }
    for (Py_ssize_t b = 0; b < count; b++, list->count++)
        if (take_sample(state, PyTuple_GetItem(tuples, b), &list->samples[b], list->views[b])) {
            list->count++;
            return -1;
        }
    if (noise != Py_None && typed_view(state, noise, "noise", 'f', elements, 0, &list->noise)) return -1;
    return typed_view(state, actions, "actions", 'f', elements, 1, &list->actions);
}

double extension_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

PyObject *timing_tuple(const openpi_timing *t, double model_ms) {
    double ms[OPENPI_STAGES + 3];
    memcpy(ms, t->stage_ms, OPENPI_STAGES * sizeof *ms);
    ms[OPENPI_STAGES] = t->device_ms;
    ms[OPENPI_STAGES + 1] = model_ms;
    ms[OPENPI_STAGES + 2] = t->total_ms;
    PyObject *tuple = PyTuple_New(OPENPI_STAGES + 3);
    for (int i = 0; tuple && i < OPENPI_STAGES + 3; i++)
        if (PyTuple_SetItem(tuple, i, PyFloat_FromDouble(ms[i]))) Py_CLEAR(tuple);
    return tuple;
}

static PyObject *session_run(PyObject *object, PyObject *arguments) {
    session_object *self = (session_object *)object;
    PyObject *tuples, *noise, *actions;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status = OPENPI_OK;
    if (!PyArg_ParseTuple(arguments, "O!OO:run", &PyTuple_Type, &tuples, &noise, &actions)) return NULL;
    sample_list *list = PyMem_Calloc(1, sizeof *list);
    if (!list) return PyErr_NoMemory();
    int failed = take_samples(object, tuples, noise, actions, list);
    if (!failed && !self->handle) raise_closed("the session"), failed = 1;
    if (!failed && self->busy) raise_busy(state_of(object), "the session"), failed = 1;
    if (!failed) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        status = openpi_session_run(self->handle, list->samples, list->count, list->noise.buf,
                                    list->actions.buf, &timing, &error);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    free_samples(list);
    if (failed) return NULL;
    return status == OPENPI_OK ? timing_tuple(&timing, timing.total_ms)
                               : raise_status(state_of(object), "", &error);
}

static PyObject *session_closed(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(!((session_object *)object)->handle);
}

static PyObject *session_horizon(PyObject *object, void *nothing) {
    (void)nothing;
    return PyLong_FromLong(((session_object *)object)->horizon);
}

static PyMethodDef session_methods[] = {
    {"close", session_close, METH_NOARGS, "Frees the session's memory."},
    {"info", session_info, METH_NOARGS, "Its sizes and what it has run, a dict."},
    {"run_into", session_run, METH_VARARGS, "Runs samples: (samples, noise or None, actions) -> times."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef session_getset[] = {
    {"closed", session_closed, NULL, NULL, NULL}, {"horizon", session_horizon, NULL, NULL, NULL}, {0}};

static PyType_Slot session_slots[] = {
    {Py_tp_doc, "Buffers and plan of one stream of inferences."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, session_init},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_methods, session_methods},
    {Py_tp_getset, session_getset},
    {0, NULL},
};

PyType_Spec session_spec = {
    .name = "openpi_c._openpi.Session",
    .basicsize = sizeof(session_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = session_slots,
};
