/* The list of formats by group: parsing and writing. */
#include "model/formats.h"

#include <stdio.h>
#include <string.h>

#include "base/guess.h"
#include "base/report.h"

static const char *const format_names[FORMATS] = {
#define X(constant, name, weights, input) [constant] = name,
    FORMAT_LIST(X)
#undef X
};
static const char *const group_names[GROUPS] = {
#define X(constant, name) [constant] = name,
    GROUP_LIST(X)
#undef X
};

static const char known_formats[] = "bf16, f32, int8, int8x8, e4m3 or file",
                  known_groups[] = "vision, attention, ffn, expert or heads";

const char *product_format_name(product_format f) { return format_names[f]; }
const char *weight_group_name(weight_group g) { return group_names[g]; }

weight_type format_weights(product_format f) {
    static const weight_type weights[FORMATS] = {
#define X(constant, name, weights, input) [constant] = weights,
        FORMAT_LIST(X)
#undef X
    };
    return weights[f];
}

matrix_input format_input(product_format f) {
    static const matrix_input inputs[FORMATS] = {
#define X(constant, name, weights, input) [constant] = input,
        FORMAT_LIST(X)
#undef X
    };
    return inputs[f];
}

static product_format heads_of(product_format all) { return all == FORMAT_F32 ? FORMAT_F32 : FORMAT_FILE; }

model_types formats_all(dtype act, product_format all) {
    model_types types = {.act = act, .all = all};
    for (int g = 0; g < GROUPS; g++) types.group[g] = g == GROUP_HEADS ? heads_of(all) : all;
    return types;
}

product_format formats_embedding(const model_types *types) {
    return weight_formats[format_weights(types->all)].encode ? FORMAT_FILE : types->all;
}

int formats_have_8_bits(const model_types *types) {
    int found = 0;
    for (int g = 0; g < GROUPS; g++) found |= weight_formats[format_weights(types->group[g])].bits == 8;
    return found;
}

int formats_smooth(const model_types *types) {
    int found = 0;
    for (int g = 0; g < GROUPS; g++) found |= types->smooth[g];
    return found;
}

void formats_take(model_types *types, formats_measured measured) {
    types->powers = measured.powers;
    types->row_scales = measured.row_scales[types->smooth[GROUP_FFN]];
}

int formats_row_scales(const openpi_dims *dims) { return dims->depth - 1; }

/* ---- reading --------------------------------------------------------------------------------------- */

#define SMOOTH_WORD "+smooth"
#define STATIC_WORD "+static"

/* A format as an entry names it. */
typedef struct named_format {
    int format, smooth, fixed;   /* format -1: not said                                                    */
} named_format;

/* What a list has said so far. */
typedef struct reading {
    const char *list;
    named_format all, group[GROUPS];
} reading;

/* A word of a list, in place. */
typedef struct word {
    const char *text;
    int length;
} word;

static int find(const char *const *names, int count, word w) {
    for (int i = 0; i < count; i++)
        if ((int)strlen(names[i]) == w.length && !memcmp(names[i], w.text, (size_t)w.length)) return i;
    return -1;
}

/* Sentences show the list, of a very long one the beginning. */
#define WEIGHTS "weights is \"%.120s\": "

static openpi_status refuse(const reading *r, word w, const char *what, const char *known,
                            openpi_error *error) {
    char text[40];
    snprintf(text, sizeof text, "%.*s", w.length, w.text);
    report(error, OPENPI_BAD_ARGUMENT, WEIGHTS "\"%s\" is no %s, expected %s", r->list, text, what, known);
    return guess_add(error, OPENPI_BAD_ARGUMENT, text, known);
}

/* Takes "+smooth" or "+static" off the word's end. */
static int take_word(word *w, const char *which) {
    int length = (int)strlen(which),
        there = w->length > length && !memcmp(w->text + w->length - length, which, (size_t)length);
    if (there) w->length -= length;
    return there;
}

static openpi_status read_format(const reading *r, word w, named_format *out, openpi_error *error) {
    out->fixed = take_word(&w, STATIC_WORD);
    out->smooth = take_word(&w, SMOOTH_WORD);
    if (!out->fixed) out->fixed = take_word(&w, STATIC_WORD);          /* in either order                  */
    int found = find(format_names, FORMATS, w), is_group = find(group_names, GROUPS, w) >= 0;
    if (found < 0 && is_group)
        return report(error, OPENPI_BAD_ARGUMENT, WEIGHTS "group %.*s is without a format, expected %.*s=%s",
                      r->list, w.length, w.text, w.length, w.text, known_formats);
    if (found < 0) return refuse(r, w, "format", known_formats, error);
    if (out->smooth && weight_formats[format_weights((product_format)found)].bits != 8)
        return report(error, OPENPI_BAD_ARGUMENT,
                      WEIGHTS "%s" SMOOTH_WORD ", expected int8, int8x8 or e4m3 before " SMOOTH_WORD, r->list,
                      format_names[found]);
    out->format = found;
    return OPENPI_OK;
}

