/* An allocator that counts and fails on order: it takes the place of malloc and its family and of anonymous
 * mmap in the whole program, shared libraries included. For one source file of a test. Stands on glibc's own
 * names for the real ones; not there where a sanitizer has its own allocator (ALLOCATOR 0). A test with an
 * order of its own defines ALLOCATOR_REFUSES before, as the name of its function: 1 refuses the call. */
#ifndef TESTS_ALLOCATOR_H
#define TESTS_ALLOCATOR_H

#include <stddef.h>

#include "base/sanitizer.h"

#if SANITIZED || !defined(__GLIBC__)
#define ALLOCATOR 0
#else
#define ALLOCATOR 1
#endif

#if ALLOCATOR
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_llong allocator_calls;       /* that asked for memory                                       */
static atomic_llong allocator_blocks;      /* live                                                        */
static atomic_llong allocator_bytes;       /* live, as usable sizes                                       */
static atomic_llong allocator_peak;        /* the most of them since a test has set it                    */
static atomic_llong allocator_files;       /* mapped, live                                                */
static atomic_llong allocator_fail_at;     /* the call, counted from 1, that fails; 0: none               */
static atomic_llong allocator_fail_on;     /* 1: and every later one too                                  */
static atomic_llong allocator_failed;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

long syscall(long, ...);                   /* hidden by _POSIX_C_SOURCE                                   */

#define ALLOCATOR_OVERRIDES __attribute__((visibility("default"), used))
#define ALLOCATOR_CALLER __builtin_return_address(0)

#ifdef ALLOCATOR_REFUSES
static int ALLOCATOR_REFUSES(const void *caller);    /* the code address                                   */
#endif

static int allocator_refuses(const void *caller) {
#ifdef ALLOCATOR_REFUSES
    if (ALLOCATOR_REFUSES(caller)) {
        errno = ENOMEM;
        return 1;
    }
#endif
    (void)caller;
    long long call = atomic_fetch_add(&allocator_calls, 1) + 1, at = atomic_load(&allocator_fail_at);
    if (!at || call < at || (call > at && !atomic_load(&allocator_fail_on))) return 0;
    atomic_fetch_add(&allocator_failed, 1);
    errno = ENOMEM;
    return 1;
}

static void *allocator_note(void *block) {
    if (!block) return NULL;
    atomic_fetch_add(&allocator_blocks, 1);
    long long more = (long long)malloc_usable_size(block);
    long long now = atomic_fetch_add(&allocator_bytes, more) + more;
    if (now > atomic_load(&allocator_peak)) atomic_store(&allocator_peak, now);
    return block;
}

static void allocator_forget(void *block) {
    if (!block) return;
    atomic_fetch_sub(&allocator_blocks, 1);
    atomic_fetch_sub(&allocator_bytes, (long long)malloc_usable_size(block));
}

ALLOCATOR_OVERRIDES void *malloc(size_t size) {
    return allocator_refuses(ALLOCATOR_CALLER) ? NULL : allocator_note(__libc_malloc(size));
}

ALLOCATOR_OVERRIDES void *calloc(size_t count, size_t size) {
    return allocator_refuses(ALLOCATOR_CALLER) ? NULL : allocator_note(__libc_calloc(count, size));
}

ALLOCATOR_OVERRIDES void *realloc(void *block, size_t size) {
    if (allocator_refuses(ALLOCATOR_CALLER)) return NULL;
    allocator_forget(block);
    void *grown = __libc_realloc(block, size);
    allocator_note(grown || !size ? grown : block);
    return grown;
}

ALLOCATOR_OVERRIDES void *memalign(size_t align, size_t size) {
    return allocator_refuses(ALLOCATOR_CALLER) ? NULL : allocator_note(__libc_memalign(align, size));
}

ALLOCATOR_OVERRIDES void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }

ALLOCATOR_OVERRIDES int posix_memalign(void **out, size_t align, size_t size) {
    void *block = memalign(align, size);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}

ALLOCATOR_OVERRIDES void free(void *block) {
    allocator_forget(block);
    __libc_free(block);
}

/* Maps, to know at munmap what each was. */
typedef struct allocator_map {
    atomic_uintptr_t at;         /* 0: free entry                                                         */
    size_t bytes;
    int memory;
} allocator_map;

static allocator_map allocator_map_list[256];

/* Files are mapped as ever: only memory counts. */
ALLOCATOR_OVERRIDES void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    int memory = file == -1;
    if (memory && allocator_refuses(ALLOCATOR_CALLER)) return MAP_FAILED;
    long block = syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
    if (block == -1) return MAP_FAILED;
    for (int i = 0; i < 256; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&allocator_map_list[i].at, &none, (uintptr_t)block)) continue;
        allocator_map_list[i].bytes = bytes;
        allocator_map_list[i].memory = memory;
        atomic_fetch_add(memory ? &allocator_blocks : &allocator_files, 1);
        if (memory) atomic_fetch_add(&allocator_bytes, (long long)bytes);
        break;
    }
    return (void *)block;
}

ALLOCATOR_OVERRIDES int munmap(void *at, size_t bytes) {
    for (int i = 0; i < 256; i++) {
        allocator_map *m = &allocator_map_list[i];
        if (atomic_load(&m->at) != (uintptr_t)at) continue;
        atomic_fetch_sub(m->memory ? &allocator_blocks : &allocator_files, 1);
        if (m->memory) atomic_fetch_sub(&allocator_bytes, (long long)m->bytes);
        atomic_store(&m->at, 0);
        break;
    }
    return (int)syscall(SYS_munmap, at, bytes);
}

#else

static inline void allocator_is_taken(void **state) {
    (void)state;
    print_message("           skipped: the sanitizer has its own allocator\n");
    skip();
}

/* All that a test does whose every case wants the allocator; include cmocka.h before. */
static inline int without_allocator(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocator_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif

#endif
