/* The figures as JSON. Every name of a time ends in _ms, of a ratio in _ratio, of joules in _j, of watts in
 * _w. */
#include <string.h>

#include "bench.h"

/* As far as it is known. */
static json_t *known(double value) { return value > 0 ? json_real(value) : json_null(); }

static json_t *bytes_or_null(uint64_t bytes) { return bytes ? json_integer((json_int_t)bytes) : json_null(); }

static json_t *figures_json(const figures *f, double floor_ms, int batch) {
    double hz = 1e3 / f->p50_ms;
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o}", "p50_ms", f->p50_ms, "p95_ms",
                     f->p95_ms, "p99_ms", f->p99_ms, "mean_ms", f->mean_ms, "std_ms", f->std_ms, "min_ms",
                     f->min_ms, "max_ms", f->max_ms, "p99_p50_ratio", f->p99_ms / f->p50_ms, "hz", hz,
                     "samples_per_s", hz * batch, "roof_ratio", known(floor_ms / f->p50_ms));
}

static json_t *stages_json(const bench_report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->stage_count; i++) {
        const bench_stage *s = &r->stages[i];
        const char *bound = s->roof_ratio <= 0 ? NULL : s->memory_bound ? "memory" : "compute";
        json_array_append_new(list, json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:s?}", "name",
                                              openpi_stage_name(s->stage), "p50_ms", s->ms.p50_ms, "p95_ms",
                                              s->ms.p95_ms, "min_ms", s->ms.min_ms, "flops", s->flops,
                                              "weight_bytes", s->weight_bytes, "tflops", s->tflops, "gbs",
                                              s->gbs, "floor_ms", known(s->floor_ms), "roof_ratio",
                                              known(s->roof_ratio), "bound", bound));
    }
    return list;
}

static json_t *histogram_json(const histogram *h) {
    json_t *counts = json_array();
    for (int i = 0; i < HISTOGRAM_BINS; i++) json_array_append_new(counts, json_integer(h->counts[i]));
    return json_pack("{s:f,s:f,s:o}", "low_ms", h->low_ms, "width_ms", h->width_ms, "counts", counts);
}

static json_t *memory_json(const bench_job *j, const bench_report *r) {
    uint64_t weights = j->subject.info.weight_bytes;
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "peak_bytes", (json_int_t)r->peak_bytes,
                     "anonymous_bytes", (json_int_t)r->anonymous_bytes, "weight_bytes", (json_int_t)weights,
                     "session_bytes", (json_int_t)r->session_bytes, "asked_bytes",
                     (json_int_t)(weights + r->session_bytes), "device_used_bytes",
                     bytes_or_null(r->device_used_bytes), "device_total_bytes",
                     bytes_or_null(r->device_total_bytes));
}

static json_t *energy_json(const bench_job *j, const bench_outcome *o) {
    const energy_report *e = &o->energy;
    if (e->calls <= 0) return json_null();
    double samples = e->calls * o->batch, watts = e->energy_j / e->window_s;
    return json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:s}", "counter",
                     power_get_facts(j->power)->counter, "window_s", e->window_s, "calls", e->calls,
                     "window_j", e->energy_j, "inference_j", e->energy_j / samples, "action_j",
                     e->energy_j / samples / j->v.subject.horizon, "average_w", watts, "samples_per_j",
                     samples / e->energy_j, "hz_per_w", e->calls / e->window_s / watts, "core_mhz",
                     known(e->core_mhz), "memory_mhz", known(e->memory_mhz), "held", e->held);
}

/* One batch's figures, into `to`. */
static void outcome_json(json_t *to, const bench_job *j, const bench_outcome *o) {
    const bench_report *r = &o->report;
    const char *why = o->no_energy[0] ? o->no_energy : NULL;
    json_object_set_new(to, "batch", json_integer(o->batch));
    json_object_set_new(to, "host", figures_json(&r->host, r->floor_ms, o->batch));
    json_object_set_new(to, "device", figures_json(&r->device, r->floor_ms, o->batch));
    json_object_set_new(to, "stages", stages_json(r));
    json_object_set_new(to, "histogram",
                        json_pack("{s:o,s:o}", "host", histogram_json(&r->host_times), "device",
                                  histogram_json(&r->device_times)));
    json_object_set_new(to, "memory", memory_json(j, r));
    json_object_set_new(to, "energy", energy_json(j, o));
    json_object_set_new(to, "no_energy", why ? json_string(why) : json_null());
    json_object_set_new(to, "graph", json_boolean(o->session.recorded));
    json_object_set_new(to, "operations", json_integer(o->session.operations));
}

/* The first batch's figures stand at the top; `batches` holds each. */
json_t *bench_json(const bench_job *j, const char *kind) {
    json_t *root = subject_json(&j->subject, kind), *list = json_array(),
           *machine = json_object_get(root, "machine");
    const power_facts *f = power_get_facts(j->power);
    json_object_set_new(json_object_get(root, "workload"), "changing_prompts",
                        json_boolean(j->v.changing_prompts));
    head_lost(machine, &j->subject.info, &j->outcomes[0].session);
    json_object_set_new(machine, "driver", json_string(j->driver));
    json_object_set_new(machine, "power_limit_w", known(f->limit_w));
    if (f->mode[0]) json_object_set_new(machine, "power_mode", json_string(f->mode));
    if (f->advice[0]) json_object_set_new(machine, "advice", json_string(f->advice));
    json_object_set_new(machine, "core_max_mhz",
                        known(f->core_max_mhz > 0 ? f->core_max_mhz : j->subject.facts.core_mhz));
    json_object_set_new(machine, "memory_max_mhz",
                        known(f->memory_max_mhz > 0 ? f->memory_max_mhz : j->subject.facts.memory_mhz));
    json_object_set_new(root, "warmup", json_integer(j->v.warmup));
    json_object_set_new(root, "runs", json_integer(j->v.runs));
    json_object_set_new(root, "roofs", roofs_json(&j->roofs));
    json_object_set_new(root, "configuration", bench_configuration_json(&j->v));
    json_object_set_new(root, "settings", bench_settings_json(j));
    outcome_json(root, j, &j->outcomes[0]);
    for (int i = 0; i < j->count; i++) {
        json_t *one = json_object();
        outcome_json(one, j, &j->outcomes[i]);
        json_array_append_new(list, one);
    }
    json_object_set_new(root, "batches", list);
    return root;
}
