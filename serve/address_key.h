/* What a client's address counts as where connections of an address are counted: one of IPv4, also where it
 * comes through a socket of IPv6; of IPv6 the /64, since one machine may have all of its addresses. */
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
