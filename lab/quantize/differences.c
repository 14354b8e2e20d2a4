/* Differences of actions, and bounds on them. */
#include "lab/quantize/differences.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"
#include "lab/measure/figures.h"

static const double default_rms = 0.02, p999_of_rms = 5, flip = 0.1, pi = 3.14159265358979323846;
enum { OF_RMS = -1, OF_P999 = -2, OF_FLIPS = -3 };

/* ---- differences --------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static distance_figures figures_from(double *off, int count) {
    distance_figures f = {0};
    for (int i = 0; i < count; i++) f.rms += off[i] * off[i] / count;
    f.rms = sqrt(f.rms);
    qsort(off, (size_t)count, sizeof *off, ascending);
    f.p99 = figures_percentile(off, count, 0.99);
    f.p999 = figures_percentile(off, count, 0.999);
    f.max = off[count - 1];
    return f;
}

static int is_gripper(const chunks_shape *s, int dim) {
    return ascii_find(openpi_policy_action_name(s->policy, dim), "gripper") != NULL;
}

/* Row r of all observations' rows. */
static double model_at(const chunks *c, int row, int dim) {
    return (double)c->model[(size_t)row * OPENPI_ACTION_DIM + (size_t)dim];
}

static int flips(const chunks_shape *s, const chunks *a, const chunks *b, int dim) {
    int rows = s->observations * s->horizon, count = 0;
    for (int r = 0; r < rows && is_gripper(s, dim); r++) {
        double x = model_at(a, r, dim), y = model_at(b, r, dim);
        count += (x > 0) != (y > 0) && fabs(x - y) > flip;
    }
    return count;
}

static void fill(const chunks_shape *s, const chunks *a, const chunks *b, double *off, differences *out) {
    int rows = s->observations * s->horizon, all = rows * s->dims;
    for (int d = 0; d < s->dims; d++) {
        for (int r = 0; r < rows; r++) off[r] = fabs(model_at(a, r, d) - model_at(b, r, d));
        out->sigma[d] = figures_from(off, rows);
        for (int r = 0; r < rows; r++) off[r] = fabs(a->robot[r * s->dims + d] - b->robot[r * s->dims + d]);
        out->unit[d] = figures_from(off, rows);
        out->flipped += flips(s, a, b, d);
    }
    for (int i = 0; i < all; i++)
        off[i] = fabs(model_at(a, i / s->dims, i % s->dims) - model_at(b, i / s->dims, i % s->dims));
    out->all = figures_from(off, all);
}

openpi_status differences_of(const chunks_shape *s, const chunks *a, const chunks *b, differences *out,
                             openpi_error *error) {
    size_t bytes = (size_t)(s->observations * s->horizon * s->dims) * sizeof(double);
    double *off = malloc(bytes);
    *out = (differences){.flipped = 0};
    if (!off) return report_no_memory(error, bytes, "differences of actions");
    fill(s, a, b, off, out);
    free(off);
    return OPENPI_OK;
}

double differences_chunk(const chunks_shape *s, const chunks *a, const chunks *b, int observation) {
    double squares = 0;
    for (int r = observation * s->horizon; r < (observation + 1) * s->horizon; r++)
        for (int d = 0; d < s->dims; d++) squares += pow(model_at(a, r, d) - model_at(b, r, d), 2);
    return sqrt(squares / (s->horizon * s->dims));
}

/* ---- the user's bounds in units ------------------------------------------------------------------------ */

static const struct {
    const char *given, *of;      /* a bound's unit, and the unit of the action                            */
    double factor;
} conversions[] = {
    {"deg", "rad", 0}, {"rad", "deg", 0}, {"mm", "m", 1e-3}, {"cm", "m", 1e-2}, {"m", "mm", 1e3}};

static double factor_of(size_t row) {
    if (conversions[row].factor > 0) return conversions[row].factor;
    return strcmp(conversions[row].given, "deg") ? 180 / pi : pi / 180;
}

/* 0: the unit that was given is none of the action's. No unit: the action's own. */
static int convert(const char *given, const char *of, double *value) {
    if (!*given || !strcmp(given, of)) return 1;
    for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++) {
        if (strcmp(given, conversions[i].given) || strcmp(of, conversions[i].of)) continue;
        *value *= factor_of(i);
        return 1;
    }
    return 0;
}

/* "all"; a part of the action's name; "joint": also any angle that is no gripper's. */
static int means(const chunks_shape *s, const char *word, int dim) {
    const char *name = openpi_policy_action_name(s->policy, dim),
               *unit = openpi_policy_action_unit(s->policy, dim);
    if (ascii_same(word, "all") || (*name && ascii_find(name, word))) return 1;
    return ascii_same(word, "joint") && (!strcmp(unit, "rad") || !strcmp(unit, "deg")) && !is_gripper(s, dim);
}

