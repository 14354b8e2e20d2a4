/* What this machine could do at best, measured now: the ceilings that speeds are quoted against. */
#ifndef CPU_ROOF_H
#define CPU_ROOF_H

#include "backend/backend.h"

typedef struct cpu_roofs {
    double tflops;               /* multiply-adds on registers alone, all threads of the device's pool, with the
                                    instructions that this device multiplies `type` matrices with           */
    double gbs;                  /* reading memory far larger than the caches, all threads                  */
} cpu_roofs;

/* Takes about half a second and 1 GB for its length. Zeros where the device runs the scalar definitions. */
openpi_status cpu_roof(device *device, dtype type, cpu_roofs *out, openpi_error *error);

#endif
