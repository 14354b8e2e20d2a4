/* policy/tokenizer: ids against SentencePiece and Hugging Face (goldens, and spm_encode run on random texts
 * and models), broken files, adversarial texts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/file.h"
#include "policy/tokenizer/tokenizer.h"
#include "policy/tokenizer/vocabulary.h"
#include "scratch.h"

#define SAVED GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json"

enum { IDS = 200000 };
static int32_t ids[IDS];

static tokenizer *opened(const char *path) {
    tokenizer *t = NULL;
    openpi_error error = OPENPI_ERROR_INIT;
    if (tokenizer_open(path, &t, &error) != OPENPI_OK) fail_msg("%s", error.message);
    return t;
}

static tokenizer_scratch *scratch_of(size_t bytes) {
    tokenizer_scratch *s = NULL;
    assert_int_equal(tokenizer_scratch_create(bytes, &s, NULL), OPENPI_OK);
    return s;
}

static int encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t bytes) {
    int count = -1;
    openpi_error error = OPENPI_ERROR_INIT;
    if (tokenizer_encode(t, s, text, bytes, ids, IDS, &count, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
    return count;
}

static json_t *golden(const char *path) {
    json_error_t why;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    return root;
}

/* ids[0 … count) are those of the array from its item `skip` on. */
static int same(int count, const json_t *expected, int skip) {
    if (count != (int)json_array_size(expected) - skip) return 0;
    for (int i = 0; i < count; i++)
        if (ids[i] != json_integer_value(json_array_get(expected, (size_t)(i + skip)))) return 0;
    return 1;
}

/* ---- goldens -------------------------------------------------------------------------------------- */

static void test_steps(void **state) {
    (void)state;
    tokenizer *file = opened(GOLDEN "/tokenizer.model"), *embedded = NULL;
    tokenizer_scratch *s = scratch_of(0);
    assert_int_equal(tokenizer_synthetic(&embedded, NULL), OPENPI_OK);
    json_t *root = golden(GOLDEN "/steps.json"), *list = json_object_get(root, "encode");
    assert_true(json_array_size(list) >= 15);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = json_object_get(item, "text");
        for (int k = 0; k < 2; k++) {
            int count = encode(k ? embedded : file, s, json_string_value(text), json_string_length(text));
            if (!same(count, json_object_get(item, "ids"), 0))
                fail_msg("encode %zu: \"%s\"", i, json_string_value(text));
        }
    }
    assert_int_equal(tokenizer_vocab(file), 2048);
    assert_false(tokenizer_is_hugging_face(file));
    json_decref(root);
    tokenizer_scratch_close(s);
    tokenizer_close(embedded);
    tokenizer_close(file);
}

/* Both columns: Hugging Face's ids, and SentencePiece's where they differ; both begin with BOS. */
static void test_lerobot(void **state) {
    (void)state;
    tokenizer *hugging = opened(SAVED), *pieces = opened(GOLDEN "/tokenizer.model");
    tokenizer_scratch *s = scratch_of(0);
    json_t *root = golden(GOLDEN "/lerobot/encode.json");
    int differ = 0;
    assert_true(json_array_size(root) >= 56);
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *item = json_array_get(root, i), *text = json_object_get(item, "text");
        const json_t *expected = json_object_get(item, "ids"), *other = json_object_get(item, "sentencepiec"
                                                                                              "e");
        differ += other != NULL;
        assert_int_equal(json_integer_value(json_array_get(expected, 0)), TOKEN_BOS);
        if (!same(encode(hugging, s, json_string_value(text), json_string_length(text)), expected, 1))
            fail_msg("hugging face %zu", i);
        if (!same(encode(pieces, s, json_string_value(text), json_string_length(text)),
                  other ? other : expected, 1))
            fail_msg("sentencepiece %zu", i);
    }
    assert_true(differ > 0);
    assert_true(tokenizer_is_hugging_face(hugging));
    assert_int_equal(tokenizer_vocab(hugging), 2048);
    json_decref(root);
    tokenizer_scratch_close(s);
    tokenizer_close(pieces);
    tokenizer_close(hugging);
}

/* Random texts that the `tokenizers` library encoded, with the saved tokenizer and with small ones of other
 * settings. */
static void test_hugging_face(void **state) {
    (void)state;
    tokenizer_scratch *s = scratch_of(100);
    json_t *root = golden(TESTS_DIR "/tokenizer/hugging_face.json"), *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 8);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c), *texts = json_object_get(one, "texts");
        const char *name = json_string_value(json_object_get(one, "name"));
        tokenizer *t = NULL;
        if (json_is_null(json_object_get(one, "tokenizer"))) {
            t = opened(SAVED);
        } else {
            openpi_error error = OPENPI_ERROR_INIT;
            char *file = json_dumps(json_object_get(one, "tokenizer"), 0);
            assert_non_null(file);
            if (tokenizer_parse(file, strlen(file), name, &t, &error) != OPENPI_OK)
                fail_msg("%s", error.message);
            free(file);
        }
        assert_true(json_array_size(texts) >= 100);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(json_array_get(texts, i), 0),
                         *expected = json_array_get(json_array_get(texts, i), 1);
            if (!same(encode(t, s, json_string_value(text), json_string_length(text)), expected, 0))
                fail_msg("%s %zu: \"%s\"", name, i, json_string_value(text));
        }
        tokenizer_close(t);
    }
    json_decref(root);
    tokenizer_scratch_close(s);
}

