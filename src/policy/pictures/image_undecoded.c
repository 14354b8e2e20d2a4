/* What a build without PNG and JPEG has in the place of image_decode.c (cmake -DOPENPI_PICTURES=OFF): the
 * Python package gets its pictures as arrays. */
#include "base/report.h"
#include "openpi.h"

openpi_status openpi_image_decode(const void *bytes, size_t count, const char *name, uint8_t **pixels,
                                  int *height, int *width, openpi_error *error) {
    (void)bytes, (void)count, (void)pixels, (void)height, (void)width;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s%sthis build decodes no PNG and JPEG, expected one with OPENPI_PICTURES, or the pixels",
                  name ? name : "", name ? ": " : "");
}
