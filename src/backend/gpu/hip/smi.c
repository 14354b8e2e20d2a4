/* Fills the table of the management library, where there is one. */
#include "backend/gpu/hip/smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/dynamic.h"

int smi_open(smi *smi, char *why, size_t why_bytes) {
    static const char *const names[] = {"librocm_smi64.so.1", "librocm_smi64.so.7", "librocm_smi64.so.6",
                                        "librocm_smi64.so", NULL};
    const char *missing = NULL;
    void *library = dynamic_open(names, NULL);
    if (!library) {
        snprintf(why, why_bytes, "AMD's management library is not on this machine (none of "
                                 "librocm_smi64.so.1, .so.7, .so.6, .so opens)");
        return -1;
    }
#define X(member, symbol, needed, parameters) \
    if (!dynamic_find(library, #symbol, &smi->member, sizeof smi->member) && needed) missing = #symbol;
    SMI_LIST(X)
#undef X
    dlclose(library);
    if (!missing) return 0;
    snprintf(why, why_bytes, "librocm_smi64 is too old: it has no %s", missing);
    return -1;
}

/* One reading of the words: the count of frequencies at `at`, the place in force after it, then the list on
 * the next address of 8 bytes. */
static double frequency_at(const uint32_t *words, int at, int highest) {
    uint32_t count = words[at], now = words[at + 1];
    double best = 0;
    if (count < 1 || count > SMI_FREQUENCIES || now >= count) return 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t hz;
        memcpy(&hz, words + (at + 3) / 2 * 2 + 2 * i, sizeof hz);
        if (hz < 1000000 || hz > 100000000000u) return 0;
        if (i == now && !highest) return (double)hz * 1e-6;
        if ((double)hz > best) best = (double)hz;
    }
    return best * 1e-6;
}

double smi_frequency(const uint32_t words[SMI_FREQUENCY_WORDS], int highest) {
    double mhz = frequency_at(words, 1, highest);          /* with the flag */
    return mhz > 0 ? mhz : frequency_at(words, 0, highest);
}

int smi_device_address(int ordinal, char *text, int bytes) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", NULL};
    int (*address)(char *text, int bytes, int device);
    void *library = dynamic_open(names, NULL);
    int fine = dynamic_find(library, "hipDeviceGetPCIBusId", &address, sizeof address) &&
               !address(text, bytes, ordinal);
    if (library) dlclose(library);
    return fine ? 0 : -1;
}

int smi_parse_address(const char *text, uint64_t *address) {
    unsigned domain, bus, device, function;
    int length = 0;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &length) != 4 || text[length])
        return -1;
    *address = (uint64_t)domain << 32 | (uint64_t)bus << 8 | (uint64_t)(device & 31) << 3 | (function & 7);
    return 0;
}
