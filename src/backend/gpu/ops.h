/* An op as tasks (ops.c). */
#ifndef BACKEND_GPU_OPS_H
#define BACKEND_GPU_OPS_H

#include "backend/gpu/launch.h"

void gpu_op_tasks(gpu_issue *issue, const op *op);

#endif
