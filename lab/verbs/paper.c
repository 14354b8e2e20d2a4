/* The static model's predictions: the card's name, the subject that was never opened, tables. */
#include "paper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/table.h"

static const char sim[] = "hip:sim";

/* ---- the card ------------------------------------------------------------------------------------- */

const paper_card *paper_named(const verb *verb, const char *option, const char *name, int *end) {
    const paper_card *card = paper_card_of(name);
    char names[200] = "";
    for (int i = 0; !card && paper_cards[i].name; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 paper_cards[i].name);
    *end = card ? END_FINE : usage_error(verb, "%s is '%s', expected one of %s", option, name, names);
    return card;
}

const paper_card *paper_device(const verb *verb, const char *device, int *end) {
    size_t length = strlen(sim);
    *end = END_FINE;
    if (!device || strncmp(device, sim, length)) return NULL;
    if (!device[length]) return paper_card_of("mi300x");
    if (device[length] == ':') return paper_named(verb, "--device hip:sim:NAME", device + length + 1, end);
    *end = usage_error(verb, "--device is '%s', expected hip:sim or hip:sim:NAME", device);
    return NULL;
}

/* ---- the subject ---------------------------------------------------------------------------------- */

int paper_subject(subject *s, const paper_card *card, int batch, paper_call *out) {
    openpi_error error = OPENPI_ERROR_INIT;
    const lora_values *lora = &s->v->lora;
    const char *given = lora->adapter                   ? "adapter"
                        : lora->without_lora            ? "without-lora"
                        : lora->missing_chunks_are_zero ? "missing-chunks-are-zero"
                                                        : NULL;
    if (given)
        return usage_error(s->verb, "--%s has no effect on a prediction, which reads no weights", given);
    s->call.batch = batch;
    if (paper_run(s->model.checkpoint, s->model.synthetic, &s->call, s->v->horizon, s->v->steps, card, out,
                  &error) != OPENPI_OK)
        return library_error(s->verb, &error);
    s->info = (openpi_engine_info){.size = sizeof s->info,
                                   .variant = out->variant,
                                   .dtype = OPENPI_BF16,
                                   .weights = OPENPI_WEIGHTS_BF16,
                                   .formats = "bf16",
                                   .parameters = out->parameters};
    snprintf(s->info.device, sizeof s->info.device, "PREDICTED");
    snprintf(s->info.path, sizeof s->info.path, "static model");
    snprintf(s->hardware, sizeof s->hardware, "PREDICTED: %.48s", card->title);
    return END_FINE;
}

/* ---- showing -------------------------------------------------------------------------------------- */

static void put_number(table *t, const char *format, double value) {
    if (value > 0) table_cell(t, format, value);
    else table_cell(t, "-");
}

/* Vision, prefix, denoise: the stages that paper_card.published_stage_ms counts. */
static double published_of(const paper_card *card, const char *stage) {
    static const char *const names[PAPER_STAGES] = {"vision", "prefix", "denoise"};
    for (int i = 0; i < PAPER_STAGES; i++)
        if (!strcmp(names[i], stage)) return card->published_stage_ms[i];
    return 0;
}

/* The published workload, with so many samples. */
static int of_batch(const subject *s, int batch) {
    const workload *w = &s->call;
    return w->batch == batch && s->v->horizon == 10 && s->v->steps == 10 && w->prompt == 20 &&
           w->cameras[0] && w->cameras[1] && w->cameras[2] && s->info.variant == OPENPI_PI0 &&
           s->info.parameters > 3000000000u;
}

static void put_row(table *t, const profile_group *g, double published) {
    table_cell(t, "%s", g->name);
    table_cell(t, "%.3f", g->ms);
    put_number(t, "%.1f", published);
    table_cell(t, "%.3f", g->floor_ms);
    table_cell(t, "%d", g->calls);
    table_cell(t, "%.3f", g->cost.flops * 1e-9);
    table_cell(t, "%.3f", g->cost.bytes * 1e-6);
}

