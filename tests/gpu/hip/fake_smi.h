/* What test_hip_power tells the fake librocm_smi64, and hears from it: symbol fake_smi_state. */
#ifndef TESTS_FAKE_SMI_H
#define TESTS_FAKE_SMI_H

#include "backend/gpu/hip/smi.h"

typedef struct fake_smi {
    uint64_t address[2], count[2];
    float unit;                  /* microjoules of one count                                              */
    int started;                 /* rsmi_init less rsmi_shut_down                                         */
    int init_code, energy_code;  /* what these calls return                                               */
    int only_mean;               /* 1: no power of this moment                                            */
    int flag;                    /* 1: frequencies as newer libraries write them                          */
} fake_smi;

#endif