/* A state value costs a space mark and its digits; a newline is one id (MODEL.md, "Pictures, statistics and
 * requests"). */
static void test_state_costs(void **state) {
    (void)state;
    const char *files[] = {GOLDEN "/tokenizer.model", SAVED};
    for (int f = 0; f < 2; f++) {
        tokenizer *t = opened(files[f]);
        tokenizer_scratch *s = scratch_of(4000);
        int base = encode(t, s, "State:;", 7), newline = encode(t, s, "\n", 1), mark = encode(t, s, " ", 1);
        assert_int_equal(newline, 1);
        assert_int_equal(mark, 1);
        int32_t mark_id = ids[0];
        for (int a = 0; a < 256; a++) {
            char text[32];
            int length = snprintf(text, sizeof text, "State: %d 128;", a), digits = a < 10    ? 1
                                                                                    : a < 100 ? 2
                                                                                              : 3;
            assert_int_equal(encode(t, s, text, (size_t)length), base + 1 + digits + 4);
            assert_int_equal(ids[base - 1], mark_id);
        }
        tokenizer_scratch_close(s);
        tokenizer_close(t);
    }
}

/* What the library carries is the goldens' model. */
static void test_embedded(void **state) {
    (void)state;
    char *bytes;
    size_t count, embedded;
    const void *data = tokenizer_synthetic_bytes(&embedded);
    assert_int_equal(file_read(GOLDEN "/tokenizer.model", 1 << 20, &bytes, &count, NULL), OPENPI_OK);
    assert_int_equal(embedded, count);
    assert_memory_equal(data, bytes, count);
    free(bytes);
}

static void test_capacity(void **state) {
    (void)state;
    tokenizer *t = opened(GOLDEN "/tokenizer.model");
    tokenizer_scratch *s = scratch_of(0);
    int32_t few[3] = {-7, -7, -7};
    int count = -1, all = encode(t, s, "pick up the red cup", 19);
    assert_int_equal(tokenizer_encode(t, s, "pick up the red cup", 19, few, 2, &count, NULL), OPENPI_OK);
    assert_int_equal(count, all);
    assert_int_equal(few[0], ids[0]);
    assert_int_equal(few[1], ids[1]);
    assert_int_equal(few[2], -7);
    assert_int_equal(tokenizer_encode(t, s, "pick up", 7, NULL, 0, &count, NULL), OPENPI_OK);
    assert_true(count > 0);
    assert_int_equal(tokenizer_encode(t, s, NULL, 0, NULL, 0, &count, NULL), OPENPI_OK);
    assert_int_equal(count, 0);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
    tokenizer_close(NULL);
    tokenizer_scratch_close(NULL);
}

/* ---- spm_encode ----------------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint32_t below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

typedef struct text {
    char bytes[8192];
    size_t length;
} text;

static void add_bytes(text *to, const void *bytes, size_t count) {
    assert_true(to->length + count <= sizeof to->bytes);
    memcpy(to->bytes + to->length, bytes, count);
    to->length += count;
}

static void add_code(text *to, uint32_t code) {
    char c[4];
    size_t n = 1;
    if (code < 0x80) c[0] = (char)code;
    else if (code < 0x800) c[0] = (char)(0xc0 | code >> 6), n = 2;
    else if (code < 0x10000) c[0] = (char)(0xe0 | code >> 12), n = 3;
    else c[0] = (char)(0xf0 | code >> 18), n = 4;
    for (size_t i = 1; i < n; i++) c[i] = (char)(0x80 | (code >> 6 * (n - 1 - i) & 63));
    add_bytes(to, c, n);
}

static void add_run(text *to, uint32_t code, uint32_t count) {
    while (count--) add_code(to, code);
}

/* One line of mixed text; no newline, no NUL: spm_encode reads lines. */
static void random_line(text *to) {
    static const char *const words[] = {
        "pick up",      " the ",        "Task: ", ", State: ", "Action: ",  "import os",    "self.",
        "def __init__", "<bos>",        "<pad>",  "<unk>",     "</s>",      "<s>",          "<0x41>",
        "<table>",      "</table>",     "<b>",    "</b>",      "<loc0000>", "<loc0031>",    "<loc0032>",
        "<loc00",       "<seg007>",     "<seg",   "чашку",     "青い箱",    "die Schüssel", "égouttoir",
        "e\u0301",      "\u2581\u2581", "ﬁ",      "½",         "한국어",    "العربية",      "\u200d",
        "\ufeff",       "\u3000",       "\u00a0",
    };
    for (uint32_t parts = below(20); parts; parts--) {
        const char *word = words[below(sizeof words / sizeof *words)];
        switch (below(13)) {
        case 0: case 1: case 2: add_bytes(to, word, strlen(word)); break;
        case 3: add_run(to, ' ', 1 + below(40)); break;
        case 4: add_run(to, 0x2581, 1 + below(40)); break;
        case 5: for (uint32_t n = 1 + below(9); n; n--) add_code(to, '0' + below(10)); break;
        case 6: for (uint32_t n = 1 + below(8); n; n--) add_code(to, 33 + below(94)); break;
        case 7: add_code(to, 0x80 + below(0x780)); break;
        case 8: add_code(to, 0x3000 + below(0x7000)); break;
        case 9: add_code(to, 0x1f600 + below(80)); break;
        case 10: add_code(to, 0x300 + below(0x70)); break;
        case 11: add_run(to, (uint32_t)"aeiou tn\t\r\v\f\x01\x7f"[below(14)], 1 + below(30)); break;
        default:
            for (uint32_t n = 1 + below(6); n; n--) add_code(to, (uint32_t) "theopncar "[below(10)]);
            break;
        }
    }
}

