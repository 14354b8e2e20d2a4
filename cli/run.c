/* openpi run: one observation in, a chunk of robot actions out.
 *
 * Everything small is read and checked before the weights are, so that a mistyped state costs no minute. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "previous.h"
#include "base/ascii.h"
#include "cli.h"
#include "draw/plot.h"
#include "head.h"
#include "input.h"
#include "json_file.h"
#include "measure/bench.h"
#include "model/variant.h"
#include "npy.h"
#include "output.h"
#include "progress.h"
#include "table.h"

enum { STATE_MAX = 256, FORMAT_TABLE = 1, FORMAT_JSON, FORMAT_CSV, FORMAT_NPY };

typedef struct run_values {
    const char *synthetic, *state, *prompt, *request, *robot, *config, *norm_stats, *assets, *tokenizer,
        *noise, *plot, *out;
    text_list images;
    int prompt_state, horizon, steps, format, verbose;
    uint64_t seed;
    lora_values lora;
    previous_values previous;
    machine_values machine;
} run_values;

typedef struct job {
    const run_values *v;
    model_name model;
    openpi_image pictures[TEXT_LIST_MAX];
    char *picture_names[TEXT_LIST_MAX];
    double state[STATE_MAX];
    int state_count;
    char *request_bytes;
    size_t request_count;
    float *noise;                /* [noise_rows][32] or NULL                                              */
    int noise_rows;
    previous_chunk previous;
    openpi_policy *policy;
    openpi_request *request;
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy_info policy_info;
    openpi_engine_info engine_info;
    openpi_session_info session_info;
    openpi_timing timing;
    float *model_actions;        /* [horizon][32]                                                         */
    double *actions;             /* [horizon][action_dim]                                                 */
    const char *names[OPENPI_ACTION_DIM], *units[OPENPI_ACTION_DIM];   /* the policy's; "": not known     */
    char heads[OPENPI_ACTION_DIM][48];     /* of columns: the name, else "action 3"                       */
    char hardware[HARDWARE_TEXT];
} job;

/* ---- reading the observation ---------------------------------------------------------------------- */

static int read_picture(job *j, const char *text) {
    const char *equals = strchr(text, '=');
    openpi_error error = OPENPI_ERROR_INIT;
    int slot = 0;
    while (j->picture_names[slot]) slot++;
    openpi_image *picture = &j->pictures[slot];
    if (!equals || equals == text || !equals[1])
        return usage_error(&verb_run, "--image is '%s', expected NAME=FILE such as base=front.png", text);
    char *name = allocate((size_t)(equals - text) + 1), *bytes;
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = 0;
    j->picture_names[slot] = name;
    for (int i = 0; i < slot; i++)
        if (!strcmp(j->picture_names[i], name))
            return usage_error(&verb_run, "--image %s is given twice", name);
    size_t count;
    int end = picture_load(&verb_run, equals + 1, &bytes, &count);
    if (end != END_FINE) return end;
    uint8_t *pixels = NULL;
    openpi_status status = openpi_image_decode(bytes, count, input_name(equals + 1), &pixels,
                                               &picture->height, &picture->width, &error);
    free(bytes);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    picture->size = sizeof *picture;
    picture->name = name;
    picture->data = pixels;
    picture->element = OPENPI_U8;
    picture->layout = OPENPI_HWC;
    return END_FINE;
}

static int read_state_json(job *j, const char *path) {
    json_t *root;
    int end = json_input(&verb_run, path, &root);
    if (end != END_FINE) return end;
    path = input_name(path);
    json_t *list = json_is_object(root) ? json_object_get(root, "state") : root;
    if (!json_is_array(list)) {
        json_decref(root);
        return input_error(&verb_run,
                           "%s: expected an array of numbers, or an object with such an array under "
                           "\"state\"",
                           path);
    }
    size_t numbers = json_array_size(list);
    for (size_t i = 0; i < numbers && end == END_FINE; i++) {
        json_t *item = json_array_get(list, i);
        if (numbers > STATE_MAX)
            end = input_error(&verb_run, "%s: %zu numbers, expected at most %d", path, numbers, STATE_MAX);
        else if (!json_is_number(item))
            end = input_error(&verb_run, "%s: value %zu is not a number", path, i + 1);
        else j->state[j->state_count++] = json_number_value(item);
    }
    json_decref(root);
    return end;
}

