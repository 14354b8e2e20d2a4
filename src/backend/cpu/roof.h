/* What this machine could do at best, measured now: the ceilings that speeds are quoted against. */
#ifndef CPU_ROOF_H
#define CPU_ROOF_H

#include "backend/backend.h"

/* backend.roof: multiply-adds on registers alone with the instructions that this level multiplies with
 * (bf16_tflops is 0 where it has none of its own: bf16 then runs at the rate of f32), reading and copying
 * memory far larger than the caches; by all threads of the device's pool. Takes half a second and 1 GB for
 * its length. Zeros where the device runs the scalar definitions. */
openpi_status cpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error);

#endif
