/* Code objects, as far as a driver looks into them before it runs one. The emulated GPU runs the host's code
 * for a kernel; that the code object has the kernel, and is for the device, is checked here. Beside real code
 * objects (ELF) there is a stand-in for builds without AMD's compiler, which has every kernel: */
#ifndef TESTS_GPU_HIP_IMAGE_H
#define TESTS_GPU_HIP_IMAGE_H

#define STAND_IN "stand-in for a code object of "                  /* followed by the architecture         */

/* `architecture`: what the runtime calls the device, "gfx942:sramecc+:xnack-". */
int image_is_for(const void *image, const char *architecture);
int image_has_kernel(const void *image, const char *name);

#endif
