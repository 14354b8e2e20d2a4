/* Arguments of `guide`, in a file of their own: a change here leaves the hashes of all other kernels. */
#ifndef BACKEND_GPU_KERNELS_GUIDE_H
#define BACKEND_GPU_KERNELS_GUIDE_H

#include <stdint.h>

typedef struct gpu_guide {
    const int32_t *count, *sample;
    const float *target;                   /* [rows][n]                                                     */
    const float *weight;                   /* [rows]                                                        */
    const float *gain;                     /* [samples]                                                     */
    const float *velocity;                 /* [rows][n]                                                     */
    float *x_t;                            /* [rows][n]                                                     */
    float t;
    int n;
} gpu_guide;

#endif
