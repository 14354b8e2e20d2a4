/* The small SentencePiece model of synthetic checkpoints, placed in the library's read-only data by the
 * assembler. */
#include "policy/tokenizer/tokenizer.h"

__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".globl openpi_synthetic_model\n"
        ".hidden openpi_synthetic_model\n"
        "openpi_synthetic_model:\n"
        ".incbin \"" OPENPI_TOKENIZER_FILE "\"\n"
        ".globl openpi_synthetic_model_end\n"
        ".hidden openpi_synthetic_model_end\n"
        "openpi_synthetic_model_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const char openpi_synthetic_model[] __attribute__((visibility("hidden")));
extern const char openpi_synthetic_model_end[] __attribute__((visibility("hidden")));

const void *tokenizer_synthetic_bytes(size_t *count) {
    *count = (size_t)((uintptr_t)openpi_synthetic_model_end - (uintptr_t)openpi_synthetic_model);
    return openpi_synthetic_model;
}

openpi_status tokenizer_synthetic(tokenizer **out, openpi_error *error) {
    size_t count;
    const void *bytes = tokenizer_synthetic_bytes(&count);
    return tokenizer_parse(bytes, count, "the embedded tokenizer.model", out, error);
}
