/* The message of a client: decoded, and every field read as every type. */
#include "fuzz.h"
#include "policy/pictures/image.h"
#include "policy/wire/wire.h"

static volatile uint8_t sink;

static void touch(const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) sink ^= ((const uint8_t *)data)[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    wire_message *message;
    if (!went_well(wire_decode(data, size, &message, &error), &error)) return 0;
    int count = wire_count(message);
    PROMISE(count >= 0 && count <= WIRE_MAX_FIELDS);
    for (int i = 0; i < count; i++) {
        const wire_field *field = wire_at(message, i);
        char description[64];
        PROMISE(strlen(field->key) < WIRE_KEY_BYTES && wire_find(message, field->key) == field);
        PROMISE(strlen(wire_describe(field, description, sizeof description)) > 0);
        if (field->kind == WIRE_ARRAY) touch(field->data, field->bytes);
        double numbers[OPENPI_ACTION_DIM];
        int read = 0;
        if (went_well(wire_read_doubles(field, numbers, OPENPI_ACTION_DIM, &read, &error), &error))
            PROMISE(read >= 0 && read <= OPENPI_ACTION_DIM);
        const char *text;
        size_t bytes;
        if (went_well(wire_text(field, &text, &bytes, &error), &error)) touch(text, bytes);
        for (int chw = 0; chw < 2; chw++) {
            openpi_image image;
            if (went_well(wire_image(field, chw, &image, &error), &error))
                went_well(image_check(&image, &error), &error);
        }
    }
    wire_message_free(message);
    return 0;
}