/* Every line's ids by spm_encode equal ours. */
static void against_spm_encode(scratch *folder, const char *model, text *lines, int count, const char *what) {
    char command[1000], input[400];
    snprintf(input, sizeof input, "%s", scratch_path(folder, "lines.txt"));
    FILE *file = fopen(input, "wb");
    assert_non_null(file);
    for (int i = 0; i < count; i++) {
        fwrite(lines[i].bytes, 1, lines[i].length, file);
        fputc('\n', file);
    }
    assert_int_equal(fclose(file), 0);
    snprintf(command, sizeof command, "spm_encode --model=%s --output_format=id < %s 2>%s", model, input,
             scratch_path(folder, "spm_errors.txt"));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    tokenizer *t = opened(model);
    tokenizer_scratch *s = scratch_of(0);
    char *line = NULL;
    size_t capacity = 0;
    for (int i = 0; i < count; i++) {
        ssize_t length = getline(&line, &capacity, pipe);
        if (length < 0)
            fail_msg("spm_encode (Debian package sentencepiece) ended before line %d of %s: see \"%s\"", i,
                     what, command);
        int made = encode(t, s, lines[i].bytes, lines[i].length), at = 0;
        char *next = line, *end;
        for (long id = strtol(next, &end, 10); end != next; id = strtol(next = end, &end, 10), at++)
            if (at >= made || ids[at] != id)
                fail_msg("%s, line %d \"%.*s\": id %d is %d, spm_encode has %ld", what, i,
                         (int)lines[i].length, lines[i].bytes, at, at < made ? ids[at] : -1, id);
        if (at != made)
            fail_msg("%s, line %d \"%.*s\": %d ids, spm_encode has %d", what, i, (int)lines[i].length,
                     lines[i].bytes, made, at);
    }
    free(line);
    assert_int_equal(pclose(pipe), 0);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
}

enum { LINES = 6000 };

static void test_spm_golden(void **state) {
    (void)state;
    scratch folder;
    text *lines = calloc(LINES, sizeof *lines);
    assert_non_null(lines);
    assert_int_equal(scratch_open(&folder), 0);
    random_state = 31;
    for (int i = 0; i < LINES; i++) random_line(&lines[i]);
    against_spm_encode(&folder, GOLDEN "/tokenizer.model", lines, LINES, "tokenizer.model");
    print_message("%d random lines, tokenizer.model: as spm_encode\n", LINES);
    scratch_close(&folder);
    free(lines);
}

/* ---- models made here ----------------------------------------------------------------------------- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static void add_varint(text *to, uint64_t value) {
    for (; value > 127; value >>= 7) add_bytes(to, &(uint8_t){(uint8_t)(value | 128)}, 1);
    add_bytes(to, &(uint8_t){(uint8_t)value}, 1);
}

static void add_field(text *to, uint32_t number, const void *bytes, size_t count) {
    add_varint(to, number << 3 | 2);
    add_varint(to, count);
    add_bytes(to, bytes, count);
}

static void add_number(text *to, uint32_t number, uint64_t value) {
    add_varint(to, number << 3);
    add_varint(to, value);
}

static void add_piece(text *to, const char *piece, size_t bytes, float score, int type) {
    text inner = {.length = 0};
    add_field(&inner, 1, piece, bytes);
    add_varint(&inner, 2 << 3 | 5);
    add_bytes(&inner, &score, 4);
    if (type != NORMAL) add_number(&inner, 3, (uint64_t)type);
    add_field(to, 1, inner.bytes, inner.length);
}

static void add_word(text *to, const char *piece, float score, int type) {
    add_piece(to, piece, strlen(piece), score, type);
}

static void add_settings(text *to, int model_type, int byte_fallback, int dummy_prefix, int extra_spaces,
                         int escape, const char *map) {
    text inner = {.length = 0};
    add_number(&inner, 3, (uint64_t)model_type);
    add_number(&inner, 35, (uint64_t)byte_fallback);
    add_field(&inner, 46, "<bos>", 5);
    add_field(to, 2, inner.bytes, inner.length);
    inner.length = 0;
    add_field(&inner, 1, "identity", 8);
    add_field(&inner, 2, map, strlen(map));
    add_number(&inner, 3, (uint64_t)dummy_prefix);
    add_number(&inner, 4, (uint64_t)extra_spaces);
    add_number(&inner, 5, (uint64_t)escape);
    add_field(to, 3, inner.bytes, inner.length);
}

static void add_control(text *to) {
    add_word(to, "<pad>", 0, CONTROL);
    add_word(to, "</s>", 0, CONTROL);
    add_word(to, "<bos>", 0, CONTROL);
    add_word(to, "<unk>", 0, UNKNOWN);
}

static void add_byte_pieces(text *to, int count) {
    for (int i = 0; i < count; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i & 0xff);
        add_word(to, name, 0, BYTE);
    }
}

/* Pieces over few letters, their scores few and unrelated to their lengths: many ties, pieces whose parts are
 * none. */
