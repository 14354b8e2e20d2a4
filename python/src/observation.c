/* An observation of Python, a dict in openpi's form, as the fields of openpi.h.
 *
 * Arrays are not copied where they lie contiguously; the dict and what it holds are never changed. Maps
 * inside maps are flattened: {"images": {"cam_high": …}} has the field "images/cam_high". */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "extension.h"

enum { DEPTH = 8, NAME = 160, FIELDS = 256 };

/* What a field points to. */
struct held {
    char name[NAME];
    PyObject *owner; /* of a text                                                            */
    Py_buffer view;  /* of an array; obj NULL: none                                          */
    double *numbers; /* converted                                                            */
    double number;
};

static int read_map(const module_state *state, PyObject *map, const char *prefix, int depth,
                    observation *out);

static struct held *add(observation *out, const char *name) {
    if (out->count == FIELDS) {
        PyErr_Format(PyExc_ValueError, "the observation has more than %d values", FIELDS);
        return NULL;
    }
    if (out->count == out->capacity) {
        int capacity = out->capacity ? 2 * out->capacity : 8;
        struct held *held = PyMem_Realloc(out->held, (size_t)capacity * sizeof *held);
        if (held) out->held = held;
        openpi_field *fields = PyMem_Realloc(out->fields, (size_t)capacity * sizeof *fields);
        if (fields) out->fields = fields;
        if (!held || !fields) return (struct held *)PyErr_NoMemory();
        out->capacity = capacity;
    }
    struct held *held = &out->held[out->count];
    memset(held, 0, sizeof *held);
    memcpy(held->name, name, strlen(name) + 1);
    out->fields[out->count++] = (openpi_field)OPENPI_FIELD_INIT;
    return held;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static int add_text(PyObject *text, const char *name, observation *out) {
    Py_ssize_t bytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (!utf8) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "\"%s\" has a character that UTF-8 does not have", name);
        return -1;
    }
    struct held *held = add(out, name);
    if (!held) return -1;
    held->owner = Py_NewRef(text);
    out->fields[out->count - 1].text = utf8;
    out->fields[out->count - 1].text_length = (size_t)bytes;
    return 0;
}

/* Room for `count` converted numbers of a field of this rank, 0 or 1. */
static double *add_numbers(const char *name, Py_ssize_t count, int rank, observation *out) {
    struct held *held = add(out, name);
    if (!held) return NULL;
    held->numbers = PyMem_Malloc((size_t)(count ? count : 1) * sizeof(double));
    if (!held->numbers) return (double *)PyErr_NoMemory();
    openpi_field *field = &out->fields[out->count - 1];
    field->data = held->numbers;
    field->element = OPENPI_FLOAT64;
    field->rank = rank;
    field->shape[0] = count;
    return held->numbers;
}

static int add_number(PyObject *number, const char *name, observation *out) {
    double value = PyFloat_AsDouble(number);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "\"%s\" is a number that a float64 does not hold", name);
        return -1;
    }
    double *numbers = add_numbers(name, 1, 0, out);
    if (numbers) *numbers = value;
    return numbers ? 0 : -1;
}

static int add_list(PyObject *list, const char *name, observation *out) {
    Py_ssize_t count = PySequence_Size(list);
    double *numbers = count < 0 ? NULL : add_numbers(name, count, 1, out);
    for (Py_ssize_t i = 0; numbers && i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        double value = item ? PyFloat_AsDouble(item) : -1;
        if (value == -1 && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) numbers = NULL;
            else
                PyErr_Clear(), PyErr_Format(PyExc_ValueError,
                                            "\"%s\"[%zd] is %s, expected a number or an array "
                                            "in place of the list",
                                            name, i, item ? "no number" : "missing");
            Py_XDECREF(item);
            return -1;
        }
        Py_DECREF(item);
        numbers[i] = value;
    }
    return numbers ? 0 : -1;
}

static double half_to_double(unsigned short bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = !exponent       ? ldexp(fraction, -24)
                   : exponent < 31 ? ldexp(fraction + 1024, exponent - 25)
                   : fraction      ? (double)NAN
                                   : (double)INFINITY;
    return bits & 0x8000 ? -value : value;
}