typedef struct unit_bound {
    char word[40], unit[16];
    double value;
} unit_bound;

/* One entry, "WORD NUMBER[UNIT]". */
static openpi_status read_entry(const char *entry, unit_bound *out, openpi_error *error) {
    size_t length = strcspn(entry, " ");
    const char *number = entry + length + strspn(entry + length, " ");
    char *end;
    out->value = ascii_number(number, &end);
    snprintf(out->word, sizeof out->word, "%.*s", (int)length, entry);
    snprintf(out->unit, sizeof out->unit, "%s", end + strspn(end, " "));
    if (*out->word && end > number && out->value > 0 && isfinite(out->value)) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "unit_bound has \"%.60s\", expected NAME NUMBER[UNIT] such as \"joint 0.3deg\"", entry);
}

static openpi_status unknown_word(const chunks_shape *s, const char *word, openpi_error *error) {
    char names[300] = "";
    for (int d = 0; d < s->dims && strlen(names) < sizeof names - 60; d++) {
        const char *name = openpi_policy_action_name(s->policy, d);
        if (*name) snprintf(names + strlen(names), 56, "%s, ", name);
    }
    return report(
        error, OPENPI_BAD_ARGUMENT,
        "unit_bound names \"%s\", which is no action of this robot, expected all%s or a part of: %s", word,
        *names ? ", joint" : "", *names ? names : "(its actions have no names)");
}

static openpi_status add_unit_bound(const chunks_shape *s, const unit_bound *u, w8_bound *list, int *dims,
                                    int *count, openpi_error *error) {
    int met = 0;
    for (int d = 0; d < s->dims; d++) {
        const char *name = openpi_policy_action_name(s->policy, d),
                   *unit = openpi_policy_action_unit(s->policy, d);
        double value = u->value;
        if (!means(s, u->word, d)) continue;
        if (!convert(u->unit, unit, &value))
            return report(error, OPENPI_BAD_ARGUMENT,
                          "unit_bound gives %s in %s, and action %s of this robot is in %s", u->word, u->unit,
                          name, *unit ? unit : "no unit that is known");
        if (*count == W8_BOUNDS) return report(error, OPENPI_BAD_ARGUMENT, "unit_bound has too many entries");
        w8_bound *b = &list[*count];
        *b = (w8_bound){.limit = value};
        if (*name) snprintf(b->what, sizeof b->what, "the largest difference of %.40s", name);
        else snprintf(b->what, sizeof b->what, "the largest difference of action %d", d);
        dims[(*count)++] = d;
        met = 1;
    }
    return met ? OPENPI_OK : unknown_word(s, u->word, error);
}

static openpi_status add_unit_bounds(const chunks_shape *s, const char *text, w8_bound *list, int *dims,
                                     int *count, openpi_error *error) {
    while (*text) {
        char entry[80];
        unit_bound u;
        text += strspn(text, " ");
        size_t length = strcspn(text, ",");
        snprintf(entry, sizeof entry, "%.*s", (int)length, text);
        TRY(read_entry(entry, &u, error));
        TRY(add_unit_bound(s, &u, list, dims, count, error));
        text += length + (text[length] == ',');
    }
    return OPENPI_OK;
}

openpi_status bounds_make(const chunks_shape *s, const bounds_given *given, w8_bound *list, int *dims,
                          int *count, openpi_error *error) {
    double rms = given->rms > 0 ? given->rms : default_rms;
    *count = 0;
    if (given->rms > 0 || !given->units) {
        list[*count] = (w8_bound){.what = "rms in σ", .limit = rms};
        dims[(*count)++] = OF_RMS;
        list[*count] = (w8_bound){.what = "the 99.9 % quantile in σ", .limit = rms * p999_of_rms};
        dims[(*count)++] = OF_P999;
    }
    list[*count] = (w8_bound){.what = "the number of flipped grippers", .limit = 0};
    dims[(*count)++] = OF_FLIPS;
    return given->units ? add_unit_bounds(s, given->units, list, dims, count, error) : OPENPI_OK;
}

double bounds_fill(const differences *d, w8_bound *list, const int *dims, int count) {
    double worst = 0;
    for (int i = 0; i < count; i++) {
        w8_bound *b = &list[i];
        b->found = dims[i] == OF_RMS     ? d->all.rms
                   : dims[i] == OF_P999  ? d->all.p999
                   : dims[i] == OF_FLIPS ? d->flipped
                                         : d->unit[dims[i]].max;
        double share = b->limit > 0 ? b->found / b->limit : b->found > 0 ? INFINITY : 0;
        if (!(share <= worst)) worst = share;
    }
    return worst;
}
