/* One handle over two kinds of counter. nvml.h explains how cuda:N finds its board. */
#include "measure/power.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "measure/rapl.h"

typedef enum power_kind { POWER_NONE, POWER_NVML, POWER_RAPL } power_kind;

struct power {
    power_kind kind;
    power_facts facts;
    nvml nvml;
    void *board;
    int nvml_started, cpu;
    unsigned long long first_mj;
    rapl rapl;
};

/* ---- NVML ------------------------------------------------------------------------------------------ */

/* What may limit a GPU's clocks, by NVML's bits. */
static const struct {
    unsigned long long bit;
    const char *text;
} holds[] = {
    {0x002, "clocks set by hand"}, {0x004, "power cap"},   {0x008, "hardware slowdown"},
    {0x020, "temperature"},        {0x040, "temperature"}, {0x080, "power brake"},
};

static void read_holds(const power *p, char *text, size_t bytes) {
    unsigned long long reasons = 0;
    if (!p->nvml.held || p->nvml.held(p->board, &reasons)) return;
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
        size_t used = strlen(text);
        if (!(reasons & holds[i].bit) || strstr(text, holds[i].text)) continue;
        snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", holds[i].text);
    }
}

/* "cuda" and "cuda:N"; -1: another device. */
static int cuda_ordinal(const char *device) {
    int ordinal, length = 0;
    if (!strcmp(device, "cuda")) return 0;
    return sscanf(device, "cuda:%4d%n", &ordinal, &length) == 1 && !device[length] && ordinal >= 0 ? ordinal
                                                                                                   : -1;
}

static int find_board(power *p, int ordinal) {
    char address[32] = "";
    if (!p->nvml.cuda_address || p->nvml.cuda_address(ordinal, address, sizeof address)) {
        snprintf(p->facts.matched, sizeof p->facts.matched, "place %d in NVML's list", ordinal);
        return p->nvml.by_index((unsigned)ordinal, &p->board);
    }
    snprintf(p->facts.matched, sizeof p->facts.matched, "PCI address %s", address);
    return p->nvml.by_address(address, &p->board);
}

static void start_nvml(power *p, int ordinal) {
    power_facts *f = &p->facts;
    unsigned limit = 0, core = 0, memory = 0;
    const char *doing = "does not start";
    int code = p->nvml.init();
    p->nvml_started = !code;
    if (!code) {
        doing = "does not find this device";
        code = find_board(p, ordinal);
    }
    if (!code) {
        p->nvml.driver_version(f->driver, sizeof f->driver);
        p->nvml.device_name(p->board, f->name, sizeof f->name);
        if (p->nvml.power_limit && !p->nvml.power_limit(p->board, &limit)) f->limit_w = limit * 1e-3;
        if (p->nvml.clock_max && !p->nvml.clock_max(p->board, NVML_CLOCK_CORE, &core)) f->core_max_mhz = core;
        if (p->nvml.clock_max && !p->nvml.clock_max(p->board, NVML_CLOCK_MEMORY, &memory))
            f->memory_max_mhz = memory;
        doing = "has no energy counter for this device";
        code = p->nvml.energy(p->board, &p->first_mj);
    }
    if (code) {
        snprintf(f->reason, sizeof f->reason, "NVML %s: %s (error %d)", doing, p->nvml.error_text(code),
                 code);
        return;
    }
    p->kind = POWER_NVML;
    strcpy(f->counter, "NVML");
}

static openpi_status nvml_energy(power *p, double *joules, openpi_error *error) {
    unsigned long long now = 0;
    int code = p->nvml.energy(p->board, &now);
    if (code)
        return report(error, OPENPI_SYSTEM, "%s: its energy can no longer be read: %s (error %d)",
                      p->facts.name, p->nvml.error_text(code), code);
    *joules = (double)(now - p->first_mj) * 1e-3;
    return OPENPI_OK;
}

/* Also where there is no energy counter. */
static void read_board(const power *p, power_reading *out) {
    unsigned mhz, milliwatts;
    if (!p->board) return;
    if (!p->nvml.power(p->board, &milliwatts)) out->watts = milliwatts * 1e-3;
    if (!p->nvml.clock(p->board, NVML_CLOCK_CORE, &mhz)) out->core_mhz = mhz;
    if (!p->nvml.clock(p->board, NVML_CLOCK_MEMORY, &mhz)) out->memory_mhz = mhz;
    read_holds(p, out->held, sizeof out->held);
}

/* ---- RAPL ------------------------------------------------------------------------------------------ */

static void start_rapl(power *p, const char *powercap) {
    power_facts *f = &p->facts;
    if (rapl_open(&p->rapl, powercap, f->reason, sizeof f->reason)) return;
    p->kind = POWER_RAPL;
    strcpy(f->counter, "RAPL");
    snprintf(f->matched, sizeof f->matched, "%d counters of packages and memory", p->rapl.count);
}

static openpi_status rapl_energy(power *p, double *joules, openpi_error *error) {
    char why[300];
    if (rapl_read(&p->rapl, why, sizeof why))
        return report(error, OPENPI_SYSTEM, "the energy counter can no longer be read: %s", why);
    *joules = p->rapl.energy_j;
    return OPENPI_OK;
}

/* The mean of the kernel's figures for each processor. */
static double cpu_mhz(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[4096];                       /* the line of flags is long */
    double sum = 0, mhz;
    int count = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "cpu MHz : %lf", &mhz) != 1) continue;
        sum += mhz;
        count++;
    }
    fclose(file);
    return count ? sum / count : 0;
}

/* ---- the handle ------------------------------------------------------------------------------------ */

openpi_status power_open_with(const char *device, const nvml *nvml, const char *nvml_why,
                              const char *powercap, power **out, openpi_error *error) {
    const char *name = device ? device : "cpu";
    int ordinal = cuda_ordinal(name);
    power *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "the power reader");
    p->cpu = !strcmp(name, "cpu");
    if (nvml) p->nvml = *nvml;
    if (p->cpu) start_rapl(p, powercap);
    else if (ordinal < 0)
        snprintf(p->facts.reason, sizeof p->facts.reason, "no counter is known for device %.60s", name);
    else if (nvml) start_nvml(p, ordinal);
    else snprintf(p->facts.reason, sizeof p->facts.reason, "%s", nvml_why);
    *out = p;
    return OPENPI_OK;
}

openpi_status power_open(const char *device, power **out, openpi_error *error) {
    nvml nvml;
    char why[300] = "";
    int there = device && cuda_ordinal(device) >= 0 && !nvml_open(&nvml, why, sizeof why);
    return power_open_with(device, there ? &nvml : NULL, why, "/sys/class/powercap", out, error);
}

void power_close(power *p) {
    if (!p) return;
    if (p->nvml_started) p->nvml.shutdown();
    free(p);
}

const power_facts *power_get_facts(const power *p) { return &p->facts; }

openpi_status power_energy(power *p, double *joules, openpi_error *error) {
    if (p->kind == POWER_NVML) return nvml_energy(p, joules, error);
    if (p->kind == POWER_RAPL) return rapl_energy(p, joules, error);
    *joules = 0;
    return OPENPI_OK;
}

void power_clocks(const power *p, power_reading *out) {
    *out = (power_reading){0};
    read_board(p, out);
    if (p->cpu) out->core_mhz = cpu_mhz();
}

openpi_status power_read(power *p, power_reading *out, openpi_error *error) {
    double joules;
    TRY(power_energy(p, &joules, error));
    power_clocks(p, out);
    out->energy_j = joules;
    return OPENPI_OK;
}
