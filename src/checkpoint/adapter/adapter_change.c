#include "checkpoint/adapter/adapter_change.h"

#include <string.h>

#include "base/convert.h"
#include "base/report.h"
#include "checkpoint/low_rank.h"

enum { PIECE = 4096 };           /* elements that become bf16 at once, on the reading thread's stack */

/* Elements first … of W + factor·B·A, row after row. */
static void read_f32(const adapter_change *c, int64_t first, int64_t count, float *out) {
    int64_t columns = c->base.shape[1];
    tensor_read_f32(&c->base, first, count, out);
    for (int64_t n; count; first += n, out += n, count -= n) {
        int64_t row = first / columns, column = first % columns;
        n = columns - column < count ? columns - column : count;
        const float *a = c->a_values + row / c->rows * c->rank * columns;
        low_rank_add(c->b_values + row * c->rank, a + column, c->rank, columns, (float)c->factor, n, out);
    }
}

static void read_changed(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out) {
    const adapter_change *c = tensor->place;
    float piece[PIECE];
    if (!c->a_values || !c->b_values) {
        openpi_error error = OPENPI_ERROR_INIT;
        report(&error, OPENPI_BAD_ARGUMENT, "tensor \"%s\" is read before its adapter was", c->target);
        first_failure_keep(c->failure, &error);
        memset(out, 0, (size_t)count * dtype_bytes(type));
        return;
    }
    if (type == DTYPE_F32) {
        read_f32(c, first, count, out);
        if (tensor->rounded) convert_round(out, (size_t)count);
        return;
    }
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        read_f32(c, first + at, n, piece);
        convert_to_bf16(DTYPE_F32, piece, (size_t)n, (bf16 *)out + at);
    }
}

/* ---- everything else is the weight's without the change ---- */

static const tensor *base_of(const tensor *tensor) { return &((const adapter_change *)tensor->place)->base; }

/* A sum's, where the base's source does not tell that of what is stored. */
static dtype stored_type_of(const tensor *changed) {
    const tensor *base = base_of(changed);
    return base->source && base->source->stored_type ? base->source->stored_type(base) : changed->type;
}

static tensor_order order_of(const tensor *tensor) { return tensor_order_of(base_of(tensor)); }

static openpi_status hold_base(const tensor *tensor, const decode_watch *watch, openpi_error *error) {
    return tensor_hold(base_of(tensor), watch, error);
}

static void release_base(const tensor *tensor) { tensor_release(base_of(tensor)); }

const tensor_source adapter_source = {.read = read_changed,
                                      .stored_type = stored_type_of,
                                      .order = order_of,
                                      .hold = hold_base,
                                      .release = release_base};
