/* Byte-pair encoding of a prompt, bit-exact to SentencePiece and to Hugging Face's tokenizers.
 *
 * A text becomes a doubly linked list of symbols: atoms (user-defined pieces, added tokens), which never
 * merge, and characters. A heap holds every adjacent pair that may merge, best rank first, leftmost first
 * among equals. A pair whose symbols have merged with others in the meantime has another size and is dropped.
 * Each merge adds at most two pairs, so n bytes take O(n log n) steps for any text. */
#include "policy/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "base/utf8.h"
#include "policy/tokenizer/vocabulary.h"

enum {
    TEXT_LIMIT = 1 << 26,               /* bytes; three times as many fit into a 32-bit offset            */
    STRETCH = 1 << 10,                  /* bytes that are tokenised together, up to the next space        */
    STRETCH_MOST = 1 << 17,             /* without a space: far more than a prompt's tokens hold          */
};

typedef struct symbol {
    uint32_t start, bytes;              /* in scratch.text; bytes 0: merged into its left neighbour */
    int32_t previous, next;             /* -1: none */
    int32_t id;                         /* -1: a character that is no piece */
    int atomic;
} symbol;

typedef struct candidate {
    uint64_t key;                       /* rank << 32 | left symbol: the smallest merges first */
    uint32_t right, bytes;              /* right symbol; bytes of both when the pair was found */
    int32_t id;                         /* the merged symbol */
} candidate;

struct tokenizer_scratch {
    size_t capacity;                    /* bytes of text */
    char *text;                         /* [3 * capacity]  with spaces as U+2581 */
    symbol *symbols;                    /* [capacity] */
    candidate *heap; /* [2 * capacity]  n - 1 pairs, and 1 for each of n - 1 merges */
    uint32_t text_used, symbol_count, heap_count;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Marks the bytes that stand before a space, or before its mark, inside `text`. */
static void mark_joined(const char *text, size_t bytes, uint8_t joined[256]) {
    for (size_t i = 1; i < bytes; i++)
        if (text[i] == ' ' || (bytes - i >= 3 && !memcmp(text + i, SPACE_MARK, 3)))
            joined[(uint8_t)text[i - 1]] = 1;
}

/* Where a text may be cut: see stretch_end. */
static void find_apart(tokenizer *made) {
    const atom_set *const sets[] = {&made->before, &made->after};
    uint8_t joined[256] = {0};
    for (int i = 0; i < made->vocab; i++)
        mark_joined(made->text + made->pieces[i].start, made->pieces[i].bytes, joined);
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < sets[k]->count; i++)
            mark_joined(sets[k]->atoms[i].text, sets[k]->atoms[i].bytes, joined);
    int space_is_piece = vocabulary_find(made, SPACE_MARK, 3) >= 0;
    for (int i = 0; i < 256; i++) made->apart[i] = space_is_piece && !joined[i];
}

