/* The layers of a denoise step with up to 96 rows of several samples as one kernel (long_kernel.cuh).
 *
 *   legal   up to eight samples of 16 rows at most, 60 rows or more, that resident_long_hopper does not take;
 *           bf16, the sizes in resident_long.h, no known rows, the whole grid resident at once (a cooperative
 *           launch)
 *
 * resident_wide_hopper.c checks what is legal and launches. */
#define LONG(name) WIDE_##name
#define RESIDENT_NAME resident_wide
#include "wide_attention.cuh"
#include "long_kernel.cuh"
