/* Hugging Face's tokenizer.json: a BPE vocabulary with its list of merges, added tokens, and a pipeline of
 * normaliser, pre-tokenizer and post-processor of which exactly one form is understood: space becomes U+2581,
 * nothing is split, <bos> is put before the text. Fills a vocabulary; refuses every setting that the
 * engine does not implement.
 *
 * Note: added tokens, special ones such as <bos> included, are searched for before spaces are replaced,
 * unless they are marked "normalized". "truncation" and "padding" are ignored, because the caller sets both.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "policy/tokenizer/vocabulary.h"

static int is_string(const json_t *value, const char *text) {
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

static int is_set(const json_t *value) {
    return value && !json_is_null(value);
}

/* ---- settings ------------------------------------------------------------------------------------------ */

static openpi_status refuse(const json_t *object, const char *key, const char *expected, const char *name,
                            openpi_error *error) {
    const json_t *type = json_object_get(json_object_get(object, key), "type");
    return report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is %s%s, expected %s", name, key,
                  json_is_string(type) ? "of type " : json_kind(json_object_get(object, key)),
                  json_is_string(type) ? json_string_value(type) : "", expected);
}

static openpi_status check_pipeline(const json_t *root, const char *name, openpi_error *error) {
    const json_t *normalizer = json_object_get(root, "normalizer"),
                 *split = json_object_get(root, "pre_tokenizer");
    const json_t *processor = json_object_get(root, "post_processor"),
                 *single = json_object_get(processor, "single");
    if (!is_string(json_object_get(normalizer, "type"), "Replace") ||
        !is_string(json_object_get(normalizer, "content"), SPACE_MARK) ||
        !is_string(json_object_get(json_object_get(normalizer, "pattern"), "String"), " "))
        return refuse(root, "normalizer", "Replace of \" \" by U+2581", name, error);
    /* After the normaliser no space is left to split at. */
    if (is_set(split) && (!is_string(json_object_get(split, "type"), "Split") ||
                          !is_string(json_object_get(json_object_get(split, "pattern"), "String"), " ") ||
                          json_is_true(json_object_get(split, "invert"))))
        return refuse(root, "pre_tokenizer", "null or Split at \" \"", name, error);
    const json_t *first = json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id");
    const json_t *second = json_object_get(json_object_get(json_array_get(single, 1), "Sequence"), "id");
    const json_t *special = json_is_string(first)
        ? json_object_get(json_object_get(processor, "special_tokens"), json_string_value(first)) : NULL;
    const json_t *ids = json_object_get(special, "ids"), *bos = json_array_get(ids, 0);
    if (!is_string(json_object_get(processor, "type"), "TemplateProcessing") ||
        json_array_size(single) != 2 || !is_string(second, "A") || json_array_size(ids) != 1 ||
        !json_is_integer(bos) || json_integer_value(bos) != TOKEN_BOS)
        return refuse(root, "post_processor", "TemplateProcessing of the token with id 2 and the text", name,
                      error);
    return OPENPI_OK;
}

static openpi_status check_model(const json_t *model, tokenizer *out, const char *name, openpi_error *error) {
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    const char *text = NULL;
    int byte_fallback = 0;
    for (int i = 0; i < 2; i++) {
        text = NULL;
        TRY(json_get_string(model, empty[i], name, &text, error));
        if (text && *text)
            return report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is \"%.40s\", expected none", name, empty[i],
                          text);
    }
    if (is_set(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"dropout\" is %s, expected null", name,
                      json_kind(dropout));
    TRY(json_get_bool(model, "fuse_unk", name, &out->fuse_unknown, error));
    TRY(json_get_bool(model, "ignore_merges", name, &out->ignore_merges, error));
    TRY(json_get_bool(model, "byte_fallback", name, &byte_fallback, error));
    if (byte_fallback) {
        if (vocabulary_find(out, SPACE_MARK, 3) < 0)    /* a space stays one symbol */
            return report(error, OPENPI_UNSUPPORTED, "%s: U+2581, which a space becomes, is not in \"vocab\"",
                          name);
        return vocabulary_find_bytes(out, name, error);
    }
    text = NULL;
    TRY(json_get_string(model, "unk_token", name, &text, error));
    if (!text)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: neither \"byte_fallback\" nor \"unk_token\": unknown characters have no id", name);
    out->unknown = vocabulary_find(out, text, strlen(text));
    if (out->unknown < 0)
        return report(error, OPENPI_BAD_FILE, "%s: \"unk_token\" \"%.40s\" is not in \"vocab\"", name, text);
    return OPENPI_OK;
}