static int read_state(job *j, const char *text) {
    size_t length = strlen(text);
    if (!strcmp(text, "-") || (length > 5 && !strcmp(text + length - 5, ".json")))
        return read_state_json(j, text);
    for (const char *at = text; *at;) {
        char *end;
        double value = ascii_number(at, &end);
        size_t word = strcspn(at, ",");
        while (*end == ' ') end++;
        if (end != at + word || end == at) {
            if (!j->state_count)
                return usage_error(&verb_run,
                                   "--state is '%s', expected numbers such as \"0.1,-0.2,1\" or a file that "
                                   "ends in .json",
                                   text);
            return usage_error(&verb_run, "--state: value %d is '%.*s', expected a number",
                               j->state_count + 1, (int)(word > 40 ? 40 : word), at);
        }
        if (j->state_count == STATE_MAX)
            return usage_error(&verb_run, "--state has more than %d numbers", STATE_MAX);
        j->state[j->state_count++] = value;
        at = end;
        if (*at == ',' && !at[1]) return usage_error(&verb_run, "--state ends with a comma");
        if (*at == ',') at++;
    }
    return END_FINE;
}

static int read_noise(job *j, const char *path) {
    char *bytes, why[NPY_REASON];
    size_t count;
    int columns, end = file_load(&verb_run, path, &bytes, &count);
    if (end != END_FINE) return end;
    path = input_name(path);
    const char *data = npy_read(bytes, count, &j->noise_rows, &columns, NULL, why);
    if (!data) end = input_error(&verb_run, "%s: %s", path, why);
    else if (columns != OPENPI_ACTION_DIM || j->noise_rows > OPENPI_MAX_HORIZON)
        end = input_error(&verb_run,
                          "%s: shape is [%d, %d], expected [horizon, %d] with a horizon of at most %d", path,
                          j->noise_rows, columns, OPENPI_ACTION_DIM, OPENPI_MAX_HORIZON);
    if (end == END_FINE) {
        size_t need = (size_t)j->noise_rows * (size_t)columns * sizeof(float);
        j->noise = allocate(need);
        memcpy(j->noise, data, need);
    }
    free(bytes);
    return end;
}

