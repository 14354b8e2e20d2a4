/* The resident denoise kernel (resident_kernel.cuh) of up to 12 rows, shifts among them. */
#include "resident_kernel.cuh"
