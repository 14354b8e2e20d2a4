/* The resident denoise kernel (resident_kernel.cuh) with shifts among the 16 rows. */
#include "resident_kernel.cuh"
