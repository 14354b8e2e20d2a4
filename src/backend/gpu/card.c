/* What a device does that stands for another card: which may be named, and what its launches ask for.
 *
 * Note: limits and choices become those of the card. Its clocks, its second-level cache, its memory and the
 * rate of its tensor cores do not: times are this device's, with the kernels that would run there. */
#include "backend/gpu/card.h"

#include <stdio.h>
#include <string.h>

#include "base/report.h"

/* "this, that or another" */
static void write_names(const gpu_card *cards, char *text, size_t bytes) {
    size_t used = 0;
    for (int i = 0; cards[i].name && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 !i                  ? ""
                                 : cards[i + 1].name ? ", "
                                                     : " or ",
                                 cards[i].name);
}

static const gpu_card *find(const gpu_card *cards, const char *name) {
    while (cards && cards->name && strcmp(cards->name, name)) cards++;
    return cards && cards->name ? cards : NULL;
}

static openpi_status refuse(const gpu_vendor *vendor, const char *device, const char *name,
                            openpi_error *error) {
    char text[256] = "";
    if (!vendor->cards)
        return report(error, OPENPI_BAD_ARGUMENT, "as_card is \"%s\", expected none on %s", name, device);
    write_names(vendor->cards, text, sizeof text);
    return report(error, OPENPI_BAD_ARGUMENT, "as_card is \"%s\", expected %s", name, text);
}

size_t gpu_card_block(const gpu_card *card) { return card->multiprocessor_shared_bytes - GPU_BLOCK_RESERVE; }

openpi_status gpu_card_choose(const gpu_vendor *vendor, const char *device, gpu_facts *facts,
                              const device_options *options, const gpu_card **out, openpi_error *error) {
    char own[sizeof facts->report.name];
    *out = NULL;
    if (!options->as_card) return OPENPI_OK;
    const gpu_card *card = find(vendor->cards, options->as_card);
    if (!card) return refuse(vendor, device, options->as_card, error);
    if (options->path && strcmp(options->path, vendor->cards_path))
        return report(error, OPENPI_BAD_ARGUMENT, "path is \"%s\", expected %s or none with the card %s",
                      options->path, vendor->cards_path, card->name);
    if (gpu_card_block(card) > facts->shared_bytes)
        return report(error, OPENPI_UNSUPPORTED,
                      "as_card is \"%s\", where a block has %zu KB of shared memory: on %s it has %zu KB",
                      card->name, gpu_card_block(card) >> 10, device, facts->shared_bytes >> 10);
    snprintf(own, sizeof own, "%s", facts->report.name);
    snprintf(facts->report.name, sizeof facts->report.name, "%.70s as %s", own, card->name);
    facts->overlap = facts->overlap && card->overlap;
    *out = card;
    return OPENPI_OK;
}

size_t gpu_card_shared(const gpu_card *card, const gpu_facts *facts, size_t shared, int threads) {
    const size_t all = facts->multiprocessor_shared_bytes, block = shared + GPU_BLOCK_RESERVE;
    if (!card) return shared;
    const size_t by_threads = (size_t)(card->threads / threads),
                 by_shared = card->multiprocessor_shared_bytes / block,
                 held = by_shared < by_threads ? by_shared : by_threads;
    if (!held || all / block <= held) return shared;
    const size_t least = all / (held + 1) + 1;     /* held + 1 of that size do not fit */
    return (least - GPU_BLOCK_RESERVE + 127) & ~(size_t)127;
}
