/* The key for per-client limits: the IPv4 address (also when mapped into IPv6), or the IPv6 /64, since one
 * machine may have all addresses of that. */
#ifndef SERVE_ADDRESS_KEY_H
#define SERVE_ADDRESS_KEY_H

#include <stdint.h>
#include <sys/socket.h>

typedef struct address_key {
    uint64_t family, bits;       /* 0, 0: the address is neither of IPv4 nor of IPv6                       */
} address_key;

address_key address_key_of(const struct sockaddr *from);
int address_key_equal(address_key a, address_key b);

#endif
