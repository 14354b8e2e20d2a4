/* A libamdhip64 whose device is the emulated GPU: what a test may ask of it and set. The library has it as
 * the symbol fake_hip; who has not opened the library finds it with dlsym. */
#ifndef TESTS_GPU_HIP_FAKE_HIP_H
#define TESTS_GPU_HIP_FAKE_HIP_H

#include <stddef.h>

typedef struct fake_hip {
    int devices, version;
    char architecture[64];
    size_t memory_bytes;
    /* The function of this name fails with `code` when it has been called `after` times more; "": none. */
    char failing[64];
    int after, code;
    int lost;                              /* 1: every function that reaches the device fails               */
    int alive;                             /* what was made and not given back                              */
    size_t bytes;                          /* device memory in it                                           */
    int launches, replays;
    char trouble[300];                     /* what a kernel did wrong; "": nothing                          */
    void (*set_fault)(int fault, int n);   /* emulation.h                                                   */
} fake_hip;

#endif
