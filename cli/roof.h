/* Measured ceilings in words: what roof, bench and profile say of them. */
#ifndef CLI_ROOF_H
#define CLI_ROOF_H

#include <jansson.h>

#include "cli.h"
#include "measure/bench.h"

/* {"bf16_tflops", "f32_tflops", "read_gbs", "copy_gbs", "core_mhz"}, null where one is not known; null where none is. */
json_t *roofs_json(const bench_roofs *roofs);

#endif
