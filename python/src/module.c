/* The module `_openpi`: its functions without a handle, its exceptions, how it starts. */
#include "extension.h"

#include <string.h>

/* ---- exceptions ------------------------------------------------------------------------------------- */

PyObject *raise_status(const module_state *state, const char *before, const openpi_error *error) {
    PyObject *type = state->error, *value, *text;
    switch (error->status) {
    case OPENPI_BAD_ARGUMENT:
    case OPENPI_BAD_INPUT: type = PyExc_ValueError; break;
    case OPENPI_NOT_FOUND: type = PyExc_FileNotFoundError; break;
    case OPENPI_NO_MEMORY: type = PyExc_MemoryError; break;
    case OPENPI_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    default: break;
    }
    value = PyUnicode_FromFormat("%s%s", before, error->message);
    if (value && type == state->error) {
        PyObject *raised = PyObject_CallFunctionObjArgs(type, value, NULL);
        text = PyUnicode_FromString(openpi_status_text(error->status));
        if (raised && text && !PyObject_SetAttrString(raised, "status", text)) PyErr_SetObject(type, raised);
        Py_XDECREF(text);
        Py_XDECREF(raised);
    } else if (value) {
        PyErr_SetObject(type, value);
    }
    Py_XDECREF(value);
    return NULL;
}

void raise_closed(const char *what) { PyErr_Format(PyExc_ValueError, "%s is closed", what); }

void raise_opened(const char *what) { PyErr_Format(PyExc_ValueError, "%s is opened once already", what); }

void raise_busy(const module_state *state, const char *what) {
    PyErr_Format(state->error, "%s is in use by another call, expected one call at a time", what);
}

/* ---- functions without a handle --------------------------------------------------------------------- */

static PyObject *version(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    return PyUnicode_FromString(openpi_version());
}

static PyObject *device_dict(const openpi_device *d) {
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:O,s:K,s:O}", "name", d->name, "description", d->description,
                         "path", d->path, "reason", d->reason, "usable", d->usable ? Py_True : Py_False,
                         "memory_bytes", (unsigned long long)d->memory_bytes, "shared_memory",
                         d->shared_memory ? Py_True : Py_False);
}

static PyObject *devices(PyObject *module, PyObject *nothing) {
    enum { MOST = 64 };
    openpi_device found[MOST] = {OPENPI_DEVICE_INIT};
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status;
    int count = 0;
    (void)nothing;
    Py_BEGIN_ALLOW_THREADS
    status = openpi_devices(found, MOST, &count, &error);
    Py_END_ALLOW_THREADS
    if (status != OPENPI_OK) return raise_status(PyModule_GetState(module), "", &error);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count && i < MOST; i++) {
        PyObject *item = device_dict(&found[i]);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *switches(PyObject *module, PyObject *nothing) {
    enum { MOST = 64 };
    openpi_switch found[MOST] = {OPENPI_SWITCH_INIT};
    openpi_error error = OPENPI_ERROR_INIT;
    int count = 0;
    (void)nothing;
    if (openpi_switches(found, MOST, &count, &error) != OPENPI_OK)
        return raise_status(PyModule_GetState(module), "", &error);
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < count && i < MOST; i++) {
        PyObject *text = PyUnicode_FromString(found[i].text);
        if (!text || PyDict_SetItemString(dict, found[i].name, text)) Py_CLEAR(dict);
        Py_XDECREF(text);
    }
    return dict;
}

static PyObject *inspect(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"checkpoint",      "robot",  "config",  "norm_stats",   "tokenizer",
                            "tokenizer_cache", "assets", "adapter", "without_lora", "missing_chunks_are_zero",
                            "weights",         NULL};
    PyObject *checkpoint = NULL, *norm_stats = NULL, *tokenizer = NULL, *cache = NULL;
    PyObject *adapter = NULL, *result = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status;
    char *json = NULL;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O&|$zzO&O&O&zO&ppz:inspect", names, path_or_none,
                                    &checkpoint, &options.robot, &options.config, path_or_none, &norm_stats,
                                    path_or_none, &tokenizer, path_or_none, &cache, &options.assets,
                                    path_or_none, &adapter, &options.without_lora,
                                    &options.missing_chunks_are_zero, &options.formats)) {
        options.norm_stats = path_text(norm_stats);
        options.tokenizer = path_text(tokenizer);
        options.tokenizer_cache = path_text(cache);
        options.adapter = path_text(adapter);
        Py_BEGIN_ALLOW_THREADS
        status = openpi_inspect(path_text(checkpoint), &options, &json, &error);
        Py_END_ALLOW_THREADS
        result = status == OPENPI_OK ? PyUnicode_FromString(json)
                                     : raise_status(PyModule_GetState(module), "", &error);
        openpi_free(json);
    }
    Py_XDECREF(checkpoint);
    Py_XDECREF(norm_stats);
    Py_XDECREF(tokenizer);
    Py_XDECREF(cache);
    Py_XDECREF(adapter);
    return result;
}

