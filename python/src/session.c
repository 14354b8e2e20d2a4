/* Session: the buffers of one stream of inferences, and calls of prepared samples. */
#include <string.h>
#include <time.h>

#include "extension.h"

/* ---- Session ---------------------------------------------------------------------------------------- */

static int session_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"engine", "batch", "horizon", "steps", "max_prompt", "seed", "rtc", "parts",
                            "times", NULL};
    session_object *self = (session_object *)object;
    module_state *state = state_of(object);
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session *handle = NULL;
    unsigned long long seed = 0;
    engine_object *engine;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|$iiiiKppi:Session", names, state->engine_type,
                                     &engine, &options.batch, &options.horizon, &options.steps,
                                     &options.max_prompt, &seed, &options.rtc, &options.parts,
                                     &options.times))
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
    engine_close_unused(engine);
    self->busy = 0;
    if (status != OPENPI_OK) {
        openpi_session_close(handle);
        return raise_status(state, "", &error), -1;
    }
    self->handle = handle;
    self->batch = info.batch;
    self->horizon = info.horizon;
    self->rtc = options.rtc;
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
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:K,s:K,s:i,s:O,s:s,s:K,s:K,s:K,s:K,s:K}", "batch", i.batch,
                         "horizon", i.horizon, "steps", i.steps, "max_prompt", i.max_prompt, "bytes",
                         (unsigned long long)i.bytes, "runs", (unsigned long long)i.runs, "operations",
                         i.operations, "recorded", i.recorded ? Py_True : Py_False, "not_recorded",
                         i.not_recorded, "prefixes_kept", (unsigned long long)i.prefixes_kept,
                         "ranges_recorded", (unsigned long long)i.ranges_recorded, "w8_clipped",
                         (unsigned long long)i.w8_clipped, "w8_clipped_rows",
                         (unsigned long long)i.w8_clipped_rows, "w8_not_finite",
                         (unsigned long long)i.w8_not_finite);
}

/* ---- the model level -------------------------------------------------------------------------------- */

/* The samples of a run and the buffers that they point to. */
typedef struct sample_list {
    openpi_sample samples[OPENPI_MAX_BATCH];
    Py_buffer views[OPENPI_MAX_BATCH][OPENPI_CAMERAS + 2];
    following follows[OPENPI_MAX_BATCH];
    Py_buffer noise, actions;
    int count;
    int chunks;                  /* a sample; 0: an ordinary run                                          */
    int rtc;                     /* 1: with real-time chunking                                           */
} sample_list;

static void release(Py_buffer *view) {
    if (view->obj) PyBuffer_Release(view);
    view->obj = NULL;
}

