/* The model, the machine and the workload of an instrument. */
#include "subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "checkpoint/variant.h"

/* ---- the options ------------------------------------------------------------------------------------ */

static int read_cameras(subject *s) {
    const char *mask = s->v->cameras ? s->v->cameras : "111";
    if (strlen(mask) != OPENPI_CAMERAS || strspn(mask, "01") != OPENPI_CAMERAS)
        return usage_error(s->verb,
                           "--cameras is '%s', expected three digits 0 or 1 for base, left wrist and right "
                           "wrist, such as 110",
                           mask);
    for (int c = 0; c < OPENPI_CAMERAS; c++) s->call.cameras[c] = mask[c] == '1';
    if (!strchr(mask, '1') && !s->v->prompt)
        return usage_error(s->verb, "--cameras 000 with --prompt 0 leaves nothing to see, expected a camera "
                                    "or a prompt token");
    return END_FINE;
}

/* What --variant names; its choices count from 1. */
static const variant_traits *wanted(const subject_values *v) {
    return variant_of((openpi_variant)(v->variant - 1));
}

static int read_synthetic(subject *s) {
    const subject_values *v = s->v;
    const char *spec = v->synthetic ? v->synthetic : "full";
    char full[sizeof s->source];
    if (v->variant && strchr(spec, ':'))
        return usage_error(s->verb, "--variant and --synthetic %s both name a variant: expected one of them",
                           spec);
    if (v->variant) snprintf(full, sizeof full, "%.80s:%s", spec, wanted(v)->name);
    else snprintf(full, sizeof full, "%.100s", spec);
    int end = model_name_read(s->verb, full, NULL, 0, &s->model);
    snprintf(s->source, sizeof s->source, "synthetic %.*s:%s:%llu", (int)strcspn(spec, ":"), spec,
             variant_of(s->model.recipe.variant)->name, (unsigned long long)s->model.recipe.seed);
    return end;
}

int subject_read(subject *s, const verb *verb, const subject_values *values, char **positional, int count) {
    *s = (subject){
        .verb = verb, .v = values, .call = {.batch = 1, .prompt = values->prompt, .seed = values->seed}};
    int end = read_cameras(s);
    if (end != END_FINE || !count) return end != END_FINE ? end : read_synthetic(s);
    lora_source(&values->lora, positional[0], s->source, sizeof s->source);
    return model_name_read(verb, NULL, positional, count, &s->model);
}

/* ---- opening -------------------------------------------------------------------------------------- */

static void show_load(void *user, const char *what, uint64_t done, uint64_t total) {
    subject *s = user;
    if (s->on_load) s->on_load(s->on_load_user, what, done, total);
    progress_show(&s->bar, what, done, total);
}

int subject_open(subject *s, const char *without) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    char text[SWITCH_TEXT];
    machine_options(&s->v->machine, text, &options);
    if (without) options.without = without;
    engine_of_model(&s->model, &s->v->lora, &options);
    options.progress = show_load;
    options.progress_user = s;
    progress_start(&s->bar);
    double start = now_ms();
    openpi_status status = openpi_engine_open(s->model.checkpoint, &options, &s->engine, &error);
    s->ready_ms = now_ms() - start;
    progress_end(&s->bar);
    if (status != OPENPI_OK) return library_error(s->verb, &error);
    s->info.size = sizeof s->info;
    if (openpi_engine_get_info(s->engine, &s->info, &error) != OPENPI_OK)
        return library_error(s->verb, &error);
    if (bench_device_facts(s->engine, &s->facts, &error) != OPENPI_OK) return library_error(s->verb, &error);
    machine_say_notes(s->verb, s->engine, NULL);
    head_hardware(s->v->machine.device ? s->v->machine.device : "cpu", s->facts.name, s->hardware);
    if (s->v->variant && s->model.checkpoint && variant_of(s->info.variant) != wanted(s->v))
        return input_error(s->verb, "%s: the checkpoint is %s, but --variant is %s", s->model.checkpoint,
                           variant_of(s->info.variant)->name, wanted(s->v)->name);
    return END_FINE;
}

int subject_session(subject *s, int batch, int max_prompt, openpi_session **session) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = s->v->horizon;
    options.steps = s->v->steps;
    options.max_prompt = max_prompt ? max_prompt : s->call.prompt ? s->call.prompt : 1;
    options.rtc = s->call.rtc != OPENPI_RTC_OFF;
    options.parts = s->parts;
    s->call.batch = batch;
    if (openpi_session_create(s->engine, &options, session, &error) != OPENPI_OK)
        return library_error(s->verb, &error);
    if (!s->warned) machine_warn_table(s->verb, &s->info);
    s->warned = 1;
    return END_FINE;
}

void subject_close(subject *s) {
    openpi_engine_close(s->engine);
    s->engine = NULL;
}

/* ---- showing -------------------------------------------------------------------------------------- */

void subject_print(const subject *s) {
    const openpi_engine_info *i = &s->info;
    const workload *w = &s->call;
    char types[TYPES_TEXT];
    printf("%s: %s, %s on %s (%s, %d thread%s), ready after %.1f s\n", s->source,
           variant_of(i->variant)->symbol, machine_types(i, types), i->device, i->path, i->threads,
           i->threads == 1 ? "" : "s", s->ready_ms / 1e3);
    printf("cameras %d%d%d, %d prompt tokens, horizon %d, %d steps%s%s%s%s\n", w->cameras[0], w->cameras[1],
           w->cameras[2], w->prompt, s->v->horizon, s->v->steps, i->without[0] ? "; without " : "",
           i->without, i->table[0] ? "; table " : "", input_shown(i->table));
    if (w->rtc)
        printf("real-time chunking: %s, delay %d\n", w->rtc == OPENPI_RTC_TRAINED ? "trained" : "guided",
               w->delay);
}

json_t *subject_json(const subject *s, const char *kind) {
    const openpi_engine_info *i = &s->info;
    const workload *w = &s->call;
    char cameras[OPENPI_CAMERAS + 1] = "";
    for (int c = 0; c < OPENPI_CAMERAS; c++) cameras[c] = w->cameras[c] ? '1' : '0';
    json_t *call = json_pack("{s:s,s:i,s:i,s:i,s:I}", "cameras", cameras, "prompt", w->prompt, "horizon",
                             s->v->horizon, "steps", s->v->steps, "seed", (json_int_t)w->seed);
    json_t *head = head_json(kind),
           *rest = json_pack("{s:o,s:o,s:o,s:f}", "model", head_model(i, s->source), "machine",
                             head_machine(i, s->hardware), "workload", call, "ready_ms", s->ready_ms);
    json_object_update(head, rest);
    json_decref(rest);
    return head;
}
