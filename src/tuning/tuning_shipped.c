/* The tables of tune/, placed in the library's read-only data by the assembler. cmake lists them:
 * TABLE(number, file). */
#include "tuning/tuning.h"

#define TABLE(number, file)                                                                             \
    __asm__(".pushsection .rodata\n"                                                                    \
            ".hidden openpi_tuning_" #number "\n"                                                       \
            ".globl openpi_tuning_" #number "\n"                                                        \
            "openpi_tuning_" #number ":\n"                                                              \
            ".incbin \"" file "\"\n"                                                                    \
            ".hidden openpi_tuning_end_" #number "\n"                                                   \
            ".globl openpi_tuning_end_" #number "\n"                                                    \
            "openpi_tuning_end_" #number ":\n"                                                          \
            ".byte 0\n"                                                                                 \
            ".popsection\n");                                                                           \
    extern const char openpi_tuning_##number[] __attribute__((visibility("hidden"))),                   \
        openpi_tuning_end_##number[] __attribute__((visibility("hidden")));
#include "tuning_files.inc"
#undef TABLE

const tuning_text tuning_texts[] = {
#define TABLE(number, file) {openpi_tuning_##number, openpi_tuning_end_##number},
#include "tuning_files.inc"
#undef TABLE
    {NULL, NULL},
};
