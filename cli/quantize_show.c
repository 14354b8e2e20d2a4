/* What `openpi quantize` found, for people and as JSON. */
#include <stdio.h>
#include <string.h>

#include "quantize.h"
#include "table.h"
#include "words.h"

/* ---- for people ---------------------------------------------------------------------------------------- */

void quantize_show_candidate(void *user, const quantize_candidate *c) {
    quantize_job *j = user;
    progress_end(&j->bar);
    if (!j->heads++)
        printf("%-10s %-21s %9s %9s %9s %8s %9s %9s\n", "group", "format", "rms σ", "p99.9", "max",
               "of bound", "ms saved", "MB saved");
    char format[32];
    snprintf(format, sizeof format, "%s%s%s", product_format_name(c->format), c->smooth ? "+smooth" : "",
             c->fixed ? "+static" : "");
    printf("%-10s %-21s ", weight_group_name(c->group), format);
    if (c->measured)
        printf("%8.4f %9.4f %9.4f %7.0f%% %9.2f %9.1f\n", c->off.all.rms, c->off.all.p999, c->off.all.max,
               100 * (c->share < 9.99 ? c->share : 9.99), c->ms_saved, c->bytes_saved * 1e-6);
    else printf("left out: %s\n", c->why);
    fflush(stdout);
}

static const char *dim_name(const quantize_job *j, int d, char text[64]) {
    const char *name = openpi_policy_action_name(j->policy, d),
               *unit = openpi_policy_action_unit(j->policy, d);
    if (*name) snprintf(text, 64, "%.40s%s%.16s", name, *unit ? ", " : "", unit);
    else snprintf(text, 64, "action %d", d);
    return text;
}

static void show_dimensions(const quantize_job *j) {
    const quantize_result *r = &j->result;
    table *t = table_create("lrrrrrrrr");
    static const char *const heads[] = {"action, unit", "rms", "p99", "max", "rms σ", "p99 σ", "max σ",
                                        "bf16's rms σ", "noise's rms σ"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int d = 0; d < r->dims; d++) {
        char name[64];
        const distance_figures *u = &r->off.unit[d], *s = &r->off.sigma[d];
        table_cell(t, "%s", dim_name(j, d, name));
        table_cell(t, "%.3g", u->rms);
        table_cell(t, "%.3g", u->p99);
        table_cell(t, "%.3g", u->max);
        table_cell(t, "%.4f", s->rms);
        table_cell(t, "%.4f", s->p99);
        table_cell(t, "%.4f", s->max);
        table_cell(t, "%.4f", r->own.sigma[d].rms);
        table_cell(t, "%.3f", r->noise.sigma[d].rms);
    }
    putchar('\n');
    table_print(t, stdout, 0);
}

static void show_tries(const quantize_result *r) {
    putchar('\n');
    for (int i = 0; i < r->try_count; i++) {
        const quantize_try *t = &r->tries[i];
        printf("%s together: rms %.4f σ, %.0f %% of the nearest bound", t->formats, t->rms, 100 * t->share);
        if (t->predicted > 0) printf(" (predicted %.0f %%)", 100 * t->predicted);
        printf("%s\n", t->share <= 1          ? ""
                       : i + 1 < r->try_count ? ": too much, so less is tried"
                                              : ": too much");
    }
}

static void show_bounds(const quantize_result *r) {
    for (int i = 0; i < r->bound_count; i++)
        printf("%s: %.4g of %.4g%s\n", r->bounds[i].what, r->bounds[i].found, r->bounds[i].limit,
               w8_above(&r->bounds[i]) ? ", ABOVE THE BOUND" : "");
}

static void show_saving(const quantize_job *j) {
    const quantize_result *r = &j->result;
    double ms = r->ms - r->ms_taken;
    printf("a call: %.2f ms instead of %.2f (%s); weights: %.1f MB instead of %.1f\n", r->ms_taken, r->ms,
           ms > 0 ? "faster" : "not faster: its 8-bit kernels save memory only", r->bytes_taken * 1e-6,
           r->bytes * 1e-6);
    if (!r->by_ms && !j->options.list) printf("chosen by bytes saved, not by time\n");
}

static void show_errors(const quantize_job *j) {
    const quantize_result *r = &j->result;
    printf("beside it: %s is off by rms %.4f σ from fp32%s; other noise changes the actions by %.3f σ\n",
           r->info.dtype == OPENPI_F32 ? "the reference" : "bf16 itself", r->own.all.rms,
           r->fp32_rounded ? " (with weights rounded to bf16, for want of memory)" : "", r->noise.all.rms);
    printf("chunks off by more than a quarter of what other noise changes: %d of %d\n", r->chunks_far,
           r->observations);
}

