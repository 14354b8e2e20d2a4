/* Running ops now, or recording them: functions of the backend table (record.c). */
#ifndef BACKEND_GPU_RECORD_H
#define BACKEND_GPU_RECORD_H

#include "backend/backend.h"

openpi_status gpu_run(device *device, op_list list, void *work, double *stage_ms, openpi_error *error);
openpi_status gpu_record(device *device, op_list list, void *work, struct recording **out,
                         openpi_error *error);
openpi_status gpu_record_timed(device *device, op_list list, void *work, struct recording **out,
                               openpi_error *error);
openpi_status gpu_replay(device *device, struct recording *recording, const device_copy *up, int up_count,
                         const device_copy *down, double *stage_ms, openpi_error *error);
void gpu_forget(device *device, struct recording *recording);
int gpu_launches(device *device, struct recording *recording, launch_record *out, int capacity);
int gpu_nodes(const struct recording *recording);

#endif