openpi_status tokenizer_parse(const void *bytes, size_t count, const char *name, tokenizer **out,
                              openpi_error *error) {
    const char *text = bytes;
    size_t at = 0;
    if (count > TOKENIZER_FILE_LIMIT)
        return report(error, OPENPI_BAD_FILE, "%s: %zu bytes, expected at most %d", name, count,
                      TOKENIZER_FILE_LIMIT);
    while (at < count && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r')) at++;
    int json = at < count && text[at] == '{';
    if (!json && (!count || text[0] != '\n'))            /* 0x0a: field 1, a piece */
        return report(error, OPENPI_BAD_FILE, "%s: neither a SentencePiece model nor a tokenizer.json", name);
    if (json) TRY(tokenizer_read_json(bytes, count, name, out, error));
    else TRY(tokenizer_read_sentencepiece(bytes, count, name, out, error));
    find_apart(*out);
    return OPENPI_OK;
}

openpi_status tokenizer_open(const char *path, tokenizer **out, openpi_error *error) {
    char *bytes;
    size_t count;
    TRY(file_read(path, TOKENIZER_FILE_LIMIT, &bytes, &count, error));
    openpi_status status = tokenizer_parse(bytes, count, path, out, error);
    free(bytes);
    return status;
}

void tokenizer_close(tokenizer *tokenizer) {
    if (!tokenizer) return;
    free(tokenizer->before.atoms);
    free(tokenizer->after.atoms);
    free(tokenizer->merges);
    free(tokenizer->table);
    free(tokenizer->text);
    free(tokenizer->pieces);
    free(tokenizer);
}

int tokenizer_vocab(const tokenizer *tokenizer) {
    return tokenizer->vocab;
}

int tokenizer_is_hugging_face(const tokenizer *tokenizer) {
    return tokenizer->hugging_face;
}

/* ---- scratch ------------------------------------------------------------------------------------------- */

enum { BYTE_COST = 3 + sizeof(symbol) + 2 * sizeof(candidate) };   /* of scratch for a byte of text       */

static openpi_status scratch_reserve(tokenizer_scratch *scratch, size_t bytes, openpi_error *error) {
    if (bytes <= scratch->capacity) return OPENPI_OK;
    size_t sizes[3] = {3 * bytes, bytes * sizeof(symbol), 2 * bytes * sizeof(candidate)};
    void *taken[3];
    for (int i = 0; i < 3; i++) {
        taken[i] = malloc(sizes[i]);
        if (taken[i]) continue;
        while (i--) free(taken[i]);
        return report_no_memory(error, sizes[0] + sizes[1] + sizes[2], "a prompt's tokens");
    }
    free(scratch->text);
    free(scratch->symbols);
    free(scratch->heap);
    scratch->text = taken[0];
    scratch->symbols = taken[1];
    scratch->heap = taken[2];
    scratch->capacity = bytes;
    return OPENPI_OK;
}

openpi_status tokenizer_scratch_create(size_t text_bytes, tokenizer_scratch **out, openpi_error *error) {
    if (text_bytes > TEXT_LIMIT)
        return report(error, OPENPI_BAD_ARGUMENT, "scratch for a prompt of %zu bytes, expected at most %d",
                      text_bytes, TEXT_LIMIT);
    tokenizer_scratch *made = calloc(1, sizeof *made);
    if (!made) return report_no_memory(error, sizeof *made, "a prompt's tokens");
    openpi_status status = scratch_reserve(made, text_bytes, error);
    if (status != OPENPI_OK) tokenizer_scratch_close(made);
    else *out = made;
    return status;
}

void tokenizer_scratch_close(tokenizer_scratch *scratch) {
    if (!scratch) return;
    free(scratch->text);
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch);
}

void tokenizer_scratch_trim(tokenizer_scratch *scratch, size_t text_bytes) {
    if (scratch->capacity <= text_bytes) return;
    free(scratch->text);
    free(scratch->symbols);
    free(scratch->heap);
    scratch->text = NULL;
    scratch->symbols = NULL;
    scratch->heap = NULL;
    scratch->capacity = 0;
    scratch_reserve(scratch, text_bytes, NULL);                /* else when it is needed                    */
}

size_t tokenizer_scratch_bytes(size_t text_bytes) {
    size_t bytes = text_bytes < STRETCH_MOST ? text_bytes : STRETCH_MOST;
    return bytes * BYTE_COST;
}

/* ---- text to symbols ----------------------------------------------------------------------------------- */

static void push_symbol(tokenizer_scratch *scratch, uint32_t start, uint32_t bytes, int32_t id, int atomic) {
    int32_t here = (int32_t)scratch->symbol_count++;
    scratch->symbols[here] = (symbol){.start = start,
                                       .bytes = bytes,
                                       .previous = here - 1,
                                       .next = here + 1,
                                       .id = id,
                                       .atomic = atomic};
}

