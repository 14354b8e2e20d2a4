/* The documented noise generator: Philox4x32-10 (Salmon et al., SC'11) and Box-Muller. */
#include <math.h>

#include "openpi.h"

enum { ROUNDS = 10 };

static void philox(uint64_t key, uint64_t block, uint64_t stream, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)b;
        c[3] = (uint32_t)a;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

static double uniform(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

void openpi_noise(uint64_t seed, uint64_t stream, float *noise, size_t count) {
    for (size_t i = 0; i < count; i += 4) {
        uint32_t bits[4];
        float z[4];
        philox(seed, i / 4, stream, bits);
        for (int pair = 0; pair < 4; pair += 2) {
            double radius = sqrt(-2 * log(uniform(bits[pair]))),
                   angle = 6.283185307179586 * uniform(bits[pair + 1]);
            z[pair] = (float)(radius * cos(angle));
            z[pair + 1] = (float)(radius * sin(angle));
        }
        for (size_t j = 0; j < 4 && i + j < count; j++) noise[i + j] = z[j];
    }
}
