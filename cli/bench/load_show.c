/* The table and the JSON of `openpi bench --server`; see load.h. */
#include <stdio.h>
#include <string.h>

#include "head.h"
#include "load.h"
#include "table.h"

static void put_group(table *t, const load_group *group, load_outcome *o, double seconds) {
    const double times[] = {load_percentile(&o->round, 0.5),  load_percentile(&o->round, 0.99),
                            load_percentile(&o->round, 1),    load_percentile(&o->model, 0.5),
                            load_percentile(&o->beside, 0.5), load_percentile(&o->beside, 0.99)};
    table_cell(t, "%s", group->name);
    table_cell(t, "%d", o->connected);
    table_cell(t, "%.1f", (double)o->round.count / seconds);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) table_cell(t, "%.2f", times[i]);
    table_cell(t, "%ld", o->errors + o->broken + o->refused);
}

void load_put(const load_plan *plan, load_result *r) {
    static const char *const heads[] = {"ms",  "robots", "answers/s", "p50",  "p99",
                                        "max", "model",  "beside p50", "p99", "errors"};
    table *t = table_create("lrrrrrrrrr");
    printf("%s:%d", plan->address.host, plan->address.port);
    if (r->metadata.version[0])
        printf(": openpi %s, chunks of %d steps of %d actions", r->metadata.version, r->metadata.horizon,
               r->metadata.action_dim);
    printf("\nrequests of %zu bytes (%s), %.1f s\n\n", r->request_bytes, load_env_name(r->env), r->seconds);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int g = 0; g < plan->group_count; g++) put_group(t, &plan->groups[g], &r->groups[g], r->seconds);
    table_print(t, stdout, 0);
    if (plan->observations)
        printf("\n%d observations a message: %.2f samples/s\n", plan->observations,
               plan->observations * r->groups[0].rate);
    for (int g = 0; g < plan->group_count; g++)
        if (r->groups[g].last_error[0])
            printf("\nlast error of the %s: %s\n", plan->groups[g].name, r->groups[g].last_error);
}

static json_t *times_json(load_times *t) {
    return json_pack("{s:f s:f s:f}", "p50_ms", load_percentile(t, 0.5), "p99_ms", load_percentile(t, 0.99),
                     "max_ms", load_percentile(t, 1));
}

static json_t *group_json(const load_group *group, load_outcome *o, double seconds) {
    json_t *g = json_pack("{s:s s:i s:f s:f}", "name", group->name, "robots", o->connected, "rate_hz",
                          group->rate, "jitter_ms", group->jitter_ms);
    json_object_set_new(g, "answers", json_integer((json_int_t)o->round.count));
    json_object_set_new(g, "least_answers", json_integer((json_int_t)o->least));
    json_object_set_new(g, "most_answers", json_integer((json_int_t)o->most));
    json_object_set_new(g, "answers_per_s", json_real((double)o->round.count / seconds));
    json_object_set_new(g, "round_trip", times_json(&o->round));
    json_object_set_new(g, "model", times_json(&o->model));
    json_object_set_new(g, "beside_model", times_json(&o->beside));
    json_object_set_new(g, "errors", json_integer(o->errors));
    json_object_set_new(g, "broken", json_integer(o->broken));
    json_object_set_new(g, "refused", json_integer(o->refused));
    return g;
}

json_t *load_json(const load_plan *plan, load_result *r) {
    json_t *root = head_json("server_bench"), *groups = json_array();
    for (int g = 0; g < plan->group_count; g++)
        json_array_append_new(groups, group_json(&plan->groups[g], &r->groups[g], r->seconds));
    json_object_set_new(root, "server",
                        json_pack("{s:o s:i s:i}", "version", head_text(r->metadata.version), "horizon",
                                  r->metadata.horizon, "action_dim", r->metadata.action_dim));
    json_object_set_new(root, "env", json_string(load_env_name(r->env)));
    json_object_set_new(root, "request_bytes", json_integer((json_int_t)r->request_bytes));
    if (plan->observations) {
        json_object_set_new(root, "observations", json_integer(plan->observations));
        json_object_set_new(root, "samples_per_s", json_real(plan->observations * r->groups[0].rate));
    }
    json_object_set_new(root, "seconds", json_real(r->seconds));
    json_object_set_new(root, "groups", groups);
    return root;
}
