/* NVML as a power_counter. nvml.h explains how cuda:N finds its board. */
#include "backend/gpu/cuda/counter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

typedef struct cuda_counter {
    nvml nvml;
    void *board;                 /* NULL: not found                                                       */
    char name[96];               /* name of the board                                                     */
    int started;
    unsigned long long first_mj;
} cuda_counter;

/* What may limit a GPU's clocks, by NVML's bits. */
static const struct {
    unsigned long long bit;
    const char *text;
} holds[] = {
    {0x002, "clocks set by hand"}, {0x004, "power cap"},   {0x008, "hardware slowdown"},
    {0x020, "temperature"},        {0x040, "temperature"}, {0x080, "power brake"},
};

static void read_holds(const cuda_counter *c, char *text, size_t bytes) {
    unsigned long long reasons = 0;
    if (!c->nvml.held || c->nvml.held(c->board, &reasons)) return;
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

static int serves(const char *device) { return cuda_ordinal(device) >= 0; }

static int find_board(cuda_counter *c, int ordinal, power_facts *f) {
    char address[32] = "";
    if (!c->nvml.cuda_address || c->nvml.cuda_address(ordinal, address, sizeof address)) {
        snprintf(f->matched, sizeof f->matched, "place %d in NVML's list", ordinal);
        return c->nvml.by_index((unsigned)ordinal, &c->board);
    }
    snprintf(f->matched, sizeof f->matched, "PCI address %s", address);
    return c->nvml.by_address(address, &c->board);
}

static void describe_board(cuda_counter *c, power_facts *f) {
    const nvml *n = &c->nvml;
    unsigned limit = 0, core = 0, memory = 0;
    n->driver_version(f->driver, sizeof f->driver);
    n->device_name(c->board, f->name, sizeof f->name);
    snprintf(c->name, sizeof c->name, "%s", f->name);
    if (n->power_limit && !n->power_limit(c->board, &limit)) f->limit_w = limit * 1e-3;
    if (n->clock_max && !n->clock_max(c->board, NVML_CLOCK_CORE, &core)) f->core_max_mhz = core;
    if (n->clock_max && !n->clock_max(c->board, NVML_CLOCK_MEMORY, &memory)) f->memory_max_mhz = memory;
}

static void start(cuda_counter *c, int ordinal, power_facts *f) {
    const char *doing = "does not start";
    int code = c->nvml.init();
    c->started = !code;
    if (!code) {
        doing = "does not find this device";
        code = find_board(c, ordinal, f);
    }
    if (!code) {
        describe_board(c, f);
        doing = "has no energy counter for this device";
        code = c->nvml.energy(c->board, &c->first_mj);
    }
    if (code)
        snprintf(f->reason, sizeof f->reason, "NVML %s: %s (error %d)", doing, c->nvml.error_text(code),
                 code);
}

openpi_status cuda_counter_open(const char *device, const nvml *nvml, const char *why, power_facts *facts,
                                void **state, openpi_error *error) {
    if (!nvml) {
        snprintf(facts->reason, sizeof facts->reason, "%s", why);
        return OPENPI_OK;
    }
    cuda_counter *c = calloc(1, sizeof *c);
    if (!c) return report_no_memory(error, sizeof *c, "the power reader");
    c->nvml = *nvml;
    start(c, cuda_ordinal(device), facts);
    *state = c;
    return OPENPI_OK;
}

static openpi_status open_counter(const char *device, power_facts *facts, void **state, openpi_error *error) {
    nvml nvml;
    char why[300] = "";
    int there = !nvml_open(&nvml, why, sizeof why);
    return cuda_counter_open(device, there ? &nvml : NULL, why, facts, state, error);
}

static void close_counter(void *state) {
    cuda_counter *c = state;
    if (c->started) c->nvml.shutdown();
    free(c);
}

static openpi_status energy(void *state, double *joules, openpi_error *error) {
    cuda_counter *c = state;
    unsigned long long now = 0;
    int code = c->nvml.energy(c->board, &now);
    if (code)
        return report(error, OPENPI_SYSTEM, "%s: its energy can no longer be read: %s (error %d)", c->name,
                      c->nvml.error_text(code), code);
    *joules = (double)(now - c->first_mj) * 1e-3;
    return OPENPI_OK;
}

static void sample(const void *state, power_reading *out) {
    const cuda_counter *c = state;
    unsigned mhz, milliwatts;
    if (!c->board) return;
    if (!c->nvml.power(c->board, &milliwatts)) out->watts = milliwatts * 1e-3;
    if (!c->nvml.clock(c->board, NVML_CLOCK_CORE, &mhz)) out->core_mhz = mhz;
    if (!c->nvml.clock(c->board, NVML_CLOCK_MEMORY, &mhz)) out->memory_mhz = mhz;
    read_holds(c, out->held, sizeof out->held);
}

const power_counter power_counter_cuda = {
    .name = "NVML",
    .serves = serves,
    .open = open_counter,
    .close = close_counter,
    .energy = energy,
    .sample = sample,
};
