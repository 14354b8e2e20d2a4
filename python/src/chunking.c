/* Real-time chunking of a sample: a tuple of Python becomes an openpi_rtc. */
#include "extension.h"

static int read_previous(const module_state *state, PyObject *object, following *out) {
    Py_buffer *view = &out->previous;
    if (array_view(state, object, "previous", view)) return -1;
    char element = array_element(view);
    Py_ssize_t rows = view->ndim == 2 ? view->shape[0] : 0, dims = view->ndim == 2 ? view->shape[1] : 0;
    int is_kept = element == 'd' && dims == OPENPI_ACTION_DIM;
    if (!is_kept && element != 'f') {
        PyErr_Format(
            PyExc_ValueError,
            "\"previous\" has elements of format \"%s\", expected float32 [steps, dimensions] or what an "
            "answer has as \"chunk\", float64 [steps, %d]",
            view->format ? view->format : "B", OPENPI_ACTION_DIM);
        return -1;
    }
    if (rows < 1 || rows > OPENPI_MAX_HORIZON || dims < 1 || dims > OPENPI_ACTION_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "\"previous\" has %zd steps of %zd numbers, expected 1 to %d of 1 to %d", rows, dims,
                     OPENPI_MAX_HORIZON, OPENPI_ACTION_DIM);
        return -1;
    }
    out->kept = is_kept ? view->buf : NULL;
    out->rtc.previous = is_kept ? NULL : view->buf;
    out->rtc.rows = (int)rows;
    out->rtc.dims = (int)dims;
    return 0;
}

/* In the order of openpi_rtc_mode and openpi_rtc_schedule, from 1 on. */
static const char *const modes[] = {"guided", "trained", "vjp", NULL};
static const char *const schedules[] = {"zeros", "ones", "linear", "exp", NULL};

const char *rtc_mode_text(openpi_rtc_mode mode) { return mode ? modes[mode - 1] : "off"; }
const char *rtc_schedule_text(openpi_rtc_schedule schedule) {
    return schedule ? schedules[schedule - 1] : "";
}

int following_read(const module_state *state, PyObject *tuple, following *out) {
    const char *mode, *schedule;
    PyObject *previous;
    int mode_value, schedule_value;
    out->rtc = (openpi_rtc)OPENPI_RTC_INIT;
    if (tuple == Py_None) return 0;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "Osizid", &previous, &mode, &out->rtc.delay, &schedule, &out->rtc.horizon,
                          &out->rtc.max_weight)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "real-time chunking is no tuple of six");
        return -1;
    }
    if (word_of("mode", mode, modes, &mode_value) ||
        word_of("schedule", schedule, schedules, &schedule_value))
        return -1;
    out->rtc.mode = (openpi_rtc_mode)mode_value;
    out->rtc.schedule = (openpi_rtc_schedule)schedule_value;
    return read_previous(state, previous, out);
}

void following_free(following *out) {
    if (out->previous.obj) PyBuffer_Release(&out->previous);
}

openpi_status following_prepare(following *out, const openpi_request *request, float *scratch,
                                openpi_error *error) {
    enum { CAPACITY = OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM };
    if (!out->kept) return OPENPI_OK;
    out->rtc.previous = scratch;
    return openpi_request_previous(request, out->kept, out->rtc.rows, 0, scratch, CAPACITY, &out->rtc.rows,
                                   &out->rtc.dims, error);
}
