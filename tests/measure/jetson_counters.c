/* The counters of a command whose Jetson is the folder that JETSON_ROOT names. */
#include <stdlib.h>

#include "backend/gpu/cuda/jetson.h"
#include "lab/measure/power.h"

static int serves(const char *device) { return jetson_serves(getenv("JETSON_ROOT"), device); }

static openpi_status open_counter(const char *device, power_facts *facts, void **state, openpi_error *error) {
    (void)device;
    return jetson_open(getenv("JETSON_ROOT"), facts, state, error);
}

static power_counter counter;
const power_counter *const power_counters[] = {&counter, NULL};

__attribute__((constructor)) static void fill(void) {
    counter = power_counter_jetson;
    counter.serves = serves;
    counter.open = open_counter;
}
