/* Engine: a loaded model and its worker threads. */

#include "extension.h"

void free_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

module_state *state_of(PyObject *object) { return PyType_GetModuleState(Py_TYPE(object)); }

/* ---- progress --------------------------------------------------------------------------------------- */

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

/* ---- Engine ----------------------------------------------------------------------------------------- */

typedef struct engine_values {
    PyObject *checkpoint, *table, *adapter, *progress;
    const char *synthetic, *dtype;
    openpi_engine_options options;
} engine_values;

void engine_close_unused(engine_object *self) {
    openpi_engine *handle = self->handle;
    if (self->users || !self->closing) return;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    openpi_engine_close(handle);
    Py_END_ALLOW_THREADS
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
    int dtype;
    if (word_of("dtype", v->dtype, types, &dtype)) return -1;
    if (self->opened) return raise_opened("the engine"), -1;
    v->options.dtype = (openpi_dtype)dtype;
    v->options.table = path_text(v->table);
    v->options.adapter = path_text(v->adapter);
    v->options.progress = report_progress;
    v->options.cancel = is_raised;
    v->options.progress_user = &w;
    self->opened = self->users = 1;
    openpi_status status = open_engine(self, v, &w, &error);
    self->users = 0;
    engine_close_unused(self);
    if (w.type) {
        PyErr_Restore(w.type, w.value, w.trace);
        openpi_engine_close(self->handle);
        self->handle = NULL;
        return -1;
    }
    return status == OPENPI_OK ? 0 : (raise_status(state_of(object), "", &error), -1);
}

static int engine_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"checkpoint", "synthetic", "device",       "dtype",    "threads",
                            "isa",        "pin",       "path",         "without",  "table",
                            "adapter",    "weights",   "without_lora", "progress", "missing_chunks_are_zero",
                            "accept_error", NULL};
    engine_values v = {.options = OPENPI_ENGINE_OPTIONS_INIT};
    openpi_engine_options *o = &v.options;
    int failed = -1;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$zzzizpzzO&O&zpOpp:Engine", names, path_or_none,
                                    &v.checkpoint, &v.synthetic, &o->device, &v.dtype, &o->threads, &o->isa,
                                    &o->pin, &o->path, &o->without, path_or_none, &v.table, path_or_none,
                                    &v.adapter, &o->formats, &o->without_lora, &v.progress,
                                    &o->missing_chunks_are_zero, &o->accept_error))
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
    engine_close_unused((engine_object *)object);
    Py_RETURN_NONE;
}

PyObject *note_tuple(const void *handle, note_function note) {
    PyObject *list = PyList_New(0), *tuple = NULL;
    const char *text;
    int warning = 0;
    for (int i = 0; list && (text = note(handle, i, &warning)); i++) {
        PyObject *pair = Py_BuildValue("(Os)", warning ? Py_True : Py_False, text);
        if (!pair || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    if (list) tuple = PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

static const char *engine_note(const void *handle, int index, int *warning) {
    return openpi_engine_note(handle, index, warning);
}

/* What a plan of 8-bit weights says of itself; None where there is none. */
static PyObject *plan_dict(const openpi_engine_info *i) {
    if (!i->w8) Py_RETURN_NONE;
    return Py_BuildValue("{s:s,s:d,s:d,s:O}", "measure", i->w8_measure, "error", i->w8_error, "bound",
                         i->w8_bound, "error_accepted", i->error_accepted ? Py_True : Py_False);
}

static PyObject *engine_info(PyObject *object, PyObject *nothing) {
    engine_object *self = (engine_object *)object;
    openpi_engine_info i = OPENPI_ENGINE_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)nothing;
    if (!self->handle || self->closing) return raise_closed("the engine"), NULL;
    if (openpi_engine_get_info(self->handle, &i, &error) != OPENPI_OK)
        return raise_status(state_of(object), "", &error);
    return Py_BuildValue(
        "{s:s,s:s,s:s,s:s,s:i,s:O,s:i,s:i,s:i,s:K,s:K,s:s,s:s,s:s,s:s,s:i,s:s,s:s,s:i,s:d,s:s,s:i,s:N,s:N}",
        "variant", i.variant == OPENPI_PI05 ? "pi05" : "pi0",
        "dtype", i.dtype == OPENPI_F32 ? "f32" : "bf16", "device", i.device, "path", i.path,
        "threads", i.threads, "lerobot", i.lerobot ? Py_True : Py_False,
        "default_horizon", i.default_horizon, "default_steps", i.default_steps, "default_prompt",
        i.default_prompt, "parameters", (unsigned long long)i.parameters, "weight_bytes",
        (unsigned long long)i.weight_bytes, "without", i.without, "table", i.table, "weights",
        i.weights == OPENPI_WEIGHTS_F32 ? "f32" : "bf16", "formats", i.formats,
        "rtc_max_delay", i.rtc_max_delay, "rtc_mode",
        rtc_mode_text(i.rtc_mode), "rtc_schedule", rtc_schedule_text(i.rtc_schedule), "rtc_horizon",
        i.rtc_horizon, "rtc_max_weight", i.rtc_max_weight, "table_ignored", i.table_ignored,
        "action_dim", i.action_dim,
        "notes", note_tuple(self->handle, engine_note), "w8", plan_dict(&i));
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
