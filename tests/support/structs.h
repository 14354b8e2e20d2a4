/* The public structs, short to write in tests: designated, so that a field more in openpi.h changes nothing
 * here. */
#ifndef TESTS_STRUCTS_H
#define TESTS_STRUCTS_H

#include "openpi.h"

#define IMAGE(NAME, DATA, ELEMENT, LAYOUT, HEIGHT, WIDTH) \
    { \
        .size = sizeof(openpi_image), .name = NAME, .data = DATA, .element = ELEMENT, .layout = LAYOUT, \
        .height = HEIGHT, .width = WIDTH \
    }
#define OBSERVATION(IMAGES, COUNT, STATE, LENGTH, PROMPT, BYTES) \
    { \
        .size = sizeof(openpi_observation), .images = IMAGES, .image_count = COUNT, .state = STATE, \
        .state_length = LENGTH, .prompt = PROMPT, .prompt_length = BYTES \
    }
#define CAPACITY(ARRAY) (sizeof(ARRAY) / sizeof *(ARRAY))
#define DIMS_OF(...) {sizeof(openpi_dims), __VA_ARGS__, {0}}

/* What a prepared request holds; all of it 0 where it holds nothing. */
static inline openpi_sample prepared(const openpi_request *request) {
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_request_sample(request, &sample, NULL);
    return sample;
}

static inline int holds_sample(const openpi_request *request) {
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    return openpi_request_sample(request, &sample, NULL) == OPENPI_OK;
}

#endif