static void put_table(const subject *s, const paper_card *card, const profile *p, profile_by by) {
    profile_group *groups = allocate((size_t)p->count * sizeof *groups), all = {.name = "all"};
    int count = profile_groups(p, by, groups), beside = of_batch(s, 1);
    const char *const heads[] = {by == PROFILE_BY_STAGE ? "stage" : "operation",
                                 "PREDICTED ms", "published ms", "floor ms", "launches", "GFLOP", "MB"};
    table *t = table_create("lrrrrrr");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int i = 0; i < count; i++) {
        const profile_group *g = &groups[i];
        put_row(t, g, beside ? published_of(card, g->name) : 0);
        all.ms += g->ms;
        all.floor_ms += g->floor_ms;
        all.calls += g->calls;
        all.cost.flops += g->cost.flops;
        all.cost.bytes += g->cost.bytes;
    }
    if (by == PROFILE_BY_STAGE) put_row(t, &all, beside ? card->published_ms : 0);
    putchar('\n');
    table_print(t, stdout, 0);
    free(groups);
}

void paper_print(const subject *s, const paper_card *card, const profile *p) {
    printf("PREDICTED by a static model, not measured: %s, %s kernels\n", card->title, card->kernels);
    printf("%s, batch %d, cameras %d%d%d, %d prompt tokens, horizon %d, %d steps\n", s->source, s->call.batch,
           s->call.cameras[0], s->call.cameras[1], s->call.cameras[2], s->call.prompt, s->v->horizon,
           s->v->steps);
    printf("taken for what the card holds: %.0f TFLOP/s bf16, %.0f GB/s, %.1f µs from launch to launch, %d "
           "units at up to %.0f MHz\n",
           card->matrix_tflops, card->memory_gbs, card->launch_us, card->units, card->core_mhz);
    put_table(s, card, p, PROFILE_BY_STAGE);
    printf("PREDICTED %.1f samples/s", s->call.batch / p->sum_ms * 1e3);
    if (of_batch(s, 64) && card->published_batch64 > 0)
        printf("; published, with wrong masks: %.1f", card->published_batch64);
    printf("\n");
    if ((of_batch(s, 1) || of_batch(s, 64)) && card->published_ms > 0)
        printf("published: a tuned PyTorch fork whose action tokens see at most 11 of 799 keys; stages of "
               "its kernels' time\n");
    put_table(s, card, p, PROFILE_BY_OP);
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

static json_t *known(double value) { return value > 0 ? json_real(value) : json_null(); }

static json_t *groups_json(const subject *s, const paper_card *card, const profile *p, profile_by by) {
    profile_group *groups = allocate((size_t)p->count * sizeof *groups + 1);
    int count = profile_groups(p, by, groups), beside = by == PROFILE_BY_STAGE && of_batch(s, 1);
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const profile_group *g = &groups[i];
        json_t *one = json_pack("{s:s,s:f,s:f,s:i,s:f,s:f}", "name", g->name, "predicted_ms", g->ms,
                                "floor_ms", g->floor_ms, "launches", g->calls, "gflop",
                                g->cost.flops * 1e-9, "mb", g->cost.bytes * 1e-6);
        json_object_set_new(one, "published_ms", known(beside ? published_of(card, g->name) : 0));
        json_array_append_new(list, one);
    }
    free(groups);
    return list;
}

json_t *paper_json(const subject *s, const paper_card *c, const profile *p) {
    double floor_ms = 0, rate = of_batch(s, 64) ? c->published_batch64 : 0;
    for (int i = 0; i < p->count; i++) floor_ms += p->ops[i].floor_ms;
    if (of_batch(s, 1) && c->published_ms > 0) rate = 1e3 / c->published_ms;
    json_t *root = json_pack("{s:s,s:s,s:s,s:i,s:f,s:f,s:f,s:f,s:f}", "name", c->name, "title", c->title,
                             "kernels", c->kernels, "units", c->units, "core_mhz", c->core_mhz, "bf16_tflops",
                             c->matrix_tflops, "memory_gbs", c->memory_gbs, "launch_us", c->launch_us,
                             "load_us", c->load_us);
    json_object_set_new(root, "predicted_ms", json_real(p->sum_ms));
    json_object_set_new(root, "floor_ms", json_real(floor_ms));
    json_object_set_new(root, "samples_per_s", json_real(s->call.batch / p->sum_ms * 1e3));
    json_object_set_new(root, "published_ms", known(of_batch(s, 1) ? c->published_ms : 0));
    json_object_set_new(root, "published_samples_per_s", known(rate));
    json_object_set_new(root, "stages", groups_json(s, c, p, PROFILE_BY_STAGE));
    json_object_set_new(root, "operations", groups_json(s, c, p, PROFILE_BY_OP));
    return root;
}
