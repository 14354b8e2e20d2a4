/* The walk: reference, candidates, choice, confirmation. */
#include "lab/quantize/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "lab/quantize/runs.h"

enum { HORIZON = 50 };           /* openpi's, where nothing says another                                  */

static const double faster = 0.02;         /* share of a call: what a timing must differ by to count      */
static const double far = 0.25; /* a share of what other noise changes                              */

static int has_8_bits(product_format f) { return weight_formats[format_weights(f)].bits == 8; }

/* ---- reference ----------------------------------------------------------------------------------------- */

static openpi_status run_reference(gate *g, run_facts *facts, openpi_error *error) {
    const run_kind reference = {.name = "the reference", .reference = 1}, fp32 = {.name = "fp32", .fp32 = 1};
    quantize_result *r = g->result;
    TRY(run_all(g, &fp32, &g->fp32, NULL, NULL, error));      /* first: nothing else needs memory then     */
    TRY(run_all(g, &reference, &g->reference, &g->other, facts, error));
    r->ms = r->ms_taken = facts->ms;
    r->bytes = r->bytes_taken = facts->bytes;
    TRY(differences_of(&g->shape, &g->reference, &g->fp32, &r->own, error));
    return differences_of(&g->shape, &g->reference, &g->other, &r->noise, error);
}

/* ---- candidates ---------------------------------------------------------------------------------------- */

/* Rows of heads stay as they are, and so do the heads: what they would save is nothing. */
static int is_candidate(weight_group group, product_format format) {
    return group != GROUP_HEADS && has_8_bits(format);
}

/* Floats lose as much of a large channel as of a small one. */
static int can_be_smoothed(product_format format) {
    return format_weights(format) == WEIGHT_INT8 || format_weights(format) == WEIGHT_INT8_ROW;
}

/* One scale for all rows: where no rows have to be looked at twice, and where kernels are made for it. */
static int can_be_fixed(weight_group group, product_format format) {
    return group == GROUP_FFN && format_input(format) == INPUT_INT8;
}

static void candidate_text(const quantize_candidate *c, char *text, size_t size) {
    snprintf(text, size, "%s=%s%s%s", weight_group_name(c->group), product_format_name(c->format),
             c->smooth ? "+smooth" : "", c->fixed ? "+static" : "");
}

static openpi_status measure(gate *g, quantize_candidate *c, openpi_error *error) {
    char list[64];
    openpi_error why = OPENPI_ERROR_INIT;
    run_facts facts = {.ms = 0};
    candidate_text(c, list, sizeof list);
    openpi_status status =
        run_all(g, &(run_kind){.name = list, .formats = list}, &g->last, NULL, &facts, &why);
    if (status == OPENPI_UNSUPPORTED || status == OPENPI_BAD_INPUT) {        /* no kernels, or an overflow */
        snprintf(c->why, sizeof c->why, "%.199s", why.message);
        return OPENPI_OK;
    }
    if (status != OPENPI_OK) return report_again(error, &why);
    c->measured = 1;
    c->ms_saved = g->result->ms - facts.ms;
    c->bytes_saved = g->result->bytes - facts.bytes;
    TRY(differences_of(&g->shape, &g->last, &g->reference, &c->off, error));
    c->share = bounds_fill(&c->off, g->result->bounds, g->result->bound_dims, g->result->bound_count);
    return OPENPI_OK;
}

static openpi_status measure_all(gate *g, openpi_error *error) {
    quantize_result *r = g->result;
    for (int group = 0; group < GROUPS; group++)
        for (int i = 0; i < QUANTIZE_FORMS * FORMATS; i++) {
            quantize_candidate *c = &r->candidates[r->candidate_count];
            product_format format = (product_format)(i / QUANTIZE_FORMS);
            int smooth = i % 2, fixed = i % QUANTIZE_FORMS / 2;
            if (!is_candidate((weight_group)group, format) || (smooth && !can_be_smoothed(format))) continue;
            if (fixed && !can_be_fixed((weight_group)group, format)) continue;
            *c = (quantize_candidate){
                .group = (weight_group)group, .format = format, .smooth = smooth, .fixed = fixed};
            r->candidate_count++;
            TRY(measure(g, c, error));
            if (g->options->on_candidate) g->options->on_candidate(g->options->on_candidate_user, c);
        }
    return OPENPI_OK;
}

/* ---- choice -------------------------------------------------------------------------------------------- */

/* By ms where there is a candidate whose kernels are faster than the reference's. */
static int choose_by_ms(const gate *g) {
    const quantize_result *r = g->result;
    if (g->options->save != QUANTIZE_AUTO) return g->options->save == QUANTIZE_MS;
    for (int i = 0; i < r->candidate_count; i++)
        if (r->candidates[i].measured && r->candidates[i].ms_saved > faster * r->ms) return 1;
    return 0;
}

