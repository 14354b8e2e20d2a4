/* Which kernels are compiled for which chips, and which path of a device runs them. The host side and cmake
 * (cmake/cuda_chips.cmake, line by line) read this table: kernels for further chips are a line here, and the
 * families with its suffix. */
#ifndef BACKEND_GPU_CUDA_CHIPS_H
#define BACKEND_GPU_CUDA_CHIPS_H

/* X(suffix, path, chips, major, minor), the path that a device takes first comes first:
 *
 *   suffix        the families X_suffix; of the last line, "": all other families
 *   path          its name in openpi_engine_options and in tables
 *   chips         what nvcc compiles the families for, between semicolons
 *   major, minor  the compute capability that a device must have, which must have tensor maps, too; 0: any.
 *                 The families of such a path run on it alone, those of the last line on every path. */
#define CUDA_CHIPS(X) \
    X("hopper", "hopper", "90a", 9, 0) \
    X("", "portable", "80;86;87;89;90;100;120", 0, 0)

#endif