static void random_model(text *to, char words[64][16], int *word_count) {
    static const char *const letters[] = {"a", "b", "c", "d", "\u2581", "\u00e9", "\u4e2d", "\U0001f642"};
    int count = 0, byte_fallback = (int)below(2);
    to->length = 0;
    add_control(to);
    for (int tries = 0; tries < 60; tries++) {
        char word[64] = "";
        int fresh = 1;
        for (uint32_t n = 1 + below(tries < 10 ? 1 : 5); n && strlen(word) < 12; n--)
            strcat(word, letters[below(tries < 40 ? 6 : 8)]);
        for (int i = 0; i < count; i++) fresh = fresh && strcmp(words[i], word);
        if (!fresh || strlen(word) > 15) continue;
        strcpy(words[count++], word);
        float score = (float)below(6) * 0.5f - 1.5f;
        if (score == 0 && below(2)) score = -0.0f;       /* equal to 0 */
        add_word(to, word, score, below(6) ? NORMAL : USER_DEFINED);
    }
    if (byte_fallback) add_byte_pieces(to, 256);
    add_settings(to, 2, byte_fallback, 0, 0, 1, "");
    *word_count = count;
}

static void test_spm_random_models(void **state) {
    (void)state;
    enum { MODELS = 40, EACH = 150 };
    static const char *const other[] = {"e", "\u00e8", "\u4e2e", "\U0001f643",
                                        " ", "<bos>",  "<unk>",  "<0x41>"};
    scratch folder;
    text *lines = calloc(EACH, sizeof *lines), *model = calloc(1, sizeof *model);
    assert_non_null(lines);
    assert_non_null(model);
    assert_int_equal(scratch_open(&folder), 0);
    random_state = 32;
    for (int m = 0; m < MODELS; m++) {
        char words[64][16], path[400], what[32];
        int count;
        random_model(model, words, &count);
        assert_int_equal(scratch_write(&folder, "random.model", model->bytes, model->length), 0);
        snprintf(path, sizeof path, "%s", scratch_path(&folder, "random.model"));
        snprintf(what, sizeof what, "random model %d", m);
        for (int i = 0; i < EACH; i++) {
            lines[i].length = 0;
            for (uint32_t n = below(30); n; n--) {
                const char *word = below(8) ? words[below((uint32_t)count)] : other[below(8)];
                add_bytes(&lines[i], word, strlen(word));
            }
        }
        against_spm_encode(&folder, path, lines, EACH, what);
    }
    print_message("%d random models with %d lines each: as spm_encode\n", MODELS, EACH);
    scratch_close(&folder);
    free(lines);
    free(model);
}

/* ---- adversarial texts ---------------------------------------------------------------------------- */

static void test_long_texts(void **state) {
    (void)state;
    enum { BYTES = 100000 };
    static const struct {
        const char *unit;
        int pieces, hugging;             /* ids; 0: not known beforehand */
    } cases[] = {
        {"a", 100000, 100000}, {" ", 6250, 6250}, {"\n", 12500, 12500}, {"\t", 100000, 100000}, {"ab", 0, 0}, {"<loc", 0, 0},
        {"<loc0001>", 11111, 11111}, {"the red cup and ", 0, 0}, {"\u2581", 2084, 2084}, {"\U0001f642", 100000, 100000},
        {"0", 100000, 100000},
    };
    const char *files[] = {GOLDEN "/tokenizer.model", SAVED};
    char *long_text = malloc(BYTES);
    tokenizer_scratch *s = scratch_of(BYTES);
    assert_non_null(long_text);
    for (int f = 0; f < 2; f++) {
        tokenizer *t = opened(files[f]);
        double slowest = 0;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            size_t unit = strlen(cases[c].unit), used = 0;
            for (; used + unit <= BYTES; used += unit) memcpy(long_text + used, cases[c].unit, unit);
            double start = clock_ms();
            int count = encode(t, s, long_text, used), expected = f ? cases[c].hugging : cases[c].pieces;
            double took = clock_ms() - start;
            if (took > slowest) slowest = took;
            assert_true(count > 0);
            if (expected) assert_int_equal(count, expected);
        }
        print_message("100 kB adversarial, %s: at most %.1f ms\n", f ? "tokenizer.json" : "tokenizer.model",
                      slowest);
        tokenizer_close(t);
    }
    tokenizer_scratch_close(s);
    free(long_text);
}

