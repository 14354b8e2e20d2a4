/* See attempts.h. */
#include "attempts.h"

#include <netinet/in.h>
#include <string.h>

enum { LOOKS = 8 };              /* buckets in which an address may be                                     */

/* An address of IPv4, also one that comes through a socket of IPv6, or the /64 of an address of IPv6. Returns
 * 0 for an address of another family. */
static int read_key(const struct sockaddr *from, uint64_t key[2]) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    int mapped = from->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(six);
    key[0] = mapped ? AF_INET : from->sa_family;
    key[1] = 0;
    if (from->sa_family == AF_INET)
        memcpy(&key[1], &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    else if (mapped) memcpy(&key[1], six->s6_addr + 12, 4);
    else if (from->sa_family == AF_INET6) memcpy(&key[1], six, 8);
    else return 0;
    return 1;
}

static double left_at(const attempt_bucket *bucket, int a_second, int64_t now) {
    double left = bucket->left + 1e-9 * a_second * (double)(now - bucket->since);
    return left < a_second ? left : a_second;
}

/* Its own bucket, or the one that it gets. */
static attempt_bucket *bucket_of(attempts *all, const uint64_t key[2], int a_second, int64_t now) {
    uint64_t hash = (key[0] ^ key[1]) * 0x9e3779b97f4a7c15u;
    attempt_bucket *fullest = NULL;
    for (int i = 0; i < LOOKS; i++) {
        attempt_bucket *at = &all->buckets[((hash >> 32) + (uint64_t)i) % ATTEMPT_ADDRESSES];
        if (at->key[0] == key[0] && at->key[1] == key[1]) return at;
        if (!at->key[0]) {
            fullest = at;
            break;
        }
        if (!fullest || left_at(at, a_second, now) > left_at(fullest, a_second, now)) fullest = at;
    }
    *fullest = (attempt_bucket){.key = {key[0], key[1]}, .left = a_second, .since = now};
    return fullest;
}

/* The bucket as it is now; NULL for an address of another family. */
static attempt_bucket *bucket_now(attempts *all, const struct sockaddr *from, int a_second, int64_t now) {
    uint64_t key[2];
    if (!read_key(from, key)) return NULL;
    attempt_bucket *bucket = bucket_of(all, key, a_second, now);
    bucket->left = left_at(bucket, a_second, now);
    bucket->since = now;
    return bucket;
}

int attempts_take(attempts *all, const struct sockaddr *from, int a_second, int64_t now) {
    attempt_bucket *bucket = bucket_now(all, from, a_second, now);
    if (!bucket) return 1;
    if (bucket->left < 1) return 0;
    bucket->left -= 1;
    return 1;
}

void attempts_charge(attempts *all, const struct sockaddr *from, int count, int a_second, int64_t now) {
    attempt_bucket *bucket = bucket_now(all, from, a_second, now);
    if (bucket) bucket->left = bucket->left > count ? bucket->left - count : 0;
}
