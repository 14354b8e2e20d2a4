/* Blocks of host memory: zeroed, aligned, large ones on huge pages. */
#ifndef CPU_MEMORY_H
#define CPU_MEMORY_H

#include <stddef.h>

#include "base/threads.h"

void *cpu_memory_take(size_t bytes);         /* NULL: none left                                         */
/* Touches every page of a mapped block of so many bytes: from then on the memory is there. */
void cpu_memory_touch(void *memory, size_t bytes, pool *pool);
int cpu_memory_is_mapped(size_t bytes);      /* 1: a block of so many bytes is mapped, not from the heap  */
void cpu_memory_give(void *memory);          /* NULL is fine                                              */

#endif
