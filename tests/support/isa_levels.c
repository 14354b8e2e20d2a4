/* Prints the levels of instructions that OPENPI_TEST_ISA may name here, one a line, the lowest first; all but
 * the one that the library chooses without it. */
#include <stdio.h>

#include "backend/cpu/isa.h"

int main(void) {
    cpu_isa own = cpu_isa_choose(ISAS - 1);
    for (int i = 0; i < ISAS; i++)
        if (i != (int)own && (cpu_isa_available((cpu_isa)i) || i == ISA_AMX)) puts(cpu_isa_name((cpu_isa)i));
    return 0;
}
