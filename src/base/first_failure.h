/* Threads that work at once cannot report to a caller: the first failure is kept for whoever waits for
 * them. */
#ifndef BASE_FIRST_FAILURE_H
#define BASE_FIRST_FAILURE_H

#include <stdatomic.h>

#include "base/report.h"

/* All zeros: none yet. */
typedef struct first_failure {
    atomic_int there;
    openpi_error error;
} first_failure;

/* By any thread. */
static inline void first_failure_keep(first_failure *f, const openpi_error *error) {
    int none = 0;
    if (atomic_compare_exchange_strong(&f->there, &none, 1)) f->error = *error;
}

/* 1: there is one, and work need not go on. */
static inline int first_failure_there(const first_failure *f) { return atomic_load(&f->there); }

/* OPENPI_OK where there is none. Not while another thread may keep one. */
static inline openpi_status first_failure_report(const first_failure *f, openpi_error *error) {
    return first_failure_there(f) ? report_again(error, &f->error) : OPENPI_OK;
}

#endif
