/* The layers of a denoise step with up to 64 rows as one kernel (long_kernel.cuh).
 *
 *   legal   one sample, or two to four of 16 rows at most; bf16, the sizes in resident_long.h, no known rows,
 *           the whole grid resident at once (a cooperative launch)
 *
 * resident_long_hopper.c checks what is legal and launches. */
#define LONG(name) LONG_##name
#define RESIDENT_NAME resident_long
#include "long_attention.cuh"
#include "long_kernel.cuh"
