/* The tables of a tokenizer: pieces by text, merges by pair, atoms by prefix. Every check of a piece is here,
 * so that both readers refuse the same faults with the same sentences. */
#include "policy/tokenizer/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "base/utf8.h"

/* FNV-1a, then a finaliser that lets the low bits depend on all. */
static uint32_t hash_text(const char *text, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 32);
}

static uint32_t hash_pair(uint64_t pair) {
    pair = (pair ^ pair >> 31) * 0x9e3779b97f4a7c15u;
    pair = (pair ^ pair >> 29) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(pair >> 32);
}

/* The mask of a power of two at least twice `count`: at most half of the slots are ever taken. */
static uint32_t table_mask(size_t count) {
    uint32_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots - 1;
}

openpi_status vocabulary_create(int vocab, size_t text_bytes, const char *name, tokenizer **out,
                                openpi_error *error) {
    tokenizer *made = calloc(1, sizeof *made);
    if (!made) return report_no_memory(error, sizeof *made, name);
    uint32_t mask = table_mask((size_t)vocab);
    made->vocab = vocab;
    made->unknown = -1;
    made->table_mask = mask;
    made->pieces = calloc((size_t)vocab + 1, sizeof *made->pieces);
    made->text = malloc(text_bytes + 1);
    made->table = malloc(((size_t)mask + 1) * sizeof *made->table);
    if (!made->pieces || !made->text || !made->table) {
        tokenizer_close(made);
        return report_no_memory(
            error, (size_t)vocab * sizeof(piece) + text_bytes + ((size_t)mask + 1) * sizeof(int32_t), name);
    }
    memset(made->table, 0xff, ((size_t)mask + 1) * sizeof *made->table);
    *out = made;
    return OPENPI_OK;
}

/* The slot that holds this text, or the free slot for it. */
static int32_t *slot_of(const tokenizer *tokenizer, const char *text, size_t bytes) {
    for (uint32_t i = hash_text(text, bytes);; i++) {
        int32_t *slot = &tokenizer->table[i & tokenizer->table_mask];
        if (*slot < 0) return slot;
        const piece *here = &tokenizer->pieces[*slot];
        if (here->bytes == bytes && !memcmp(tokenizer->text + here->start, text, bytes)) return slot;
    }
}

openpi_status vocabulary_add(tokenizer *tokenizer, int64_t id, const char *text, size_t bytes,
                             piece_kind kind, uint32_t rank, const char *name, openpi_error *error) {
    if (id < 0 || id >= tokenizer->vocab)
        return report(error, OPENPI_BAD_FILE, "%s: a piece has id %lld, expected 0 to %d", name,
                      (long long)id, tokenizer->vocab - 1);
    if (tokenizer->pieces[id].kind != PIECE_ABSENT)
        return report(error, OPENPI_BAD_FILE, "%s: two pieces have id %lld", name, (long long)id);
    if (!bytes || bytes > PIECE_LIMIT)
        return report(error, OPENPI_BAD_FILE, "%s: piece %lld has %zu bytes, expected 1 to %d", name,
                      (long long)id, bytes, PIECE_LIMIT);
    if (utf8_valid_prefix(text, bytes) != bytes)
        return report(error, OPENPI_BAD_FILE, "%s: piece %lld is not UTF-8", name, (long long)id);
    int32_t *slot = slot_of(tokenizer, text, bytes);
    if (*slot >= 0)
        return report(error, OPENPI_BAD_FILE, "%s: pieces %d and %lld are the same text, expected each once",
                      name, *slot, (long long)id);
    *slot = (int32_t)id;
    tokenizer->pieces[id] = (piece){
        .start = (uint32_t)tokenizer->text_used, .bytes = (uint32_t)bytes, .rank = rank, .kind = kind};
    memcpy(tokenizer->text + tokenizer->text_used, text, bytes);
    tokenizer->text_used += bytes;
    if (kind == PIECE_TEXT && bytes > tokenizer->longest) tokenizer->longest = (uint32_t)bytes;
    return OPENPI_OK;
}

int32_t vocabulary_find_any(const tokenizer *tokenizer, const char *text, size_t bytes) {
    return bytes > PIECE_LIMIT ? -1 : *slot_of(tokenizer, text, bytes);
}