/* Element i of a contiguous buffer. */
static double element_at(const Py_buffer *view, char element, Py_ssize_t i) {
    const char *at = (const char *)view->buf + i * view->itemsize;
    union {
        short h;
        unsigned short H;
        int i;
        unsigned I;
        long l;
        unsigned long L;
        long long q;
        unsigned long long Q;
        float f;
        double d;
    } v;
    memcpy(&v, at, (size_t)view->itemsize < sizeof v ? (size_t)view->itemsize : sizeof v);
    switch (element) {
    case '?': return *at != 0;
    case 'b': return *(const signed char *)at;
    case 'B': return *(const unsigned char *)at;
    case 'h': return v.h;
    case 'H': return v.H;
    case 'i': return v.i;
    case 'I': return v.I;
    case 'l': return (double)v.l;
    case 'L': return (double)v.L;
    case 'q': return (double)v.q;
    case 'Q': return (double)v.Q;
    case 'e': return half_to_double(v.H);
    case 'f': return (double)v.f;
    default: return v.d;
    }
}

static int refuse_elements(const Py_buffer *view, const char *name, char element) {
    if (element == '>')
        PyErr_Format(PyExc_ValueError, "\"%s\" has big-endian numbers, expected the machine's order", name);
    else
        PyErr_Format(PyExc_ValueError,
                     "\"%s\" is an array of format \"%s\", expected uint8, float32 or float64", name,
                     view->format ? view->format : "B");
    return -1;
}

/* Takes the view over. */
static int add_view(Py_buffer *view, const char *name, observation *out) {
    char element = array_element(view);
    int plain = element == 'B' || element == 'f' || element == 'd';
    openpi_element as = element == 'B' ? OPENPI_U8 : element == 'f' ? OPENPI_FLOAT32 : OPENPI_FLOAT64;
    if (view->ndim > 8 || !element || element == '>' || (!plain && view->ndim > 1))
        return refuse_elements(view, name, element);
    if (!plain || !view->ndim) {
        Py_ssize_t count = view->len / view->itemsize;
        double *numbers = add_numbers(name, count, view->ndim, out);
        for (Py_ssize_t i = 0; numbers && i < count; i++) numbers[i] = element_at(view, element, i);
        PyBuffer_Release(view);
        return numbers ? 0 : -1;
    }
    struct held *held = add(out, name);
    if (!held) return -1;
    held->view = *view;
    view->obj = NULL;
    openpi_field *field = &out->fields[out->count - 1];
    field->data = held->view.buf;
    field->element = as;
    field->rank = held->view.ndim;
    for (int i = 0; i < field->rank; i++) field->shape[i] = held->view.shape[i];
    return 0;
}

/* A 0-d array of text: what its item() is. */
static int add_item(PyObject *array, const char *name, observation *out) {
    PyObject *item = PyObject_CallMethod(array, "item", NULL);
    if (item && PyUnicode_Check(item)) {
        int failed = add_text(item, name, out);
        Py_DECREF(item);
        return failed;
    }
    if (item || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "\"%s\" is an array that holds %s, expected text or numbers", name,
                     item && PyBytes_Check(item) ? "bytes" : "neither text nor a number");
    }
    Py_XDECREF(item);
    return -1;
}

static int add_array(const module_state *state, PyObject *array, const char *name, observation *out) {
    Py_buffer view;
    if (array_view(state, array, name, &view)) return -1;
    int failed =
        !array_element(&view) && !view.ndim ? add_item(array, name, out) : add_view(&view, name, out);
    if (view.obj) PyBuffer_Release(&view);
    return failed;
}

