/* Random numbers that are the same in every run; a test that wants others sets random_state. */
#ifndef TESTS_RANDOM_NUMBERS_H
#define TESTS_RANDOM_NUMBERS_H

#include <stdint.h>

static uint64_t random_state = 99;

static inline uint32_t next_random(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

#endif
