#define _DEFAULT_SOURCE                    /* MAP_ANONYMOUS                                                */
#include "fiber.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096 };

__asm__(".text\n"
        ".hidden fiber_switch\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n");

extern void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));

void fiber_forget_marks(const fiber *f) {
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(f->stack, STACK_BYTES);
}

int fiber_make(fiber *f) {
    if (f->stack) return 1;
    f->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, GUARD_BYTES, PROT_NONE)) {
        f->stack = NULL;
        return 0;
    }
    return 1;
}

/* What fiber_switch pops: six registers and the address to go to, with the stack as a call would leave it. */
void fiber_prepare(fiber *f, void (*entry)(void)) {
    enum { REGISTERS = 6 };
    void **top = (void **)(uintptr_t)(f->stack + STACK_BYTES - 64);
    *--top = NULL;
    memcpy(--top, &entry, sizeof entry);
    top -= REGISTERS;
    memset(top, 0, REGISTERS * sizeof *top);
    f->stack_pointer = top;
}
