/* Sanitizers and inner loops. Watching every load makes a product's inner loop twelve times as slow, so the
 * loop is blind to them (SANITIZER_BLIND), and its caller shows them the memory that it touches, as a whole:
 * the address sanitizer stops where a byte of it may not be touched, the thread sanitizer takes each line as
 * written here, and a line of each KB as read: what a product reads was packed by one thread, as a whole.
 * This also shows what they never see, the loads of AMX tiles.
 *
 * Compiled with OPENPI_SANITIZE_KERNELS, for openpi_ops_watched of the tests, the loops are watched as well.
 * Without a sanitizer all of it is nothing.
 *
 * Note: what is inlined into a blind function has to be blind itself, or gcc leaves marks of its variables'
 * scopes on the stack, where a later function finds them. */
#ifndef BASE_SANITIZER_H
#define BASE_SANITIZER_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER_THREAD
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER_ADDRESS
#elif __has_feature(thread_sanitizer)
#define SANITIZER_THREAD
#endif
#endif

#if defined(SANITIZER_ADDRESS) || defined(SANITIZER_THREAD)
#define SANITIZED 1              /* slow, keeps what is freed, needs address space of its own              */
#else
#define SANITIZED 0
#endif

#if SANITIZED && !defined(OPENPI_SANITIZE_KERNELS)
#define SANITIZER_BLIND                                                                                   \
    __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))
#else
#define SANITIZER_BLIND
#endif

#if defined(SANITIZER_ADDRESS)
#include <sanitizer/asan_interface.h>

/* A byte that may not be touched is touched here, where that is seen. */
static inline void sanitizer_reads(const void *from, size_t bytes) {
    const volatile char *bad = __asan_region_is_poisoned((void *)(size_t)from, bytes);
    if (bad) (void)*bad;
}

static inline void sanitizer_writes(void *to, size_t bytes) {
    volatile char *bad = __asan_region_is_poisoned(to, bytes);
    if (bad) *bad = 0;
}
#elif defined(SANITIZER_THREAD)
enum {                           /* bytes                                                                 */
    SANITIZER_LINE = 64,         /* threads share nothing smaller                                         */
    SANITIZER_PACKED = 1024,     /* what one thread packs for a product is larger, or one line is enough  */
};

void __tsan_read1(void *from);
void __tsan_write1(void *to);

static inline void sanitizer_reads(const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += SANITIZER_PACKED) __tsan_read1((char *)(size_t)from + at);
}

static inline void sanitizer_writes(void *to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += SANITIZER_LINE) __tsan_write1((char *)to + at);
}
#else
static inline void sanitizer_reads(const void *from, size_t bytes) {
    (void)from;
    (void)bytes;
}

static inline void sanitizer_writes(void *to, size_t bytes) {
    (void)to;
    (void)bytes;
}
#endif

#endif
