/* The resident denoise kernel with int8 weights (resident_int8.cuh), of up to 12 rows, shifts among them. */
#define RESIDENT_INT8 1
#include "resident_kernel.cuh"
