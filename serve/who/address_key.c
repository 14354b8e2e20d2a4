/* See address_key.h. */
#include "address_key.h"

#include <netinet/in.h>
#include <string.h>

address_key address_key_of(const struct sockaddr *from) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    address_key key = {.family = AF_INET};
    if (from->sa_family == AF_INET) {
        memcpy(&key.bits, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family != AF_INET6) {
        key.family = 0;
    } else if (IN6_IS_ADDR_V4MAPPED(six)) {
        memcpy(&key.bits, six->s6_addr + 12, 4);
    } else {
        key.family = AF_INET6;
        memcpy(&key.bits, six, 8);
    }
    return key;
}

int address_key_equal(address_key a, address_key b) { return a.family == b.family && a.bits == b.bits; }
