/* The window is between two movements of the counter, each noticed behind the call in which it happened. */
#include "measure/energy.h"

#include <string.h>

#include "base/clock.h"
#include "base/report.h"

typedef struct moment {
    double ms, joules;
    int calls;
} moment;

typedef struct looks {
    double core_mhz, memory_mhz, next_ms;
    int count;
} looks;

static openpi_status look(power *power, looks *l, energy_report *out, openpi_error *error) {
    static const double between_ms = 100;
    power_reading now;
    if (clock_ms() < l->next_ms) return OPENPI_OK;
    TRY(power_read(power, &now, error));
    l->core_mhz += now.core_mhz;
    l->memory_mhz += now.memory_mhz;
    l->count++;
    l->next_ms = clock_ms() + between_ms;
    memcpy(out->held, now.held, sizeof out->held);
    return OPENPI_OK;
}

/* Calls that a counter may stand still for. */
enum { PATIENCE = 8 };

static openpi_status run_window(openpi_session *s, const bench_workload *w, workload_inputs *in, power *power, double seconds,
                                energy_report *out, openpi_error *error) {
    moment first = {0}, last = {0};        /* first and newest movement                                    */
    looks l = {0};
    double before;
    TRY(power_energy(power, &before, error));
    double start = clock_ms();
    for (int calls = 1; !first.calls || last.ms - first.ms < seconds * 1e3; calls++) {
        double joules, most_ms = 3 * seconds * 1e3;
        if (w->changing_prompts) workload_change_prompts(in, &w->call, calls);
        TRY(workload_run(s, in, NULL, error));
        TRY(power_energy(power, &joules, error));
        double now = clock_ms();
        if (joules > before) last = (moment){now, joules, calls};
        if (!first.calls) first = last;
        before = joules;
        if (w->progress) w->progress(w->progress_user, "counting joules", (uint64_t)(now - start), (uint64_t)(seconds * 1e3));
        TRY(look(power, &l, out, error));
        if (now - start < most_ms || calls - last.calls < PATIENCE) continue;
        return report(error, OPENPI_UNSUPPORTED, "the energy counter (%s) does not move", power_get_facts(power)->counter);
    }
    out->window_s = (last.ms - first.ms) * 1e-3;
    out->energy_j = last.joules - first.joules;
    out->calls = last.calls - first.calls;
    out->core_mhz = l.count ? l.core_mhz / l.count : 0;
    out->memory_mhz = l.count ? l.memory_mhz / l.count : 0;
    return OPENPI_OK;
}

openpi_status energy_run(openpi_session *s, const bench_workload *w, power *power, double seconds, energy_report *out,
                         openpi_error *error) {
    workload_inputs in = {0};
    *out = (energy_report){0};
    openpi_status status = workload_make(s, &w->call, &in, error);
    if (status == OPENPI_OK) status = run_window(s, w, &in, power, seconds, out, error);
    workload_free(&in);
    return status;
}
