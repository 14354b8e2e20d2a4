/* The device's ceilings: a function of the backend table (roof.c). */
#ifndef BACKEND_GPU_ROOF_H
#define BACKEND_GPU_ROOF_H

#include "backend/backend.h"

openpi_status gpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error);

#endif
