/* A vendor whose GPU is the host: a driver, five kernel families in plain C, and what describes them. The
 * frame of src/backend/gpu runs on it as on CUDA, with fewer kernels that are cut otherwise.
 *
 *   driver.c      memory, streams, events, graphs, launches: everything on the calling thread, at once
 *   vendor.c      the device host:0 and its paths, plain and copied
 *   products.c    x·Wᵀ of any type and shape        attention.c   whole and in steps
 *   pointwise.c   norms, gathers, element by element; weights packed and made
 *   copies.c      layers from what was prepared of their weights, on the path copied
 *   signals.c     signals that make the device of a program stand still, or lose it
 *   backends.c    the backends of a test program: the processor and this one */
#ifndef TESTS_GPU_HOST_HOST_H
#define TESTS_GPU_HOST_HOST_H

#include "backend/gpu/vendor.h"

enum { HOST_SHARED_BYTES = 320 << 10, HOST_PROCESSORS = 4 };
/* On the path copied HOST_MARKS bytes of this value stand first in everything that is prepared. */
enum { HOST_MARKS = 300, HOST_MARK = 0x5a };

extern const gpu_vendor gpu_vendor_host;

/* From the next replay of a graph or wait for a stream on: it runs; it does not begin until the condition is
 * another; it fails, and the device is lost. From any thread, and from a signal handler. */
typedef enum host_condition { HOST_RUNS, HOST_STALLED, HOST_LOST } host_condition;
void host_become(host_condition what);

/* From the next opening on: the device is integrated, so that pinned memory is taken from the same bytes as
 * device memory, and kernels reach it. A program starts so where the environment has HOST_INTEGRATED. */
void host_integrate(int on);
int host_is_integrated(void);
/* Of the device's memory; 0: 1 GiB again. */
void host_set_memory(size_t bytes);

void host_driver_open(gpu_driver *driver);
/* What was taken from the driver and not given back; bytes of device memory among it, and of pinned memory;
 * replays of graphs. */
int host_alive(void);
size_t host_device_bytes(void);
size_t host_pinned_bytes(void);
int host_replays(void);
/* Since the last host_count: bytes copied to the device and back, how many copies, and the most bytes of
 * device and pinned memory at once. */
typedef struct host_counts {
    size_t up, down, most;
    int copies;
} host_counts;
void host_count(void);
host_counts host_counted(void);

#endif
