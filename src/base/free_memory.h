/* How much memory this process may still take: what the kernel says is available on the machine, and what
 * control groups (containers) leave. Memory beyond that can be mapped, but a process that touches it is
 * killed. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stdint.h>

/* In bytes, swap included; UINT64_MAX where the system does not tell. */
uint64_t free_memory(void);

/* All there is, free or not: of the machine, or what a control group allows. As free_memory. */
uint64_t total_memory(void);

/* The same from other folders than /proc and /sys/fs/cgroup, for tests. */
uint64_t free_memory_at(const char *proc, const char *groups);

#endif
