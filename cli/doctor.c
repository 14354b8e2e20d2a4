/* openpi doctor: would this checkpoint move this robot sensibly? */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "head.h"
#include "input.h"
#include "json_file.h"
#include "lab/draw/svg.h"
#include "lab/measure/doctor.h"
#include "output.h"
#include "progress.h"
#include "recorded.h"

typedef struct doctor_values {
    const char *synthetic, *observations, *recording, *json, *html;
    int chunks, seeds, horizon, steps;
    lora_values lora;
    policy_values policy;
    machine_values machine;
} doctor_values;

typedef struct doctor_job {
    const doctor_values *v;
    model_name model;
    request_folder folder;
    recorded_requests recorded;
    openpi_policy *policy;
    openpi_engine *engine;
    openpi_session *session;
    openpi_engine_info engine_info;
    openpi_policy_info policy_info;
    doctor doctor;
} doctor_job;

static openpi_status open_requests(doctor_job *j, openpi_error *error) {
    if (!j->v->recording) return request_folder_open(j->v->observations, &j->folder, error);
    return recorded_open(j->v->recording, &j->recorded, &j->folder, error);
}

/* The robot that was recorded, where the options name none. */
static void take_robot(const doctor_job *j, openpi_policy_options *options) {
    if (options->robot || options->config) return;
    if (*j->recorded.config) options->config = j->recorded.config;
    else if (*j->recorded.robot) options->robot = j->recorded.robot;
}

static int open_policy(doctor_job *j) {
    const doctor_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char cache[HOME_PATH];
    policy_of_model(&j->model, &v->lora, &v->policy, cache, &options);
    options.horizon = v->horizon;
    j->policy_info = (openpi_policy_info)OPENPI_POLICY_INFO_INIT;
    if (open_requests(j, &error)) return library_error(&verb_doctor, &error);
    take_robot(j, &options);
    if (openpi_policy_open(j->model.checkpoint, &options, &j->policy, &error) ||
        openpi_policy_get_info(j->policy, &j->policy_info, &error) ||
        doctor_look(&j->doctor, j->policy, &j->folder, &error))
        return library_error(&verb_doctor, &error);
    return END_FINE;
}

static int open_session(doctor_job *j) {
    const doctor_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    char without[SWITCH_TEXT];
    progress bar;
    progress_start(&bar);
    machine_options(&v->machine, without, &options);
    engine_of_model(&j->model, &v->lora, &options);
    options.progress = progress_show;
    options.progress_user = &bar;
    openpi_status status = openpi_engine_open(j->model.checkpoint, &options, &j->engine, &error);
    progress_end(&bar);
    shape.horizon = v->horizon ? v->horizon : j->policy_info.horizon;
    shape.steps = v->steps;
    shape.max_prompt = j->policy_info.max_prompt;
    j->engine_info = (openpi_engine_info)OPENPI_ENGINE_INFO_INIT;
    if (status == OPENPI_OK) status = openpi_engine_get_info(j->engine, &j->engine_info, &error);
    if (status == OPENPI_OK) status = openpi_session_create(j->engine, &shape, &j->session, &error);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_doctor, &error);
}

static int ask(doctor_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (!j->doctor.count || !j->v->chunks) return END_FINE;
    int end = open_session(j);
    if (end != END_FINE) return end;
    ticker *seconds = ticker_start("asking the model");
    openpi_status status =
        doctor_ask(&j->doctor, j->session, &j->folder, j->v->chunks, j->v->seeds, &error);
    ticker_stop(seconds);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_doctor, &error);
}