static double gain_of(const quantize_result *r, const quantize_candidate *c) {
    if (!c->measured) return 0;
    if (!r->by_ms) return c->bytes_saved;
    return c->ms_saved > faster * r->ms ? c->ms_saved : 0;
}

static void fill_choice(const quantize_result *r, choice_candidate *list) {
    for (int i = 0; i < r->candidate_count; i++) {
        const quantize_candidate *c = &r->candidates[i];
        list[i] = (choice_candidate){.group = (int)c->group, .load = c->share, .gain = gain_of(r, c)};
    }
}

/* The list of formats that candidates taken make; "" where none is. Those that were taken before and are not
 * now were taken back. */
static void table_of(quantize_result *r, const choice_candidate *list, char text[FORMATS_TEXT]) {
    int used = 0;
    *text = 0;
    for (int i = 0; i < r->candidate_count; i++) {
        quantize_candidate *c = &r->candidates[i];
        c->dropped |= c->taken && !list[i].taken;
        char entry[64];
        c->taken = list[i].taken;
        candidate_text(c, entry, sizeof entry);
        if (c->taken)
            used += snprintf(text + used, (size_t)(FORMATS_TEXT - used), "%s%s", used ? "," : "", entry);
    }
}

/* ---- confirmation -------------------------------------------------------------------------------------- */

/* Runs a table as a whole. Afterwards g->last are its actions. */
static openpi_status confirm(gate *g, const char *list, double predicted, run_facts *facts,
                             openpi_error *error) {
    quantize_result *r = g->result;
    quantize_try *t = &r->tries[r->try_count++];
    TRY(run_all(g, &(run_kind){.name = list, .formats = list}, &g->last, NULL, facts, error));
    TRY(differences_of(&g->shape, &g->last, &g->reference, &r->off, error));
    *t = (quantize_try){.predicted = predicted, .rms = r->off.all.rms, .ms = facts->ms};
    snprintf(t->formats, sizeof t->formats, "%s", facts->formats);
    t->share = bounds_fill(&r->off, r->bounds, r->bound_dims, r->bound_count);
    r->holds = t->share <= 1;
    r->ms_taken = facts->ms;
    r->bytes_taken = facts->bytes;
    snprintf(r->formats, sizeof r->formats, "%s", facts->formats);
    return OPENPI_OK;
}

/* The room that a table left which was predicted at `predicted` and measured at `share`: loads are as much
 * larger together as this one was, and the next table is predicted below it in any case. */
static double less_room(double predicted, double share) {
    double scale = share < 2 ? 1 / share : 0.5;
    return pow(predicted * scale, 2);
}

