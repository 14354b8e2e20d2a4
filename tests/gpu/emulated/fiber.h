/* Fibers: the threads of an emulated GPU's block, each with a stack of its own, on one thread of the host.
 * For x86-64. */
#ifndef TESTS_GPU_EMULATED_FIBER_H
#define TESTS_GPU_EMULATED_FIBER_H

typedef struct fiber {
    void *stack_pointer;
    char *stack;                           /* kept for later launches                                      */
} fiber;

/* A stack, where it has none, that faults below its end. 0: no memory. */
int fiber_make(fiber *f);
/* The fiber's next run begins at `entry`, which must not return. */
void fiber_prepare(fiber *f, void (*entry)(void));
/* Saves the registers that a call keeps on the stack, leaves the stack pointer in *save and goes on at `to`,
 * which was left the same way. */
void fiber_switch(void **save, void *to);
/* What the address sanitizer, where there is one, has marked on the stack of a fiber that is left in the
 * middle. */
void fiber_forget_marks(const fiber *f);

#endif
