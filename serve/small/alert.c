/* See alert.h. */
#include "alert.h"

#include <sched.h>
#include <unistd.h>

#include "clock.h"

void alert_open(alert *alert) {
    alert->enough = sysconf(_SC_NPROCESSORS_ONLN) >= ALERT_PROCESSORS;
    atomic_init(&alert->until, 0);
    atomic_init(&alert->came, 0);
}

int alert_raise(alert *alert) {
    if (!alert->enough) return 0;
    int64_t now = clock_ns(), before = atomic_exchange(&alert->until, now + ALERT_NS);
    return before < now;
}

void alert_end(alert *alert) { atomic_fetch_add(&alert->came, 1); }

int alert_is_on(alert *alert) { return alert->enough && clock_ns() < atomic_load(&alert->until); }

void alert_look(alert *alert, unsigned long long seen) {
    int64_t now = clock_ns(), most = now + ALERT_NS;
    while (atomic_load(&alert->came) == seen && now < most && now < atomic_load(&alert->until)) {
        sched_yield();
        now = clock_ns();
    }
}
