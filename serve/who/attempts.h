/* How many connections one client address may open: a bucket for each address, which holds and gets
 * `a_second` attempts, and each connection takes one.
 *
 * Note: address_key.h says which addresses count as one. Of the few buckets that an address may have, it gets
 * the fullest where all are taken. */
#ifndef SERVE_ATTEMPTS_H
#define SERVE_ATTEMPTS_H

#include <stdint.h>
#include <sys/socket.h>

#include "address_key.h"

enum { ATTEMPT_ADDRESSES = 4096 };

typedef struct attempt_bucket {
    address_key key;             /* the address's; 0, 0: the place is free                                 */
    double left;                 /* attempts at `since`                                                    */
    int64_t since;               /* ns                                                                     */
} attempt_bucket;

/* Of zeros: no address has tried. */
typedef struct attempts {
    attempt_bucket buckets[ATTEMPT_ADDRESSES];
} attempts;

/* 1: the address may connect at that time, and has one attempt fewer. Always where it is neither of IPv4 nor
 * of IPv6. */
int attempts_take(attempts *all, const struct sockaddr *from, int a_second, int64_t now);
/* The address has `count` attempts fewer, but not less than none. */
void attempts_charge(attempts *all, const struct sockaddr *from, int count, int a_second, int64_t now);

#endif