static int add_value(const module_state *state, PyObject *value, const char *name, int depth,
                     observation *out) {
    if (value == Py_None) return 0;
    if (PyUnicode_Check(value)) return add_text(value, name, out);
    if (PyDict_Check(value)) return read_map(state, value, name, depth + 1, out);
    if (PyFloat_Check(value) || PyLong_Check(value)) return add_number(value, name, out);
    if (PyBytes_Check(value) || PyByteArray_Check(value)) {
        PyErr_Format(PyExc_TypeError, "\"%s\" is bytes, expected text (str), a number or an array", name);
        return -1;
    }
    if (PyObject_CheckBuffer(value) || PyObject_HasAttrString(value, "__array__"))
        return add_array(state, value, name, out);
    if (PyList_Check(value) || PyTuple_Check(value)) return add_list(value, name, out);
    if (PyMapping_Check(value) && PyObject_HasAttrString(value, "items"))
        return read_map(state, value, name, depth + 1, out);
    PyErr_Format(PyExc_TypeError,
                 "\"%s\" is of a type that an observation cannot have (%R), expected text, a "
                 "number, an array or a dict",
                 name, Py_TYPE(value));
    return -1;
}

/* ---- maps ---------------------------------------------------------------------------------------------- */

static int join(const char *prefix, PyObject *key, char name[NAME]) {
    Py_ssize_t bytes;
    const char *text = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &bytes) : NULL;
    if (!text || !bytes || strlen(text) != (size_t)bytes) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "the observation has a key %R in \"%s\", expected text", key, prefix);
        return -1;
    }
    size_t before = strlen(prefix);
    if (before + (size_t)bytes + 2 > NAME) {
        PyErr_Format(PyExc_ValueError, "the observation has a key of %zd bytes in \"%s\", expected fewer",
                     bytes, prefix);
        return -1;
    }
    memcpy(name, prefix, before);
    if (before) name[before++] = '/';
    memcpy(name + before, text, (size_t)bytes + 1);
    return 0;
}

static int read_map(const module_state *state, PyObject *map, const char *prefix, int depth,
                    observation *out) {
    if (depth > DEPTH) {
        PyErr_Format(PyExc_ValueError, "the observation has more than %d dicts inside each other", DEPTH);
        return -1;
    }
    PyObject *items = PyMapping_Items(map);
    Py_ssize_t count = items ? PyList_Size(items) : -1;
    int failed = count < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        char name[NAME];
        PyObject *item = PyList_GetItem(items, i); /* borrowed */
        if (!PyTuple_Check(item) || PyTuple_Size(item) != 2) {
            PyErr_Format(PyExc_TypeError, "the items of \"%s\" are no pairs of key and value", prefix);
            failed = 1;
        } else {
            failed = join(prefix, PyTuple_GetItem(item, 0), name) ||
                     add_value(state, PyTuple_GetItem(item, 1), name, depth, out);
        }
    }
    Py_XDECREF(items);
    return failed ? -1 : 0;
}

int observation_read(const module_state *state, PyObject *object, observation *out) {
    if (PyBytes_Check(object)) {
        out->message = PyBytes_AsString(object);
        out->message_bytes = PyBytes_Size(object);
        out->owner = Py_NewRef(object);
        return 0;
    }
    if (!PyDict_Check(object) && !(PyMapping_Check(object) && PyObject_HasAttrString(object, "items"))) {
        PyErr_Format(PyExc_TypeError, "the observation is of %R, expected a dict", Py_TYPE(object));
        return -1;
    }
    if (read_map(state, object, "", 0, out)) return -1;
    for (int i = 0; i < out->count; i++) out->fields[i].name = out->held[i].name;
    return 0;
}

void observation_free(observation *out) {
    for (int i = 0; i < out->count; i++) {
        Py_XDECREF(out->held[i].owner);
        if (out->held[i].view.obj) PyBuffer_Release(&out->held[i].view);
        PyMem_Free(out->held[i].numbers);
    }
    PyMem_Free(out->held);
    PyMem_Free(out->fields);
    Py_XDECREF(out->owner);
    memset(out, 0, sizeof *out);
}

openpi_status observation_prepare(const observation *observation, openpi_request *request,
                                  openpi_timing *timing, openpi_error *error) {
    if (observation->message)
        return openpi_request_prepare_msgpack(request, observation->message,
                                              (size_t)observation->message_bytes, timing, error);
    return openpi_request_prepare_fields(request, observation->fields, observation->count, timing, error);
}
