/* See spans.h. */
#include "policy/spans.h"

#include <math.h>
#include <stdio.h>

static int is_flat(double spread, double value) {
    return spread <= 1e-6 * fmax(1, fabs(value));
}

int spans_flat_lerobot(const lerobot_norm *norm, int d) {
    if (norm->mode == LEROBOT_IDENTITY) return 0;
    float spread = norm->mode == LEROBOT_MEAN_STD ? norm->high[d] : norm->high[d] - norm->low[d];
    return is_flat((double)spread, (double)norm->low[d]);
}

int spans_flat_openpi(norm_mode mode, const norm_stats *stats, int d) {
    if (mode == STATS_NONE || d >= stats->dims) return 0;
    return mode == STATS_ZSCORE ? is_flat(stats->std[d], stats->mean[d])
                                : is_flat(stats->q99[d] - stats->q01[d], stats->q01[d]);
}

static int any_flat(const lerobot_step *steps, int count, lerobot_kind kind, int d) {
    for (int i = 0; i < count; i++)
        if (steps[i].kind == kind && spans_flat_lerobot(&steps[i].norm, d)) return 1;
    return 0;
}

static int state_is_flat(const openpi_policy *policy, int d) {
    const lerobot *p = &policy->pipeline;
    if (!policy->lerobot) return spans_flat_openpi(policy->mode, &policy->state, d);
    return any_flat(p->before, p->before_count, LEROBOT_NORMALIZE, d);
}

static int action_is_flat(const openpi_policy *policy, int d) {
    const lerobot *p = &policy->pipeline;
    if (!policy->lerobot) return spans_flat_openpi(policy->mode, &policy->actions, d);
    return any_flat(p->after, p->after_count, LEROBOT_UNNORMALIZE, d);
}

/* The flat ones of `count` dimensions after `format`, as "2, 5" and "…" where there are more. */
static void tell(openpi_policy *policy, int count, int (*flat)(const openpi_policy *policy, int d),
                 const char *of, const char *then) {
    char list[100] = "";
    size_t used = 0;
    for (int d = 0; d < count && used < sizeof list; d++)
        if (flat(policy, d))
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", d);
    if (used)
        notes_add(&policy->notes, 0, "the statistics of the %s have no span in dimension %s%s: %s", of, list,
                  used < sizeof list ? "" : "…", then);
}

void spans_tell(openpi_policy *policy, int relative) {
    tell(policy, policy->state_length, state_is_flat, "state",
         "a state that differs from the only value of the data goes far beyond the model's range");
    if (relative)
        tell(policy, policy->action_dim, action_is_flat, "actions",
             "real-time chunking keeps it at the only value that the data had");
}
