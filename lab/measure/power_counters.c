/* The counters of this build. */
#include "lab/measure/power.h"

/* A whole board's goes before those of its parts: the processor's, and one line for every vendor of GPUs that
 * has one. */
#define POWER_COUNTER_LIST(X) \
    X(jetson)                 \
    X(rapl)                   \
    X(cuda)                   \
    X(hip)

#define X(counter) extern const power_counter power_counter_##counter;
POWER_COUNTER_LIST(X)
#undef X

const power_counter *const power_counters[] = {
#define X(counter) &power_counter_##counter,
    POWER_COUNTER_LIST(X)
#undef X
        NULL,
};