/* ---- vocabulary ---------------------------------------------------------------------------------------- */

static openpi_status check_id(const json_t *value, const char *text, const char *name, openpi_error *error) {
    if (!json_is_integer(value))
        return report(error, OPENPI_BAD_FILE, "%s: the id of \"%.40s\" is %s, expected an integer", name,
                      text, json_kind(value));
    json_int_t id = json_integer_value(value);
    if (id >= 0 && id < VOCABULARY_LIMIT) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: the id of \"%.40s\" is %lld, expected 0 to %d", name, text,
                  (long long)id, VOCABULARY_LIMIT - 1);
}

/* The largest id + 1 and the bytes of all pieces: the size of the tables. */
static openpi_status measure(json_t *vocab, const json_t *added, const char *name, int *ids, size_t *bytes,
                             openpi_error *error) {
    const char *key;
    json_t *value;
    *ids = 0;
    *bytes = 0;
    json_object_foreach(vocab, key, value) {
        TRY(check_id(value, key, name, error));
        if (json_integer_value(value) >= *ids) *ids = (int)json_integer_value(value) + 1;
        *bytes += strlen(key);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i), *content = json_object_get(token, "content");
        if (!json_is_string(content))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"content\" of \"added_tokens\"[%zu] is %s, expected a string", name, i,
                          json_kind(content));
        value = json_object_get(token, "id");
        TRY(check_id(value, json_string_value(content), name, error));
        if (json_integer_value(value) >= *ids) *ids = (int)json_integer_value(value) + 1;
        *bytes += json_string_length(content);
    }
    if (*ids <= TOKEN_BOS)
        return report(error, OPENPI_BAD_FILE, "%s: %d ids, expected more than %d", name, *ids, TOKEN_BOS);
    return OPENPI_OK;
}

static openpi_status read_vocabulary(json_t *vocab, tokenizer *out, const char *name, openpi_error *error) {
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
        TRY(vocabulary_add(out, json_integer_value(value), key, strlen(key), PIECE_TEXT, 0, name, error));
    return OPENPI_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------- */

typedef struct half {
    const char *text;
    size_t bytes;
} half;

/* A merge is ["a", "b"] or, in older files, "a b". */
static int halves_of(const json_t *item, half out[2]) {
    if (json_array_size(item) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *part = json_array_get(item, i);
            if (!json_is_string(part)) return 0;
            out[i] = (half){json_string_value(part), json_string_length(part)};
        }
        return 1;
    }
    const char *text = json_string_value(item), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return 0;
    out[0] = (half){text, (size_t)(space - text)};
    out[1] = (half){space + 1, strlen(space + 1)};
    return 1;
}

static openpi_status read_merges(const json_t *merges, tokenizer *out, const char *name,
                                 openpi_error *error) {
    size_t count = json_array_size(merges);
    uint32_t rank = 0;
    TRY(vocabulary_create_merges(out, count, name, error));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(merges, i);
        char joined[2 * PIECE_LIMIT];
        int32_t ids[3] = {-1, -1, -1};
        half halves[2];
        if (json_is_string(item) && !strncmp(json_string_value(item), "#version", 8)) continue;
        if (!halves_of(item, halves))
            return report(error, OPENPI_BAD_FILE, "%s: \"merges\"[%zu] is %s, expected a pair of pieces",
                          name, i, json_kind(item));
        for (int k = 0; k < 2; k++) ids[k] = vocabulary_find(out, halves[k].text, halves[k].bytes);
        if (ids[0] >= 0 && ids[1] >= 0) {               /* so each is at most PIECE_LIMIT long */
            memcpy(joined, halves[0].text, halves[0].bytes);
            memcpy(joined + halves[0].bytes, halves[1].text, halves[1].bytes);
            ids[2] = vocabulary_find(out, joined, halves[0].bytes + halves[1].bytes);
        }
        if (ids[2] < 0)
            return report(
                error, OPENPI_BAD_FILE,
                "%s: \"merges\"[%zu] joins \"%.*s\" and \"%.*s\", expected both and the result in \"vocab\"",
                name, i, halves[0].bytes < 40 ? (int)halves[0].bytes : 40, halves[0].text,
                halves[1].bytes < 40 ? (int)halves[1].bytes : 40, halves[1].text);
        vocabulary_add_merge(out, ids[0], ids[1], rank++, ids[2]);
    }
    return OPENPI_OK;
}

