/* See origin.h. */
#include "origin.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/ascii.h"
#include "serve/net/net.h"

/* Between brackets there is an IPv6 address and nothing else. */
int origin_is_own_host(const char *host, const char *own) {
    char name[NET_HOST];
    struct in6_addr address;
    int brackets = host[0] == '[';
    const char *begin = host + brackets;
    size_t count = strcspn(begin, brackets ? "]" : ":");
    if (count >= sizeof name || (brackets && begin[count] != ']')) return 0;
    memcpy(name, begin, count);
    name[count] = 0;
    if (brackets) return inet_pton(AF_INET6, name, &address) == 1;
    return ascii_same(name, "localhost") || (own && ascii_same(name, own)) ||
           inet_pton(AF_INET, name, &address) == 1;
}

int origin_is_own(const char *origin, const char *host) {
    static const char *const schemes[] = {"http://", "https://"};
    if (!*origin) return 1;
    for (int i = 0; i < 2; i++) {
        size_t count = strlen(schemes[i]);
        if (!strncmp(origin, schemes[i], count) && ascii_same(origin + count, host)) return 1;
    }
    return 0;
}

int origin_is_listed(const char *origin, const char *list) {
    size_t bytes = strlen(origin);
    if (!strcmp(list, "*")) return 1;
    for (const char *at = list; *at;) {
        size_t count = strcspn(at, ",");
        if (count == bytes && !memcmp(at, origin, count)) return 1;
        at += count + (at[count] == ',');
    }
    return 0;
}