static void free_samples(sample_list *list) {
    for (int b = 0; b < list->count; b++)
        for (int v = 0; v < OPENPI_CAMERAS + 2; v++) release(&list->views[b][v]);
    for (int b = 0; b < list->count; b++) following_free(&list->follows[b]);
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

static int take_samples(PyObject *object, PyObject *tuples, sample_list *list) {
    const module_state *state = state_of(object);
    Py_ssize_t count = PyTuple_Size(tuples);
    if (count < 1 || count > OPENPI_MAX_BATCH) {
        PyErr_Format(PyExc_ValueError, "%zd samples, expected 1 to %d", count, OPENPI_MAX_BATCH);
        return -1;
    }
    for (Py_ssize_t b = 0; b < count; b++, list->count++)
        if (take_sample(state, PyTuple_GetItem(tuples, b), &list->samples[b], list->views[b])) {
            list->count++;
            return -1;
        }
    return 0;
}

static int take_arrays(PyObject *object, PyObject *noise, PyObject *actions, sample_list *list) {
    const session_object *self = (session_object *)object;
    const module_state *state = state_of(object);
    if (list->chunks < 0 || list->chunks > OPENPI_MAX_BATCH) {
        PyErr_Format(PyExc_ValueError, "%d chunks, expected 1 to %d", list->chunks, OPENPI_MAX_BATCH);
        return -1;
    }
    Py_ssize_t elements = (Py_ssize_t)list->count * (list->chunks ? list->chunks : 1) * self->horizon *
                          OPENPI_ACTION_DIM;
    if (noise != Py_None && typed_view(state, noise, "noise", 'f', elements, 0, &list->noise)) return -1;
    return typed_view(state, actions, "actions", 'f', elements, 1, &list->actions);
}

double extension_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Milliseconds of the stages, of the device and in all. */
static PyObject *timing_tuple(const openpi_timing *t) {
    double ms[OPENPI_STAGES + 2];
    memcpy(ms, t->stage_ms, OPENPI_STAGES * sizeof *ms);
    ms[OPENPI_STAGES] = t->device_ms;
    ms[OPENPI_STAGES + 1] = t->total_ms;
    PyObject *tuple = PyTuple_New(OPENPI_STAGES + 2);
    for (int i = 0; tuple && i < OPENPI_STAGES + 2; i++)
        if (PyTuple_SetItem(tuple, i, PyFloat_FromDouble(ms[i]))) Py_CLEAR(tuple);
    return tuple;
}

/* A tuple of real-time chunking a sample, or None: no sample has it. `previous` is in model space here. */
static int take_following(const module_state *state, PyObject *rtc, sample_list *list) {
    if (rtc == Py_None) return 0;
    if (!PyTuple_Check(rtc) || PyTuple_Size(rtc) != list->count) {
        PyErr_Format(PyExc_ValueError, "real-time chunking is of %R, expected None or a tuple of %d",
                     Py_TYPE(rtc),
                     list->count);
        return -1;
    }
    list->rtc = 1;
    for (int b = 0; b < list->count; b++) {
        if (following_read(state, PyTuple_GetItem(rtc, b), &list->follows[b])) return -1;
        if (!list->follows[b].kept) continue;
        PyErr_SetString(PyExc_ValueError, "\"previous\" is float64, expected float32 in model space");
        return -1;
    }
    return 0;
}

static openpi_status run_samples(session_object *self, sample_list *list, openpi_timing *timing,
                                 openpi_error *error) {
    openpi_rtc rtc[OPENPI_MAX_BATCH];
    for (int b = 0; b < list->count; b++) rtc[b] = list->follows[b].rtc;
    if (list->chunks)
        return openpi_session_run_many(self->handle, list->samples, list->count, list->chunks,
                                       list->noise.buf, list->actions.buf, timing, error);
    if (!list->rtc)
        return openpi_session_run(self->handle, list->samples, list->count, list->noise.buf,
                                  list->actions.buf, timing, error);
    return openpi_session_run_rtc(self->handle, list->samples, rtc, list->count, list->noise.buf,
                                  list->actions.buf, timing, error);
}

/* 1; 0 with an exception where it is closed or another thread uses it. */
static int is_usable(PyObject *object) {
    const session_object *self = (session_object *)object;
    if (!self->handle) return raise_closed("the session"), 0;
    if (self->busy) return raise_busy(state_of(object), "the session"), 0;
    return 1;
}

static PyObject *session_run(PyObject *object, PyObject *arguments) {
    session_object *self = (session_object *)object;
    PyObject *tuples, *noise, *actions, *rtc = Py_None;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status = OPENPI_OK;
    sample_list *list = PyMem_Calloc(1, sizeof *list);
    if (!list) return PyErr_NoMemory();
    int failed = !PyArg_ParseTuple(arguments, "O!OO|Oi:run", &PyTuple_Type, &tuples, &noise, &actions, &rtc,
                                   &list->chunks) ||
                 take_samples(object, tuples, list) || take_arrays(object, noise, actions, list) ||
                 take_following(state_of(object), rtc, list) || !is_usable(object);
    if (!failed) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        status = run_samples(self, list, &timing, &error);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    free_samples(list);
    if (failed) return NULL;
    return status == OPENPI_OK ? timing_tuple(&timing)
                               : raise_status(state_of(object), "", &error);
}

static PyObject *session_prefix(PyObject *object, PyObject *arguments) {
    session_object *self = (session_object *)object;
    PyObject *tuples;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status = OPENPI_OK;
    sample_list *list = PyMem_Calloc(1, sizeof *list);
    if (!list) return PyErr_NoMemory();
    int failed = !PyArg_ParseTuple(arguments, "O!i:prefix", &PyTuple_Type, &tuples, &list->chunks) ||
                 take_samples(object, tuples, list) || !is_usable(object);
    if (!failed) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        status = openpi_session_prefix(self->handle, list->samples, list->count, list->chunks, &timing,
                                       &error);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    free_samples(list);
    if (failed) return NULL;
    return status == OPENPI_OK ? timing_tuple(&timing) : raise_status(state_of(object), "", &error);
}

/* x [count, H, 32], which is written; returns count, -1: raised. */
static Py_ssize_t view_x(PyObject *object, PyObject *x, Py_buffer *view) {
    int horizon = ((session_object *)object)->horizon;
    if (typed_view(state_of(object), x, "x", 'f', -1, 1, view)) return -1;
    Py_ssize_t one = (Py_ssize_t)sizeof(float) * horizon * OPENPI_ACTION_DIM, count = view->len / one;
    if (count * one == view->len && count >= 1 && count <= OPENPI_MAX_BATCH) return count;
    PyErr_Format(PyExc_ValueError, "\"x\" has %zd bytes, expected float32 [1 to %d, %d, %d]", view->len,
                 OPENPI_MAX_BATCH, horizon, OPENPI_ACTION_DIM);
    PyBuffer_Release(view);
    return -1;
}

/* (x [count, H, 32], first, last) -> times. */
static PyObject *session_denoise(PyObject *object, PyObject *arguments) {
    session_object *self = (session_object *)object;
    PyObject *x;
    Py_buffer view = {0};
    int from, to;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status;
    if (!PyArg_ParseTuple(arguments, "Oii:denoise", &x, &from, &to) || !is_usable(object)) return NULL;
    Py_ssize_t count = view_x(object, x, &view);
    if (count < 0) return NULL;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    status = openpi_session_denoise(self->handle, view.buf, (int)count, from, to, &timing, &error);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    PyBuffer_Release(&view);
    return status == OPENPI_OK ? timing_tuple(&timing) : raise_status(state_of(object), "", &error);
}

/* (x [count, H, 32], times [count, H], dt [count, H]) -> times. */
static PyObject *session_step(PyObject *object, PyObject *arguments) {
    session_object *self = (session_object *)object;
    module_state *state = state_of(object);
    PyObject *x, *times, *dt;
    Py_buffer view = {0}, of_times = {0}, of_dt = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status = OPENPI_OK;
    if (!PyArg_ParseTuple(arguments, "OOO:step", &x, &times, &dt) || !is_usable(object)) return NULL;
    Py_ssize_t count = view_x(object, x, &view), rows = count * self->horizon;
    if (count < 0) return NULL;
    int failed = typed_view(state, times, "times", 'f', rows, 0, &of_times) ||
                 typed_view(state, dt, "dt", 'f', rows, 0, &of_dt);
    if (!failed) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        status = openpi_session_step(self->handle, view.buf, (int)count, of_times.buf, of_dt.buf, &timing,
                                     &error);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&of_times);
    PyBuffer_Release(&of_dt);
    if (failed) return NULL;
    return status == OPENPI_OK ? timing_tuple(&timing) : raise_status(state, "", &error);
}

