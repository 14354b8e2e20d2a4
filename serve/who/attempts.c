/* See attempts.h. */
#include "attempts.h"

#include <stddef.h>

enum { LOOKS = 8 };              /* buckets in which an address may be                                     */

static double left_at(const attempt_bucket *bucket, int a_second, int64_t now) {
    double left = bucket->left + 1e-9 * a_second * (double)(now - bucket->since);
    return left < a_second ? left : a_second;
}

/* Its own bucket, or the one that it gets. */
static attempt_bucket *bucket_of(attempts *all, address_key key, int a_second, int64_t now) {
    uint64_t hash = (key.family ^ key.bits) * 0x9e3779b97f4a7c15u;
    attempt_bucket *fullest = NULL;
    for (int i = 0; i < LOOKS; i++) {
        attempt_bucket *at = &all->buckets[((hash >> 32) + (uint64_t)i) % ATTEMPT_ADDRESSES];
        if (address_key_equal(at->key, key)) return at;
        if (!at->key.family) {
            fullest = at;
            break;
        }
        if (!fullest || left_at(at, a_second, now) > left_at(fullest, a_second, now)) fullest = at;
    }
    *fullest = (attempt_bucket){.key = key, .left = a_second, .since = now};
    return fullest;
}

/* The bucket as it is now; NULL for an address of another family. */
static attempt_bucket *bucket_now(attempts *all, const struct sockaddr *from, int a_second, int64_t now) {
    address_key key = address_key_of(from);
    if (!key.family) return NULL;
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