/* Splits text[start … end), which holds no atom, into characters. */
static void split_word(const tokenizer *tokenizer, tokenizer_scratch *scratch, uint32_t start, uint32_t end) {
    const char *text = scratch->text;
    int unknown_before = 0;
    if (start == end) return;
    if (tokenizer->ignore_merges) {
        int32_t id = vocabulary_find(tokenizer, text + start, end - start);
        if (id >= 0) {
            push_symbol(scratch, start, end - start, id, 1);
            return;
        }
    }
    for (uint32_t at = start, bytes; at < end; at += bytes) {
        uint32_t code;
        bytes = (uint32_t)utf8_decode(text + at, end - at, &code);
        int32_t id = vocabulary_find(tokenizer, text + at, bytes);
        int unknown = id < 0 && tokenizer->hugging_face; /* SentencePiece: only after merging */
        if (!unknown) {
            push_symbol(scratch, at, bytes, id, 0);
        } else if (tokenizer->byte_fallback) {
            for (uint32_t i = 0; i < bytes; i++)
                push_symbol(scratch, at + i, 1, tokenizer->byte[(uint8_t)text[at + i]], 0);
        } else if (unknown_before && tokenizer->fuse_unknown) {
            scratch->symbols[scratch->symbol_count - 1].bytes += bytes;
        } else {
            push_symbol(scratch, at, bytes, tokenizer->unknown, 0);
        }
        unknown_before = unknown;
    }
}

/* Splits text[start … end), in which spaces are U+2581, into atoms and words. */
static void split_marked(const tokenizer *tokenizer, tokenizer_scratch *scratch, uint32_t start,
                         uint32_t end) {
    uint32_t word = start;
    for (uint32_t at = start; at < end;) {
        int32_t id;
        uint32_t code, taken = (uint32_t)atom_set_match(&tokenizer->after, scratch->text + at, end - at, &id);
        if (taken) {
            split_word(tokenizer, scratch, word, at);
            push_symbol(scratch, at, taken, id, 1);
            word = at + taken;
        } else {
            taken = (uint32_t)utf8_decode(scratch->text + at, end - at, &code);
        }
        at += taken;
    }
    split_word(tokenizer, scratch, word, end);
}

static openpi_status split(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text,
                           size_t bytes, openpi_error *error) {
    uint32_t used = 0, start = 0;
    scratch->symbol_count = 0;
    for (size_t at = 0; at < bytes;) {
        int32_t id;
        uint32_t code;
        size_t taken = atom_set_match(&tokenizer->before, text + at, bytes - at, &id);
        if (taken) {
            split_marked(tokenizer, scratch, start, used);
            start = used;
            push_symbol(scratch, used, (uint32_t)taken, id, 1);
            at += taken;
            continue;
        }
        taken = utf8_decode(text + at, bytes - at, &code);
        if (!taken)
            return report(error, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte %zu is 0x%02x", at,
                          (unsigned)(uint8_t)text[at]);
        if (code == ' ') {
            memcpy(scratch->text + used, SPACE_MARK, 3);
            used += 3;
        } else {
            memcpy(scratch->text + used, text + at, taken);
            used += (uint32_t)taken;
        }
        at += taken;
    }
    split_marked(tokenizer, scratch, start, used);
    if (scratch->symbol_count) scratch->symbols[scratch->symbol_count - 1].next = -1;
    return OPENPI_OK;
}

/* ---- merging ------------------------------------------------------------------------------------------- */