static PyObject *session_closed(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(!((session_object *)object)->handle);
}

static PyObject *session_is_busy(PyObject *object, void *nothing) {
    (void)nothing;
    return PyBool_FromLong(((session_object *)object)->busy);
}

static PyObject *session_horizon(PyObject *object, void *nothing) {
    (void)nothing;
    return PyLong_FromLong(((session_object *)object)->horizon);
}

static PyMethodDef session_methods[] = {
    {"close", session_close, METH_NOARGS, "Frees the session's memory."},
    {"info", session_info, METH_NOARGS, "Its sizes and what it has run, a dict."},
    {"run_into", session_run, METH_VARARGS,
     "Runs samples: (samples, noise or None, actions, rtc or None, chunks of each or 0) -> times."},
    {"prefix", session_prefix, METH_VARARGS, "Keeps samples' prefix: (samples, chunks of each) -> times."},
    {"denoise_into", session_denoise, METH_VARARGS, "Euler steps: (x, first, last) -> times."},
    {"step_into", session_step, METH_VARARGS, "A step, a time a row: (x, times, dt) -> times."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef session_getset[] = {
    {"closed", session_closed, NULL, NULL, NULL},
    {"busy", session_is_busy, NULL, NULL, NULL},
    {"horizon", session_horizon, NULL, NULL, NULL},
    {0},
};

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
