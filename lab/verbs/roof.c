/* openpi roof: the ceilings of this machine, measured now. Stores nothing; bench and profile measure them
 * too, each in its own run.
 *
 * Note: an engine is a model on a device, and a roof needs no model, so it opens the smallest one. */
#include "roof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paper.h"
#include "subject.h"
#include "cli/table.h"

typedef struct roof_values {
    subject_values subject;
    const char *json, *model;
    int batch;
} roof_values;

/* ---- for everyone --------------------------------------------------------------------------------- */

static json_t *known(double value) { return value > 0 ? json_real(value) : json_null(); }

const char *roof_share(double ratio, char text[ROOF_TEXT]) {
    snprintf(text, ROOF_TEXT, ratio > 1 ? "noise (%.1f %%)" : "%.1f %%", ratio * 100);
    return text;
}

json_t *roofs_json(const bench_roofs *r) {
    if (r->bf16_tflops <= 0 && r->f32_tflops <= 0 && r->gbs <= 0) return json_null();
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "bf16_tflops", known(r->bf16_tflops), "f32_tflops",
                     known(r->f32_tflops), "read_gbs", known(r->gbs), "copy_gbs", known(r->copy_gbs),
                     "core_mhz", known(r->core_mhz));
}

/* ---- the verb ------------------------------------------------------------------------------------- */

static void put_row(table *t, const char *what, double value, const char *unit) {
    table_cell(t, "%s", what);
    if (value > 0) table_cell(t, value < 100 ? "%.3f" : "%.1f", value);
    else table_cell(t, "-");
    table_cell(t, "%s", value > 0 ? unit : "");
}

static void put_roofs(const subject *s, const bench_roofs *r) {
    printf("%s, %s kernels, %d thread%s\n", s->hardware, s->info.path, s->info.threads,
           s->info.threads == 1 ? "" : "s");
    if (r->gbs <= 0) {
        printf("%s\n", !strcmp(s->info.device, "cpu")
                            ? "these kernels are the plain definitions, which have no ceiling to measure"
                            : "not measured: openpi has no kernels for this device that only read, copy or "
                              "multiply, so shares of the roof are left out everywhere");
        return;
    }
    table *t = table_create("lrl");
    put_row(t, "multiply, bf16", r->bf16_tflops, "TFLOP/s");
    put_row(t, "multiply, f32", r->f32_tflops, "TFLOP/s");
    put_row(t, "read", r->gbs, "GB/s");
    put_row(t, "copy", r->copy_gbs, "GB/s, reading and writing counted");
    if (r->core_mhz > 0) put_row(t, "core clock", r->core_mhz, "MHz while multiplying");
    table_print(t, stdout, 0);
}

static json_t *roof_json(const subject *s, const bench_roofs *r) {
    json_t *root = subject_json(s, "roof");
    json_object_del(root, "model");        /* the stand-in's model */
    json_object_del(root, "workload");
    json_object_del(root, "ready_ms");
    json_object_set_new(root, "roofs", roofs_json(r));
    return root;
}

/* --model: a prediction for a card that is not here. */
static int predict(const roof_values *v, subject *s) {
    paper_call call = {0};
    int end = END_FINE;
    const paper_card *card = paper_named(&verb_roof, "--model", v->model, &end);
    if (end == END_FINE) end = paper_subject(s, card, v->batch, &call);
    if (end == END_FINE) paper_print(s, card, &call.profile);
    if (end == END_FINE && v->json) {
        bench_roofs roofs = paper_roofs(card);
        json_t *root = subject_json(s, "roof");
        json_object_del(root, "ready_ms");
        json_object_set_new(root, "batch", json_integer(v->batch));
        json_object_set_new(root, "method", json_string(timed_method_name(call.profile.method)));
        json_object_set_new(root, "roofs", roofs_json(&roofs));
        json_object_set_new(root, "prediction", paper_json(s, card, &call.profile));
        end = json_save(&verb_roof, v->json, root);
    }
    profile_free(&call.profile);
    return end;
}