/* A text is tokenised in stretches and only as far as ids are wanted: its ids are those of the whole. */
static void test_stretches(void **state) {
    (void)state;
    enum { BYTES = 60000, MANY = 60000 };
    static const char *const words[] = {
        "pick", " ", "  ", "up", "_the_", "cup,", "\n", "\u2581", "\u4e16\u754c", "<loc0007>", "Task: ",
        "-12", " \n ", "\U0001f642", "<bos>", "a", " and", "\xc2\xa0"};
    tokenizer_scratch *s = scratch_of(1), *large = scratch_of(BYTES + 32);
    openpi_error error = OPENPI_ERROR_INIT;
    const char *files[] = {GOLDEN "/tokenizer.model", SAVED};
    char *text = malloc(BYTES + 32);
    int32_t *whole = malloc(MANY * sizeof *whole);
    assert_true(text && whole);
    for (int f = 0; f < 2; f++)
        for (uint32_t seed = 1; seed <= 4; seed++) {
            tokenizer *t = opened(files[f]), *uncut = opened(files[f]);
            uint32_t random = seed;
            size_t used = 0;
            int count, cuts = 0, most = 0;
            while (used < BYTES) {
                random = random * 1664525u + 1013904223u;
                const char *word = words[(random >> 16) % (sizeof words / sizeof *words)];
                memcpy(text + used, word, strlen(word));
                used += strlen(word);
            }
            for (int i = 0; i < 256; i++) cuts += t->apart[i];
            assert_true(cuts > 100);
            memset(uncut->apart, 0, sizeof uncut->apart);
            openpi_status status = tokenizer_encode(uncut, large, text, used, whole, MANY, &most, &error);
            assert_int_equal(status, OPENPI_OK);
            assert_true(most <= MANY && most > 10000);
            for (int capacity = 1; capacity <= MANY; capacity *= 7) {
                status = tokenizer_encode(t, s, text, used, ids, capacity, &count, &error);
                assert_int_equal(status, OPENPI_OK);
                assert_true(count > capacity);
                assert_memory_equal(ids, whole, (size_t)capacity * sizeof *ids);
            }
            assert_int_equal(encode(t, s, text, used), most);
            assert_memory_equal(ids, whole, (size_t)most * sizeof *ids);
            text[used] = (char)0x80;                     /* a tail that nobody tokenises is checked, too  */
            status = tokenizer_encode(t, s, text, used + 1, ids, 10, &count, &error);
            assert_int_equal(status, OPENPI_BAD_INPUT);
            tokenizer_close(t), tokenizer_close(uncut);
        }
    tokenizer_scratch_close(s), tokenizer_scratch_close(large);
    free(text), free(whole);
}

static void test_bad_text(void **state) {
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "a\xc3",
                                      "\xc0\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "ok \xff",
                                      "\xe0\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "\xe2\x96"};
    const char *files[] = {GOLDEN "/tokenizer.model", SAVED};
    for (int f = 0; f < 2; f++) {
        tokenizer *t = opened(files[f]);
        tokenizer_scratch *s = scratch_of(0);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            openpi_error error = OPENPI_ERROR_INIT;
            int count = -1;
            assert_int_equal(tokenizer_encode(t, s, bad[i], strlen(bad[i]), ids, IDS, &count, &error),
                             OPENPI_BAD_INPUT);
            assert_non_null(strstr(error.message, "the prompt is not UTF-8: byte "));
            assert_int_equal(count, -1);
        }
        encode(t, s, "still fine", 10);
        tokenizer_scratch_close(s);
        tokenizer_close(t);
    }
}

/* ---- broken files --------------------------------------------------------------------------------- */

static void expect_refusal(const void *bytes, size_t count, openpi_status status, const char *sentence) {
    openpi_error error = OPENPI_ERROR_INIT;
    tokenizer *t = NULL;
    openpi_status got = tokenizer_parse(bytes, count, "FILE", &t, &error);
    if (got != status || strncmp(error.message, "FILE: ", 6) || !strstr(error.message, sentence) || t)
        fail_msg("status %d \"%s\", expected %d \"%s\"", got, got ? error.message : "", status, sentence);
}

