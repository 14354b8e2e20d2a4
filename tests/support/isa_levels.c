/* Prints the levels of instructions that OPENPI_TEST_ISA may name here, one a line, the lowest first; all but
 * the one that the library chooses without it. */
#include <stdio.h>

#include "backend/cpu/isa.h"
#include "isa_emulated.h"

int main(void) {
    int own = cpu_isa_choose(cpu_isa_count() - 1);
    for (int i = 0; i < cpu_isa_count(); i++)
        if (i != own && (cpu_isa_available(i) || isa_emulated(i))) puts(cpu_isa_name(i));
    return 0;
}
