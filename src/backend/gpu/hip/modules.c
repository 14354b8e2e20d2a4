/* The kernel families of this build: each with the code objects that cmake/hip.cmake has clang make, or
 * without. The list itself, and that of the architectures, are made there of the kernel files that there are.
 * */
#include "backend/gpu/hip/vendor.h"

#if defined(OPENPI_HIP_FOLDER)

#define CODE(name, arch)                                                                                     \
    __asm__(".section .rodata\n.balign 4096\n.local hip_code_" #name "_" #arch "\nhip_code_" #name "_" #arch \
            ":\n.incbin \"" OPENPI_HIP_FOLDER "/" #name "_" #arch ".co\"\n.byte 0\n.previous\n");            \
    extern const char hip_code_##name##_##arch[] __attribute__((visibility("hidden")));
#include "hip_code.inc"
#undef CODE
#define IMAGE_BEGIN(name) static const hip_image hip_image_##name[] = {
#define CODE(name, arch) {#arch, hip_code_##name##_##arch},
#define IMAGE_END {NULL, NULL}};
#include "hip_code.inc"
#define IMAGE(name) hip_image_##name

#else

#define IMAGE(name) NULL

#endif

#define MODULE(name, hash) extern const gpu_family gpu_family_hip_##name;
#include "hip_modules.inc"
#undef MODULE

const gpu_module hip_modules[] = {
#define MODULE(name, hash) {&gpu_family_hip_##name, IMAGE(name), NULL, hash},
#include "hip_modules.inc"
#undef MODULE
    {NULL, NULL, NULL, 0},
};
