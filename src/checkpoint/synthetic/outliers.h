/* Outlier channels in a synthetic checkpoint that is written: what trained models have and made-up weights
 * lack. Channels of norms' outputs, of values and of hidden units are enlarged by powers of two, which the
 * matrices that read them take back. So actions stay as they are, to the bit in bf16 but for the rounding of
 * a norm's weight where a power is below 1, while what 8 bits lose grows. */
#ifndef CHECKPOINT_OUTLIERS_H
#define CHECKPOINT_OUTLIERS_H

#include "checkpoint/tensors.h"

/* Tensors of a synthetic list, before it is written; a norm's weight 1 + w becomes fp32. NONE: nothing
 * happens. */
openpi_status outliers_plant(tensors *list, const openpi_synthetic *synthetic, openpi_error *error);

#endif
