/* The numbers of one call: which rows each segment has, at which places, and what they may attend.
 *
 * This is the model's whole attention mask. Absent cameras and prompt padding have no rows at all; positions
 * count valid tokens only; an action sees the prefix, the state token and the whole chunk; the state token
 * sees the prefix and itself. Without masked-cameras-dropped absent cameras have rows too: zero pictures,
 * whose K and V are at places after everything that any row attends. */
#include "model/plan.h"

static void lay_out_rows(row_table *table, arena *arena, int capacity) {
    size_t bytes = (size_t)capacity * sizeof(int32_t);
    table->capacity = capacity;
    table->count = arena_take(arena, sizeof(int32_t));
    table->sample = arena_take(arena, bytes);
    table->position = arena_take(arena, bytes);
    table->keys = arena_take(arena, bytes);
    table->out_row = arena_take(arena, bytes);
}

size_t call_slot_bytes(const plan *plan) { return (size_t)plan->shape.batch * IMAGE_BYTES * sizeof(float); }

void call_lay_out(plan_inputs *in, arena *arena, const plan *plan) {
    const plan_shape *s = &plan->shape;
    size_t batch = (size_t)s->batch;
    int images = s->batch * OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS;
    call_tables *tables = &in->tables;
    size_t start = arena->used;
    tables->pixels = arena_take(arena, sizeof(int32_t));
    in->start = (char *)tables->pixels;
    lay_out_rows(&tables->vision, arena, images);
    lay_out_rows(&tables->text, arena, s->batch * s->max_prompt);
    tables->ids = arena_take(arena, batch * (size_t)s->max_prompt * sizeof *tables->ids);
    lay_out_rows(&tables->prefix, arena, images + s->batch * s->max_prompt);
    lay_out_rows(&tables->state, arena, s->batch);
    lay_out_rows(&tables->suffix, arena, s->batch * (s->horizon + plan->state_token));
    lay_out_rows(&tables->action, arena, s->batch * s->horizon);
    lay_out_rows(&tables->steps, arena, s->steps);
    if (s->times) lay_out_rows(&tables->times, arena, s->times);
    for (int c = 0; c < OPENPI_CAMERAS && !plan_on(plan, SWITCH_BATCHED_VISION); c++)
        lay_out_rows(&tables->camera[c], arena, s->batch * OPENPI_IMAGE_TOKENS);
    if (s->known) tables->known = arena_take(arena, (size_t)tables->action.capacity * sizeof(int32_t));
    if (!schedule_is_constant(plan) || s->known) lay_out_rows(&tables->one, arena, 1);
    if (s->times) {
        tables->time_of = arena_take(arena, (size_t)tables->action.capacity * sizeof(int32_t));
        in->own_dt = arena_take(arena, (size_t)tables->action.capacity * sizeof(float));
    }
    in->state = arena_take(arena, batch * OPENPI_ACTION_DIM * sizeof(float));
    size_t rows = batch * (size_t)s->horizon, row_bytes = OPENPI_ACTION_DIM * sizeof(float);
    if (plan->model->types.fixed) in->counts = arena_take(arena, INT8_COUNTS * sizeof(uint32_t));
    in->x_t = arena_take(arena, rows * row_bytes);
    if (s->rtc) {
        in->target = arena_take(arena, rows * row_bytes);
        in->weight = arena_take(arena, rows * sizeof(float));
        in->gain = arena_take(arena, (size_t)s->steps * batch * sizeof(float));
    }
    in->images = arena_take(arena, OPENPI_CAMERAS * call_slot_bytes(plan));
    in->bytes = arena->used - start;
}

static void add_row(row_table *table, int sample, int position, int keys, int out_row) {
    int r = (*table->count)++;
    table->sample[r] = sample;
    table->position[r] = position;
    table->keys[r] = keys;
    table->out_row[r] = out_row;
}

int call_prefix_length(const openpi_sample *sample) {
    int length = sample->token_count;
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        if (sample->image_mask[c]) length += OPENPI_IMAGE_TOKENS;
    return length;
}

int call_has_rows(const plan *plan, const openpi_sample *sample, int camera) {
    return sample->image_mask[camera] || !plan_on(plan, SWITCH_MASKED_CAMERAS_DROPPED);
}

/* Places behind the prefix: π0's state token, then a chunk. */
static int chunk_end_of(const plan *plan, int length) {
    return length + plan->state_token + plan->shape.horizon;
}

static void fill_prefix(const plan *plan, call_tables *t, const openpi_sample *sample, int b) {
    int length = call_prefix_length(sample), position = 0, unseen = chunk_end_of(plan, length);
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        int *place = sample->image_mask[c] ? &position : &unseen;
        if (!call_has_rows(plan, sample, c)) continue;
        for (int i = 0; i < OPENPI_IMAGE_TOKENS; i++, ++*place) {
            add_row(&t->vision, b, i, OPENPI_IMAGE_TOKENS, *t->prefix.count);
            if (t->camera[c].capacity) add_row(&t->camera[c], b, i, OPENPI_IMAGE_TOKENS, *t->prefix.count);
            add_row(&t->prefix, b, *place, length, *t->prefix.count);
        }
    }
    for (int i = 0; i < sample->token_count; i++, position++) {
        t->ids[*t->text.count] = sample->tokens[i];
        add_row(&t->text, b, position, length, *t->prefix.count);
        add_row(&t->prefix, b, position, length, *t->prefix.count);
    }
}

/* The first `known` actions are known. */
static void fill_chunk(const plan *plan, call_tables *t, int length, int known, int b) {
    int state = plan->state_token, chunk_end = chunk_end_of(plan, length);
    if (state) {
        add_row(&t->state, b, length, length + 1, *t->state.count);
        add_row(&t->suffix, b, length, length + 1, *t->suffix.count);
    }
    for (int i = 0; i < plan->shape.horizon; i++) {
        add_row(&t->suffix, b, length + state + i, chunk_end, *t->suffix.count);
        if (t->known) t->known[*t->action.count] = i < known;
        add_row(&t->action, b, length + state + i, chunk_end, *t->action.count);
    }
}

static void fill_sample(const plan *plan, call_tables *t, const openpi_sample *sample, int known, int first,
                        int chunks) {
    fill_prefix(plan, t, sample, first);
    for (int c = 0; c < chunks; c++) fill_chunk(plan, t, call_prefix_length(sample), known, first + c);
}

call_counts call_fill(const plan *plan, call_tables *t, const openpi_sample *samples, const int *known,
                      int batch, int chunks) {
    *t->vision.count = *t->text.count = *t->prefix.count = *t->state.count = *t->suffix.count =
        *t->action.count = *t->steps.count = 0;
    *t->pixels = samples ? (int32_t)samples[0].pixels : OPENPI_PIXELS_U8;
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        if (t->camera[c].capacity) *t->camera[c].count = 0;
    if (t->one.capacity) {
        *t->one.count = 0;
        add_row(&t->one, 0, 0, 0, 0);
    }
    for (int b = 0; b < batch; b++)
        fill_sample(plan, t, &samples[b], known ? known[b] : 0, b * chunks, chunks);
    for (int k = 0; k < plan->shape.steps; k++) add_row(&t->steps, k, 0, 0, k);
    return (call_counts){*t->vision.count / OPENPI_IMAGE_TOKENS, *t->text.count, *t->prefix.count,
                         batch * chunks};
}
