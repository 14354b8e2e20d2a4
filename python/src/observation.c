/* An observation of Python, a dict in openpi's form, as the fields of openpi.h.
 *
 * Arrays are not copied where they lie contiguously; the dict and what it holds are never changed. Maps
 * inside maps are flattened: {"images": {"cam_high": …}} has the field "images/cam_high". A value of a type
 * that no key has becomes a field that says so (`unknown`): the engine ignores it, or refuses it where it
 * reads the key. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "extension.h"

enum { DEPTH = 8, NAME = 160, FIELDS = 256 };

/* What a field points to. */
struct held {
    char name[NAME];
    PyObject *owner; /* owner of a text                                                      */
    Py_buffer view;  /* view of an array; obj NULL: none                                     */
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

/* A value that no key has. Takes `what` over, which says what it is; NULL with an exception. */
static int add_unknown(PyObject *what, const char *name, observation *out) {
    const char *utf8 = what ? PyUnicode_AsUTF8AndSize(what, NULL) : NULL;
    struct held *held = utf8 ? add(out, name) : NULL;
    if (!held) {
        Py_XDECREF(what);
        return -1;
    }
    held->owner = what;
    out->fields[out->count - 1].unknown = utf8;
    return 0;
}

/* The same with the exception that is set, unless it is none that a value raises (KeyboardInterrupt). */
static int add_failed(const char *before, const char *name, observation *out) {
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *what = PyUnicode_FromFormat("%s (%S)", before, value ? value : type);
    if (!what && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        what = PyUnicode_FromString(before);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return add_unknown(what, name, out);
}

static int add_text(PyObject *text, const char *name, observation *out) {
    Py_ssize_t bytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (!utf8) {
        PyErr_Clear();
        return add_unknown(PyUnicode_FromString("text with a character that UTF-8 does not have"), name, out);
    }
    struct held *held = add(out, name);
    if (!held) return -1;
    held->owner = Py_NewRef(text);
    out->fields[out->count - 1].text = utf8;
    out->fields[out->count - 1].text_length = (size_t)bytes;
    return 0;
}

/* Bytes: a text, where they are UTF-8. */
static int add_bytes(PyObject *object, const char *name, observation *out) {
    PyObject *bytes = PyBytes_FromObject(object);
    struct held *held = bytes ? add(out, name) : NULL;
    if (!held) {
        Py_XDECREF(bytes);
        return -1;
    }
    held->owner = bytes;
    out->fields[out->count - 1].text = PyBytes_AsString(bytes);
    out->fields[out->count - 1].text_length = (size_t)PyBytes_Size(bytes);
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
        return add_unknown(PyUnicode_FromString("a number that a float64 does not hold"), name, out);
    }
    double *numbers = add_numbers(name, 1, 0, out);
    if (numbers) *numbers = value;
    return numbers ? 0 : -1;
}

/* The numbers of the list. Returns the place of the first that is none, `count` where all are, -1 with an
 * exception. */
static Py_ssize_t read_list(PyObject *list, Py_ssize_t count, double *numbers) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        double value = item ? PyFloat_AsDouble(item) : -1;
        Py_XDECREF(item);
        if (value == -1 && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
            PyErr_Clear();
            return i;
        }
        numbers[i] = value;
    }
    return count;
}

static int add_list(PyObject *list, const char *name, observation *out) {
    Py_ssize_t count = PySequence_Size(list);
    double *numbers = count < 0 ? NULL : add_numbers(name, count, 1, out);
    Py_ssize_t read = numbers ? read_list(list, count, numbers) : -1;
    if (read < 0) return -1;
    if (read == count) return 0;
    PyMem_Free(numbers);                                                 /* the field becomes another one */
    out->held[--out->count].numbers = NULL;
    return add_unknown(PyUnicode_FromFormat("a list whose element %zd is no number", read), name, out);
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

static int add_odd_array(const Py_buffer *view, const char *name, char element, observation *out) {
    if (element == '>')
        return add_unknown(PyUnicode_FromString("an array of big-endian numbers"), name, out);
    return add_unknown(PyUnicode_FromFormat("an array of format \"%s\" with %d dimensions",
                                            view->format ? view->format : "B", view->ndim), name, out);
}

/* Takes the view over. */
static int add_view(Py_buffer *view, const char *name, observation *out) {
    char element = array_element(view);
    int plain = element == 'B' || element == 'f' || element == 'd' || (element == 'e' && view->ndim > 1);
    openpi_element as = element == 'B'   ? OPENPI_U8
                        : element == 'f' ? OPENPI_FLOAT32
                        : element == 'e' ? OPENPI_FLOAT16
                                         : OPENPI_FLOAT64;
    if (view->ndim > 8 || !element || element == '>' || (!plain && view->ndim > 1))
        return add_odd_array(view, name, element, out);
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

/* An array of one element that is no number: the text that its item() is, as openpi takes it. */
static int add_item(PyObject *array, const char *name, observation *out) {
    PyObject *item = PyObject_CallMethod(array, "item", NULL);
    if (!item) return add_failed("an array that holds neither text nor numbers", name, out);
    int failed = PyUnicode_Check(item) ? add_text(item, name, out)
                 : PyBytes_Check(item) ? add_bytes(item, name, out)
                                       : add_unknown(PyUnicode_FromFormat("an array that holds %R",
                                                                          Py_TYPE(item)), name, out);
    Py_DECREF(item);
    return failed;
}

static int add_array(const module_state *state, PyObject *array, const char *name, observation *out) {
    Py_buffer view;
    if (array_view(state, array, name, &view)) return add_failed("no array", name, out);
    int is_one = view.itemsize && view.len == view.itemsize;
    int failed = !array_element(&view) && is_one ? add_item(array, name, out) : add_view(&view, name, out);
    if (view.obj) PyBuffer_Release(&view);
    return failed;
}

/* A dict inside another: what a camera's key may not hold, and its entries. */
static int add_map(const module_state *state, PyObject *map, const char *name, int depth, observation *out) {
    Py_ssize_t count = PyMapping_Size(map);
    if (count < 0) return add_failed("a dict that cannot be read", name, out);
    PyObject *what = count ? PyUnicode_FromFormat("a dict with %zd entries", count)
                           : PyUnicode_FromString("an empty dict");
    return add_unknown(what, name, out) ? -1 : read_map(state, map, name, depth, out);
}

static int add_value(const module_state *state, PyObject *value, const char *name, int depth,
                     observation *out) {
    if (value == Py_None) return add_unknown(PyUnicode_FromString("None"), name, out);
    if (PyUnicode_Check(value)) return add_text(value, name, out);
    if (PyDict_Check(value)) return add_map(state, value, name, depth + 1, out);
    if (PyFloat_Check(value) || PyLong_Check(value)) return add_number(value, name, out);
    if (PyBytes_Check(value) || PyByteArray_Check(value)) return add_bytes(value, name, out);
    if (PyObject_CheckBuffer(value) || PyObject_HasAttrString(value, "__array__"))
        return add_array(state, value, name, out);
    if (PyList_Check(value) || PyTuple_Check(value)) return add_list(value, name, out);
    if (PyMapping_Check(value) && PyObject_HasAttrString(value, "items"))
        return add_map(state, value, name, depth + 1, out);
    return add_unknown(PyUnicode_FromFormat("of %R", Py_TYPE(value)), name, out);
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