static void heap_push(tokenizer_scratch *scratch, candidate added) {
    candidate *heap = scratch->heap;
    size_t at = scratch->heap_count++;
    while (at && heap[(at - 1) / 2].key > added.key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = added;
}

static candidate heap_pop(tokenizer_scratch *scratch) {
    candidate *heap = scratch->heap, best = heap[0], last = heap[--scratch->heap_count];
    size_t at = 0, count = scratch->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= last.key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return best;
}

static void consider(const tokenizer *tokenizer, tokenizer_scratch *scratch, int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const symbol *a = &scratch->symbols[left], *b = &scratch->symbols[right];
    if (a->atomic || b->atomic) return;
    uint32_t rank;
    int32_t id;
    if (tokenizer->merges) {
        const merge *found = vocabulary_find_merge(tokenizer, a->id, b->id);
        if (!found) return;
        rank = found->rank;
        id = found->id;
    } else {
        id = vocabulary_find(tokenizer, scratch->text + a->start, (size_t)a->bytes + b->bytes);
        if (id < 0) return;
        rank = tokenizer->pieces[id].rank;
    }
    heap_push(scratch,
              (candidate){(uint64_t)rank << 32 | (uint32_t)left, (uint32_t)right, a->bytes + b->bytes, id});
}

static void merge_symbols(const tokenizer *tokenizer, tokenizer_scratch *scratch) {
    symbol *symbols = scratch->symbols;
    scratch->heap_count = 0;
    for (int32_t i = 1; i < (int32_t)scratch->symbol_count; i++) consider(tokenizer, scratch, i - 1, i);
    while (scratch->heap_count) {
        candidate best = heap_pop(scratch);
        int32_t left = (int32_t)(uint32_t)best.key;
        symbol *a = &symbols[left], *b = &symbols[best.right];
        if (!a->bytes || !b->bytes || a->bytes + b->bytes != best.bytes) continue; /* one has merged since */
        a->bytes += b->bytes;
        a->id = best.id;
        a->next = b->next;
        b->bytes = 0;
        if (a->next >= 0) symbols[a->next].previous = left;
        consider(tokenizer, scratch, a->previous, left);
        consider(tokenizer, scratch, left, a->next);
    }
}

/* ---- symbols to ids ------------------------------------------------------------------------------------ */

static void put(int32_t *ids, int capacity, int *count, int32_t id) {
    if (*count < capacity) ids[*count] = id;
    ++*count;
}

/* The ids of one stretch of text, after those that are there. */
typedef struct output {
    int32_t *ids;
    int capacity, count, unknown_before;
} output;

static openpi_status encode_stretch(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text,
                                    size_t bytes, output *out, openpi_error *error) {
    TRY(scratch_reserve(scratch, bytes, error));
    TRY(split(tokenizer, scratch, text, bytes, error));
    merge_symbols(tokenizer, scratch);
    for (int32_t i = scratch->symbol_count ? 0 : -1; i >= 0; i = scratch->symbols[i].next) {
        const symbol *here = &scratch->symbols[i];
        int unknown = here->id < 0;
        if (!unknown) {
            put(out->ids, out->capacity, &out->count, here->id);
        } else if (tokenizer->byte_fallback) {
            for (uint32_t k = 0; k < here->bytes; k++)
                put(out->ids, out->capacity, &out->count,
                    tokenizer->byte[(uint8_t)scratch->text[here->start + k]]);
        } else if (!out->unknown_before) {                        /* a run of unknown symbols is one id */
            put(out->ids, out->capacity, &out->count, tokenizer->unknown);
        }
        out->unknown_before = unknown;
    }
    return OPENPI_OK;
}

/* The end of a stretch of about STRETCH bytes: before a space that no piece and no atom joins to what stands
 * before it, so that both sides have the ids that they have together. */
static size_t stretch_end(const tokenizer *tokenizer, const char *text, size_t start, size_t bytes) {
    for (size_t at = start + STRETCH; at < bytes; at++)
        if (text[at] == ' ' && text[at - 1] != ' ' && tokenizer->apart[(uint8_t)text[at - 1]])
            return at;
    return bytes;
}

openpi_status tokenizer_encode(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text,
                               size_t bytes, int32_t *ids, int capacity, int *count, openpi_error *error) {
    output out = {ids, capacity, 0, 0};
    size_t at = 0;
    if (bytes > TEXT_LIMIT)
        return report(error, OPENPI_BAD_INPUT, "the prompt has %zu bytes, expected at most %d", bytes,
                      TEXT_LIMIT);
    while (at < bytes && out.count <= capacity) {
        size_t end = stretch_end(tokenizer, text, at, bytes);
        if (end - at > STRETCH_MOST)
            return report(error, OPENPI_BAD_INPUT,
                          "the prompt has %zu bytes that the tokenizer cannot cut apart (a word without a "
                          "space), expected at most %d", end - at, STRETCH_MOST);
        TRY(encode_stretch(tokenizer, scratch, text + at, end - at, &out, error));
        at = end;
    }
    size_t valid = bytes ? at + utf8_valid_prefix(text + at, bytes - at) : 0;      /* text may be NULL then */
    if (valid < bytes)
        return report(error, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte %zu is 0x%02x", valid,
                      (unsigned)(uint8_t)text[valid]);
    *count = out.count;
    return OPENPI_OK;
}
