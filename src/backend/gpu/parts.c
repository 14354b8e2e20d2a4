/* What a timed recording tells of the resident kernel: one launch in as many parts as it left time stamps of.
 *
 * A part is a layer of a step, with what runs in front of the first layer, or what follows the last. The kernel's clock is
 * not the events' clock: stamps are laid so that the last one stands where the launch ends. */
#include "backend/gpu/parts.h"

/* A part begins with a step, behind its last layer, and with every layer but the first. */
static int begins(const op *ops, int i) {
    if (!i || ops[i].step != ops[i - 1].step) return 1;
    return ops[i].layer != ops[i - 1].layer && ops[i - 1].layer >= 0;
}

int gpu_parts(const op *ops, int count) {
    int parts = 0;
    for (int i = 0; i < count; i++) parts += begins(ops, i);
    return parts;
}

int gpu_parts_fill(const op *ops, const launch_record *launch, const uint64_t *stamps, launch_record *out) {
    const op *first = ops + launch->op;
    int n = 0, parts = gpu_parts(first, launch->ops);
    for (int i = 0; i < parts; i++)
        if (!stamps[i] || stamps[i + 1] < stamps[i]) return -1;
    for (int i = 0; i < launch->ops; i++) {
        if (!begins(first, i)) {
            out[n - 1].ops++;
            continue;
        }
        double before_ms = (double)(stamps[parts] - stamps[n]) * 1e-6;
        out[n] = *launch;
        out[n].op = launch->op + i;
        out[n].ops = 1;
        out[n].part = n > 0;
        if (n && launch->end_ms - before_ms < launch->start_ms) return -1;
        if (n) out[n].start_ms = out[n - 1].end_ms = launch->end_ms - before_ms;
        n++;
    }
    return n;
}
