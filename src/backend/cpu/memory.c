/* Blocks of host memory. Small ones come from the heap; large ones are mapped, so that their zeros cost nothing until
 * touched (a 7 GB block is filled by all threads, not cleared by one first), and ask for huge pages, without which
 * streaming weights spends its time in the page tables. */
#define _GNU_SOURCE
#include "backend/cpu/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 256, HUGE_PAGE = 2 << 20, MAPPED_FROM = 4 << 20 };

/* Stands right before the block. */
typedef struct header {
    void *start;                 /* of the allocation                          */
    size_t bytes;                /* of the mapping; 0: heap                    */
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
    char *start = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    madvise(start, all, MADV_HUGEPAGE);      /* a wish: without it everything still works */
    return place(start, HUGE_PAGE, all);
}

void cpu_memory_give(void *memory) {
    if (!memory) return;
    header head = ((header *)memory)[-1];
    if (head.bytes)
        munmap(head.start, head.bytes);
    else
        free(head.start);
}