static void test_bad_models(void **state) {
    (void)state;
    static const struct {
        const char *piece;               /* a fifth piece                            */
        size_t bytes;
        float score;
        int type, model_type, byte_fallback, prefix, extra, escape;
        const char *map;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {"", 0, 0, NORMAL, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "piece 4 has 0 bytes, expected 1 to 1024"},
        {"<pad>", 5, 0, NORMAL, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "pieces 0 and 4 are the same text"},
        {"\xff", 1, 0, NORMAL, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "piece 4 is not UTF-8"},
        {"a", 1, NAN, NORMAL, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "the score of piece 4 is not finite"},
        {"a", 1, INFINITY, NORMAL, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "the score of piece 4 is not finite"},
        {"a", 1, 0, UNUSED, 2, 0, 0, 0, 1, "", OPENPI_UNSUPPORTED, "piece 4 is marked unused"},
        {"a", 1, 0, 7, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "piece 4 has type 7, expected 1 to 6"},
        {"a", 1, 0, UNKNOWN, 2, 0, 0, 0, 1, "", OPENPI_BAD_FILE, "pieces 3 and 4 are both the unknown piece"},
        {"a", 1, 0, NORMAL, 1, 0, 0, 0, 1, "", OPENPI_UNSUPPORTED, "trainer_spec.model_type is 1, expected 2 (BPE)"},
        {"a", 1, 0, NORMAL, 3, 0, 0, 0, 1, "", OPENPI_UNSUPPORTED, "trainer_spec.model_type is 3, expected 2 (BPE)"},
        {"a", 1, 0, NORMAL, 2, 1, 0, 0, 1, "", OPENPI_BAD_FILE, "the byte piece <0x00> is missing"},
        {"a", 1, 0, NORMAL, 2, 0, 1, 0, 1, "", OPENPI_UNSUPPORTED, "normalizer_spec.add_dummy_prefix is 1, expected 0 (no)"},
        {"a", 1, 0, NORMAL, 2, 0, 0, 1, 1, "", OPENPI_UNSUPPORTED, "normalizer_spec.remove_extra_whitespaces is 1"},
        {"a", 1, 0, NORMAL, 2, 0, 0, 0, 0, "", OPENPI_UNSUPPORTED, "normalizer_spec.escape_whitespaces is 0, expected 1 (yes)"},
        {"a", 1, 0, NORMAL, 2, 0, 0, 0, 1, "map", OPENPI_UNSUPPORTED,
         "normalizer_spec.precompiled_charsmap is 3, expected 0 (the identity)"},
    };
    text model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model.length = 0;
        add_control(&model);
        add_piece(&model, cases[i].piece, cases[i].bytes, cases[i].score, cases[i].type);
        add_settings(&model, cases[i].model_type, cases[i].byte_fallback, cases[i].prefix, cases[i].extra,
                     cases[i].escape, cases[i].map);
        expect_refusal(model.bytes, model.length, cases[i].status, cases[i].sentence);
    }

    model.length = 0; /* each of these is one change to what is accepted here */
    add_control(&model);
    add_settings(&model, 2, 0, 0, 0, 1, "");
    tokenizer *t = NULL;
    assert_int_equal(tokenizer_parse(model.bytes, model.length, "FILE", &t, NULL), OPENPI_OK);
    tokenizer_close(t);

    expect_refusal("", 0, OPENPI_BAD_FILE, "neither a SentencePiece model nor a tokenizer.json");
    expect_refusal("PK\x03\x04", 4, OPENPI_BAD_FILE, "neither a SentencePiece model nor a tokenizer.json");
    expect_refusal("\n", 1, OPENPI_BAD_FILE, "damaged or cut off at byte 1");
    expect_refusal("\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, OPENPI_BAD_FILE, "damaged or cut off");
    expect_refusal("\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11, OPENPI_BAD_FILE, "damaged or cut off");
    expect_refusal("\n\x02\x0b\x0c", 4, OPENPI_BAD_FILE, "damaged or cut off");              /* a group */
    expect_refusal("\n\x02\x08\x01", 4, OPENPI_BAD_FILE, "a piece's text has wire type 0, expected 2");
    expect_refusal("\n\x00\x08\x01", 4, OPENPI_BAD_FILE, "a part of the model has wire type 0, expected 2");

    model.length = 0;
    add_control(&model);
    add_byte_pieces(&model, 255);
    add_settings(&model, 2, 1, 0, 0, 1, "");
    expect_refusal(model.bytes, model.length, OPENPI_BAD_FILE, "the byte piece <0xFF> is missing");

    model.length = 0;
    add_word(&model, "<pad>", 0, CONTROL);
    add_word(&model, "<bos>", 0, CONTROL);
    add_word(&model, "</s>", 0, CONTROL);
    add_settings(&model, 2, 0, 0, 0, 1, "");
    expect_refusal(model.bytes, model.length, OPENPI_UNSUPPORTED,
                   "piece 2 is not the beginning-of-sentence piece");

    model.length = 0;
    add_word(&model, "<pad>", 0, CONTROL);
    add_word(&model, "</s>", 0, CONTROL);
    add_word(&model, "<bos>", 0, CONTROL);
    add_settings(&model, 2, 0, 0, 0, 1, "");
    expect_refusal(model.bytes, model.length, OPENPI_BAD_FILE, "no piece is the unknown piece");

    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(tokenizer_open(GOLDEN "/no_such.model", &t, &error), OPENPI_NOT_FOUND);
    assert_non_null(strstr(error.message, "no_such.model"));
}

/* Cut anywhere and with bytes changed: an error with a sentence, or a model that still encodes. */
static const char sample[] = "Task: pick up <loc0003>\n\n  12 \u4e2d";

static void mangle(const char *path, int cut_step, int changes, size_t tail) {
    char *bytes;
    size_t count;
    int accepted = 0;
    tokenizer_scratch *s = scratch_of(200);
    tokenizer *t = NULL;
    assert_int_equal(file_read(path, 64 << 20, &bytes, &count, NULL), OPENPI_OK);
    for (size_t cut = 0; cut < count; cut += cut < 600 || cut + 600 > count ? 1 : (size_t)cut_step) {
        openpi_error error = OPENPI_ERROR_INIT;
        char *part = malloc(cut ? cut : 1);               /* so that a sanitizer sees a step too far */
        assert_non_null(part);
        memcpy(part, bytes, cut);
        openpi_status status = tokenizer_parse(part, cut, "FILE", &t, &error);
        if (status == OPENPI_OK) tokenizer_close(t);
        else assert_non_null(strstr(error.message, "FILE: "));
        if (status == OPENPI_OK && cut + tail < count)
            fail_msg("accepted when cut at byte %zu of %zu", cut, count);
        free(part);
    }
    random_state = 33;
    for (int i = 0; i < changes; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        size_t at[4];
        char old[4];
        for (int k = 0; k < 4; k++) {
            at[k] = (below(2)   ? below((uint32_t)count)
                     : below(4) ? count - 1 - below(200)
                                : below(200)) %
                    count;
            old[k] = bytes[at[k]];
            if (k <= i % 4) bytes[at[k]] = (char)below(256);
        }
        openpi_status status = tokenizer_parse(bytes, count, "FILE", &t, &error);
        if (status == OPENPI_OK) {
                    encode(t, s, sample, strlen(sample));
            tokenizer_close(t);
            accepted++;
        } else {
            assert_non_null(strstr(error.message, "FILE: "));
        }
        for (int k = 3; k >= 0; k--) bytes[at[k]] = old[k];
    }
    print_message("%d of %d with changed bytes were accepted and encode\n", accepted, changes);
    free(bytes);
    tokenizer_scratch_close(s);
}

static void test_mangled_model(void **state) {
    (void)state;
    mangle(GOLDEN "/tokenizer.model", 41, 2000, 20);      /* after the settings: an empty denormalizer */
}

static void test_mangled_json(void **state) {
    (void)state;
    mangle(SAVED, 997, 150, 3);
}

static json_t *saved(void) {
    return golden(SAVED);
}

static void refuse_json(json_t *root, openpi_status status, const char *sentence) {
    char *file = json_dumps(root, 0);
    assert_non_null(file);
    expect_refusal(file, strlen(file), status, sentence);
    free(file);
    json_decref(root);
}

static void test_bad_json(void **state) {
    (void)state;
    static const struct {
        const char *path;                /* keys and [indices] by '/', from the root */
        const char *value;               /* JSON; NULL: removed                      */
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {"model", NULL, OPENPI_BAD_FILE, "\"model\" is absent, expected an object"},
        {"model", "[]", OPENPI_BAD_FILE, "\"model\" is an array, expected an object"},
        {"model/type", "\"Unigram\"", OPENPI_UNSUPPORTED, "\"model\" is of type Unigram, expected BPE"},
        {"model/type", NULL, OPENPI_UNSUPPORTED, "\"model\" is an object, expected BPE"},
        {"model/vocab", "[]", OPENPI_BAD_FILE, "\"vocab\" is an array, expected an object"},
        {"model/vocab", "{}", OPENPI_UNSUPPORTED, "U+2581, which a space becomes, is not in \"vocab\""},
        {"model/vocab/\u2581", NULL, OPENPI_UNSUPPORTED, "U+2581, which a space becomes, is not in \"vocab\""},
        {"model/vocab/a", "\"x\"", OPENPI_BAD_FILE, "the id of \"a\" is a string, expected an integer"},
        {"model/vocab/a", "-1", OPENPI_BAD_FILE, "the id of \"a\" is -1, expected 0 to 1048575"},
        {"model/vocab/a", "1048576", OPENPI_BAD_FILE, "the id of \"a\" is 1048576, expected 0 to 1048575"},
        {"model/vocab/a", "9223372036854775807", OPENPI_BAD_FILE, "expected 0 to 1048575"},
        {"model/vocab/a", "7", OPENPI_BAD_FILE, "two pieces have id 7"},
        {"model/vocab/", "5000", OPENPI_BAD_FILE, "piece 5000 has 0 bytes"},
        {"model/vocab/<0x41>", NULL, OPENPI_BAD_FILE, "the byte piece <0x41> is missing"},
        {"model/merges", "{}", OPENPI_BAD_FILE, "\"merges\" is an object, expected an array"},
        {"model/merges/[0]", "7", OPENPI_BAD_FILE, "\"merges\"[0] is an integer, expected a pair of pieces"},
        {"model/merges/[3]", "[\"a\"]", OPENPI_BAD_FILE, "\"merges\"[3] is an array, expected a pair of pieces"},
        {"model/merges/[3]", "[\"a\", 1]", OPENPI_BAD_FILE, "\"merges\"[3] is an array, expected a pair of pieces"},
        {"model/merges/[3]", "\"a b c\"", OPENPI_BAD_FILE, "\"merges\"[3] is a string, expected a pair of pieces"},
        {"model/merges/[3]", "[\"a\", \"nowhere\"]", OPENPI_BAD_FILE,
         "joins \"a\" and \"nowhere\", expected both and the result in \"vocab\""},
        {"model/merges/[3]", "[\"\", \"a\"]", OPENPI_BAD_FILE, "joins \"\" and \"a\", expected both"},
        {"model/dropout", "0.1", OPENPI_UNSUPPORTED, "\"dropout\" is a real number, expected null"},
        {"model/continuing_subword_prefix", "\"##\"", OPENPI_UNSUPPORTED,
         "\"continuing_subword_prefix\" is \"##\", expected none"},
        {"model/end_of_word_suffix", "\"</w>\"", OPENPI_UNSUPPORTED, "\"end_of_word_suffix\" is \"</w>\", expected none"},
        {"model/end_of_word_suffix", "3", OPENPI_BAD_FILE, "\"end_of_word_suffix\" is an integer, expected a string"},
        {"model/byte_fallback", "1", OPENPI_BAD_FILE, "\"byte_fallback\" is an integer, expected true or false"},
        {"normalizer", "null", OPENPI_UNSUPPORTED, "\"normalizer\" is null, expected Replace of \" \" by U+2581"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}", OPENPI_UNSUPPORTED, "\"normalizer\" is of type Sequence"},
        {"normalizer/content", "\"_\"", OPENPI_UNSUPPORTED, "\"normalizer\" is of type Replace"},
        {"normalizer/pattern", "{\"Regex\":\" \"}", OPENPI_UNSUPPORTED, "\"normalizer\" is of type Replace"},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", OPENPI_UNSUPPORTED, "\"pre_tokenizer\" is of type ByteLevel"},
        {"pre_tokenizer/pattern", "{\"String\":\"a\"}", OPENPI_UNSUPPORTED, "\"pre_tokenizer\" is of type Split"},
        {"pre_tokenizer/invert", "true", OPENPI_UNSUPPORTED, "\"pre_tokenizer\" is of type Split"},
        {"post_processor", "null", OPENPI_UNSUPPORTED,
         "\"post_processor\" is null, expected TemplateProcessing of the token with id 2"},
        {"post_processor/special_tokens/<bos>/ids", "[1]", OPENPI_UNSUPPORTED,
         "\"post_processor\" is of type TemplateProcessing"},
        {"post_processor/single/[1]", "{\"SpecialToken\":{\"id\":\"<eos>\"}}", OPENPI_UNSUPPORTED,
         "\"post_processor\" is of type"},
        {"added_tokens", "null", OPENPI_BAD_FILE, "\"added_tokens\" is null, expected an array"},
        {"added_tokens/[5]", "3", OPENPI_BAD_FILE, "\"content\" of \"added_tokens\"[5] is absent, expected a string"},
        {"added_tokens/[5]/content", "[]", OPENPI_BAD_FILE, "\"content\" of \"added_tokens\"[5] is an array, expected a string"},
        {"added_tokens/[5]/id", "\"5\"", OPENPI_BAD_FILE, "expected an integer"},
        {"added_tokens/[5]/id", "6", OPENPI_BAD_FILE, "has id 6, but 5 in \"vocab\""},
        {"added_tokens/[5]/content", "\"qqqq\"", OPENPI_BAD_FILE, "added token \"qqqq\" has id 5, expected the next one, 2048"},
        {"added_tokens/[2]", "{\"id\":0,\"content\":\"<pad>\"}", OPENPI_BAD_FILE, "added token \"<pad>\" is there twice"},
        {"added_tokens/[2]/lstrip", "true", OPENPI_UNSUPPORTED, "\"lstrip\" of added token \"<bos>\" is true"},
        {"added_tokens/[2]/single_word", "true", OPENPI_UNSUPPORTED, "\"single_word\" of added token \"<bos>\" is true"},
        {"added_tokens/[2]/rstrip", "0", OPENPI_BAD_FILE, "\"rstrip\" is an integer, expected true or false"},
        {"added_tokens/[2]", "{\"id\":2048,\"content\":\"\"}", OPENPI_BAD_FILE, "piece 2048 has 0 bytes"},
        {"added_tokens/[2]", "{\"id\":5000,\"content\":\"qqqq\"}", OPENPI_BAD_FILE, "has id 5000, expected the next one, 2048"},
        {"added_tokens/[2]", "{\"id\":5000,\"content\":\"a b\",\"normalized\":true}", OPENPI_UNSUPPORTED,
         "is normalized and has a space"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = saved(), *at = root;
        const char *step = cases[i].path, *slash;
        for (; (slash = strchr(step, '/')) && at; step = slash + 1) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)(slash - step), step);
            at = key[0] == '[' ? json_array_get(at, (size_t)atoi(key + 1)) : json_object_get(at, key);
        }
        assert_non_null(at);
        json_t *value = cases[i].value ? json_loads(cases[i].value, JSON_DECODE_ANY, NULL) : NULL;
        assert_true(!cases[i].value || value);
        if (!value) assert_int_equal(json_object_del(at, step), 0);
        else if (step[0] == '[') assert_int_equal(json_array_set_new(at, (size_t)atoi(step + 1), value), 0);
        else assert_int_equal(json_object_set_new(at, step, value), 0);
        refuse_json(root, cases[i].status, cases[i].sentence);
    }
    json_t *root = saved(), *model = json_object_get(root, "model");
    json_object_set_new(model, "byte_fallback", json_false());
    json_object_set_new(model, "unk_token", json_null());
    refuse_json(root, OPENPI_UNSUPPORTED, "neither \"byte_fallback\" nor \"unk_token\"");
    root = saved();
    model = json_object_get(root, "model");
    json_object_set_new(model, "byte_fallback", json_false());
    json_object_set_new(model, "unk_token", json_string("<none>"));
    refuse_json(root, OPENPI_BAD_FILE, "\"unk_token\" \"<none>\" is not in \"vocab\"");
    expect_refusal("{", 1, OPENPI_BAD_FILE, "not valid JSON");
    expect_refusal(" \n{\"model\": {\"type\": \"BPE\"}} x", 30, OPENPI_BAD_FILE, "not valid JSON");
    expect_refusal("{\"a\":1,\"a\":2}", 13, OPENPI_BAD_FILE, "not valid JSON");
}

