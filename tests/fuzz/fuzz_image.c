/* Pictures: the input as a PNG or JPEG file, decoded and resized by both methods; as EXIF in memory of its
 * size; and as raw pixels, whose element type, layout and sides its first three bytes choose. */
#include "fuzz.h"
#include "policy/pictures/image.h"
#include "policy/orientation.h"

enum { SIDE = OPENPI_IMAGE_SIZE };

static uint8_t bytes[SIDE * SIDE * 3];
static float floats[SIDE * SIDE * 3];

static void resize(const openpi_image *image, image_scratch *scratch) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (!went_well(image_check(image, &error), &error)) return;
    /* Float pictures may hold what no picture does, and are then refused. Nothing that is no number comes
     * out. */
    openpi_status status = image_resize_lerobot(image, scratch, floats, &error);
    PROMISE(went_well(status, &error) || image->element != OPENPI_U8);
    for (int i = 0; status == OPENPI_OK && i < SIDE * SIDE * 3; i++)
        PROMISE(floats[i] >= -2 && floats[i] <= 2);
    status = image_resize_openpi(image, scratch, bytes, &error);
    PROMISE(went_well(status, &error) || image->element != OPENPI_U8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    image_scratch scratch = {NULL, 0};
    openpi_error error = OPENPI_ERROR_INIT;
    uint8_t *pixels = NULL;
    int height, width;
    openpi_status status = openpi_image_decode(data, size, "fuzz", &pixels, &height, &width, &error);
    PROMISE((status == OPENPI_OK) == (pixels != NULL));
    if (went_well(status, &error)) {
        openpi_image image = OPENPI_IMAGE_INIT;
        image.name = "decoded";
        image.data = pixels;
        image.height = height;
        image.width = width;
        resize(&image, &scratch);
    }
    openpi_free(pixels);
    uint8_t *exif = exact_copy(data, size, 0);
    int has_exif;
    PROMISE(orientation_of_tiff(exif, size) >= ORIENTATION_ABSENT);
    PROMISE(orientation_of_jpeg(exif, size) >= ORIENTATION_ABSENT);
    PROMISE(orientation_of_png(exif, size, &has_exif) >= ORIENTATION_ABSENT);
    PROMISE(orientation_of_xmp((const char *)exif, size) >= ORIENTATION_ABSENT);
    PROMISE(orientation_of_profile((char *)exif, size) >= ORIENTATION_ABSENT);
    free(exif);
    if (size > 3) {
        static const size_t element_bytes[] = {1, sizeof(float), sizeof(double)};
        openpi_image image = OPENPI_IMAGE_INIT;
        image.name = "raw";
        image.element = (openpi_element)(data[0] % 3);
        image.layout = (openpi_layout)(data[0] / 3 % 2);
        image.channels = (openpi_channels)(data[0] / 6 % 4);
        image.height = data[1];
        image.width = data[2];
        size_t channels = image.channels >= OPENPI_RGBA ? 4 : 3, element = element_bytes[image.element];
        size_t row = (size_t)image.width * element * (image.layout == OPENPI_HWC ? channels : 1);
        if (data[0] / 24 % 2) image.row_bytes = row + data[0] / 48;
        if (image.row_bytes) row = image.row_bytes;
        size_t needed = (size_t)image.height * row * (image.layout == OPENPI_HWC ? 1 : channels);
        void *raw = exact_copy(data + 3, needed < size - 3 ? needed : size - 3, 0);
        image.data = raw;
        if (needed <= size - 3) resize(&image, &scratch);
        free(raw);
    }
    image_scratch_free(&scratch);
    return 0;
}
