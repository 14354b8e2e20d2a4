/* Blocks of host memory: zeroed, aligned, large ones on huge pages. */
#ifndef CPU_MEMORY_H
#define CPU_MEMORY_H

#include <stddef.h>

void *cpu_memory_take(size_t bytes);         /* NULL: none left                                         */
void cpu_memory_give(void *memory);          /* NULL is fine                                            */

#endif
