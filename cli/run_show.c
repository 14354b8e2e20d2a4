/* What `openpi run` shows: a table for people, JSON, CSV or numpy's .npy for programs, and the plot. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lab/draw/plot.h"
#include "checkpoint/variant.h"
#include "npy.h"
#include "output.h"
#include "run.h"
#include "table.h"

/* ---- showing -------------------------------------------------------------------------------------- */

/* Strings of the robot, null where it has none. */
static json_t *texts_json(const char *const *texts, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, *texts[i] ? json_string(texts[i]) : json_null());
    return list;
}

/* Where each action starts, in its units; null where no number of the state is that. */
static json_t *starts_json(const run_job *j) {
    json_t *list = json_array();
    for (int d = 0; d < j->policy_info.action_dim; d++)
        json_array_append_new(list, isfinite(j->starts[d]) ? json_real(j->starts[d]) : json_null());
    return list;
}

static json_t *run_head(const run_job *j) {
    const run_values *v = j->v;
    const openpi_session_info *s = &j->session_info;
    int dims = j->policy_info.action_dim;
    double rate = openpi_policy_rate(j->policy);
    json_t *head = head_json("run");
    char source[160];
    if (v->synthetic) snprintf(source, sizeof source, "synthetic %.120s", v->synthetic);
    else lora_source(&v->lora, j->model.checkpoint, source, sizeof source);
    json_object_set_new(head, "model", head_model(&j->engine_info, source));
    json_object_set_new(head, "machine", head_machine(&j->engine_info, j->hardware));
    head_lost(json_object_get(head, "machine"), &j->engine_info, s);
    json_object_set_new(head, "robot", head_text(j->policy_info.robot));
    json_object_set_new(head, "config", head_text(v->policy.config));
    json_object_set_new(head, "prompt", head_text(v->prompt));
    json_object_set_new(head, "seed", j->noise ? json_null() : json_integer((json_int_t)v->seed));
    json_object_set_new(head, "noise", head_text(run_noise_name(j)));
    json_object_set_new(head, "rtc", previous_json(&v->previous, &j->previous));
    json_object_set_new(head, "horizon", json_integer(s->horizon));
    json_object_set_new(head, "steps", json_integer(s->steps));
    json_object_set_new(head, "action_names", texts_json(j->names, dims));
    json_object_set_new(head, "units", texts_json(j->units, dims));
    json_object_set_new(head, "starts", starts_json(j));
    json_object_set_new(head, "rate_hz", rate > 0 ? json_real(rate) : json_null());
    return head;
}

/* What the robot's limits changed; written only where it has some. */
static void write_limited(FILE *file, const openpi_limited *l) {
    fprintf(file,
            " \"limited\": {\"changed\": %d, \"below_min\": %d, \"above_max\": %d, \"beyond_step\": %d, "
            "\"beyond_start\": %d, \"held\": %d, \"steps\": [",
            l->changed, l->below_min, l->above_max, l->beyond_step, l->beyond_start, l->held);
    for (int s = 0, some = 0; s < OPENPI_MAX_HORIZON; s++)
        if (l->changed_steps >> s & 1) fprintf(file, "%s%d", some++ ? ", " : "", s);
    fprintf(file, "]},\n");
}

