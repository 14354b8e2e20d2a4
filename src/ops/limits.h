/* The largest sizes of a model: one table for all that depends on them.
 *
 * presets.c refuses a model beyond it with a sentence, the definitions (reference*.c) size their arrays by
 * it, and a backend whose memory it bounds asserts that at compile time. So what opens, runs, on every
 * device. About twice the released model, which is of width 2048 with an MLP of 16384 and a prompt of 200
 * tokens. */
#ifndef OPS_LIMITS_H
#define OPS_LIMITS_H

#include "openpi.h"

enum {
    LIMIT_INPUTS = 32768,        /* a product's k: an MLP's width, or all query heads side by side         */
    LIMIT_WIDTH = 4096,          /* a token's width: vision, language, action expert                       */
    LIMIT_HEADS = 256,
    LIMIT_HEAD_DIM = 256,        /* vision heads too                                                      */
    LIMIT_DEPTH = 256,
    LIMIT_VOCAB = 1 << 22,
    LIMIT_PROMPT = 4096,         /* tokens                                                                */
    /* Cache places that a row may attend: three cameras, a prompt, the state token, the actions. */
    LIMIT_KEYS = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS + LIMIT_PROMPT + 1 + OPENPI_MAX_HORIZON,
};

#endif
