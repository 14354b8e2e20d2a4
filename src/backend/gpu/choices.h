/* A task's choices, the one that is taken, and its launches (choices.c). */
#ifndef BACKEND_GPU_CHOICES_H
#define BACKEND_GPU_CHOICES_H

#include "backend/gpu/launch.h"

void gpu_choices_of(const gpu_device *device, const gpu_task *task, gpu_choices *out);
/* The place of what op.choice names in a list that is not empty, else of the heuristic's. */
int gpu_choices_place(const gpu_choices *choices, int choice);
/* The choice of op.choice, else the heuristic's. NULL: choices are only being listed, or there is none. */
const gpu_choice *gpu_choices_pick(gpu_issue *issue, const gpu_choices *choices);
/* Launches a task by the op's choice; by the heuristic's, whatever the op says. */
void gpu_launch_chosen(gpu_issue *issue, gpu_task *task);
void gpu_launch_usual(gpu_issue *issue, gpu_task *task);
/* A launch that belongs to no op: by the device's stream, waiting for all before it. 0 or an error. */
int gpu_launch_alone(gpu_device *device, gpu_task *task);

/* Functions of the backend table. */
/* 1: its products of 8-bit integers can leave codes in place of numbers (gpu_task.leaves). */
int gpu_leaves_codes(const gpu_device *device);
int gpu_takes_weights(const device *device, dtype type, weight_type weights, matrix_input input);
uint64_t gpu_kernel_hash(const device *device, const char *name);

#endif
