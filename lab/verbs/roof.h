/* Measured ceilings as text and JSON, as roof, bench and profile print them. */
#ifndef CLI_ROOF_H
#define CLI_ROOF_H

#include <jansson.h>

#include "cli/cli.h"
#include "lab/measure/bench.h"

/* {"bf16_tflops", "f32_tflops", "read_gbs", "copy_gbs", "core_mhz"}, null where one is not known; null where
 * none is. */
json_t *roofs_json(const bench_roofs *roofs);

/* What part of what a roof allows was reached, "78.1 %". Nothing runs faster than its roof; where the numbers
 * say so, they are off by the machine's noise or the operand came from a cache: "noise (104.0 %)". */
enum { ROOF_TEXT = 32 };
const char *roof_share(double ratio, char text[ROOF_TEXT]);

#endif
