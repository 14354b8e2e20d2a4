/* Loading: a model on every device, at start and beside the one that runs. */
#ifndef SERVE_LOADING_H
#define SERVE_LOADING_H

#include "serve/schedule/device.h"
#include "model.h"
#include "serve/schedule/scheduler.h"
#include "serve.h"

enum { DEVICE_NAME = 32 };

typedef struct loading {
    const serve_options *options;
    char names[SCHEDULER_DEVICES][DEVICE_NAME];
    int count;                   /* of names                                                               */
} loading;

/* Splits the options' "cuda:0,cuda:1". */
openpi_status loading_devices(loading *loading, openpi_error *error);

/* The checkpoint's path with its links resolved, or as it is: where somebody switches a link meanwhile, all
 * that is read by the result is of one checkpoint. */
enum { LOADING_PATH = 4096 };
const char *loading_resolve(const char *checkpoint, char resolved[LOADING_PATH]);

/* Loads the model's weights from `checkpoint` on each device, until `cancel` says 1. `user`: where it is not
 * NULL, progress is not shown. `beside`: [count] devices of the model that runs, whose times hold where the
 * new ones are of the same kind; NULL: none. The caller owns devices[count]; on failure all are NULL. */
openpi_status loading_run(const loading *loading, const char *checkpoint, serve_model *model,
                          serve_device *const *beside, int (*cancel)(void *user), void *user,
                          serve_device **devices, openpi_error *error);

#endif
