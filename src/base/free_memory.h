/* How much memory this process may still take: the lesser of what the kernel reports as available and what
 * its control groups (containers) allow. More can be mapped, but a process that touches it is killed. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stdint.h>

/* Bytes, swap included; UINT64_MAX: unknown. */
uint64_t free_memory(void);

/* The same for all memory, free or not: the machine's total or a control group's limit. */
uint64_t total_memory(void);

/* What the kernel can give without swapping, for a GPU that uses the processor's memory: its pages are never
 * swapped. Limits of control groups are left out, since they do not count a driver's memory. 0: unknown.
 * `proc`: "/proc", or a test's. */
uint64_t available_memory_at(const char *proc);

/* The first two with other roots than /proc and /sys/fs/cgroup, for tests. */
uint64_t free_memory_at(const char *proc, const char *groups);
uint64_t total_memory_at(const char *proc, const char *groups);

#endif
