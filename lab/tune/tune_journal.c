/* The journal of a tuning run: a first line that names the machine, then one line a row; the last line of a
 * shape is valid.
 *
 * Lines are appended and flushed one by one. When the file is read, an incomplete last line and rows whose
 * kernels have changed since are ignored. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "lab/tune/tune.h"

enum { JOURNAL_LIMIT = 64 << 20 };

const char *tune_outcome_name(tune_outcome outcome) {
    static const char *const names[TUNE_OUTCOMES] = {"heuristic", "pending", "confirmed", "rejected"};
    return (unsigned)outcome < TUNE_OUTCOMES ? names[outcome] : "unknown";
}

tune_row *tune_row_add(tune *t) {
    if (t->count == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 64;
        tune_row *more = realloc(t->rows, (size_t)capacity * sizeof *more);
        if (!more) return NULL;
        t->rows = more;
        t->capacity = capacity;
    }
    t->rows[t->count] = (tune_row){0};
    return &t->rows[t->count++];
}

tune_row *tune_row_find(tune *t, const tuning_key *key) {
    for (int i = 0; i < t->count; i++)
        if (tuning_same(&t->rows[i].entry.key, key)) return &t->rows[i];
    return NULL;
}

/* ---- rows as JSON ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
} figures[] = {
    {"winner_us", offsetof(tune_row, winner_us)}, {"base_ms", offsetof(tune_row, base_ms)},
    {"trial_ms", offsetof(tune_row, trial_ms)},   {"library_us", offsetof(tune_row, library_us)},
    {"flops", offsetof(tune_row, flops)},         {"bytes", offsetof(tune_row, bytes)},
};
enum { FIGURES = sizeof figures / sizeof *figures };

static int put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value);
}

json_t *tune_row_json(const tune_row *row) {
    json_t *o = tuning_entry_json(&row->entry);
    int failed = !o;
    failed |= put(o, "name", json_string(row->op));
    failed |= put(o, "stage", json_string(openpi_stage_name(row->stage)));
    failed |= put(o, "calls", json_integer(row->calls));
    failed |= put(o, "candidates", json_integer(row->candidates));
    failed |= put(o, "rows", json_integer(row->rows));
    failed |= put(o, "outcome", json_string(tune_outcome_name(row->outcome)));
    if (row->winner[0]) failed |= put(o, "winner", json_string(row->winner));
    for (int i = 0; i < FIGURES; i++) {
        double value;
        memcpy(&value, (const char *)row + figures[i].offset, sizeof value);
        if (value > 0) failed |= put(o, figures[i].name, json_real(value));
    }
    if (!failed) return o;
    json_decref(o);
    return NULL;
}

/* *changed: the row was measured with other kernels than this build's. */
static openpi_status read_row(const json_t *o, const char *where, const device *device, tune_row *row,
                              int *changed, openpi_error *error) {
    const char *name = NULL, *stage = NULL, *outcome = NULL, *winner = NULL;
    const json_t *kernels = json_object_get(o, "kernels");
    TRY(tuning_entry_parse(o, where, &row->entry, error));
    TRY(tuning_kernels_check(kernels, where, error));
    TRY(json_get_string(o, "name", where, &name, error));
    TRY(json_get_string(o, "stage", where, &stage, error));
    TRY(json_get_string(o, "outcome", where, &outcome, error));
    TRY(json_get_string(o, "winner", where, &winner, error));
    TRY(json_get_int(o, "calls", where, 0, 1 << 20, &row->calls, error));
    TRY(json_get_int(o, "candidates", where, 0, 1 << 20, &row->candidates, error));
    TRY(json_get_int(o, "rows", where, 0, 1 << 28, &row->rows, error));
    int found = TUNE_OUTCOMES;
    for (int i = 0; i < TUNE_OUTCOMES; i++)
        if (outcome && !strcmp(outcome, tune_outcome_name((tune_outcome)i))) found = i;
    if (found == TUNE_OUTCOMES)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"outcome\" is %.40s, expected heuristic, pending, confirmed or rejected", where,
                      outcome ? outcome : "absent");
    row->outcome = (tune_outcome)found;
    for (int i = 0; i < OPENPI_STAGES; i++)
        if (stage && !strcmp(stage, openpi_stage_name((openpi_stage)i))) row->stage = (openpi_stage)i;
    for (int i = 0; i < FIGURES; i++) {
        double value = json_number_value(json_object_get(o, figures[i].name));
        memcpy((char *)row + figures[i].offset, &value, sizeof value);
    }
    snprintf(row->op, sizeof row->op, "%s", name ? name : "");
    snprintf(row->winner, sizeof row->winner, "%s", winner ? winner : "");
    *changed = !tuning_kernels_same(kernels, device, row->entry.choice) ||
               !tuning_kernels_same(kernels, device, row->winner);
    return OPENPI_OK;
}