static json_t *doctor_json(const doctor_job *j, doctor_level worst) {
    json_t *root = head_json("doctor"), *list = json_array();
    json_object_set_new(root, "robot", head_text(j->policy_info.robot));
    json_object_set_new(root, "observations",
                        head_text(j->v->recording ? j->v->recording : j->v->observations));
    json_object_set_new(root, "requests", json_integer(j->doctor.count + j->doctor.refused));
    json_object_set_new(root, "chunks", json_integer(j->doctor.chunks));
    json_object_set_new(root, "seeds", json_integer(j->doctor.seeds));
    json_object_set_new(root, "verdict", json_string(doctor_level_name(worst)));
    for (int i = 0; i < j->doctor.findings_count; i++) {
        const doctor_finding *f = &j->doctor.findings[i];
        json_t *one = json_object();
        json_object_set_new(one, "level", json_string(doctor_level_name(f->level)));
        json_object_set_new(one, "check", json_string(f->check));
        json_object_set_new(one, "number", json_real(f->number));
        json_object_set_new(one, "sentence", json_string(f->sentence));
        json_object_set_new(one, "advice", *f->advice ? json_string(f->advice) : json_null());
        json_array_append_new(list, one);
    }
    json_object_set_new(root, "findings", list);
    return root;
}

static const char *verdict(doctor_level worst) {
    return worst == DOCTOR_WRONG     ? "wrong: this would move the arm wrongly"
           : worst == DOCTOR_WARNING ? "warnings: nothing is surely wrong"
                                     : "fine";
}

/* ---- the page -------------------------------------------------------------------------------------- */

enum { ALL = -1 };               /* a text of any length */

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.4rem .6rem;border-top:1px solid #ccc}"
    ".wrong{color:#a00;font-weight:bold}.warning{color:#850}.fine{color:#060}small{color:#555}";

static void put_finding(FILE *out, const doctor_finding *f) {
    const char *level = doctor_level_name(f->level);
    fprintf(out, "<tr><td class=\"%s\">%s</td><td>%s</td><td>", level, level, f->check);
    svg_escape(out, f->sentence, ALL);
    if (*f->advice) {
        fprintf(out, "<br><small>");
        svg_escape(out, f->advice, ALL);
        fprintf(out, "</small>");
    }
    fprintf(out, "</td></tr>\n");
}

static void save_page(const doctor_job *j, doctor_level worst) {
    const doctor *d = &j->doctor;
    FILE *out = output_file(j->v->html);
    fprintf(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<title>openpi doctor</title>\n<style>%s</style>\n</head>\n<body>\n<h1>openpi doctor</h1>\n"
                 "<p class=\"%s\">%s</p>\n<p>", style, doctor_level_name(worst), verdict(worst));
    svg_escape(out, j->v->recording ? j->v->recording : j->v->observations, ALL);
    fprintf(out, ": %d requests of robot ", d->count + d->refused);
    svg_escape(out, j->policy_info.robot, ALL);
    fprintf(out, ", %d answers of the model from %d noises each.</p>\n<table>\n"
                 "<tr><th>level</th><th>check</th><th>what was found, and what to do</th></tr>\n",
            d->chunks, d->seeds);
    for (int i = 0; i < d->findings_count; i++) put_finding(out, &d->findings[i]);
    fprintf(out, "</table>\n</body>\n</html>\n");
}

/* ---- the text -------------------------------------------------------------------------------------- */

static void print_text(const doctor_job *j, doctor_level worst) {
    const doctor *d = &j->doctor;
    printf("%d requests of robot %s, %d answers of the model from %d noises each\n\n", d->count + d->refused,
           j->policy_info.robot, d->chunks, d->seeds);
    for (int i = 0; i < d->findings_count; i++) {
        const doctor_finding *f = &d->findings[i];
        printf("%-8s %s: %s\n", doctor_level_name(f->level), f->check, f->sentence);
        if (*f->advice) printf("         -> %s\n", f->advice);
    }
    printf("\n%s\n", verdict(worst));
}

