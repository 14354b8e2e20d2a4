/* Work that is about to come: who gets it looks for it instead of sleeping, for a millisecond at most,
 * because waking a thread of an idle processor takes a tenth of that. With few processors nobody does. */
#ifndef SERVE_ALERT_H
#define SERVE_ALERT_H

#include <stdatomic.h>
#include <stdint.h>

enum { ALERT_NS = 1000000, ALERT_PROCESSORS = 4 };

typedef struct alert {
    int enough;                  /* processors                                                             */
    atomic_llong until;          /* when whoever looks goes to sleep; of the monotonic clock               */
    atomic_ullong came;          /* grows when work is there                                               */
} alert;

void alert_open(alert *alert);
/* Work will be there soon. Returns 1 where a thread that sleeps should be woken for it. */
int alert_raise(alert *alert);
/* It is there. */
void alert_end(alert *alert);
/* Whether it is worth looking now. */
int alert_is_on(alert *alert);
/* Looks until work comes that was not there when `seen` was read from `came`, or until the time is over:
 * after ALERT_NS at most, however often the alert is raised, because whoever looks must also see that the
 * server ends or reloads. */
void alert_look(alert *alert, unsigned long long seen);

#endif
