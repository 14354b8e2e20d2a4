/* FNV-1a and splitmix64: the pure functions that synthetic weights, statistics and test inputs are made of
 * (tests/golden/SYNTH.md). All arithmetic on uint64 wraps. GPU kernels include this file too. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifndef HASH_BOTH
#define HASH_BOTH static inline
#endif

#define HASH_STEP UINT64_C(0x9E3779B97F4A7C15)
#define HASH_FNV_START UINT64_C(0xCBF29CE484222325)

/* Continues from `h`, which starts as HASH_FNV_START. */
HASH_BOTH uint64_t hash_fnv1a64(uint64_t h, const void *bytes, size_t count) {
    const uint8_t *at = (const uint8_t *)bytes;
    for (size_t i = 0; i < count; i++) h = (h ^ at[i]) * UINT64_C(0x100000001B3);
    return h;
}

HASH_BOTH uint64_t hash_mix(uint64_t z) {
    z += HASH_STEP;
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* The stream of one name under one seed. */
HASH_BOTH uint64_t hash_key(const char *name, size_t bytes, uint64_t seed) {
    return hash_mix(hash_fnv1a64(HASH_FNV_START, name, bytes) ^ seed);
}

/* Element i of a stream, in (-1, 1): 24 bits, exact in double. */
HASH_BOTH double hash_uniform(uint64_t key, uint64_t i) {
    return ((double)(hash_mix(key + i * HASH_STEP) >> 40) + 0.5) * 0x1p-23 - 1.0;
}

#endif
