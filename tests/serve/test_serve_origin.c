/* labels: server */
/* Web pages: a browser says in Origin which page wants a WebSocket, and only the server's own pages and those
 * of --allow-origin get one, also on loopback. Programs send no Origin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "admin_client.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --admin 127.0.0.1:0"

static int set_up(void **state) { return open_box(state); }
static int tear_down(void **state) { return close_box(state); }

/* The server's port follows on the host, and on an origin that ends with a colon. */
static void must_get(const served *server, const char *host, const char *origin, int status) {
    char request[1024], head[1024], hosts[200], origins[200], want[32];
    int fd = ws_socket(server->port);
    snprintf(hosts, sizeof hosts, "%s%d", host, server->port);
    int with_port = origin && origin[strlen(origin) - 1] == ':';
    if (with_port) snprintf(origins, sizeof origins, "%s%d", origin, server->port);
    else snprintf(origins, sizeof origins, "%s", origin ? origin : "");
    snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: %s\r\n%s%s%s" WS_UPGRADE "\r\n", hosts,
             origin ? "Origin: " : "", origins, origin ? "\r\n" : "");
    ws_put(fd, request, strlen(request));
    ws_head(fd, head, sizeof head);
    snprintf(want, sizeof want, "HTTP/1.1 %d ", status);
    if (strncmp(head, want, strlen(want)))
        fail_msg("Host %s, Origin %s: expected %d, got %s", hosts, origins, status, head);
    close(fd);
}

static void pages_of_others(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY);
    must_get(&server, "127.0.0.1:", NULL, 101);
    must_get(&server, "robots.example:", NULL, 101);
    must_get(&server, "127.0.0.1:", "http://127.0.0.1:", 101);
    must_get(&server, "localhost:", "http://localhost:", 101);
    must_get(&server, "127.0.0.1:", "http://another.example", 403);
    must_get(&server, "127.0.0.1:", "null", 403);
    must_get(&server, "127.0.0.1:", "http://localhost:", 403);
    must_get(&server, "127.0.0.1:", "http://127.0.0.1", 403);
    must_get(&server, "another.example:", "http://another.example:", 403);     /* a name that leads here    */
    assert_true(metric(server.admin, "openpi_connections_rejected_total{reason=\"origin\"}") == 5);
    served_must_log(&server, "refused: a web page of http://another.example, which --allow-origin does not");
    served_stop(&server);
}

static void pages_that_may(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY " --allow-origin https://one.example,https://two.example");
    must_get(&server, "127.0.0.1:", "https://one.example", 101);
    must_get(&server, "127.0.0.1:", "https://two.example", 101);
    must_get(&server, "127.0.0.1:", "https://two.example.evil", 403);
    must_get(&server, "127.0.0.1:", "https://two", 403);
    served_stop(&server);
    served_start(&server, &box, TINY " --allow-origin '*'");
    must_get(&server, "127.0.0.1:", "https://any.example", 101);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_others),
        cmocka_unit_test(pages_that_may),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
