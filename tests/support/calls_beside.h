/* Calls in a thread of their own while weights change: each has those of one of two models. */
#ifndef TESTS_CALLS_BESIDE_H
#define TESTS_CALLS_BESIDE_H

#include <stdatomic.h>
#include <string.h>

#include "parts_of_calls.h"

typedef struct beside {
    openpi_session *session;
    const mixed *m;
    const float *want[2];
    atomic_int over, calls, seen[2], wrong;
} beside;

static inline void *call_again(void *user) {
    beside *b = user;
    while (!atomic_load(&b->over)) {
        float got[MIXED_ONE];
        openpi_error why = OPENPI_ERROR_INIT;
        int which = -1;
        if (!openpi_session_run(b->session, b->m->samples + 1, 1, b->m->noise, got, NULL, &why))
            for (int i = 0; i < 2; i++)
                if (!memcmp(got, b->want[i], sizeof got)) which = i;
        if (which < 0) atomic_store(&b->wrong, 1);
        else atomic_fetch_add(&b->seen[which], 1);
        atomic_fetch_add(&b->calls, 1);
    }
    return NULL;
}

#endif
