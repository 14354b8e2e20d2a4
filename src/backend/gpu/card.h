/* A device that stands for a card which is not here (device_options.as_card): it keeps to what that card has,
 * so that the kernels that are chosen and measured are those that would run there (card.c). */
#ifndef BACKEND_GPU_CARD_H
#define BACKEND_GPU_CARD_H

#include "backend/gpu/vendor.h"

/* The card of options->as_card, NULL: none is named. `device` is for sentences. facts->report.name and
 * facts->overlap become what they are under that card. */
openpi_status gpu_card_choose(const gpu_vendor *vendor, const char *device, gpu_facts *facts,
                              const device_options *options, const gpu_card **card, openpi_error *error);
/* Most shared memory of a block. */
size_t gpu_card_block(const gpu_card *card);
/* What a launch asks for in place of `shared`, so that a multiprocessor of the device holds no more of its
 * blocks than one of the card would. card NULL: the same. */
size_t gpu_card_shared(const gpu_card *card, const gpu_facts *facts, size_t shared, int threads);

#endif
