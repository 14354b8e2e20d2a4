#include "image.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MACHINE_AMDGPU = 224, FLAGS_CHIP = 0xff };

static const struct {
    const char *architecture;
    unsigned chip;                         /* in an ELF header's flags                                     */
} chips[] = {{"gfx942", 0x4c}, {"gfx950", 0x4f}};

static int is_stand_in(const void *image) { return !strncmp(image, STAND_IN, sizeof STAND_IN - 1); }

static int is_code_object(const Elf64_Ehdr *elf) {
    return !memcmp(elf->e_ident, ELFMAG, SELFMAG) && elf->e_machine == MACHINE_AMDGPU;
}

int image_is_for(const void *image, const char *architecture) {
    const Elf64_Ehdr *elf = image;
    size_t length = strcspn(architecture, ":");
    if (is_stand_in(image)) {
        const char *of = (const char *)image + sizeof STAND_IN - 1;
        return strlen(of) == length && !strncmp(of, architecture, length);
    }
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (strlen(chips[i].architecture) == length && !strncmp(chips[i].architecture, architecture, length))
            return is_code_object(elf) && (elf->e_flags & FLAGS_CHIP) == chips[i].chip;
    return 0;
}

/* A kernel `name` has a descriptor, the symbol NAME.kd. */
int image_has_kernel(const void *image, const char *name) {
    const Elf64_Ehdr *elf = image;
    char symbol[128];
    if (is_stand_in(image)) return 1;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)((const char *)image + elf->e_shoff);
    snprintf(symbol, sizeof symbol, "%s.kd", name);
    for (int i = 0; i < elf->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)((const char *)image + sections[i].sh_offset);
        const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (!strcmp(names + symbols[s].st_name, symbol)) return 1;
    }
    return 0;
}
