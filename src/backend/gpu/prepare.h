/* What families derive from a block's weights (prepare.c). */
#ifndef BACKEND_GPU_PREPARE_H
#define BACKEND_GPU_PREPARE_H

#include "backend/gpu/device.h"

/* 1: module i's family could take ops here, were its switches on. */
int gpu_could_take(const gpu_device *device, int i);

/* Functions of the backend table. */
size_t gpu_prepared_bytes(const device *device, const block_weights *block);
openpi_status gpu_prepare(device *device, const block_weights *block, openpi_error *error);

#endif
