/* labels: links=serve */
/* Connections that an address may open a second, in made-up time. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <cmocka.h>

#include "serve/who/attempts.h"

enum { SECOND = 1000000000, RATE = 8 };

static attempts all;

static int set_up(void **state) {
    (void)state;
    memset(&all, 0, sizeof all);
    return 0;
}

static int take(const char *address, int64_t now) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = (in_port_t)now};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = (in_port_t)now};
    if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
        return attempts_take(&all, (struct sockaddr *)&v4, RATE, now);
    assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
    return attempts_take(&all, (struct sockaddr *)&v6, RATE, now);
}

static int taken(const char *address, int tries, int64_t now) {
    int count = 0;
    for (int i = 0; i < tries; i++) count += take(address, now);
    return count;
}

/* One second's at once, then one every RATEth of a second, and never more than one second's. */
static void rate(void **state) {
    (void)state;
    int64_t now = 5 * (int64_t)SECOND;
    assert_int_equal(taken("10.0.0.1", 3 * RATE, now), RATE);
    now += SECOND / RATE - 1000;
    assert_int_equal(taken("10.0.0.1", 3, now), 0);
    now += 2000;
    assert_int_equal(taken("10.0.0.1", 3, now), 1);
    now += SECOND / 2;
    assert_int_equal(taken("10.0.0.1", 3 * RATE, now), RATE / 2);
    now += 3600 * (int64_t)SECOND;
    assert_int_equal(taken("10.0.0.1", 3 * RATE, now), RATE);
}

static void addresses(void **state) {
    (void)state;
    assert_int_equal(taken("10.0.0.1", RATE + 1, 7), RATE);
    assert_int_equal(taken("10.0.0.2", RATE + 1, 7), RATE);
    assert_int_equal(taken("2001:db8:0:1::1", RATE + 1, 7), RATE);
    assert_int_equal(taken("2001:db8:0:1:2:3:4:5", RATE + 1, 7), 0);       /* the same /64                  */
    assert_int_equal(taken("2001:db8:0:2::1", RATE + 1, 7), RATE);
    assert_int_equal(taken("10.0.0.1", 1, 7), 0);
    assert_int_equal(taken("::ffff:10.0.0.2", 1, 7), 0);       /* the same, through a socket of both       */
    assert_int_equal(taken("::ffff:10.0.0.3", RATE + 1, 7), RATE);
    assert_int_equal(taken("10.0.0.3", 1, 7), 0);
    struct sockaddr_un other = {.sun_family = AF_UNIX};
    for (int i = 0; i < 2 * RATE; i++)
        assert_int_equal(attempts_take(&all, (struct sockaddr *)&other, RATE, 7), 1);
}

/* A charge leaves what the second brings, and no debt. */
static void charges(void **state) {
    (void)state;
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_un other = {.sun_family = AF_UNIX};
    assert_int_equal(inet_pton(AF_INET, "10.0.0.1", &from.sin_addr), 1);
    attempts_charge(&all, (struct sockaddr *)&from, 3, RATE, 7);
    attempts_charge(&all, (struct sockaddr *)&other, 3, RATE, 7);
    assert_int_equal(taken("10.0.0.1", RATE, 7), RATE - 3);
    attempts_charge(&all, (struct sockaddr *)&from, 5 * RATE, RATE, 7);
    assert_int_equal(taken("10.0.0.1", RATE, 7 + SECOND / 2), RATE / 2);
    assert_int_equal(taken("10.0.0.2", RATE + 1, 7), RATE);
}

/* More addresses than there are buckets, each of which connects once: they take each other's buckets, and
 * not that of an address that has used its attempts up. */
static void many_addresses(void **state) {
    (void)state;
    char address[INET_ADDRSTRLEN];
    assert_int_equal(taken("10.0.0.1", RATE + 1, 7), RATE);
    for (int i = 0; i < 4 * ATTEMPT_ADDRESSES; i++) {
        snprintf(address, sizeof address, "172.%d.%d.%d", 16 + i / 65536, i / 256 % 256, i % 256);
        assert_int_equal(take(address, 7), 1);
    }
    assert_int_equal(take("10.0.0.1", 7), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rate, set_up),
        cmocka_unit_test_setup(addresses, set_up),
        cmocka_unit_test_setup(charges, set_up),
        cmocka_unit_test_setup(many_addresses, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
