/* See drain.h. */
#include "drain.h"

drain_times drain_divide(int seconds) {
    int all = 1000 * seconds, closing = all / 2 < DRAIN_CLOSING_MS ? all / 2 : DRAIN_CLOSING_MS;
    return (drain_times){.answers_ms = all - closing, .closing_ms = closing};
}
