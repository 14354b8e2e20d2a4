/* Weights into the layout, by the host (pack.c) and by the device (generate.c): functions of the backend
 * table. */
#ifndef BACKEND_GPU_PACK_H
#define BACKEND_GPU_PACK_H

#include "backend/backend.h"

size_t gpu_matrix_scratch(const device *device, const matrix *matrix);
openpi_status gpu_matrix_pack(device *device, const matrix *matrix, int first, int count,
                              const matrix_source *source, void *to, void *scratch, openpi_error *error);
openpi_status gpu_matrix_generate(device *device, const matrix *matrix, const generated_matrix *from,
                                  void *to, openpi_error *error);

#endif