/* Actions keep every digit that reads back as the same number, one step a line: so they are written here. */
static void write_json(FILE *file, const run_job *j) {
    char number[NUMBER_TEXT];
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    json_t *head = run_head(j);
    char *text = json_dumps(head, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    json_decref(head);
    if (text) fprintf(file, "%.*s", (int)strlen(text) - 2, text); /* but for the brace and its line */
    free(text);
    fprintf(file, ",\n \"actions\": [");
    for (int i = 0; i < horizon; i++) {
        fprintf(file, i ? ",\n  [" : "\n  [");
        for (int d = 0; d < dims; d++)
            fprintf(file, "%s%s", d ? ", " : "", number_text(j->actions[i * dims + d], number));
        fputc(']', file);
    }
    fprintf(file, "\n ],\n");
    if (j->policy_info.limits) write_limited(file, &j->limited);
    fprintf(file, " \"timing\": {");
    for (int s = 0; s < OPENPI_STAGES; s++)
        fprintf(file, "\"%s_ms\": %.6g, ", openpi_stage_name((openpi_stage)s), j->timing.stage_ms[s]);
    fprintf(file, "\"device_ms\": %.6g, \"total_ms\": %.6g}\n}\n", j->timing.device_ms, j->timing.total_ms);
}

static void write_csv(FILE *file, const run_job *j) {
    char number[NUMBER_TEXT];
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    fprintf(file, "step");
    for (int d = 0; d < dims; d++) {
        if (*j->names[d]) fprintf(file, ",%s", j->names[d]);
        else fprintf(file, ",action_%d", d);
    }
    fputs(j->policy_info.limits ? ",limited\n" : "\n", file);
    for (int i = 0; i < horizon; i++) {
        fprintf(file, "%d", i);
        for (int d = 0; d < dims; d++) fprintf(file, ",%s", number_text(j->actions[i * dims + d], number));
        if (j->policy_info.limits) fprintf(file, ",%d", (int)(j->limited.changed_steps >> i & 1));
        fputc('\n', file);
    }
}

static void write_npy(FILE *file, const run_job *j) {
    npy_write(file, j->actions, j->session_info.horizon, j->policy_info.action_dim);
}

static const char *model_text(const run_job *j, char *text, size_t bytes) {
    const openpi_engine_info *e = &j->engine_info;
    double millions = (double)e->parameters / 1e6;
    char types[TYPES_TEXT];
    snprintf(text, bytes, "%s, %.2f %s parameters, %s on %s (%s, %d thread%s)",
             variant_of(e->variant)->symbol, millions >= 1000 ? millions / 1000 : millions,
             millions >= 1000 ? "billion" : "million", machine_types(e, types), e->device, e->path,
             e->threads, e->threads == 1 ? "" : "s");
    return text;
}

static void write_times(FILE *file, const openpi_timing *timing) {
    enum { BAR = 30 };
    static const char bar[BAR + 1] = "##############################";
    table *t = table_create("lrrl");
    table_cell(t, "stage");
    table_cell(t, "ms");
    table_cell(t, "share");
    table_cell(t, "%s", "");
    double total = timing->total_ms > 0 ? timing->total_ms : 1;
    for (int s = 0; s < OPENPI_STAGES; s++) {
        double part = timing->stage_ms[s] / total;
        table_cell(t, "%s", openpi_stage_name((openpi_stage)s));
        table_cell(t, "%.2f", timing->stage_ms[s]);
        table_cell(t, "%.1f %%", part * 100);
        table_cell(t, "%.*s", part < 0 ? 0 : part > 1 ? BAR : (int)(part * BAR + 0.5), bar);
    }
    table_cell(t, "total");
    table_cell(t, "%.2f", timing->total_ms);
    table_cell(t, "%s", "");
    table_cell(t, "%s", "");
    table_print(t, file, 0);
}

/* The least and the greatest of an action's numbers. */
static void range_of(const run_job *j, int d, double *low, double *high) {
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    *low = *high = j->actions[d];
    for (int i = 1; i < horizon; i++) {
        *low = fmin(*low, j->actions[i * dims + d]);
        *high = fmax(*high, j->actions[i * dims + d]);
    }
}

enum { SPARK_MOST = 32, SPARK_LEAST = 8, SPARK_TEXT = SPARK_MOST * 3 + 1 };

/* An action's course over the chunk in `columns` blocks of eight heights, from its least to its greatest. */
static const char *spark(const run_job *j, int d, int columns, char text[SPARK_TEXT]) {
    static const char blocks[8][4] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    double low, high;
    range_of(j, d, &low, &high);
    *text = 0;
    for (int c = 0; c < columns; c++) {
        int step = columns > 1 ? c * (horizon - 1) / (columns - 1) : 0;
        double part = high > low ? (j->actions[step * dims + d] - low) / (high - low) : 0;
        strcat(text, blocks[(int)(part * 7 + 0.5)]);
    }
    return text;
}

static void number_cell(table *t, double value) {
    table_cell(t, fabs(value) < 1000 ? "%.5f" : "%.6g", value);
}

/* Columns of the terminal; 80 where the result goes elsewhere. */
static int terminal_columns(void) {
    struct winsize size;
    int known = isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col > 0;
    return known ? size.ws_col : 80;
}

/* Blocks of a sparkline: what the other columns leave of a line. */
static int spark_columns(const run_job *j, int units) {
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    int names = 6, words = 4, number = 8, left;
    for (int d = 0; d < dims; d++) {
        double low, high;
        char text[2][NUMBER_TEXT];
        range_of(j, d, &low, &high);
        snprintf(text[0], sizeof text[0], fabs(low) < 1000 ? "%.5f" : "%.6g", low);
        snprintf(text[1], sizeof text[1], fabs(high) < 1000 ? "%.5f" : "%.6g", high);
        for (int i = 0; i < 2; i++)
            if (text_columns(text[i]) > number) number = text_columns(text[i]);
        if (text_columns(j->heads[d]) > names) names = text_columns(j->heads[d]);
        if (text_columns(j->units[d]) > words) words = text_columns(j->units[d]);
    }
    left = terminal_columns() - names - 2 - 4 * (number + 2) - (units ? words + 2 : 0);
    if (left > SPARK_MOST) left = SPARK_MOST;
    if (left < SPARK_LEAST) left = SPARK_LEAST;
    return left < horizon ? left : horizon;
}

/* 0: every action has one unit, or none; it is said once. */
static int units_differ(const run_job *j) {
    for (int d = 1; d < j->policy_info.action_dim; d++)
        if (strcmp(j->units[d], j->units[0])) return 1;
    return 0;
}

/* An action a line. */
static void write_actions(FILE *file, const run_job *j) {
    static const char *const heads[] = {"action", "first", "last", "least", "most", "course"};
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim, units = units_differ(j);
    int columns = spark_columns(j, units);
    char text[SPARK_TEXT];
    table *t = table_create(units ? "lrrrrll" : "lrrrrl");
    for (int i = 0; i < 6; i++) table_cell(t, "%s", heads[i]);
    if (units) table_cell(t, "unit");
    for (int d = 0; d < dims; d++) {
        double low, high;
        range_of(j, d, &low, &high);
        table_cell(t, "%s", j->heads[d]);
        number_cell(t, j->actions[d]);
        number_cell(t, j->actions[(horizon - 1) * dims + d]);
        number_cell(t, low);
        number_cell(t, high);
        table_cell(t, "%s", spark(j, d, columns, text));
        if (units) table_cell(t, "%s", j->units[d]);
    }
    table_print(t, file, 0);
}

static void write_table(FILE *file, const run_job *j) {
    char text[160];
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    fprintf(file, "%s\n", model_text(j, text, sizeof text));
    fprintf(file, "robot %s: %d steps of %d actions, %d denoising steps%s%s\n\n", j->policy_info.robot,
            horizon, dims, j->session_info.steps, units_differ(j) || !*j->units[0] ? "" : ", in unit ",
            units_differ(j) ? "" : j->units[0]);
    write_actions(file, j);
    fprintf(file, "\nevery step: --json, or --out with a name that ends in .json, .csv or .npy\n\n");
    write_times(file, &j->timing);
}

static void write_plot(FILE *file, const run_job *j) {
    char title[512], below[256], text[160];
    snprintf(title, sizeof title, "%.200s%s%.400s%s", j->policy_info.robot, j->v->prompt ? ": “" : "",
             j->v->prompt ? j->v->prompt : "", j->v->prompt ? "”" : "");
    snprintf(below, sizeof below, "%d actions; %s", j->session_info.horizon,
             model_text(j, text, sizeof text));
    plot_actions(file, &(action_plot){.title = title,
                                      .subtitle = below,
                                      .actions = j->actions,
                                      .horizon = j->session_info.horizon,
                                      .dims = j->policy_info.action_dim,
                                      .names = j->names,
                                      .units = j->units,
                                      .starts = j->starts,
                                      .rate_hz = openpi_policy_rate(j->policy)});
}

/* ---- which form ----------------------------------------------------------------------------------- */

static const struct {
    const char *ending;
    int format;
} endings[] = {{".json", FORMAT_JSON}, {".csv", FORMAT_CSV}, {".npy", FORMAT_NPY}, {".txt", FORMAT_TABLE}};

enum { ENDINGS = sizeof endings / sizeof *endings };

/* The end of a file's name from its last dot on; "": it has none. */
static const char *ending_of(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? dot : "";
}

/* What the name of --out says, 0: nothing. */
static int named_format(const char *out) {
    for (int i = 0; out && i < ENDINGS; i++)
        if (!strcmp(ending_of(out), endings[i].ending)) return endings[i].format;
    return 0;
}

int run_choose_format(run_job *j) {
    const run_values *v = j->v;
    const int named = named_format(v->out), given = v->json ? FORMAT_JSON : v->format;
    const int shown = !v->out || !strcmp(v->out, "-");
    j->format = given ? given : named ? named : FORMAT_TABLE;
    if (given && named && given != named)
        return usage_error(&verb_run, "--out is '%s', whose name ends in %s, and %s says another form",
                           v->out, ending_of(v->out), v->json ? "--json" : "--format");
    if (!given && !named && v->out && *ending_of(v->out) && !shown)
        return usage_error(&verb_run, "--out is '%s', which ends in %s: expected .json, .csv, .npy or .txt, "
                                      "or --format for another name", v->out, ending_of(v->out));
    if (v->plot && !strcmp(v->plot, "-") && !v->out && j->format > FORMAT_TABLE)
        return usage_error(&verb_run, "the plot and the result are both to go to standard output: give --out "
                                      "FILE");
    if (j->format == FORMAT_NPY && shown && isatty(STDOUT_FILENO))
        return usage_error(&verb_run, "--format npy is binary: give --out FILE, or send stdout to a file");
    return END_FINE;
}

/* ---- all of it ------------------------------------------------------------------------------------ */

void run_show(const run_job *j) {
    static void (*const writers[])(FILE *, const run_job *) = {write_table, write_table, write_json,
                                                               write_csv, write_npy};
    void (*writer)(FILE *, const run_job *) = writers[j->format];
    if (j->v->plot) write_plot(output_file(j->v->plot), j);
    writer(j->v->out ? output_file(j->v->out) : stdout, j);
}

