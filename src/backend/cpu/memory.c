/* Blocks of host memory. Small ones come from the heap; large ones are mapped and ask for huge pages,
 * without which streaming weights spends its time in the page tables. The kernel gives a mapped page when
 * it is touched, and where it has none left it kills: so a large block is compared with what is free first
 * (cpu.c), and then every page of it is touched, by all threads. */
#define _GNU_SOURCE
#include "backend/cpu/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 256, HUGE_PAGE = 2 << 20, SMALL_PAGE = 4096, MAPPED_FROM = 4 << 20 };

/* Stands right before the block. */
typedef struct header {
    void *start;                 /* start of the allocation                    */
    size_t bytes;                /* size of the mapping; 0: heap               */
} header;

static void *place(char *start, size_t align, size_t mapped) {
    uintptr_t at = ((uintptr_t)start + sizeof(header) + align - 1) / align * align;
    header *head = (header *)(start + (at - (uintptr_t)start)) - 1;
    *head = (header){start, mapped};
    return head + 1;
}

void *cpu_memory_take(size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    if (bytes < MAPPED_FROM) {
        char *start = calloc(1, bytes + sizeof(header) + ALIGN);
        return start ? place(start, ALIGN, 0) : NULL;
    }
    size_t all = bytes + 2 * (size_t)HUGE_PAGE;
    char *start = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    madvise(start, all, MADV_HUGEPAGE);      /* a wish: without it everything still works */
    return place(start, HUGE_PAGE, all);
}

/* ---- touching ------------------------------------------------------------------------------------------ */

typedef struct touching {
    volatile char *start;
    size_t bytes;
} touching;

/* Every page of one huge page's worth, also where it came in small ones. */
static void touch(void *argument, int task, int worker) {
    const touching *t = argument;
    size_t from = (size_t)task * HUGE_PAGE, end = from + HUGE_PAGE < t->bytes ? from + HUGE_PAGE : t->bytes;
    (void)worker;
    for (; from < end; from += SMALL_PAGE) t->start[from] = 0;
}

void cpu_memory_touch(void *memory, size_t bytes, pool *pool) {
    touching t = {memory, bytes};
    if (((header *)memory)[-1].bytes) pool_run(pool, touch, &t, (int)((bytes + HUGE_PAGE - 1) / HUGE_PAGE));
}

int cpu_memory_is_mapped(size_t bytes) { return bytes >= MAPPED_FROM; }

void cpu_memory_give(void *memory) {
    if (!memory) return;
    header head = ((header *)memory)[-1];
    if (head.bytes)
        munmap(head.start, head.bytes);
    else
        free(head.start);
}