static openpi_status choose(gate *g, run_facts *facts, openpi_error *error) {
    quantize_result *r = g->result;
    choice_candidate list[QUANTIZE_CANDIDATES];
    char table[FORMATS_TEXT];
    double room = 1;
    r->by_ms = choose_by_ms(g);
    fill_choice(r, list);
    while (r->try_count < QUANTIZE_TRIES && choice_make(list, r->candidate_count, room)) {
        double predicted = choice_predicted(list, r->candidate_count);
        table_of(r, list, table);
        TRY(confirm(g, table, predicted, facts, error));
        if (r->holds) return OPENPI_OK;
        room = less_room(predicted, r->tries[r->try_count - 1].share);
    }
    for (int i = 0; i < r->candidate_count; i++) list[i].taken = 0;
    table_of(r, list, table);
    r->off = (differences){.flipped = 0};
    r->formats[0] = 0;
    return OPENPI_OK;
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static chunks one(const gate *g, const chunks *all, int i) {
    return (chunks){.model = all->model + (size_t)i * (size_t)(g->shape.horizon * OPENPI_ACTION_DIM)};
}

/* The observation whose chunk's error from fp32 is in the middle. */
static openpi_status middle(const gate *g, int *out, openpi_error *error) {
    int count = g->shape.observations;
    double *rms = malloc((size_t)count * sizeof *rms);
    if (!rms) return report_no_memory(error, (size_t)count * sizeof *rms, "errors");
    for (int i = 0; i < count; i++) rms[i] = differences_chunk(&g->shape, &g->last, &g->fp32, i);
    for (int i = 0; i < count; i++) {
        int below = 0;
        for (int j = 0; j < count; j++) below += rms[j] < rms[i] || (rms[j] == rms[i] && j < i);
        if (below == count / 2) *out = i;
    }
    free(rms);
    return OPENPI_OK;
}

/* Those that the table was run with. */
static const float *scales_of(const quantize_result *r, const char *formats) {
    int smooth = strstr(formats, "+smooth+static") != NULL;
    return strstr(formats, "+static") ? r->row_scales[smooth] : NULL;
}

static openpi_status make_plan(gate *g, const run_facts *facts, openpi_error *error) {
    quantize_result *r = g->result;
    int i = 0;
    TRY(middle(g, &i, error));
    w8_check check = {.sample = OPENPI_SAMPLE_INIT,
                      .seed = g->options->seed,
                      .stream = run_stream(g, i, 0),
                      .horizon = g->shape.horizon,
                      .steps = g->steps,
                      .max_prompt = g->max_prompt,
                      .action_dim = g->shape.dims,
                      .actions = one(g, &g->fp32, i).model};
    TRY(openpi_request_sample(g->observations->requests[i], &check.sample, error));
    check.rms = w8_distance(&check, one(g, &g->last, i).model);
    r->plan = w8_json(&(w8_contents){.identity = facts->identity,
                                     .formats = facts->formats,
                                     .path_name = facts->path,
                                     .act = r->info.dtype == OPENPI_F32 ? DTYPE_F32 : DTYPE_BF16,
                                     .observations = g->shape.observations,
                                     .synthetic = g->observations->synthetic,
                                     .bounds = r->bounds,
                                     .bound_count = r->bound_count,
                                     .check = &check,
                                     .powers = strstr(facts->formats, "+smooth") ? r->powers : NULL,
                                     .power_count = r->power_count,
                                     .row_scales = scales_of(r, facts->formats),
                                     .row_scale_count = r->row_scale_count});
    return r->plan ? OPENPI_OK : report_no_memory(error, 4096, "a weight plan");
}

static void count_far(const gate *g) {
    quantize_result *r = g->result;
    for (int i = 0; i < g->shape.observations; i++)
        r->chunks_far += differences_chunk(&g->shape, &g->last, &g->reference, i) >
                         far * differences_chunk(&g->shape, &g->other, &g->reference, i);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static openpi_status walk(gate *g, openpi_error *error) {
    quantize_result *r = g->result;
    run_facts facts = {.ms = 0};
    TRY(bounds_make(&g->shape, &g->options->bounds, r->bounds, r->bound_dims, &r->bound_count, error));
    TRY(chunks_make(&g->shape, &g->reference, error));
    TRY(chunks_make(&g->shape, &g->other, error));
    TRY(chunks_make(&g->shape, &g->fp32, error));
    TRY(chunks_make(&g->shape, &g->last, error));
    TRY(run_reference(g, &facts, error));
    if (g->options->list) TRY(confirm(g, g->options->list, 0, &facts, error));
    else {
        TRY(measure_all(g, error));
        TRY(choose(g, &facts, error));
    }
    if (!r->formats[0]) return OPENPI_OK;
    count_far(g);
    return make_plan(g, &facts, error);
}

/* The table that is to be judged: 8 bits somewhere, and a list that can be read. */
static openpi_status check_list(const quantize_options *o, openpi_error *error) {
    model_types types = formats_all(DTYPE_BF16, FORMAT_BF16);
    if (!o->list) return OPENPI_OK;
    TRY(formats_parse(o->list, &types, error));
    return formats_have_8_bits(&types)
               ? OPENPI_OK
               : report(error, OPENPI_BAD_ARGUMENT,
                        "weights is \"%.80s\", where no group has 8 bits: there is nothing to judge",
                        o->list);
}

openpi_status quantize_run(const observations *observations, const quantize_options *options,
                           quantize_result *result, openpi_error *error) {
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    gate g = {.observations = observations, .options = options, .result = result};
    *result = (quantize_result){.own.flipped = 0};
    TRY(check_list(options, error));
    TRY(openpi_policy_get_info(observations->policy, &info, error));
    g.shape = (chunks_shape){.observations = observations->count,
                             .horizon = options->horizon ? options->horizon
                                        : info.horizon   ? info.horizon
                                                         : HORIZON,
                             .dims = info.action_dim,
                             .policy = observations->policy};
    g.max_prompt = info.max_prompt;
    result->observations = g.shape.observations;
    result->horizon = g.shape.horizon;
    result->dims = g.shape.dims;
    openpi_status status = walk(&g, error);
    openpi_engine_close(g.base);
    chunks_free(&g.reference);
    chunks_free(&g.other);
    chunks_free(&g.fp32);
    chunks_free(&g.last);
    return status;
}

void quantize_free(quantize_result *result) {
    json_decref(result->plan);
    result->plan = NULL;
    free(result->powers);
    result->powers = NULL;
    for (int i = 0; i < 2; i++) {
        free(result->row_scales[i]);
        result->row_scales[i] = NULL;
    }
}

openpi_status quantize_place(const char *checkpoint, const openpi_engine_options *engine, char path[W8_PATH],
                             openpi_error *error) {
    return w8_place("w8", checkpoint, engine->adapter, engine->without_lora, path, error);
}

char *quantize_text(const quantize_result *r, json_t *head, json_t *report) {
    char *text = NULL;
    if (head && report && r->plan && !json_object_update(head, r->plan) &&
        !json_object_set(head, "report", report))
        text = w8_text(head);
    json_decref(head);
    json_decref(report);
    return text;
}
