/* A problem whose rows stand in other places: row r has the operands of row (r + rows) % all rows. Nothing of
 * a row's result may show where it stood: samples of a batch are what they are alone, bit for bit.
 *
 * Rows move by themselves; those of an image, of one sample's actions, and of a sample over a cache together
 * with what belongs to them, so that other rows and other samples share a kernel's tile. Ops that fused ones
 * are made of compute row by row and do not move, nor does text. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { TOKENS = OPENPI_IMAGE_TOKENS, PICTURE = 224 * 224 * 3 };

static int is_cache(const buffer *b) { return b->role == ROLE_KEYS || b->role == ROLE_VALUES; }

static int is_named(const buffer *b, const char *const *names) {
    while (*names && strcmp(b->name, *names)) names++;
    return *names != NULL;
}

/* Rows that move together. */
static int rows_together(const problem *p) {
    switch (p->shape.kind) {
    case OP_PATCH_EMBED:
    case OP_IMAGE_ATTENTION: return TOKENS;
    case OP_ACTION_EMBED: return p->op.action_embed.horizon;
    case OP_VELOCITY: return p->op.velocity.horizon;
    default: return 1;
    }
}

/* The buffer holds something of each row. A picture's embeddings, named position too, are of no row. */
static int is_of_rows(const problem *p, const buffer *b) {
    static const char *const names[] = {"x",   "a",     "q",      "qkv",     "out",      "velocity",
                                        "x_t", "state", "images", "out_row", "position", "keys",
                                        "known", "sample", NULL};
    return is_named(b, names) && (p->shape.kind != OP_PATCH_EMBED || strcmp(b->name, "position"));
}

/* Elements of such rows in a buffer, where they are not as many as in `capacity` rows; 0: they are. */
static int elements_together(const problem *p, const buffer *b) {
    const op_shape *s = &p->shape;
    const op_action_embed *a = &p->op.action_embed;
    const op_velocity *v = &p->op.velocity;
    if (s->kind == OP_PATCH_EMBED && !strcmp(b->name, "images")) return PICTURE;
    if (s->kind == OP_STATE_EMBED && !strcmp(b->name, "state")) return s->k;
    if (s->kind == OP_STATE_EMBED && !strcmp(b->name, "out")) return p->op.state_embed.out_stride * s->n;
    if (s->kind == OP_ACTION_EMBED && !strcmp(b->name, "x")) return a->horizon * s->k;
    if (s->kind == OP_ACTION_EMBED && !strcmp(b->name, "out")) return a->out_stride * s->n;
    if (s->kind == OP_VELOCITY && !strcmp(b->name, "x")) return v->x_stride * s->k;
    return 0;
}

rotation moved_part(const problem *p, const buffer *b, move by) {
    const size_t rows = (size_t)p->shape.rows, together = (size_t)rows_together(p),
                 elements = (size_t)elements_together(p, b);
    if (is_cache(b)) {
        const size_t block = by.samples ? b->count / (size_t)p->samples : 0;
        return (rotation){(size_t)by.samples * block, (size_t)p->samples * block};
    }
    /* Scattered rows go where they went before. */
    if (!is_of_rows(p, b) || (p->shape.options & SHAPE_SCATTER && b->role == ROLE_OUT))
        return (rotation){0, 0};
    if (elements) return (rotation){(size_t)by.rows / together * elements, rows / together * elements};
    const size_t width = b->count / (size_t)p->capacity;
    return (rotation){(size_t)by.rows * width, rows * width};
}

static int any_below(dice *r, int n) { return n > 1 ? 1 + random_below(r, n - 1) : 0; }

static move whole_samples(const problem *p, dice *r) {
    move by = {0, any_below(r, p->samples)};
    const int32_t *sample = p->op.cache_attention.rows.sample;
    while (by.samples && sample[by.rows] < by.samples) by.rows++;
    if (!by.samples) by.rows = any_below(r, p->shape.rows);
    return by;
}

move moved_by(const problem *p, dice *r) {
    const int together = rows_together(p);
    switch (p->shape.kind) {
    case OP_CACHE_ATTENTION: return whole_samples(p, r);
    case OP_NORM_LINEAR:
    case OP_LINEAR_RESIDUAL:
    case OP_NORM_QKV:
    case OP_IMAGE_ATTENTION:
    case OP_PATCH_EMBED:
    case OP_STATE_EMBED:
    case OP_ACTION_EMBED:
    case OP_VELOCITY: return (move){together * any_below(r, p->shape.rows / together), 0};
    default: return (move){0, 0};
    }
}

static void move_buffer(const problem *to, const buffer *from, char *data, move by) {
    const size_t bytes = dtype_bytes(from->type);
    const rotation part = moved_part(to, from, by);
    const char *old = from->data;
    memcpy(data, old + part.first * bytes, (part.all - part.first) * bytes);
    memcpy(data + (part.all - part.first) * bytes, old, part.first * bytes);
    memcpy(data + part.all * bytes, old + part.all * bytes, (from->count - part.all) * bytes);
    if (strcmp(from->name, "sample")) return;
    for (int i = 0; i < to->shape.rows && by.samples; i++) {
        int32_t *sample = (int32_t *)(void *)data + i;
        *sample = (*sample + to->samples - by.samples) % to->samples;
    }
}

int moved_make(problem *to, const problem *from, move by) {
    *to = *from;
    for (int i = 0; i < from->buffer_count; i++) {
        buffer *b = &to->buffers[i];
        if (b->role == ROLE_OUT || !moved_part(from, b, by).all) continue;
        b->data = malloc(b->count * dtype_bytes(b->type));
        if (!b->data) {
            moved_free(to, from);
            return 0;
        }
        move_buffer(from, &from->buffers[i], b->data, by);
        memcpy((char *)&to->op + b->field, &b->data, sizeof b->data);
    }
    return 1;
}

void moved_free(problem *to, const problem *from) {
    for (int i = 0; i < to->buffer_count; i++)
        if (to->buffers[i].data != from->buffers[i].data) free(to->buffers[i].data);
}
