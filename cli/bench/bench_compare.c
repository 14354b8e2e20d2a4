/* Two runs, figure by figure, each as its part of the roof of its own run: a card whose clocks are down today
 * slows roof and figure alike, and is not taken for a slower program.
 *
 * Note: settings that differ are printed first, since they are nearly always the reason. And a difference of
 * a hundredth of a millisecond is never worse, whatever it is in percent: it is within the clock's error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "bench.h"
#include "table.h"

static const double slack_ms = 0.01, clock_part = 0.03;

/* ---- may they be compared ------------------------------------------------------------------------- */

/* What must be equal for two times to be of the same work. */
static const struct {
    const char *group, *key;
} same[] = {{"model", "variant"},  {"model", "parameters"}, {"workload", "cameras"},
            {"workload", "prompt"}, {"workload", "horizon"}, {"workload", "steps"}};

static const json_t *find_batch(const json_t *root, int batch) {
    const json_t *list = json_object_get(root, "batches");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "batch")) == batch)
            return json_array_get(list, i);
    return NULL;
}

static const json_t *find_stage(const json_t *batch, const char *name) {
    const json_t *list = json_object_get(batch, "stages");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *is = json_string_value(json_object_get(json_array_get(list, i), "name"));
        if (is && !strcmp(is, name)) return json_array_get(list, i);
    }
    return NULL;
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

int bench_comparable(const bench_job *j, const json_t *before) {
    json_t *now = subject_json(&j->subject, "bench");
    int end = END_FINE,
        changing = json_is_true(json_object_get(json_object_get(before, "workload"), "changing_prompts"));
    for (size_t i = 0; i < sizeof same / sizeof *same && end == END_FINE; i++)
        if (!json_equal(json_object_get(json_object_get(before, same[i].group), same[i].key),
                        json_object_get(json_object_get(now, same[i].group), same[i].key)))
            end = input_error(&verb_bench, "%s: its %s.%s is not this run's, expected the same workload",
                              j->v.against, same[i].group, same[i].key);
    json_decref(now);
    if (end == END_FINE && changing != j->v.changing_prompts)
        end = input_error(&verb_bench, "%s: its prompts %s, expected the same workload", j->v.against,
                          changing ? "changed with every call (--changing-prompts)" : "did not change");
    for (int i = 0; i < j->count && end == END_FINE; i++) {
        const json_t *old = find_batch(before, j->outcomes[i].batch);
        if (!old)
            end = input_error(&verb_bench, "%s: holds no batch of %d", j->v.against, j->outcomes[i].batch);
        else if (number(json_object_get(old, "host"), "p50_ms") <= 0 ||
                 number(json_object_get(old, "device"), "p50_ms") <= 0)
            end = input_error(&verb_bench,
                              "%s: batch %d has no host.p50_ms and device.p50_ms above 0, expected both",
                              j->v.against, j->outcomes[i].batch);
    }
    return end;
}

/* ---- settings ------------------------------------------------------------------------------------- */

/* Clocks that nobody could read are no difference, nor is their trembling. */
static int differs(const char *key, const json_t *a, const json_t *b) {
    if (!text_ends_with(key, "_mhz") && !text_ends_with(key, "_w")) return !json_equal(a, b);
    double x = json_number_value(a), y = json_number_value(b);
    return x > 0 && y > 0 && fabs(x - y) > clock_part * y;
}

static void put_value(table *t, const json_t *value, const char *side) {
    if (json_is_string(value))
        table_cell(t, "%s %s", side, json_string_value(value)[0] ? json_string_value(value) : "none");
    else if (json_is_boolean(value)) table_cell(t, "%s %s", side, json_is_true(value) ? "on" : "off");
    else if (json_is_number(value)) table_cell(t, "%s %g", side, json_number_value(value));
    else table_cell(t, "%s not told", side);
}

static void add_difference(json_t *list, table *t, const char *name, const json_t *before,
                           const json_t *now) {
    table_cell(t, "%s", name);
    put_value(t, now, "now");
    put_value(t, before, "best known");
    json_t *none = json_null();
    json_array_append_new(list, json_pack("{s:s,s:O,s:O}", "setting", name, "now", now ? now : none, "best",
                                          before ? before : none));
    json_decref(none);
}

/* Every setting of either side, once. */
static void walk_settings(json_t *list, table *t, const char *prefix, json_t *before, json_t *now) {
    json_t *const sides[] = {now, before};
    for (int side = 0; side < 2; side++) {
        const char *key;
        json_t *value;
        json_object_foreach(sides[side], key, value) {
            json_t *mine = json_object_get(now, key), *theirs = json_object_get(before, key);
            char name[96];
            if (side && mine) continue;
            snprintf(name, sizeof name, "%s%.60s", prefix, key);
            if (json_is_object(mine) && json_is_object(theirs))
                walk_settings(list, t, "switch ", theirs, mine);
            else if (differs(key, mine, theirs)) add_difference(list, t, name, theirs, mine);
        }
    }
}

