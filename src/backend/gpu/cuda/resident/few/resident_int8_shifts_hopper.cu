/* The resident denoise kernel with int8 weights (resident_int8.cuh) for more than 12 rows and shifts. */
#define RESIDENT_APART 1
#define RESIDENT_INT8 1
#include "resident_kernel.cuh"
