/* One handle over every kind of counter. */
#include "lab/measure/power.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/report.h"

struct power {
    const power_counter *counter;          /* NULL: none is known for the device                          */
    void *state;                           /* the counter's                                               */
    power_facts facts;
};

openpi_status power_open_with(const char *device, const power_counter *const *counters, power **out,
                              openpi_error *error) {
    const char *name = device ? device : "cpu";
    openpi_status status = OPENPI_OK;
    power *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "the power reader");
    power_facts *f = &p->facts;
    while (*counters && !(*counters)->serves(name)) counters++;
    p->counter = *counters;
    if (p->counter) status = p->counter->open(name, f, &p->state, error);
    else snprintf(f->reason, sizeof f->reason, "no counter is known for device %.60s", name);
    if (status != OPENPI_OK) {
        free(p);
        return status;
    }
    if (!f->reason[0]) snprintf(f->counter, sizeof f->counter, "%s", p->counter->name);
    *out = p;
    return OPENPI_OK;
}

openpi_status power_open(const char *device, power **out, openpi_error *error) {
    return power_open_with(device, power_counters, out, error);
}

void power_close(power *p) {
    if (!p) return;
    if (p->state) p->counter->close(p->state);
    free(p);
}

const power_facts *power_get_facts(const power *p) { return &p->facts; }

openpi_status power_energy(power *p, double *joules, openpi_error *error) {
    if (p->facts.counter[0]) return p->counter->energy(p->state, joules, error);
    *joules = 0;
    return OPENPI_OK;
}

void power_clocks(const power *p, power_reading *out) {
    *out = (power_reading){0};
    if (p->state) p->counter->sample(p->state, out);
}

openpi_status power_read(power *p, power_reading *out, openpi_error *error) {
    double joules;
    TRY(power_energy(p, &joules, error));
    power_clocks(p, out);
    out->energy_j = joules;
    return OPENPI_OK;
}
