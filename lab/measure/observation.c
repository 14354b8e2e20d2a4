/* Synthetic observations. */
#include "lab/measure/observation.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"

enum { PICTURE = OBSERVATION_HEIGHT * OBSERVATION_WIDTH * 3 };

openpi_status observation_make(const openpi_policy *policy, const workload *call, observation *out,
                               openpi_error *error) {
    static const char phrase[] = "pick up the fork "; /* a word has at least one token               */
    size_t words = (size_t)call->prompt / 4 + 1, bytes = words * (sizeof phrase - 1) + 1;
    uint64_t random = call->seed * 2 + 1;
    *out = (observation){.view = OPENPI_OBSERVATION_INIT,
                         .info = OPENPI_POLICY_INFO_INIT,
                         .pixels = malloc((size_t)OPENPI_CAMERAS * PICTURE),
                         .state = calloc(OPENPI_ACTION_DIM, sizeof *out->state),
                         .prompt = malloc(bytes)};
    if (!out->pixels || !out->state || !out->prompt)
        return report_no_memory(error, (size_t)OPENPI_CAMERAS * PICTURE + bytes, "the synthetic observation");
    TRY(openpi_policy_get_info(policy, &out->info, error));
    for (size_t i = 0; i < (size_t)OPENPI_CAMERAS * PICTURE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        out->pixels[i] = (uint8_t)(random >> 56);
    }
    for (size_t i = 0; i < words; i++) memcpy(out->prompt + i * (sizeof phrase - 1), phrase, sizeof phrase);
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        if (!call->cameras[c] || !out->info.cameras[c][0]) continue;
        out->images[out->view.image_count++] =
            (openpi_image){.size = sizeof(openpi_image),
                           .name = out->info.cameras[c],
                           .data = out->pixels + (size_t)c * PICTURE,
                           .height = OBSERVATION_HEIGHT,
                           .width = OBSERVATION_WIDTH};
    }
    out->view.images = out->images;
    out->view.state = out->state;
    out->view.state_length = out->info.state_length ? out->info.state_length : OPENPI_ACTION_DIM;
    out->view.prompt = out->prompt;
    return OPENPI_OK;
}

void observation_free(observation *o) {
    free(o->pixels);
    free(o->state);
    free(o->prompt);
    *o = (observation){.pixels = NULL};
}