/* Tokens with ids after the vocabulary's, and null for what need not be there. */
static void test_json_variants(void **state) {
    (void)state;
    json_t *root = saved();
    tokenizer *t = NULL;
    tokenizer_scratch *s = scratch_of(0);
    json_object_set_new(root, "pre_tokenizer", json_null());
    json_object_set_new(root, "truncation", json_pack("{s:i}", "max_length", 4));
    json_array_append_new(
        json_object_get(root, "added_tokens"),
        json_pack("{s:i, s:s, s:b, s:b}", "id", 2048, "content", "<image>", "normalized", 0, "special", 1));
    char *file = json_dumps(root, 0);
    assert_int_equal(tokenizer_parse(file, strlen(file), "FILE", &t, NULL), OPENPI_OK);
    assert_int_equal(tokenizer_vocab(t), 2049);
    assert_int_equal(encode(t, s, "<image><image", 13), 1 + encode(t, s, "<image", 6));
    encode(t, s, "<image><image", 13);
    assert_int_equal(ids[0], 2048);
    free(file);
    json_decref(root);
    tokenizer_close(t);
    tokenizer_scratch_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),         cmocka_unit_test(test_lerobot),
        cmocka_unit_test(test_hugging_face),  cmocka_unit_test(test_state_costs),
        cmocka_unit_test(test_embedded),      cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_spm_golden),    cmocka_unit_test(test_spm_random_models),
        cmocka_unit_test(test_long_texts),    cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_stretches),
        cmocka_unit_test(test_bad_models),    cmocka_unit_test(test_mangled_model),
        cmocka_unit_test(test_mangled_json),  cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_json_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