static int run_doctor(const void *values, char **positional, int count) {
    doctor_job j = {.v = values};
    if (!j.v->observations && !j.v->recording)
        return usage_error(&verb_doctor, "no requests: give --observations FOLDER, NAME.msgpack each, as "
                                         "clients send them, or --recording FILE");
    int end = model_name_read(&verb_doctor, j.v->synthetic, positional, count, &j.model);
    if (end == END_FINE) end = open_policy(&j);
    if (end == END_FINE) end = ask(&j);
    if (end == END_FINE) {
        doctor_level worst = doctor_judge(&j.doctor);
        print_text(&j, worst);
        if (j.v->html) save_page(&j, worst);
        if (j.v->json) end = json_save(&verb_doctor, j.v->json, doctor_json(&j, worst));
        if (end == END_FINE && worst == DOCTOR_WRONG) end = END_CHECK;
    }
    openpi_session_close(j.session);
    openpi_engine_close(j.engine);
    doctor_close(&j.doctor);
    openpi_policy_close(j.policy);
    request_folder_close(&j.folder);
    recorded_close(&j.recorded);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(doctor_values, field)

static const option_row options[] = {
    {OPTION_HEADING, .name = "Model"},
    SYNTHETIC_OPTION(doctor_values, synthetic),
    LORA_OPTIONS(doctor_values, lora),
    {OPTION_HEADING, .name = "Observations"},
    {OPTION_TEXT, "observations", "FOLDER",
     "requests as openpi clients send them, NAME.msgpack each in the order of their names; or one such file",
     .offset = AT(observations)},
    {OPTION_TEXT, "recording", "FILE",
     "the requests of a recording of `openpi serve --record`; its robot or config is the default",
     .offset = AT(recording)},
    {OPTION_HEADING, .name = "Policy"},
    POLICY_OPTIONS(doctor_values, policy),
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "chunks", "N",
     "ask the model about N requests, evenly out of all (default: 8); 0: none, and no weights are read",
     .offset = AT(chunks), .low = 0, .high = 1000},
    {OPTION_INT, "seeds", "N", "noises for each of them (default: 3)", .offset = AT(seeds), .low = 1,
     .high = DOCTOR_SEEDS},
    {OPTION_INT, "horizon", "N", "actions of the chunk (default: the config's or the checkpoint's)",
     .offset = AT(horizon), .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N", "denoising steps (default: the checkpoint's, 10)", .offset = AT(steps),
     .low = 1, .high = OPENPI_MAX_STEPS},
    {OPTION_HEADING, .name = "Result"},
    {OPTION_OUTPUT, "json", "FILE", "also write the findings as JSON", .offset = AT(json)},
    {OPTION_OUTPUT, "html", "FILE", "and as a page", .offset = AT(html)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(doctor_values, machine),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {"observations", "recording", "the requests come from one of them"},
    {0},
};

static const example examples[] = {
    {"before the first run on an arm of your own", "openpi doctor ckpt/ --robot my_arm.json "
                                                   "--observations day1/"},
    {"a day of this robot, and the checkpoint that is to be served next",
     "openpi doctor ckpt/ --recording logs/2026-11-28T10.mcap --html day.html"},
    {"statistics, cameras and prompts alone, without the weights",
     "openpi doctor ckpt/ --robot my_arm.json --observations day1/ --chunks 0"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT --observations FOLDER [options]",
                                       "CHECKPOINT --recording FILE [options]",
                                       "--synthetic PRESET[:pi0|pi05[:SEED]] --observations FOLDER [options]",
                                       NULL};
static const doctor_values defaults = {.chunks = 8, .seeds = 3};

const verb verb_doctor = {
    .name = "doctor",
    .summary = "would this checkpoint move this robot sensibly?",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description =
        "Looks at what a robot sees, a folder of requests or a recording, as the checkpoint's policy "
        "takes it, asks the model about some of them, and says what does not fit together: states outside "
        "of the checkpoint's statistics, numbers that never move or look swapped, cameras that are black or "
        "frozen, prompts that are cut, normalisation that does nothing, actions beyond the robot's limits "
        "or far from its measured state, and how much the actions depend on the noise. Each finding has a "
        "number, a sentence and what to do.\n\n"
        "The exit status is 1 where a finding would move the arm wrongly. docs/doctor.md has the checks and "
        "their thresholds.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(doctor_values),
    .defaults = &defaults,
    .run = run_doctor,
};
