/* Arrays that come in, through the buffer protocol: numpy's, memoryviews, and by __array__ torch's on the
 * CPU. */
#include <string.h>

#include "extension.h"

int path_or_none(PyObject *object, void *bytes_object) {
    PyObject **out = bytes_object;
    if (!object) { /* a later argument failed */
        Py_CLEAR(*out);
        return 1;
    }
    *out = NULL;
    if (object == Py_None) return Py_CLEANUP_SUPPORTED;
    return PyUnicode_FSConverter(object, out);
}

const char *path_text(PyObject *bytes_object) { return bytes_object ? PyBytes_AsString(bytes_object) : NULL; }

int word_of(const char *what, const char *word, const char *const *words, int *value) {
    *value = 0;
    if (!word) return 0;
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return *value = i + 1, 0;
    char known[100] = "", asked[48] = "";
    int count = 0;
    while (words[count]) count++;
    int near = openpi_near_word(word, words, count);
    if (near >= 0) PyOS_snprintf(asked, sizeof asked, "; did you mean \"%s\"?", words[near]);
    for (int i = 0; words[i]; i++)
        PyOS_snprintf(known + strlen(known), sizeof known - strlen(known), "%s\"%s\"",
                      !i ? "" : words[i + 1] ? ", " : " or ", words[i]);
    PyErr_Format(PyExc_ValueError, "%s is \"%s\", expected %s%s", what, word, known, asked);
    return -1;
}

char array_element(const Py_buffer *view) {
    const char *format = view->format ? view->format : "B";
    int big = 0;
    if (*format && strchr("@=<>!", *format)) big = *format == '>' || *format == '!', format++;
    if (!*format || format[1] || !strchr("?bBhHiIlLqQefd", *format)) return 0;
    return big && view->itemsize > 1 ? '>' : *format;
}

/* The exception that is set, as a sentence about `name`. */
static void explain(const char *name) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_Format(PyExc_ValueError, "\"%s\" cannot be read as an array: %S", name, value ? value : type);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

int array_view(const module_state *state, PyObject *object, const char *name, Py_buffer *view) {
    enum { KIND = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT };
    if (PyObject_CheckBuffer(object)) {
        if (!PyObject_GetBuffer(object, view, KIND)) return 0;
        if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError))
            return -1;
        PyErr_Clear();
    }
    PyObject *none = PyTuple_Pack(1, object), *order = Py_BuildValue("{s:s}", "order", "C");
    PyObject *copy = none && order ? PyObject_Call(state->as_array, none, order) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(order);
    int failed = !copy || PyObject_GetBuffer(copy, view, KIND); /* the view holds the copy */
    Py_XDECREF(copy);
    if (failed && PyErr_ExceptionMatches(PyExc_Exception)) explain(name);
    return failed ? -1 : 0;
}

int typed_view(const module_state *state, PyObject *object, const char *name, char element, Py_ssize_t count,
               int writable, Py_buffer *view) {
    int failed = writable
                     ? PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
                     : array_view(state, object, name, view);
    if (failed) {
        if (writable && PyErr_ExceptionMatches(PyExc_Exception)) explain(name);
        return -1;
    }
    char found = array_element(view);
    if ((found == 'l' || found == 'q') && view->itemsize == 4) found = 'i';
    if (found == element && (count < 0 || view->len == count * view->itemsize)) return 0;
    if (found == element)
        PyErr_Format(PyExc_ValueError, "\"%s\" has %zd elements, expected %zd", name,
                     view->len / (view->itemsize ? view->itemsize : 1), count);
    else
        PyErr_Format(PyExc_ValueError, "\"%s\" has elements of format \"%s\", expected %s", name,
                     view->format ? view->format : "B",
                     element == 'f'   ? "float32"
                     : element == 'd' ? "float64"
                     : element == 'i' ? "int32"
                                      : "uint8");
    PyBuffer_Release(view);
    return -1;
}