/* The noise that a client sent with its request (docs/serve.md), where --noise names no other. */
static int take_noise(job *j) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    if (openpi_request_extras(j->request, &extras, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    if (!extras.noise || j->noise) return END_FINE;
    size_t need = (size_t)extras.noise_rows * OPENPI_ACTION_DIM * sizeof *j->noise;
    j->noise = allocate(need);
    memcpy(j->noise, extras.noise, need);
    j->noise_rows = extras.noise_rows;
    return END_FINE;
}

static const char *noise_name(const job *j) {
    return j->v->noise ? j->v->noise : j->noise ? "openpi/noise of the request" : NULL;
}

static int read_inputs(job *j) {
    const run_values *v = j->v;
    int end = END_FINE;
    if (!v->request && !v->images.count)
        return usage_error(&verb_run, "no picture: give --image NAME=FILE, or a whole request with --request "
                                      "FILE");
    for (int i = 0; i < v->images.count && end == END_FINE; i++) end = read_picture(j, v->images.items[i]);
    if (end == END_FINE && v->state) end = read_state(j, v->state);
    if (end == END_FINE && v->request)
        end = file_load(&verb_run, v->request, &j->request_bytes, &j->request_count);
    if (end == END_FINE && v->noise) end = read_noise(j, v->noise);
    return end == END_FINE ? previous_read(&verb_run, &v->previous, &j->previous) : end;
}

/* ---- computing ------------------------------------------------------------------------------------ */

static int prepare(job *j) {
    const run_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    options.robot = input_path(v->robot);
    options.config = v->config;
    options.norm_stats = input_path(v->norm_stats);
    options.assets = v->assets;
    options.tokenizer = input_path(v->tokenizer);
    options.prompt_state = (openpi_prompt_state)v->prompt_state;
    options.synthetic = j->model.synthetic;
    options.adapter = v->lora.adapter;
    options.without_lora = v->lora.without_lora;
    options.missing_chunks_are_zero = v->lora.missing_chunks_are_zero;
    char cache[HOME_PATH];
    options.tokenizer_cache = tokenizer_cache(cache);
    if (openpi_policy_open(j->model.checkpoint, &options, &j->policy, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    j->policy_info.size = sizeof j->policy_info;
    if (openpi_policy_get_info(j->policy, &j->policy_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    for (int d = 0; d < j->policy_info.action_dim; d++) {
        j->names[d] = openpi_policy_action_name(j->policy, d);
        j->units[d] = openpi_policy_action_unit(j->policy, d);
        if (*j->names[d]) snprintf(j->heads[d], sizeof j->heads[d], "%s", j->names[d]);
        else snprintf(j->heads[d], sizeof j->heads[d], "action %d", d);
    }
    if (openpi_request_create(j->policy, &j->request, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);

    openpi_observation observation = {.size = sizeof observation,
                                      .images = j->pictures,
                                      .image_count = v->images.count,
                                      .state = j->state,
                                      .state_length = j->state_count,
                                      .prompt = v->prompt,
                                      .prompt_length = v->prompt ? strlen(v->prompt) : 0};
    j->timing.size = sizeof j->timing;
    double start = now_ms();
    openpi_status status = v->request ? openpi_request_prepare_msgpack(j->request, j->request_bytes,
                                                                       j->request_count, &j->timing, &error)
                                      : openpi_request_prepare(j->request, &observation, &j->timing, &error);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    j->timing.total_ms = now_ms() - start;
    int end = take_noise(j);
    return end != END_FINE ? end : previous_prepare(&verb_run, &v->previous, j->request, &j->previous);
}

static int load(job *j) {
    const run_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    progress bar;
    progress_start(&bar);
    char without[SWITCH_TEXT];
    machine_options(&v->machine, without, &options);
    options.synthetic = j->model.synthetic;
    options.adapter = v->lora.adapter;
    options.without_lora = v->lora.without_lora;
    options.missing_chunks_are_zero = v->lora.missing_chunks_are_zero;
    options.progress = progress_show;
    options.progress_user = &bar;
    openpi_status status = openpi_engine_open(j->model.checkpoint, &options, &j->engine, &error);
    progress_end(&bar);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    j->engine_info.size = sizeof j->engine_info;
    if (openpi_engine_get_info(j->engine, &j->engine_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    device_facts facts;
    if (bench_device_facts(j->engine, &facts, &error) != OPENPI_OK) return library_error(&verb_run, &error);
    head_hardware(v->machine.device ? v->machine.device : "cpu", facts.name, j->hardware);

    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    shape.horizon = v->horizon ? v->horizon : j->policy_info.horizon;
    shape.steps = v->steps;
    shape.max_prompt = j->policy_info.max_prompt;
    shape.seed = v->seed;
    shape.rtc = v->previous.mode != 0;
    if (openpi_session_create(j->engine, &shape, &j->session, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    j->session_info.size = sizeof j->session_info;
    if (openpi_session_get_info(j->session, &j->session_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    if (v->verbose) machine_say_table(&verb_run, &j->engine_info, j->session);
    machine_warn_table(&verb_run, &j->engine_info);
    machine_say_notes(&verb_run, j->engine, j->policy);
    previous_say_weight(&verb_run, &v->previous, &j->previous, &j->engine_info, j->session_info.steps);
    if (j->session_info.not_recorded[0])
        fprintf(stderr, "openpi run: runs operation by operation, not as one graph: %s\n",
                j->session_info.not_recorded);
    int horizon = j->session_info.horizon;
    if (j->noise && j->noise_rows != horizon)
        return input_error(&verb_run,
                           "%s: shape is [%d, %d], but the horizon is %d, expected [%d, %d]; --horizon %d "
                           "would take it",
                           noise_name(j), j->noise_rows, OPENPI_ACTION_DIM, horizon, horizon,
                           OPENPI_ACTION_DIM, j->noise_rows);
    return END_FINE;
}

static int compute(job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing ran = OPENPI_TIMING_INIT;
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    ticker *seconds = ticker_start("computing");
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    j->model_actions = allocate((size_t)horizon * OPENPI_ACTION_DIM * sizeof *j->model_actions);
    openpi_status status = openpi_request_sample(j->request, &sample, &error);
    if (status == OPENPI_OK)
        status = openpi_session_run_rtc(j->session, &sample, &j->previous.rtc, 1, j->noise, j->model_actions,
                                        &ran, &error);
    ticker_stop(seconds);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);

    size_t capacity = (size_t)horizon * (size_t)dims;
    j->actions = allocate(capacity * sizeof(double));
    double start = now_ms();
    if (openpi_request_finish(j->request, j->model_actions, horizon, j->actions, capacity, &error))
        return library_error(&verb_run, &error);
    double finish = now_ms() - start, before = j->timing.total_ms;
    for (int s = 0; s < OPENPI_STAGES; s++) j->timing.stage_ms[s] += ran.stage_ms[s];
    j->timing.stage_ms[OPENPI_STAGE_ACTIONS] = finish;
    j->timing.device_ms = ran.device_ms;
    j->timing.total_ms = before + ran.total_ms + finish;
    for (int i = 0; i < horizon * dims; i++)
        if (!(j->actions[i] - j->actions[i] == 0))
            return input_error(&verb_run,
                               "step %d, action %d is %g, expected a finite number: the weights or the "
                               "statistics hold one that "
                               "is not",
                               i / dims, i % dims, j->actions[i]);
    return END_FINE;
}

/* ---- showing -------------------------------------------------------------------------------------- */

/* Strings of the robot, null where it has none. */
static json_t *texts_json(const char *const *texts, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, *texts[i] ? json_string(texts[i]) : json_null());
    return list;
}

static json_t *run_head(const job *j) {
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
    json_object_set_new(head, "robot", head_text(j->policy_info.robot));
    json_object_set_new(head, "config", head_text(v->config));
    json_object_set_new(head, "prompt", head_text(v->prompt));
    json_object_set_new(head, "seed", j->noise ? json_null() : json_integer((json_int_t)v->seed));
    json_object_set_new(head, "noise", head_text(noise_name(j)));
    json_object_set_new(head, "rtc", previous_json(&v->previous, &j->previous));
    json_object_set_new(head, "horizon", json_integer(s->horizon));
    json_object_set_new(head, "steps", json_integer(s->steps));
    json_object_set_new(head, "action_names", texts_json(j->names, dims));
    json_object_set_new(head, "units", texts_json(j->units, dims));
    json_object_set_new(head, "rate_hz", rate > 0 ? json_real(rate) : json_null());
    return head;
}

/* Actions keep every digit that reads back as the same number, one step a line: so they are written here. */
static void write_json(FILE *file, const job *j) {
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
    fprintf(file, "\n ],\n \"timing\": {");
    for (int s = 0; s < OPENPI_STAGES; s++)
        fprintf(file, "\"%s_ms\": %.6g, ", openpi_stage_name((openpi_stage)s), j->timing.stage_ms[s]);
    fprintf(file, "\"device_ms\": %.6g, \"total_ms\": %.6g}\n}\n", j->timing.device_ms, j->timing.total_ms);
}

static void write_csv(FILE *file, const job *j) {
    char number[NUMBER_TEXT];
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    fprintf(file, "step");
    for (int d = 0; d < dims; d++) {
        if (*j->names[d]) fprintf(file, ",%s", j->names[d]);
        else fprintf(file, ",action_%d", d);
    }
    fputc('\n', file);
    for (int i = 0; i < horizon; i++) {
        fprintf(file, "%d", i);
        for (int d = 0; d < dims; d++) fprintf(file, ",%s", number_text(j->actions[i * dims + d], number));
        fputc('\n', file);
    }
}

static void write_npy(FILE *file, const job *j) {
    npy_write(file, j->actions, j->session_info.horizon, j->policy_info.action_dim);
}

static const char *model_text(const job *j, char *text, size_t bytes) {
    const openpi_engine_info *e = &j->engine_info;
    double millions = (double)e->parameters / 1e6;
    snprintf(text, bytes, "%s, %.2f %s parameters, %s on %s (%s, %d thread%s)",
             variant_of(e->variant)->symbol, millions >= 1000 ? millions / 1000 : millions,
             millions >= 1000 ? "billion" : "million", machine_types(e), e->device, e->path, e->threads,
             e->threads == 1 ? "" : "s");
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

static void write_table(FILE *file, const job *j) {
    enum {
        ACROSS = 10,
        WHOLE = 16,
        ENDS = 4
    }; /* columns of a table; actions of a robot, not of the model's own space */
    char text[160];
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    fprintf(file, "%s\n", model_text(j, text, sizeof text));
    fprintf(file, "robot %s: %d steps of %d actions, %d denoising steps\n", j->policy_info.robot, horizon,
            dims, j->session_info.steps);
    int cut = dims > WHOLE && horizon > 2 * ENDS + 1;
    for (int first = 0; first < dims; first += ACROSS) {
        char align[ACROSS + 2] = "";
        int count = dims - first < ACROSS ? dims - first : ACROSS;
        memset(align, 'r', (size_t)count + 1);
        table *t = table_create(align);
        table_cell(t, "step");
        for (int d = 0; d < count; d++) table_cell(t, "%s", j->heads[first + d]);
        for (int i = 0; i < horizon; i++) {
            if (cut && i >= ENDS && i < horizon - ENDS) {
                for (int d = 0; i == ENDS && d <= count; d++) table_cell(t, "%s", "…");
                continue;
            }
            table_cell(t, "%d", i);
            for (int d = 0; d < count; d++) table_cell(t, "%.5f", j->actions[i * dims + first + d]);
        }
        fputc('\n', file);
        table_print(t, file, 0);
    }
    if (cut)
        fprintf(file, "\n%d steps in between are left out: --format csv, json or npy has them all\n",
                horizon - 2 * ENDS);
    fputc('\n', file);
    write_times(file, &j->timing);
}

static void write_plot(FILE *file, const job *j) {
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
                                      .rate_hz = openpi_policy_rate(j->policy)});
}

static void show(const job *j) {
    static void (*const writers[])(FILE *, const job *) = {write_table, write_table, write_json, write_csv,
                                                           write_npy};
    void (*writer)(FILE *, const job *) = writers[j->v->format];
    if (j->v->plot) write_plot(output_file(j->v->plot), j);
    writer(j->v->out ? output_file(j->v->out) : stdout, j);
}

static void warn_truncated(const job *j) {
    if (openpi_request_prompt_truncated(j->request))
        fprintf(stderr,
                "openpi run: warning: the prompt is longer than the %d tokens that the policy allows; its "
                "end was cut\n",
                j->policy_info.max_prompt);
}

static int run_run(const void *values, char **positional, int count) {
    job j = {.v = values};
    const int shown = !j.v->out || !strcmp(j.v->out, "-");
    if (j.v->plot && !strcmp(j.v->plot, "-") && !j.v->out && j.v->format > FORMAT_TABLE)
        return usage_error(&verb_run, "the plot and the result are both to go to standard output: give --out "
                                      "FILE");
    if (j.v->format == FORMAT_NPY && shown && isatty(STDOUT_FILENO))
        return usage_error(&verb_run, "--format npy is binary: give --out FILE, or send stdout to a file");
    int end = model_name_read(&verb_run, j.v->synthetic, positional, count, &j.model);
    if (end == END_FINE) end = read_inputs(&j);
    if (end == END_FINE) end = prepare(&j);
    if (end == END_FINE) {
        warn_truncated(&j);
        end = load(&j);
    }
    if (end == END_FINE) end = compute(&j);
    if (end == END_FINE)
        end = previous_keep(&verb_run, &j.v->previous, j.request, j.model_actions, j.session_info.horizon);
    if (end == END_FINE) show(&j);

    openpi_session_close(j.session);
    openpi_engine_close(j.engine);
    openpi_request_close(j.request);
    openpi_policy_close(j.policy);
    for (int i = 0; i < TEXT_LIST_MAX; i++) {
        openpi_free((void *)(uintptr_t)j.pictures[i].data);
        free(j.picture_names[i]);
    }
    free(j.request_bytes);
    free(j.noise);
    previous_free(&j.previous);
    free(j.model_actions);
    free(j.actions);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(run_values, field)

static const option_row options[] = {
    {OPTION_HEADING, .name = "Model"},
    SYNTHETIC_OPTION(run_values, synthetic),
    LORA_OPTIONS(run_values, lora),
    {OPTION_HEADING, .name = "Observation"},
    {OPTION_TEXTS, "image", "NAME=FILE",
     "a camera's picture, PNG or JPEG of any size; NAME is base, left_wrist or right_wrist, or the "
     "robot's own key such as cam_high; once for each camera", .offset = AT(images)},
    {OPTION_TEXT, "state", "NUMBERS|FILE",
     "the robot's state: \"0.1,-0.2,1\", or a file that ends in .json and holds an array of numbers, or "
     "an object with one under \"state\"", .offset = AT(state)},
    {OPTION_TEXT, "prompt", "TEXT",
     "the instruction, in any bytes (default: the robot's own, where it has one)", .offset = AT(prompt)},
    {OPTION_TEXT, "request", "FILE",
     "a whole observation as an openpi client sends it: msgpack with numpy arrays", .offset = AT(request)},
    {OPTION_HEADING, .name = "Policy"},
    POLICY_OPTIONS(run_values),
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "horizon", "N",
     "actions of the chunk (default: the config's or the checkpoint's)",
     .offset = AT(horizon), .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N",
     "denoising steps (default: the checkpoint's, 10)",
     .offset = AT(steps), .low = 1, .high = OPENPI_MAX_STEPS},
    {OPTION_TEXT, "noise", "FILE",
     "start from this noise: a .npy file, float32 [horizon, 32] (default: \"openpi/noise\" of the request, "
     "where it has one)", .offset = AT(noise)},
    {OPTION_U64, "seed", "N",
     "draw the noise from this seed (default: 0); the same on every machine", .offset = AT(seed)},
    {OPTION_HEADING, .name = "Real-time chunking"},
    PREVIOUS_OPTIONS(run_values, previous),
    {OPTION_HEADING, .name = "Result"},
    {OPTION_FLAG, "verbose", NULL,
     "also say how much of the model the tuner's table knows", .offset = AT(verbose)},
    {OPTION_CHOICE, "format", "table|json|csv|npy",
     "table (default) for people; json {\"actions\": [[…]], \"timing\": {…}}; csv with a head line; npy "
     "float64 [horizon, actions]", .offset = AT(format)},
    {OPTION_OUTPUT, "plot", "FILE", "also draw the chunk into this SVG file", .offset = AT(plot)},
    {OPTION_OUTPUT, "out", "FILE", "write the result here instead of to stdout", .offset = AT(out)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(run_values, machine),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"request", "image", "a request contains its pictures"},
    {"request", "state", "a request contains its state"},
    {"request", "prompt", "a request contains its prompt"},
    {"noise", "seed", "the noise is either read or drawn"},
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {0},
};

static const example examples[] = {
    {"a small synthetic model that needs no file but a picture", "openpi run --synthetic tiny --robot none "
                                                                 "--image "
                                                                 "base=front.png --state 0.1,0.2 --prompt "
                                                                 "\"pick up the fork\""},
    {"a DROID arm with openpi's own checkpoint and settings", "openpi run pi05_droid/ --config pi05_droid "
                                                              "--image base=ext.png "
                                                              "--image left_wrist=wrist.jpg --state "
                                                              "state.json --prompt \"open "
                                                              "the drawer\""},
    {"what a client sent, answered as JSON, with a plot", "openpi run pi0_aloha_sim/ --robot aloha_sim "
                                                          "--request request.msgpack "
                                                          "--format json --plot chunk.svg"},
    {"a LeRobot checkpoint says everything itself", "openpi run my_lerobot_policy/ --image "
                                                    "observation.images.top=top.png "
                                                    "--state 0,0,0,0,0,0 --prompt \"stack the cups\""},
    {"a chunk, kept so that the next one can follow on from it", "openpi run ckpt/ --robot droid --request "
                                                                 "r1.msgpack --keep chunk.npy"},
    {"the next one: 25 steps are done, and 3 more will be when it is there",
     "openpi run ckpt/ --robot droid --request r2.msgpack --previous chunk.npy --rtc guided --executed 25 "
     "--delay 3"},
    {"the same noise as another implementation, the numbers for numpy", "openpi run ckpt/ --robot droid "
                                                                        "--request r.msgpack "
                                                                        "--noise noise.npy --format npy "
                                                                        "--out actions.npy"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT [options]",
                                       "--synthetic PRESET[:pi0|pi05[:SEED]] [options]", NULL};

const verb verb_run = {
    .name = "run",
    .summary = "one observation in, a chunk of robot actions out",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Loads a model, computes the actions for one observation, and shows them with the time of "
                   "each stage.\n\n"
                   "CHECKPOINT is a folder as openpi (JAX's or its PyTorch port) or LeRobot write it, or a "
                   "single .safetensors file; F32, BF16 or F16. "
                   "Variant and sizes "
                   "are read off its tensors. The robot says which pictures and which state an observation "
                   "contains and what its "
                   "actions mean; where "
                   "neither the checkpoint nor --robot nor --config says it, openpi asks instead of "
                   "guessing.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(run_values),
    .run = run_run,
};