/* One scale for all rows is measured of those that ffn's down reads. */
static openpi_status check_fixed(const reading *r, const char *group, const named_format *f,
                                 openpi_error *error) {
    if (!f->fixed || (f->format == FORMAT_INT8X8 && !strcmp(group, group_names[GROUP_FFN]))) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  WEIGHTS "%s%s%s" STATIC_WORD ", expected " STATIC_WORD " after ffn=int8x8 only", r->list,
                  group, *group ? "=" : "", format_names[f->format]);
}

static openpi_status read_group(reading *r, word name, word value, openpi_error *error) {
    named_format chosen;
    int g = find(group_names, GROUPS, name);
    if (g < 0) return refuse(r, name, "group", known_groups, error);
    TRY(read_format(r, value, &chosen, error));
    TRY(check_fixed(r, group_names[g], &chosen, error));
    if (r->group[g].format >= 0)
        return report(error, OPENPI_BAD_ARGUMENT, WEIGHTS "group %s is there twice, expected once", r->list,
                      group_names[g]);
    if (g == GROUP_HEADS && (chosen.smooth || format_input((product_format)chosen.format) != INPUT_ACT))
        return report(error, OPENPI_BAD_ARGUMENT,
                      WEIGHTS "heads=%s%s, expected bf16, f32, int8, e4m3 or file: rows of heads stay fp32",
                      r->list, format_names[chosen.format], chosen.smooth ? SMOOTH_WORD : "");
    r->group[g] = chosen;
    return OPENPI_OK;
}

/* FORMAT or GROUP=FORMAT. */
static openpi_status read_entry(reading *r, word entry, openpi_error *error) {
    const char *equals = memchr(entry.text, '=', (size_t)entry.length);
    named_format chosen;
    if (!entry.length)
        return report(error, OPENPI_BAD_ARGUMENT,
                      WEIGHTS "an entry is empty, expected FORMAT or GROUP=FORMAT", r->list);
    if (equals) {
        word name = {entry.text, (int)(equals - entry.text)};
        return read_group(r, name, (word){equals + 1, entry.length - name.length - 1}, error);
    }
    TRY(read_format(r, entry, &chosen, error));
    TRY(check_fixed(r, "", &chosen, error));
    if (r->all.format >= 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      WEIGHTS "two formats for all groups, %s and %s, expected one", r->list,
                      format_names[r->all.format], format_names[chosen.format]);
    r->all = chosen;
    return OPENPI_OK;
}

openpi_status formats_parse(const char *list, model_types *types, openpi_error *error) {
    reading r = {.list = list, .all.format = -1};
    for (int g = 0; g < GROUPS; g++) r.group[g].format = -1;
    for (const char *at = list;; at++) {
        word entry = {at, (int)strcspn(at, ",")};
        TRY(read_entry(&r, entry, error));
        at += entry.length;
        if (!*at) break;
    }
    if (r.all.format >= 0) *types = formats_all(types->act, (product_format)r.all.format);
    for (int g = 0; g < GROUPS; g++) {
        if (r.all.smooth && g != GROUP_HEADS) types->smooth[g] = 1;
        if (r.group[g].format < 0) continue;
        types->group[g] = (product_format)r.group[g].format;
        types->smooth[g] = r.group[g].smooth;
    }
    if (r.group[GROUP_FFN].format >= 0) types->fixed = r.group[GROUP_FFN].fixed;
    return OPENPI_OK;
}

/* ---- writing --------------------------------------------------------------------------------------- */

void formats_write(const model_types *types, char text[FORMATS_TEXT]) {
    model_types plain = formats_all(types->act, types->all);
    int used = snprintf(text, FORMATS_TEXT, "%s", format_names[types->all]);
    for (int g = 0; g < GROUPS && used < FORMATS_TEXT; g++) {
        int fixed = g == GROUP_FFN && types->fixed;
        if (types->group[g] != plain.group[g] || types->smooth[g] || fixed)
            used += snprintf(text + used, (size_t)(FORMATS_TEXT - used), ",%s=%s%s%s", group_names[g],
                             format_names[types->group[g]], types->smooth[g] ? SMOOTH_WORD : "",
                             fixed ? STATIC_WORD : "");
    }
}
