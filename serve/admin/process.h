/* What the system says about this process: the standard process_* metrics. */
#ifndef SERVE_PROCESS_H
#define SERVE_PROCESS_H

#include <stdint.h>

/* 0: the system does not say. */
typedef struct process {
    double cpu_seconds;          /* user and system                                                        */
    double start_seconds;        /* since 1970                                                             */
    uint64_t resident_bytes, virtual_bytes;
    uint64_t max_virtual_bytes;  /* UINT64_MAX: no limit                                                   */
    uint64_t open_fds, max_fds;
} process;

process process_look(void);

/* Lets the process open so many descriptors, as far as the system's hard limit does. Returns how many of them
 * it may. */
int process_allow_files(int count);
/* Memory of large messages is given back to the system when it is freed. By itself glibc keeps it after some
 * large ones were freed. */
void process_return_memory(void);

#endif
