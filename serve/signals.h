/* Signals that come before the loop can take them: they wait, and whoever loads the model asks. */
#ifndef SERVE_SIGNALS_H
#define SERVE_SIGNALS_H

/* SIGTERM, SIGINT and SIGHUP wait from here on, in this thread and in those that it starts. */
void signals_block(void);
/* 1: SIGTERM or SIGINT waits. */
int signals_end(void);
/* The handlers that are there now get what waits. */
void signals_unblock(void);

#endif