int32_t vocabulary_find(const tokenizer *tokenizer, const char *text, size_t bytes) {
    if (bytes > tokenizer->longest) return -1;
    int32_t id = *slot_of(tokenizer, text, bytes);
    return id >= 0 && tokenizer->pieces[id].kind == PIECE_TEXT ? id : -1;
}

openpi_status vocabulary_find_bytes(tokenizer *tokenizer, const char *name, openpi_error *error) {
    for (int i = 0; i < 256; i++) {
        char text[8];
        int length = snprintf(text, sizeof text, "<0x%02X>", (unsigned)i & 0xff);
        tokenizer->byte[i] = vocabulary_find_any(tokenizer, text, (size_t)length);
        if (tokenizer->byte[i] < 0 ||
            (!tokenizer->hugging_face && tokenizer->pieces[tokenizer->byte[i]].kind != PIECE_RESERVED))
            return report(error, OPENPI_BAD_FILE,
                          "%s: byte fallback is on but the byte piece %s is missing, expected all 256", name,
                          text);
    }
    tokenizer->byte_fallback = 1;
    return OPENPI_OK;
}

openpi_status vocabulary_create_merges(tokenizer *tokenizer, size_t count, const char *name,
                                       openpi_error *error) {
    uint32_t mask = table_mask(count);
    tokenizer->merges = malloc(((size_t)mask + 1) * sizeof *tokenizer->merges);
    if (!tokenizer->merges)
        return report_no_memory(error, ((size_t)mask + 1) * sizeof *tokenizer->merges, name);
    tokenizer->merges_mask = mask;
    for (size_t i = 0; i <= mask; i++) tokenizer->merges[i].id = -1;
    return OPENPI_OK;
}

static merge *merge_slot(const tokenizer *tokenizer, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t i = hash_pair(pair);; i++) {
        merge *slot = &tokenizer->merges[i & tokenizer->merges_mask];
        if (slot->id < 0 || slot->pair == pair) return slot;
    }
}

void vocabulary_add_merge(tokenizer *tokenizer, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    *merge_slot(tokenizer, left, right) = (merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id};
}

const merge *vocabulary_find_merge(const tokenizer *tokenizer, int32_t left, int32_t right) {
    const merge *slot = merge_slot(tokenizer, left, right);
    return slot->id < 0 ? NULL : slot;
}

openpi_status atom_set_create(atom_set *set, size_t count, const char *name, openpi_error *error) {
    set->atoms = malloc((count + 1) * sizeof *set->atoms);
    if (!set->atoms) return report_no_memory(error, (count + 1) * sizeof *set->atoms, name);
    return OPENPI_OK;
}

void atom_set_add(atom_set *set, tokenizer *tokenizer, int32_t id) {
    piece *added = &tokenizer->pieces[id];
    added->atomic = 1;
    set->atoms[set->count++] = (atom){tokenizer->text + added->start, added->bytes, id};
}

static int compare_atoms(const void *a, const void *b) {
    const atom *left = a, *right = b;
    int order = memcmp(left->text, right->text, left->bytes < right->bytes ? left->bytes : right->bytes);
    return order ? order : (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

void atom_set_sort(atom_set *set) {
    qsort(set->atoms, set->count, sizeof *set->atoms, compare_atoms);
    uint32_t at = 0;
    for (uint32_t lead = 0; lead < 257; lead++) {
        while (at < set->count && (uint8_t)set->atoms[at].text[0] < lead) at++;
        set->first[lead] = at;
    }
}

/* Of atoms[low … high), all longer than `depth` and with equal first `depth` bytes: the first whose next byte
 * is at least `value`. */
static uint32_t lower_bound(const atom_set *set, uint32_t low, uint32_t high, size_t depth, unsigned value) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((uint8_t)set->atoms[middle].text[depth] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

size_t atom_set_match(const atom_set *set, const char *text, size_t left, int32_t *id) {
    uint32_t low = set->first[(uint8_t)text[0]], high = set->first[(uint8_t)text[0] + 1];
    size_t best = 0;
    for (size_t depth = 1; low < high; depth++) {
        if (set->atoms[low].bytes == depth) {          /* the shortest sorts first */
            best = depth;
            *id = set->atoms[low++].id;
        }
        if (depth == left) break;
        unsigned next = (uint8_t)text[depth];
        low = lower_bound(set, low, high, depth, next);
        high = lower_bound(set, low, high, depth, next + 1);
    }
    return best;
}