static int roof_verb_run(const void *values, char **positional, int count) {
    roof_values v = *(const roof_values *)values;
    openpi_error error = OPENPI_ERROR_INIT;
    subject subject;
    bench_roofs roofs;
    if (!v.model) v.subject.synthetic = "tiny";
    int end = subject_read(&subject, &verb_roof, &v.subject, positional, count);
    if (end == END_FINE && v.model) return predict(&v, &subject);
    if (end == END_FINE) end = subject_open(&subject, NULL);
    if (end == END_FINE && bench_measure_all_roofs(subject.engine, &roofs, &error) != OPENPI_OK)
        end = library_error(&verb_roof, &error);
    if (end == END_FINE) put_roofs(&subject, &roofs);
    if (end == END_FINE && v.json) end = json_save(&verb_roof, v.json, roof_json(&subject, &roofs));
    subject_close(&subject);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(roof_values, subject.machine.field)

static const roof_values defaults = {.subject = SUBJECT_DEFAULTS, .batch = 1};

static const option_row options[] = {
    {OPTION_OUTPUT, "json", "FILE", "also write the figures here", .offset = offsetof(roof_values, json)},
    {OPTION_HEADING, .name = "Prediction"},
    {OPTION_TEXT, "model", "NAME",
     "no device: what π0 would take on this card, PREDICTED by a static model: mi300x, mi350 or h200",
     .offset = offsetof(roof_values, model)},
    {OPTION_CHOICE, "variant", "pi0|pi05", "with --model: the variant (default: pi0)",
     .offset = offsetof(roof_values, subject.variant)},
    {OPTION_INT, "batch", "N", "with --model: samples of a call (default: 1)",
     .offset = offsetof(roof_values, batch), .low = 1, .high = OPENPI_MAX_BATCH},
    SUBJECT_WORKLOAD_OPTIONS(roof_values, subject),
    {OPTION_HEADING, .name = "Machine"},
    {OPTION_TEXT, "device", "NAME",
     "which device to measure, as `openpi devices` names it (default: cpu)", .offset = AT(device)},
    {OPTION_INT, "threads", "N",
     "worker threads (default: every processor this process may use)",
     .offset = AT(threads), .low = 1, .high = 1024},
    {OPTION_TEXT, "isa", "NAME",
     "CPU instructions to use: avx2, avx512, avx512_vnni, avx512_bf16 or amx on x86, neon, neon_dot or "
     "neon_bf16 on ARM (default: the best that the CPU runs)", .offset = AT(isa)},
    {OPTION_TEXT, "path", "NAME",
     "kernels of a GPU: hopper or portable (default: the best that it runs)", .offset = AT(path)},
    {OPTION_TEXT, "as", "CARD", AS_HELP, .offset = AT(as)},
    {OPTION_FLAG, "pin", NULL, "pin each worker thread to one processor", .offset = AT(pin)},
    {0},
};

static const conflict conflicts[] = {
    {"model", "device", "a prediction needs no device"},
    {0},
};

static const option_pair needs[] = {{"variant", "model"}, {"batch", "model"},   {"cameras", "model"},
                                    {"prompt", "model"},  {"horizon", "model"}, {"steps", "model"},
                                    {"seed", "model"},    {NULL, NULL}};

static const example examples[] = {
    {"this machine's processors", "openpi roof"},
    {"what an AMD card would take, PREDICTED", "openpi roof --model mi300x"},
    {"a GPU, for a script", "openpi roof --device cuda:0 --json roof.json"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[options]", NULL};

const verb verb_roof = {
    .name = "roof",
    .summary = "the ceilings of a device: multiply, read, copy",
    .synopsis = synopsis,
    .description = "Measures, in a second or two, what no kernel of this device can exceed: multiply-adds "
                   "with the instructions "
                   "that openpi's kernels use, operands at hand; reading and copying memory far larger than "
                   "the caches. Every "
                   "ratio that bench and profile print is to ceilings measured so in their own run; nothing "
                   "is stored.\n\n"
                   "With --model nothing is measured: every operation's bytes, FLOPs and PREDICTED time on a "
                   "card that need not be here, beside what others published for it. docs/roof.md says how "
                   "the model works and how far it was off where it could be compared.",
    .options = options,
    .conflicts = conflicts,
    .needs = needs,
    .examples = examples,
    .values_bytes = sizeof(roof_values),
    .defaults = &defaults,
    .run = roof_verb_run,
};
