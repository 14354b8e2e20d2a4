/* SIGTERM, SIGINT and SIGHUP: a thread of their own waits for them from the beginning to the end of the
 * process, so that they are heard while a load or the loop stands still, and after the server has ended.
 *
 *   while the model is loaded   the first SIGTERM or SIGINT asks the load to end; where it does not within
 *                               SIGNALS_GRACE_S, or at the second one, the process ends
 *   while robots are served     the first drains, the second ends, the third ends the process at once
 *   while the server closes     it has SIGNALS_CLOSING_S; then, or at another signal, the process ends
 *
 * The process ends with the status 0 in all of these, as it does where nothing stands still. */
#ifndef SERVE_SIGNALS_H
#define SERVE_SIGNALS_H

#include "serve/log/log.h"
#include "openpi.h"

enum { SIGNALS_GRACE_S = 3, SIGNALS_CLOSING_S = 5 };

typedef struct signals_seen {
    int ends, reloads;           /* SIGTERM and SIGINT; SIGHUP                                             */
} signals_seen;

/* Once in a process, before any other thread. Nothing ends the thread but the process. */
openpi_status signals_open(logger *log, openpi_error *error);
/* How many came so far. */
signals_seen signals_look(void);
/* From now on `woken` is called after each signal, on the signals' thread; NULL: no more. */
void signals_serve(void (*woken)(void *user), void *user);
/* The server closes. */
void signals_close(void);
/* It is closed: what comes now ends nothing. */
void signals_closed(void);

#endif