static void show_worth(const quantize_job *j) {
    enum { ENOUGH = 16 };
    const observations *o = &j->observations;
    if (o->synthetic)
        printf("%d made-up observations: this proves little. Measure again with recorded ones.\n", o->count);
    else if (o->count < ENOUGH)
        printf("%d observations are few: %d from different moments of the task say more.\n", o->count,
               ENOUGH);
    else if (o->found > o->count) printf("%d of %d observations, evenly spread\n", o->count, o->found);
}

void quantize_show(const quantize_job *j) {
    const quantize_result *r = &j->result;
    if (r->try_count) show_tries(r);
    if (r->formats[0]) {
        show_dimensions(j);
        putchar('\n');
        show_bounds(r);
    }
    show_errors(j);
    if (r->formats[0]) show_saving(j);
    show_worth(j);
    if (!r->formats[0])
        printf("no group may have 8 bits within these bounds, or none would save anything: no plan\n");
    else if (r->holds)
        printf("%s: %s; open with --weights w8%s%s\n", j->place, r->formats, j->v->out ? "=" : "",
               j->v->out ? j->place : "");
    else
        printf("%s: %s, above its bound: opening it needs --accept-error\n", j->place, r->formats);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static json_t *figures_json(const distance_figures *f) {
    return json_pack("{s:f,s:f,s:f,s:f}", "rms", f->rms, "p99", f->p99, "p999", f->p999, "max", f->max);
}

static json_t *candidate_json(const quantize_candidate *c) {
    const char *group = weight_group_name(c->group), *format = product_format_name(c->format);
    if (!c->measured)
        return json_pack("{s:s,s:s,s:b,s:b,s:s}", "group", group, "format", format, "smooth", c->smooth,
                         "static", c->fixed, "left_out", c->why);
    return json_pack("{s:s,s:s,s:b,s:b,s:o,s:i,s:f,s:f,s:f,s:s}", "group", group, "format", format, "smooth",
                     c->smooth, "static", c->fixed, "sigma",
                     figures_json(&c->off.all), "flipped", c->off.flipped, "share_of_bound",
                     c->share < 1e9 ? c->share : 1e9, "ms_saved", c->ms_saved, "bytes_saved", c->bytes_saved,
                     "result", c->taken ? "taken" : c->dropped ? "taken back" : "not taken");
}

static json_t *dimension_json(const quantize_job *j, int d) {
    const quantize_result *r = &j->result;
    return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o}", "name", openpi_policy_action_name(j->policy, d), "unit",
                     openpi_policy_action_unit(j->policy, d), "sigma", figures_json(&r->off.sigma[d]),
                     "robot", figures_json(&r->off.unit[d]), "own_sigma", figures_json(&r->own.sigma[d]),
                     "noise_sigma", figures_json(&r->noise.sigma[d]));
}

static json_t *try_json(const quantize_try *t) {
    return json_pack("{s:s,s:f,s:f,s:f,s:f}", "formats", t->formats, "predicted_share", t->predicted,
                     "share_of_bound", t->share < 1e9 ? t->share : 1e9, "rms", t->rms, "ms", t->ms);
}

static json_t *bound_json(const w8_bound *b) {
    return json_pack("{s:s,s:f,s:f}", "what", b->what, "limit", b->limit, "found", b->found);
}

json_t *quantize_report(const quantize_job *j) {
    const quantize_result *r = &j->result;
    const observations *o = &j->observations;
    json_t *candidates = json_array(), *tries = json_array(), *dims = json_array(), *bounds = json_array();
    for (int i = 0; i < r->candidate_count; i++)
        json_array_append_new(candidates, candidate_json(&r->candidates[i]));
    for (int i = 0; i < r->try_count; i++) json_array_append_new(tries, try_json(&r->tries[i]));
    for (int d = 0; d < r->dims && r->formats[0]; d++) json_array_append_new(dims, dimension_json(j, d));
    for (int i = 0; i < r->bound_count && r->formats[0]; i++)
        json_array_append_new(bounds, bound_json(&r->bounds[i]));
    return json_pack(
        "{s:{s:i,s:i,s:b},s:o,s:o,s:o,s:o,s:s,s:b,s:o,s:o,s:o,s:i,s:i,s:f,s:f,s:f,s:f,s:s,s:b,s:i}",
        "observations", "count", o->count, "found", o->found, "synthetic", o->synthetic, "candidates",
        candidates, "tries", tries, "dimensions", dims, "bounds", bounds, "formats", r->formats, "holds",
        r->holds, "sigma", figures_json(&r->off.all), "own_sigma", figures_json(&r->own.all), "noise_sigma",
        figures_json(&r->noise.all), "flipped", r->off.flipped, "chunks_far", r->chunks_far, "ms", r->ms,
        "ms_taken", r->ms_taken, "bytes", r->bytes, "bytes_taken", r->bytes_taken, "chosen_by",
        j->options.list ? "the user" : r->by_ms ? "ms" : "bytes", "fp32_rounded", r->fp32_rounded,
        "loads", r->loads);
}