/* ---- added tokens -------------------------------------------------------------------------------------- */

/* A token that "vocab" lacks must have the id that Hugging Face would give it, whatever the file says: the
 * next one. */
static openpi_status read_added(const json_t *added, size_t pieces, tokenizer *out, const char *name,
                                openpi_error *error) {
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    size_t count = json_array_size(added);
    json_int_t next = (json_int_t)pieces;
    TRY(atom_set_create(&out->before, count, name, error));
    TRY(atom_set_create(&out->after, count, name, error));
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_array_get(added, i);
        const char *text = json_string_value(json_object_get(token, "content"));
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        int normalized = 0, on = 0;
        for (int k = 0; k < 3; k++) {
            TRY(json_get_bool(token, unsupported[k], name, &on, error));
            if (on)
                return report(error, OPENPI_UNSUPPORTED,
                              "%s: \"%s\" of added token \"%.40s\" is true, which is not supported", name,
                              unsupported[k], text);
        }
        TRY(json_get_bool(token, "normalized", name, &normalized, error));
        if (normalized && strchr(text, ' '))            /* its own spaces would have to be marked */
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: added token \"%.40s\" is normalized and has a space, which is not supported",
                          name, text);
        int32_t known = vocabulary_find_any(out, text, strlen(text));
        if (known < 0 && id != next)
            return report(error, OPENPI_BAD_FILE,
                          "%s: added token \"%.40s\" has id %lld, expected the next one, %lld", name, text,
                          (long long)id, (long long)next);
        if (known < 0) TRY(vocabulary_add(out, id, text, strlen(text), PIECE_RESERVED, 0, name, error));
        else if (known != id)
            return report(error, OPENPI_BAD_FILE,
                          "%s: added token \"%.40s\" has id %lld, but %d in \"vocab\"", name, text,
                          (long long)id, known);
        if (out->pieces[id].atomic)
            return report(error, OPENPI_BAD_FILE, "%s: added token \"%.40s\" is there twice", name, text);
        if (id >= next) next = id + 1;
        atom_set_add(normalized ? &out->after : &out->before, out, (int32_t)id);
    }
    atom_set_sort(&out->before);
    atom_set_sort(&out->after);
    return OPENPI_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static openpi_status fill(const json_t *model, const json_t *added, tokenizer *out, const char *name,
                          openpi_error *error) {
    out->hugging_face = 1;
    TRY(read_vocabulary(json_object_get(model, "vocab"), out, name, error));
    TRY(check_model(model, out, name, error));
    TRY(read_merges(json_object_get(model, "merges"), out, name, error));
    return read_added(added, json_object_size(json_object_get(model, "vocab")), out, name, error);
}

static openpi_status expect_kind(const json_t *object, const char *key, json_type type, const char *kind,
                                 const char *name, openpi_error *error) {
    const json_t *value = json_object_get(object, key);
    if (value && json_typeof(value) == type) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected %s", name, key, json_kind(value), kind);
}

static openpi_status read_root(const json_t *root, const char *name, tokenizer **out, openpi_error *error) {
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    TRY(expect_kind(root, "model", JSON_OBJECT, "an object", name, error));
    if (!is_string(json_object_get(model, "type"), "BPE")) return refuse(root, "model", "BPE", name, error);
    TRY(expect_kind(model, "vocab", JSON_OBJECT, "an object", name, error));
    TRY(expect_kind(model, "merges", JSON_ARRAY, "an array", name, error));
    TRY(expect_kind(root, "added_tokens", JSON_ARRAY, "an array", name, error));
    TRY(check_pipeline(root, name, error));
    int ids;
    size_t bytes;
    tokenizer *made;
    TRY(measure(json_object_get(model, "vocab"), added, name, &ids, &bytes, error));
    TRY(vocabulary_create(ids, bytes, name, &made, error));
    openpi_status status = fill(model, added, made, name, error);
    if (status != OPENPI_OK) tokenizer_close(made);
    else *out = made;
    return status;
}

openpi_status tokenizer_read_json(const void *bytes, size_t count, const char *name, tokenizer **out,
                                  openpi_error *error) {
    json_t *root;
    TRY(json_parse(bytes, count, name, &root, error));
    openpi_status status = read_root(root, name, out, error);
    json_decref(root);
    return status;
}
