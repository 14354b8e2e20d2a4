/* What a service manager says in the environment: systemd's variables, or nothing where there are none. */
#ifndef CLI_SERVICE_H
#define CLI_SERVICE_H

#include <stdint.h>

enum { SERVICE_FIRST_SOCKET = 3, SERVICE_SENTENCE = 256 };

typedef struct service_manager {
    const char *notify;          /* where reports go, NOTIFY_SOCKET; NULL: nowhere                         */
    int64_t watchdog_us;         /* WATCHDOG_USEC; 0: there is no watchdog                                 */
    int sockets;                 /* inherited, from the descriptor SERVICE_FIRST_SOCKET on: LISTEN_FDS     */
    int journal;                 /* 1: stderr is read by systemd's journal, JOURNAL_STREAM                 */
} service_manager;

/* Variables that are for another process are passed over. 0: one has a value that cannot be read, and
 * `sentence` says which. */
int service_manager_read(service_manager *out, char sentence[SERVICE_SENTENCE]);

#endif
