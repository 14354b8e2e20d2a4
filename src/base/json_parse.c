/* From JSON text to a jansson value: one sentence where the text is broken, OPENPI_NO_MEMORY where memory is
 * exhausted.
 *
 * Note: jansson's own parser is not used. Up to version 2.14 its lexer does not notice a failing allocation
 * and writes the next characters past the buffer's end. Its values have no such fault. */
#include "base/ascii.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 100 };

typedef struct reader {
    const char *text;
    size_t bytes, at;
    int depth;
    char *scratch;               /* a string or number being decoded */
    size_t capacity;
    const char *why;             /* the first fault; NULL with a failure: no memory */
    const json_rules *rules;
} reader;

static json_t *read_value(reader *r);

static json_t *fail(reader *r, const char *why) {
    if (!r->why) r->why = why;
    return NULL;
}

static int peek(const reader *r) {
    return r->at < r->bytes ? (unsigned char)r->text[r->at] : -1;
}

static int skip_space(reader *r) {
    while (r->at < r->bytes && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
    return peek(r);
}

/* 1 if `bytes` fit the scratch. */
static int reserve(reader *r, size_t bytes) {
    if (bytes <= r->capacity) return 1;
    size_t capacity = bytes < 256 ? 256 : bytes * 2;
    char *grown = malloc(capacity);
    if (!grown) return 0;
    free(r->scratch);
    r->scratch = grown;
    r->capacity = capacity;
    return 1;
}

/* ---- strings -------------------------------------------------------------------------------------- */

/* Four hexadecimal digits; -1 if there are none. */
static long read_hex(reader *r) {
    long code = 0;
    if (r->bytes - r->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = r->text[r->at++];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* After "\u": one character, from two escapes above U+FFFF. Never longer than the escapes. */
static size_t read_unicode(reader *r, char *out) {
    long code = read_hex(r);
    if (code < 0) return fail(r, "invalid escape"), 0;
    if (!code && !r->rules->nul) return fail(r, "\\u0000 is not allowed"), 0;
    if (code >= 0xd800 && code <= 0xdbff) {
        if (r->bytes - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u')
            return fail(r, "invalid Unicode surrogate"), 0;
        r->at += 2;
        long low = read_hex(r);
        if (low < 0xdc00 || low > 0xdfff) return fail(r, "invalid Unicode surrogate"), 0;
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return fail(r, "invalid Unicode surrogate"), 0;
    }
    return utf8_encode((uint32_t)code, out);
}

static size_t read_escape(reader *r, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    const char *known = c > 0 ? strchr(names, c) : NULL;
    r->at++;
    if (c == 'u') return read_unicode(r, out);
    if (!known) return fail(r, "invalid escape"), 0;
    *out = values[known - names];
    return 1;
}

/* At an opening quote: the decoded string is in the scratch, NUL-terminated. 1 if all is well. */
static int read_string(reader *r, size_t *length) {
    size_t end = r->at + 1, out = 0;
    while (end < r->bytes && r->text[end] != '"') end += r->text[end] == '\\' ? 2 : 1;
    if (end >= r->bytes) return fail(r, "premature end of input in a string"), 0;
    if (!reserve(r, end - r->at)) return 0;
    for (r->at++; r->text[r->at] != '"';) {
        unsigned char c = (unsigned char)r->text[r->at];
        uint32_t code;
        size_t taken;
        if (c < 0x20) return fail(r, "control character in a string"), 0;
        if (c == '\\') {
            r->at++;
            taken = read_escape(r, r->scratch + out);
            if (!taken) return 0;
            out += taken;
            continue;
        }
        taken = utf8_decode(r->text + r->at, r->bytes - r->at, &code);
        if (!taken) return fail(r, "the text is not UTF-8"), 0;
        memcpy(r->scratch + out, r->text + r->at, taken);
        out += taken;
        r->at += taken;
    }
    r->at++;
    r->scratch[out] = 0;
    *length = out;
    return 1;
}

/* ---- numbers and words ----------------------------------------------------------------------------- */

static size_t digits(const reader *r, size_t at) {
    while (at < r->bytes && r->text[at] >= '0' && r->text[at] <= '9') at++;
    return at;
}

/* The end of a number by JSON's grammar; 0 if there is none. */
static size_t number_end(const reader *r, int *real) {
    size_t at = r->at + (r->text[r->at] == '-'), end = digits(r, at);
    if (end == at || (r->text[at] == '0' && end > at + 1)) return 0;
    *real = 0;
    if (end < r->bytes && r->text[end] == '.') {
        at = end + 1;
        end = digits(r, at);
        if (end == at) return 0;
        *real = 1;
    }
    if (end < r->bytes && (r->text[end] == 'e' || r->text[end] == 'E')) {
        at = end + 1;
        if (at < r->bytes && (r->text[at] == '+' || r->text[at] == '-')) at++;
        end = digits(r, at);
        if (end == at) return 0;
        *real = 1;
    }
    return end;
}

static json_t *read_number(reader *r) {
    int real = 0;
    size_t end = number_end(r, &real), length = end - r->at;
    if (!end && r->bytes - r->at > 1 && strchr("IiNn", r->text[r->at + 1]))
        return fail(r, "NaN or Infinity, expected a finite number");
    if (!end) return fail(r, "invalid number");
    if (!reserve(r, length + 1)) return NULL;
    memcpy(r->scratch, r->text + r->at, length);
    r->scratch[length] = 0;
    errno = 0;
    if (real) {
        double value = ascii_number(r->scratch, NULL);
        if (!isfinite(value)) return fail(r, "real number overflow");
        r->at = end;
        return json_real(value);
    }
    long long value = strtoll(r->scratch, NULL, 10);
    if (errno == ERANGE) return fail(r, "too big an integer");
    r->at = end;
    return json_integer(value);
}

static json_t *read_word(reader *r) {
    static const struct {
        const char *text;
        json_t *(*make)(void);
    } words[] = {{"true", json_true}, {"false", json_false}, {"null", json_null}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].text);
        if (r->bytes - r->at < length || memcmp(r->text + r->at, words[i].text, length)) continue;
        r->at += length;
        return words[i].make();
    }
    static const char *const numbers[] = {"NaN", "nan", "Infinity", "inf"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        size_t length = strlen(numbers[i]);
        if (r->bytes - r->at >= length && !memcmp(r->text + r->at, numbers[i], length))
            return fail(r, "NaN or Infinity, expected a finite number");
    }
    return fail(r, peek(r) < 0 ? "premature end of input" : "a value is expected");
}

/* ---- arrays and objects ---------------------------------------------------------------------------- */

/* Takes ',' or the closing bracket; 1: go on, 0: closed, -1: neither. */
static int next_item(reader *r, int close) {
    int c = skip_space(r);
    if (c != ',' && c != close) {
        fail(r, c < 0          ? "premature end of input"
                : close == ']' ? "',' or ']' is expected"
                               : "',' or '}' is expected");
        return -1;
    }
    r->at++;
    return c == ',';
}

static int read_item(reader *r, json_t *array) {
    json_t *value = read_value(r);
    return value && !json_array_append_new(array, value);
}

static int read_member(reader *r, json_t *object) {
    size_t length;
    if (skip_space(r) != '"')
        return fail(r, peek(r) < 0 ? "premature end of input" : "a string or '}' is expected"), 0;
    if (!read_string(r, &length)) return 0;
    if (strlen(r->scratch) != length) return fail(r, "\\u0000 is not allowed in a key"), 0;
    if (json_object_get(object, r->scratch)) return fail(r, "duplicate object key"), 0;
    char *key = malloc(length + 1);
    if (!key) return 0;
    memcpy(key, r->scratch, length + 1);
    json_t *value = NULL;
    if (skip_space(r) != ':') fail(r, "':' is expected");
    else r->at++, value = read_value(r);
    int ok = value && !json_object_set_new_nocheck(object, key, value);
    free(key);
    return ok;
}

static json_t *read_container(reader *r, int close) {
    json_t *container = close == ']' ? json_array() : json_object();
    if (!container) return NULL;
    int more = 1;
    r->at++;
    if (r->depth == MAX_DEPTH) fail(r, "more than 100 arrays and objects in each other"), more = -1;
    r->depth++;
    if (more > 0 && skip_space(r) == close) r->at++, more = 0;
    while (more > 0)
        more =
            (close == ']' ? read_item(r, container) : read_member(r, container)) ? next_item(r, close) : -1;
    r->depth--;
    if (!more) return container;
    json_decref(container);
    return NULL;
}

static json_t *read_value(reader *r) {
    size_t length;
    int c = skip_space(r);
    if (c == '{') return read_container(r, '}');
    if (c == '[') return read_container(r, ']');
    if (c == '"') return read_string(r, &length) ? json_stringn_nocheck(r->scratch, length) : NULL;
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    return read_word(r);
}

/* Line and column of byte `at`. */
static void place_of(const char *text, size_t at, size_t *line, size_t *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at; i++) {
        ++*column;
        if (text[i] == '\n') ++*line, *column = 1;
    }
}

openpi_status json_parse_by(const char *text, size_t bytes, const char *name, const json_rules *rules,
                            json_t **value, openpi_error *error) {
    reader r = {.text = text, .bytes = bytes, .rules = rules};
    json_t *root = NULL;
    int c = skip_space(&r);
    if (c == '{' || c == '[' || (rules->any_value && c >= 0)) root = read_value(&r);
    else fail(&r, c < 0 ? "the text is empty" : "'[' or '{' is expected");
    if (root && skip_space(&r) >= 0) {
        json_decref(root);
        root = fail(&r, "the end of the text is expected");
    }
    free(r.scratch);
    if (root) {
        *value = root;
        return OPENPI_OK;
    }
    if (!r.why) return report_no_memory(error, bytes, name);
    size_t line, column;
    place_of(text, r.at < bytes ? r.at : bytes, &line, &column);
    return report(error, OPENPI_BAD_FILE, "%s: not valid JSON: %s (line %zu, column %zu)", name, r.why, line,
                  column);
}

openpi_status json_parse(const char *text, size_t bytes, const char *name, json_t **value,
                         openpi_error *error) {
    return json_parse_by(text, bytes, name, &(json_rules){0}, value, error);
}
