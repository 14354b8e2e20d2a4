/* Threads of the server. They block every signal: those are the I/O thread's. */
#ifndef SERVE_THREAD_H
#define SERVE_THREAD_H

#include <pthread.h>

#include "openpi.h"

/* `what` is for the sentence: "the thread that prepares requests"; `name` is what the system lists it as, of
 * at most 15 bytes. */
openpi_status serve_thread_start(pthread_t *thread, void *(*run)(void *), void *argument, const char *name,
                                 const char *what, openpi_error *error);

/* From now on the calling thread leaves processors to the other threads where they want them. */
void serve_thread_yield(void);

#endif
