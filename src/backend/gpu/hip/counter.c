/* AMD's management library as a power_counter: the energy of a whole board. */
#include "backend/gpu/hip/smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/power_counter.h"
#include "base/report.h"

typedef struct hip_counter {
    smi smi;
    uint32_t board;
    int found, started;
    char name[96];
    uint64_t first;
} hip_counter;

extern const power_counter power_counter_hip;

/* "hip" and "hip:N"; -1: another device. */
static int hip_ordinal(const char *device) {
    int ordinal, length = 0;
    if (!strcmp(device, "hip")) return 0;
    return sscanf(device, "hip:%4d%n", &ordinal, &length) == 1 && !device[length] && ordinal >= 0 ? ordinal
                                                                                                  : -1;
}

static int serves(const char *device) { return hip_ordinal(device) >= 0; }

/* Bits 28 to 31 of the library's address number a part of a board that is divided. */
static int find_board(hip_counter *c, int ordinal, power_facts *f) {
    char text[32] = "";
    uint64_t wanted = 0, is = 0;
    uint32_t count = 0;
    int code = c->smi.count(&count);
    if (code) return code;
    if (smi_device_address(ordinal, text, sizeof text) || smi_parse_address(text, &wanted)) {
        snprintf(f->matched, sizeof f->matched, "place %d in the management library's list", ordinal);
        c->board = (uint32_t)ordinal;
        c->found = (uint32_t)ordinal < count;
        return 0;
    }
    snprintf(f->matched, sizeof f->matched, "PCI address %s", text);
    for (uint32_t i = 0; i < count && !c->found; i++) {
        if (c->smi.address(i, &is) || (is & ~(uint64_t)0xf0000000) != wanted) continue;
        c->board = i;
        c->found = 1;
    }
    return 0;
}

static double clock_mhz(const hip_counter *c, int which, int highest) {
    uint32_t words[SMI_FREQUENCY_WORDS] = {0};
    if (!c->smi.clock || c->smi.clock(c->board, which, words)) return 0;
    return smi_frequency(words, highest);
}

static void describe_board(hip_counter *c, power_facts *f) {
    uint64_t microwatts = 0;
    if (c->smi.name && c->smi.name(c->board, f->name, sizeof f->name)) f->name[0] = 0;
    if (c->smi.driver_version && c->smi.driver_version(SMI_DRIVER, f->driver, sizeof f->driver))
        f->driver[0] = 0;
    snprintf(c->name, sizeof c->name, "%s", f->name[0] ? f->name : "the board");
    if (c->smi.power_limit && !c->smi.power_limit(c->board, 0, &microwatts))
        f->limit_w = (double)microwatts * 1e-6;
    f->core_max_mhz = clock_mhz(c, SMI_CLOCK_CORE, 1);
    f->memory_max_mhz = clock_mhz(c, SMI_CLOCK_MEMORY, 1);
}

/* The counter's unit is told with each reading. */
static int read_energy(const hip_counter *c, uint64_t *count, double *microjoules) {
    float unit = 0;
    uint64_t time = 0;
    int code = c->smi.energy(c->board, count, &unit, &time);
    *microjoules = (double)unit;
    return code;
}

static const char *text_of(const hip_counter *c, int code) {
    const char *text = NULL;
    return c->smi.error_text(code, &text) || !text ? "unknown error" : text;
}

static void start(hip_counter *c, int ordinal, power_facts *f) {
    const char *doing = "does not start";
    double unit = 0;
    int code = c->smi.init(0);
    c->started = !code;
    if (!code) {
        doing = "does not count its boards";
        code = find_board(c, ordinal, f);
    }
    if (!code && !c->found) {
        snprintf(f->reason, sizeof f->reason, "AMD's management library does not know this device (%.80s)",
                 f->matched);
        return;
    }
    if (!code) {
        describe_board(c, f);
        doing = "has no energy counter for this device";
        code = read_energy(c, &c->first, &unit);
    }
    if (code)
        snprintf(f->reason, sizeof f->reason, "AMD's management library %s: %.120s (error %d)", doing,
                 text_of(c, code), code);
    else if (unit <= 0)
        snprintf(f->reason, sizeof f->reason,
                 "AMD's management library has an energy counter without a unit");
}

static openpi_status open_counter(const char *device, power_facts *facts, void **state, openpi_error *error) {
    smi smi = {0};
    if (smi_open(&smi, facts->reason, sizeof facts->reason)) return OPENPI_OK;
    hip_counter *c = calloc(1, sizeof *c);
    if (!c) return report_no_memory(error, sizeof *c, "the power reader");
    c->smi = smi;
    start(c, hip_ordinal(device), facts);
    *state = c;
    return OPENPI_OK;
}

static void close_counter(void *state) {
    hip_counter *c = state;
    if (c->started) c->smi.shutdown();
    free(c);
}

static openpi_status energy(void *state, double *joules, openpi_error *error) {
    const hip_counter *c = state;
    uint64_t now = 0;
    double unit = 0;
    int code = read_energy(c, &now, &unit);
    if (code)
        return report(error, OPENPI_SYSTEM, "%s: its energy can no longer be read: %s (error %d)", c->name,
                      text_of(c, code), code);
    *joules = (double)(now - c->first) * unit * 1e-6;
    return OPENPI_OK;
}

static void sample(const void *state, power_reading *out) {
    const hip_counter *c = state;
    uint64_t microwatts = 0;
    if (!c->found) return;
    if ((c->smi.power_now && !c->smi.power_now(c->board, &microwatts)) ||
        (c->smi.power_mean && !c->smi.power_mean(c->board, 0, &microwatts)))
        out->watts = (double)microwatts * 1e-6;
    out->core_mhz = clock_mhz(c, SMI_CLOCK_CORE, 0);
    out->memory_mhz = clock_mhz(c, SMI_CLOCK_MEMORY, 0);
}

const power_counter power_counter_hip = {
    .name = "ROCm SMI",
    .serves = serves,
    .open = open_counter,
    .close = close_counter,
    .energy = energy,
    .sample = sample,
};
