/* How much memory of the host a new process could take. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdint.h>

/* Linux's own estimate of what is available without swapping (MemAvailable), and at most what the control group of this
 * process leaves: its limit, less what is used and cannot be given back. *total: of the machine or the group. Both 0 where
 * that cannot be read. */
void memory_available(uint64_t *available, uint64_t *total);

#endif
