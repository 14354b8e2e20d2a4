/* Whether an engine's device may run the layers of a denoise step, or of the vision tower, as one resident
 * kernel, and that switched. */
#ifndef TESTS_RESIDENT_H
#define TESTS_RESIDENT_H

#include "backend/gpu/gpu.h"
#include "openpi_internal.h"

static inline int has_switch(const openpi_engine *engine, op_switch which) {
    const gpu_device *device = (const gpu_device *)engine->device;
    return !switch_off(device->off | gpu_missing(engine->device), which);
}

static inline void set_switch(openpi_engine *engine, op_switch which, int on) {
    const uint32_t bit = 1u << which, off = ((const gpu_device *)engine->device)->off;
    engine->device->backend->set_off(engine->device, on ? off & ~bit : off | bit);
}

static inline int has_resident(const openpi_engine *engine) {
    return has_switch(engine, SWITCH_PERSISTENT_DENOISE);
}

static inline void set_resident(openpi_engine *engine, int on) {
    set_switch(engine, SWITCH_PERSISTENT_DENOISE, on);
}

#endif
