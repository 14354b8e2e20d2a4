/* The name of an ARM processor. It has none of its own: boards have theirs in the device tree; elsewhere the
 * register that numbers its maker and model is all there is, where the system lets a process read it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include "backend/cpu/levels.h"

/* AT_HWCAP's bit for registers of identification (the kernel's HWCAP_CPUID). */
enum { HAS_CPUID = 1 << 11 };

/* "Raspberry Pi 5 Model B Rev 1.0"; 0: no board. */
static size_t board(char *name, size_t size) {
    FILE *file = fopen("/sys/firmware/devicetree/base/model", "r");
    if (!file) return 0;
    size_t length = fread(name, 1, size - 1, file);
    fclose(file);
    name[length] = 0;
    return strlen(name);
}

void cpu_brand(char brand[49]) {
    uint64_t midr;
    if (board(brand, 49)) return;
    if (!(getauxval(AT_HWCAP) & HAS_CPUID)) {
        strcpy(brand, "ARM");
        return;
    }
    __asm__("mrs %0, midr_el1" : "=r"(midr));
    snprintf(brand, 49, "ARM, maker 0x%02x, part 0x%03x", (unsigned)(midr >> 24 & 0xff),
             (unsigned)(midr >> 4 & 0xfff));
}
