/* What the server reports to systemd: sd_notify(3)'s protocol without its library, a datagram of text for
 * each report, to the socket that the service manager names.
 *
 * The watchdog: systemd ends a service that is silent for too long. So the server speaks only while it works:
 * these reports come from the I/O thread, and not while a device is hung. */
#ifndef SERVE_SYSTEMD_H
#define SERVE_SYSTEMD_H

#include <stdint.h>

#include "openpi.h"

typedef struct systemd {
    int fd;                      /* connected; -1: nobody listens                                          */
    int64_t watchdog_ns;         /* systemd waits so long for a sign of life; 0: for ever                  */
    int64_t pinged_ns;           /* when the last one was sent                                             */
    int hung;                    /* a device is, and systemd knows                                         */
} systemd;

/* `path`: a file, or "@name" of the abstract namespace; NULL: nobody listens, and nothing below does
 * anything. `watchdog_us` 0: no watchdog. */
openpi_status systemd_open(systemd *out, const char *path, int64_t watchdog_us, openpi_error *error);
void systemd_close(systemd *systemd);

/* Reports lines of VARIABLE=value. Never waits: a report that the socket cannot take is lost. */
void systemd_report(const systemd *systemd, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How often systemd_alive has to be called, in milliseconds; 0: never. */
int systemd_interval(const systemd *systemd);
/* A sign of life where it is time for one. `hung`: the name of a device that is, or NULL. */
void systemd_alive(systemd *systemd, const char *hung, int64_t now_ns);

#endif