/* ---- the file --------------------------------------------------------------------------------------- */

static openpi_status append(const char *path, const char *mode, json_t *value, openpi_error *error) {
    char *text = value ? json_text(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (!text) return report_no_memory(error, 4096, "the tuning journal");
    FILE *file = fopen(path, mode);
    int failed = !file || fprintf(file, "%s\n", text) < 0;
    if (file && fclose(file)) failed = 1;
    free(text);
    return failed ? report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", path, ascii_errno(errno))
                  : OPENPI_OK;
}

openpi_status tune_journal_add(const tune *t, const device *device, const tune_row *row,
                               openpi_error *error) {
    if (!t->options.journal) return OPENPI_OK;
    json_t *line = tune_row_json(row), *kernels = json_object();
    int failed = !line || !kernels;
    failed |= tuning_kernels_add(kernels, device, row->entry.choice);
    if (row->winner[0]) failed |= tuning_kernels_add(kernels, device, row->winner);
    failed |= put(line, "kernels", kernels);
    if (!failed) return append(t->options.journal, "a", line, error);
    json_decref(line);
    return report_no_memory(error, 4096, "the tuning journal");
}

static openpi_status read_line(tune *t, const device *device, const char *line, size_t bytes, int number,
                               openpi_error *error) {
    char where[200];
    json_t *object = NULL;
    tune_row row = {0};
    snprintf(where, sizeof where, "%.160s: line %d", t->options.journal, number);
    TRY(json_parse(line, bytes, where, &object, error));
    tuning *none = NULL;
    int changed = 0;
    openpi_status status = number == 1 ? tuning_parse(object, where, &t->machine, device, &none, error)
                                       : read_row(object, where, device, &row, &changed, error);
    tuning_close(none);
    json_decref(object);
    if (status != OPENPI_OK || number == 1 || changed) return status;
    tune_row *known = tune_row_find(t, &row.entry.key);
    if (!known) known = tune_row_add(t);
    if (!known) return report_no_memory(error, sizeof row, "the tuning rows");
    *known = row;
    return OPENPI_OK;
}

openpi_status tune_journal_read(tune *t, const device *device, openpi_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    int number = 0;
    openpi_status status = OPENPI_OK;
    if (!t->options.journal) return OPENPI_OK;
    if (t->options.fresh || !file_exists(t->options.journal)) {
        tuning head = {.machine = t->machine};
        return append(t->options.journal, "w", tuning_json(&head, device), error);
    }
    TRY(file_read(t->options.journal, JOURNAL_LIMIT, &text, &bytes, error));
    for (char *at = text, *end; status == OPENPI_OK && (end = memchr(at, '\n', bytes - (size_t)(at - text)));
         at = end + 1)
        status = read_line(t, device, at, (size_t)(end - at), ++number, error);
    /* An incomplete last line is removed, or the next line would continue it. */
    size_t whole = bytes;
    while (whole && text[whole - 1] != '\n') whole--;
    if (status == OPENPI_OK && (whole < bytes || !number)) {
        FILE *file = fopen(t->options.journal, "w");
        int failed = !file || fwrite(text, 1, whole, file) != whole;
        if (file && fclose(file)) failed = 1;
        if (failed)
            status = report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", t->options.journal,
                            ascii_errno(errno));
        tuning head = {.machine = t->machine};
        if (status == OPENPI_OK && !number)
            status = append(t->options.journal, "w", tuning_json(&head, device), error);
    }
    free(text);
    t->resumed = t->count;
    return status;
}
