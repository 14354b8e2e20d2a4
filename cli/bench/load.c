/* The options of `openpi bench --server`, and the order of its steps; see load.h. */
#include "load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "json_file.h"

/* A number of --rate: calls a second, 0 for no pause. */
static int read_rate(const char *text, double *rate) {
    char *end;
    if (!text) return END_FINE;
    *rate = ascii_number(text, &end);
    if (end != text && !*end && isfinite(*rate) && *rate >= 0 && *rate <= 10000) return END_FINE;
    return usage_error(&verb_bench,
                       "--rate is '%s', expected calls a second from 0 (without a pause) to 10000", text);
}

static int read_plan(const bench_values *v, load_plan *plan) {
    double rate = 5;
    if (!client_address_read(v->server, &plan->address))
        return usage_error(&verb_bench, "--server is '%s', expected ws://HOST:PORT or wss://HOST", v->server);
    int end = read_rate(v->rate, &rate);
    if (end != END_FINE) return end;
    plan->groups[plan->group_count++] = (load_group){
        .name = "robots", .key = v->api_key, .count = v->robots, .rate = rate, .jitter_ms = v->jitter};
    if (v->greedy)
        plan->groups[plan->group_count++] =
            (load_group){.name = "greedy", .key = v->greedy_key, .count = v->greedy};
    plan->env = (load_env)v->env;
    plan->seed = v->subject.seed;
    plan->observations = v->observations;
    plan->warmup = v->warmup < 0 ? 1 : v->warmup;
    plan->seconds = v->seconds;
    return END_FINE;
}

int load_run(const bench_values *v) {
    load_plan plan = {.group_count = 0};
    load_result result = {.seconds = 0};
    int end = read_plan(v, &plan);
    if (end != END_FINE) return end;
    end = load_robots(&plan, &result);
    if (end == END_FINE) load_put(&plan, &result);
    if (end == END_FINE && v->json)
        end = json_save(&verb_bench, v->json, load_json(&plan, &result));
    for (int g = 0; g < plan.group_count; g++) {
        const load_outcome *o = &result.groups[g];
        if (end == END_FINE && o->errors + o->broken + o->refused) end = END_CHECK;
    }
    load_result_free(&result);
    return end;
}