static PyObject *noise(PyObject *module, PyObject *arguments) {
    unsigned long long seed, stream;
    PyObject *out;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "KKO:noise", &seed, &stream, &out)) return NULL;
    if (typed_view(PyModule_GetState(module), out, "out", 'f', -1, 1, &view)) return NULL;
    openpi_noise(seed, stream, view.buf, (size_t)view.len / sizeof(float));
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *synthetic_write(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"spec", "folder", "lerobot", "threads", NULL};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    const char *spec;
    PyObject *folder = NULL, *result = NULL;
    openpi_status status;
    int lerobot = 0, threads = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "sO&|$pi:synthetic_write", names, &spec,
                                     PyUnicode_FSConverter, &folder, &lerobot, &threads))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = openpi_synthetic_parse(spec, &synthetic, &error);
    synthetic.lerobot = lerobot;
    if (status == OPENPI_OK)
        status = openpi_synthetic_write(&synthetic, path_text(folder), 0, threads, NULL, NULL, &error);
    Py_END_ALLOW_THREADS
    if (status == OPENPI_OK) result = Py_NewRef(Py_None);
    else raise_status(PyModule_GetState(module), "", &error);
    Py_DECREF(folder);
    return result;
}

#define WITH_KEYWORDS(FUNCTION) ((PyCFunction)(void (*)(void))(FUNCTION)), METH_VARARGS | METH_KEYWORDS

/* The word of a list that was probably meant, None: none. */
static PyObject *near_word(PyObject *module, PyObject *arguments) {
    enum { MOST = 64 };
    const char *word, *known[MOST];
    PyObject *list;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sO!:near_word", &word, &PyList_Type, &list)) return NULL;
    int count = 0, most = PyList_Size(list) < MOST ? (int)PyList_Size(list) : MOST;
    for (; count < most; count++) {
        known[count] = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, count), NULL);
        if (!known[count]) return NULL;
    }
    int found = openpi_near_word(word, known, count);
    if (found < 0) Py_RETURN_NONE;
    return PyUnicode_FromString(known[found]);
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, "The library's version."},
    {"devices", devices, METH_NOARGS, "The devices of this machine, a dict each."},
    {"switches", switches, METH_NOARGS, "Optimisations that can be switched off: name to text."},
    {"inspect", WITH_KEYWORDS(inspect), "Describes a checkpoint: JSON text."},
    {"near_word", near_word, METH_VARARGS, "The word of a list that was probably meant, or None."},
    {"noise", noise, METH_VARARGS, "Fills float32 `out` with the noise of (seed, stream)."},
    {"synthetic_write", WITH_KEYWORDS(synthetic_write), "Writes a synthetic checkpoint into a folder."},
    {"infer", (PyCFunction)(void (*)(void))extension_infer, METH_FASTCALL, "Observations to robot actions."},
    {NULL, NULL, 0, NULL},
};

/* ---- the module ------------------------------------------------------------------------------------- */

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyObject **type) {
    *type = PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddObjectRef(module, name, *type) : -1;
}

static int add_constants(PyObject *module) {
    PyObject *reasons = extension_reasons();
    int failed = !reasons || PyModule_AddObjectRef(module, "REASONS", reasons);
    Py_XDECREF(reasons);
    return failed || PyModule_AddIntConstant(module, "ACTION_DIM", OPENPI_ACTION_DIM) ||
           PyModule_AddIntConstant(module, "MAX_BATCH", OPENPI_MAX_BATCH);
}

static int make_words(module_state *state) {
    static const char *const texts[WORDS] = {
#define X(name, text) [name] = text,
        WORD_LIST(X)
#undef X
    };
    for (int w = 0; w < WORDS; w++)
        if (!(state->words[w] = PyUnicode_InternFromString(texts[w]))) return -1;
    for (int s = 0; s < OPENPI_STAGES; s++)
        if (!(state->stages[s] = PyUnicode_InternFromString(openpi_stage_name((openpi_stage)s)))) return -1;
    return 0;
}

static int module_start(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy) return -1;
    state->as_array = PyObject_GetAttrString(numpy, "asarray");
    state->empty = PyObject_GetAttrString(numpy, "empty");
    Py_DECREF(numpy);
    state->error =
        PyErr_NewExceptionWithDoc("openpi_c.Error",
                                  "A failure of the engine that is no other exception: a damaged file, "
                                  "a device, the system. `status` says which.",
                                  PyExc_RuntimeError, NULL);
    if (!state->as_array || !state->empty || !state->error || make_words(state) ||
        PyModule_AddObjectRef(module, "Error", state->error))
        return -1;
    if (add_type(module, &engine_spec, "Engine", &state->engine_type) ||
        add_type(module, &session_spec, "Session", &state->session_type) ||
        add_type(module, &transform_spec, "Transform", &state->transform_type) ||
        add_type(module, &request_spec, "Request", &state->request_type) ||
        add_type(module, &runner_spec, "Runner", &state->runner_type))
        return -1;
    return add_constants(module) ? -1 : 0;
}

static int module_visit(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->error);
    Py_VISIT(state->as_array);
    Py_VISIT(state->empty);
    Py_VISIT(state->engine_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->transform_type);
    Py_VISIT(state->request_type);
    Py_VISIT(state->runner_type);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->error);
    Py_CLEAR(state->as_array);
    Py_CLEAR(state->empty);
    for (int w = 0; w < WORDS; w++) Py_CLEAR(state->words[w]);
    for (int s = 0; s < OPENPI_STAGES; s++) Py_CLEAR(state->stages[s]);
    Py_CLEAR(state->engine_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->transform_type);
    Py_CLEAR(state->request_type);
    Py_CLEAR(state->runner_type);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_start}, {0, NULL}};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_openpi",
    .m_doc = "The C library openpi, its handles as objects. openpi_c is what users import.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_visit,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__openpi(void);
PyMODINIT_FUNC PyInit__openpi(void) { return PyModuleDef_Init(&definition); }
