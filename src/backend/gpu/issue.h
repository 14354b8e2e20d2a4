/* The walk over ops (issue.c). */
#ifndef BACKEND_GPU_ISSUE_H
#define BACKEND_GPU_ISSUE_H

#include "backend/gpu/launch.h"

/* Issues the op at a place of the list, or several that a family takes together; returns how many. */
int gpu_issue_next(gpu_issue *issue, const op_list *list, int place);

/* Functions of the backend table. */
size_t gpu_work_bytes(const device *device, const op *ops, int count);
int gpu_candidates(const device *device, const op *op, candidate *out, int capacity);

#endif