static json_t *compare_settings(const json_t *before, const json_t *now) {
    json_t *list = json_array();
    table *t = table_create("lll");
    walk_settings(list, t, "", json_object_get(before, "settings"), json_object_get(now, "settings"));
    printf("settings: %s\n",
           json_array_size(list) ? "these differ from the best known" : "none differs from the best known");
    table_print(t, stdout, 2);
    return list;
}

/* ---- figures -------------------------------------------------------------------------------------- */

typedef struct comparison {
    const bench_job *job;
    json_t *list;
    table *table;
    int worse;
} comparison;

static void put_ratio(table *t, double ratio) {
    if (ratio > 0) table_cell(t, "%.1f %%", ratio * 100);
    else table_cell(t, "-");
}

/* `judged`: 0 for what has no work of its own and counts with the host's time. */
static void compare_figure(comparison *c, int batch, const char *name, const json_t *before,
                           const json_t *now, int judged) {
    double now_ms = number(now, "p50_ms"), best_ms = number(before, "p50_ms");
    double now_ratio = number(now, "roof_ratio"), best_ratio = number(before, "roof_ratio");
    int by_roof = now_ratio > 0 && best_ratio > 0, known = now_ms > 0 && best_ms > 0;
    double slower = by_roof ? best_ratio / now_ratio - 1 : known ? now_ms / best_ms - 1 : 0;
    int worse = judged && slower * 100 > c->job->v.tolerance && now_ms - now_ms / (1 + slower) > slack_ms;
    table_cell(c->table, "%d", batch);
    table_cell(c->table, "%s", name);
    table_cell(c->table, "%.3f", now_ms);
    table_cell(c->table, "%.3f", best_ms);
    put_ratio(c->table, now_ratio);
    put_ratio(c->table, best_ratio);
    table_cell(c->table, "%+.1f %%", slower * 100);
    table_cell(c->table, "%s", worse ? "WORSE" : judged ? "ok" : "not judged");
    json_array_append_new(c->list,
                          json_pack("{s:i,s:s,s:f,s:f,s:f,s:f,s:s,s:f,s:b,s:b}", "batch", batch, "figure",
                                    name, "now_ms", now_ms, "best_ms", best_ms, "now_roof_ratio", now_ratio,
                                    "best_roof_ratio", best_ratio, "compared_by", by_roof ? "roof" : "time",
                                    "slower_ratio", slower, "judged", judged, "worse", worse));
    c->worse += worse;
}

static void compare_batch(comparison *c, int batch, const json_t *before, const json_t *now) {
    static const char *const boundaries[] = {"device", "host"};
    const json_t *stages = json_object_get(now, "stages");
    for (int i = 0; i < 2; i++)
        compare_figure(c, batch, boundaries[i], json_object_get(before, boundaries[i]),
                       json_object_get(now, boundaries[i]), 1);
    for (size_t i = 0; i < json_array_size(stages); i++) {
        const json_t *stage = json_array_get(stages, i);
        const char *name = json_string_value(json_object_get(stage, "name"));
        const json_t *old = find_stage(before, name);
        if (old) compare_figure(c, batch, name, old, stage, number(stage, "flops") > 0);
    }
}

static void put_roofs(const json_t *before, const json_t *now) {
    static const char *const keys[] = {"bf16_tflops", "f32_tflops", "read_gbs", "copy_gbs"};
    const json_t *then = json_object_get(before, "roofs"), *is = json_object_get(now, "roofs");
    if (!json_is_object(then) || !json_is_object(is)) {
        printf("no roof is known of %s: compared by time alone\n",
               json_is_object(is) ? "the best known run" : "these kernels");
        return;
    }
    printf("roofs now and then:");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (number(then, keys[i]) > 0 && number(is, keys[i]) > 0)
            printf(" %s %.4g, %.4g (%+.1f %%)%s", keys[i], number(is, keys[i]), number(then, keys[i]),
                   (number(is, keys[i]) / number(then, keys[i]) - 1) * 100,
                   i + 1 < sizeof keys / sizeof *keys ? ";" : "\n");
}

json_t *bench_compare(const bench_job *j, const json_t *before, const json_t *now, int *end) {
    static const char *const heads[] = {"batch",       "p50",  "now ms", "best ms",
                                        "of roof now", "best", "slower", ""};
    comparison c = {j, json_array(), table_create("rlrrrrrl"), 0};
    printf("\nagainst %s\n", j->v.against);
    json_t *settings = compare_settings(before, now);
    put_roofs(before, now);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(c.table, "%s", heads[i]);
    for (int i = 0; i < j->count; i++)
        compare_batch(&c, j->outcomes[i].batch, find_batch(before, j->outcomes[i].batch),
                      find_batch(now, j->outcomes[i].batch));
    table_print(c.table, stdout, 0);
    if (c.worse)
        printf("%d figure%s worse by more than %d %%\n", c.worse, c.worse == 1 ? " is" : "s are",
               j->v.tolerance);
    else printf("ok: nothing is worse by more than %d %%\n", j->v.tolerance);
    *end = c.worse ? END_CHECK : END_FINE;
    return json_pack("{s:s,s:i,s:o,s:o,s:i}", "file", j->v.against, "tolerance_percent", j->v.tolerance,
                     "settings_that_differ", settings, "figures", c.list, "worse", c.worse);
}
