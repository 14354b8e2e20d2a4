/* Softmax attention: the same products as everywhere, keys and values in the place of weights.
 *
 * A unit is one query: a row and a head. All heads of a row share the cache's keys and values, so units of
 * many rows fill the blocks of one product; an image's heads have their own, packed into the worker's
 * scratch first.
 *
 *   scores = Q·Kᵀ     per group of units, [block][panel of keys][rows][32]
 *   P      = softmax  row by row, exact, over the row's own keys; rounded to act, packed as an A
 *   out    = P·V      over the keys that the group's longest row sees
 *
 * The ops `scores` and `values` are its first and last line alone, over a buffer of scores in between.
 *
 * Note: places after the last key may hold anything, NaN too, and zero times NaN is NaN. Scores of such
 * places are columns that are never read; but values are rows of a product, so the last piece of V is
 * copied and its unused rows zeroed. */
#include "backend/cpu/attention.h"

#include <string.h>

#include "backend/cpu/layout.h"

enum { ALIGN = 256 };

typedef enum part { WHOLE, SCORES, VALUES } part;

/* One of the four ops. */
typedef struct subject {
    part part;
    const row_set *rows;
    int heads, head_dim;
    float scale;
    const char *q;               /* head h of row r: r·q_stride + h·head_dim elements on                   */
    size_t q_stride;
    attended keys, values;
    char *out;
    float *scores;               /* [rows][heads][places]; not for WHOLE                                   */
    int places;
} subject;

typedef struct attend {
    part part;
    const cpu_kernels *kernels;
    const cpu_product *product;
    dtype type, a_type;
    const char *k, *v;           /* one block of each, packed                                              */
    int capacity, head_dim, heads;         /* heads: units of a row                                        */
    float scale;
    const char *q;               /* unit u starts at q + u·q_stride                                        */
    char *out;
    size_t q_stride, out_stride;
    const int32_t *keys;         /* [row]; NULL: capacity                                                  */
    float *scores;               /* unit u's line: scores + u·line                                         */
    size_t line;
} attend;

typedef struct scratch {
    char *q, *p, *line;          /* packed Q, packed P, P of one block row by row                          */
    float *scores, *c;
    char *tail;                  /* the last piece of V, clean                                             */
    char *k, *v;                 /* an image's                                                             */
} scratch;

static size_t take(size_t *used, size_t bytes) {
    size_t at = *used;
    *used = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static scratch scratch_of(char *base, int units, int capacity, int head_dim, int image, size_t *bytes) {
    size_t u = (size_t)units, d = (size_t)round_up(head_dim, PANEL), keys = (size_t)round_up(capacity, PANEL),
           used = 0, w = sizeof(float);
    size_t q = take(&used, u * d * w), p = take(&used, u * keys * w);
    size_t line = take(&used, MAX_BLOCK_ROWS * (keys > d ? keys : d) * w);
    size_t scores = take(&used, u * keys * w), c = take(&used, MAX_BLOCK_ROWS * PANEL * w),
           tail = take(&used, d * K_PAD * w);
    size_t block = image ? layout_cache_bytes(capacity, head_dim, DTYPE_F32) : 0;
    size_t k = take(&used, block), v = take(&used, block);
    if (bytes) *bytes = used;
    if (!base) return (scratch){0};
    return (scratch){.q = base + q,
                     .p = base + p,
                     .line = base + line,
                     .scores = (float *)(base + scores),
                     .c = (float *)(base + c),
                     .tail = base + tail,
                     .k = base + k,
                     .v = base + v};
}

static const cpu_ahead nothing_ahead;

/* ---- one group of units -------------------------------------------------------------------------------- */

static int unit_keys(const attend *a, int unit) { return a->keys ? a->keys[unit / a->heads] : a->capacity; }

/* Units first … first+count-1 (at most loop.units), cut into blocks of `block`. */
typedef struct unit_group {
    int first, count, block, blocks, keys;
} unit_group;

static int block_rows(const unit_group *g, int b) {
    return g->count - b * g->block < g->block ? g->count - b * g->block : g->block;
}

static void pack_queries(const attend *a, const scratch *s, const unit_group *g, int k) {
    const void *rows[MAX_BLOCK_ROWS];
    size_t bytes = dtype_bytes(a->a_type);
    norm no_norm = {NORM_NONE, NULL, NULL, 0};
    for (int b = 0; b < g->blocks; b++) {
        int count = block_rows(g, b);
        for (int r = 0; r < count; r++) {
            rows[r] = a->q + (size_t)(g->first + b * g->block + r) * a->q_stride;
            if (a->type == a->a_type) continue;
            char *wide = s->line + (size_t)r * (size_t)a->head_dim * bytes;
            a->kernels->elements->normalise(&no_norm, (cpu_statistics){0, 1}, rows[r], a->type, 0,
                                            a->head_dim, wide, a->a_type);
            rows[r] = wide;
        }
        a->product->pack(s->q + (size_t)(b * g->block) * (size_t)k * bytes, rows, count, a->head_dim);
    }
}

static void score(const attend *a, const scratch *s, const unit_group *g, int k) {
    size_t bytes = dtype_bytes(a->a_type),
           panel_bytes = (size_t)round_up(a->head_dim, PANEL) * PANEL * dtype_bytes(a->type);
    int panels = panels_of(g->keys), padded = panels * PANEL;
    for (int panel = 0; panel < panels; panel++)
        for (int b = 0; b < g->blocks; b++) {
            int rows = block_rows(g, b), stored = round_up(rows, a->product->row_step);
            float *c = s->scores + (size_t)(b * g->block) * (size_t)padded + (size_t)(panel * stored) * PANEL;
            cpu_product_run(a->product, rows, k, s->q + (size_t)(b * g->block) * (size_t)k * bytes,
                            a->k + (size_t)panel * panel_bytes, c, 0, nothing_ahead);
        }
}

/* p_k: keys of the group, rounded up for the product. */
static void weigh(const attend *a, const scratch *s, const unit_group *g, int p_k) {
    const void *lines[MAX_BLOCK_ROWS];
    size_t bytes = dtype_bytes(a->a_type);
    int padded = panels_of(g->keys) * PANEL;
    for (int b = 0; b < g->blocks; b++) {
        int rows = block_rows(g, b), stored = round_up(rows, a->product->row_step);
        for (int r = 0; r < rows; r++) {
            float *scores = s->scores + (size_t)(b * g->block) * (size_t)padded + (size_t)r * PANEL;
            char *line = s->line + (size_t)r * (size_t)p_k * bytes;
            a->kernels->elements->softmax(scores, stored * PANEL, unit_keys(a, g->first + b * g->block + r),
                                          p_k, a->scale, a->type, line, a->a_type);
            lines[r] = line;
        }
        a->product->pack(s->p + (size_t)(b * g->block) * (size_t)p_k * bytes, lines, rows, p_k);
    }
}

/* What the op `scores` leaves. */
static void put_scores(const attend *a, const scratch *s, const unit_group *g) {
    int padded = panels_of(g->keys) * PANEL;
    for (int b = 0; b < g->blocks; b++) {
        int rows = block_rows(g, b), stored = round_up(rows, a->product->row_step);
        for (int r = 0; r < rows; r++) {
            int unit = g->first + b * g->block + r, keys = unit_keys(a, unit);
            const float *from = s->scores + (size_t)(b * g->block) * (size_t)padded + (size_t)r * PANEL;
            float *to = a->scores + (size_t)unit * a->line;
            for (int panel = 0; panel * PANEL < keys; panel++) {
                const float *c = from + (size_t)(panel * stored) * PANEL;
                int n = keys - panel * PANEL < PANEL ? keys - panel * PANEL : PANEL;
                for (int i = 0; i < n; i++) to[panel * PANEL + i] = c[i] * a->scale;
            }
        }
    }
}

/* What the op `values` finds, as `weigh` would leave it. */
static void take_weights(const attend *a, const scratch *s, const unit_group *g, int p_k) {
    const void *lines[MAX_BLOCK_ROWS];
    size_t bytes = dtype_bytes(a->a_type);
    for (int b = 0; b < g->blocks; b++) {
        int rows = block_rows(g, b);
        for (int r = 0; r < rows; r++) {
            int unit = g->first + b * g->block + r, keys = unit_keys(a, unit);
            char *line = s->line + (size_t)r * (size_t)p_k * bytes;
            a->kernels->elements->store(a->scores + (size_t)unit * a->line, keys, line, a->a_type);
            memset(line + (size_t)keys * bytes, 0, (size_t)(p_k - keys) * bytes);
            lines[r] = line;
        }
        a->product->pack(s->p + (size_t)(b * g->block) * (size_t)p_k * bytes, lines, rows, p_k);
    }
}

/* The places main … keys-1 of every panel of V, zeros after them, [panel][k_step][32]. */
static void clean_tail(const attend *a, const scratch *s, int main, int keys) {
    int step = a->product->k_step;
    size_t bytes = dtype_bytes(a->type), piece = (size_t)step * PANEL * bytes;
    for (int panel = 0; panel < panels_of(a->head_dim); panel++) {
        char *to = s->tail + (size_t)panel * piece;
        memcpy(to, a->v + layout_value(a->type, a->capacity, main, panel * PANEL) * bytes, piece);
        for (int place = keys - main; place < step; place++)
            for (int i = 0; i < PANEL; i++)
                memset(to + layout_value(a->type, step, place, i) * bytes, 0, bytes);
    }
}

static void gather(const attend *a, const scratch *s, const unit_group *g, int p_k) {
    int step = a->product->k_step, main = g->keys / step * step;
    size_t bytes = dtype_bytes(a->a_type), v_bytes = dtype_bytes(a->type);
    if (main < g->keys) clean_tail(a, s, main, g->keys);
    for (int panel = 0; panel < panels_of(a->head_dim); panel++)
        for (int b = 0; b < g->blocks; b++) {
            int rows = block_rows(g, b),
                n = a->head_dim - panel * PANEL < PANEL ? a->head_dim - panel * PANEL : PANEL;
            const char *p = s->p + (size_t)(b * g->block) * (size_t)p_k * bytes;
            const char *v = a->v + layout_value(a->type, a->capacity, 0, panel * PANEL) * v_bytes;
            if (main) cpu_product_run(a->product, rows, main, p, v, s->c, 0, nothing_ahead);
            if (main < g->keys)
                cpu_product_run(
                    a->product, rows, step,
                    p + (size_t)main * (size_t)round_up(rows, a->product->row_step) * bytes,
                    s->tail + (size_t)panel * (size_t)step * PANEL * v_bytes, s->c, main != 0, nothing_ahead);
            for (int r = 0; r < rows; r++)
                a->kernels->elements->store(s->c + r * PANEL, n,
                                            a->out + (size_t)(g->first + b * g->block + r) * a->out_stride +
                                                (size_t)(panel * PANEL) * v_bytes,
                                            a->type);
        }
}

static void attend_units(const attend *a, int first, int end, int units, const scratch *s) {
    const cpu_product *p = a->product;
    int k = round_up(a->head_dim, p->k_step);
    if (p->enter) p->enter();
    for (; first < end; first += units) {
        unit_group g = {.first = first, .count = end - first < units ? end - first : units};
        int wanted = (g.count + p->rows - 1) / p->rows;
        g.block = round_up((g.count + wanted - 1) / wanted, p->row_step);
        g.blocks = (g.count + g.block - 1) / g.block;
        for (int u = 0; u < g.count; u++)
            if (unit_keys(a, first + u) > g.keys) g.keys = unit_keys(a, first + u);
        int p_k = round_up(g.keys, p->k_step);
        if (a->part != VALUES) {
            pack_queries(a, s, &g, k);
            score(a, s, &g, k);
        }
        if (a->part == SCORES) {
            put_scores(a, s, &g);
            continue;
        }
        if (a->part == VALUES)
            take_weights(a, s, &g, p_k);
        else
            weigh(a, s, &g, p_k);
        gather(a, s, &g, p_k);
    }
    if (p->leave) p->leave();
}

/* ---- the ops ------------------------------------------------------------------------------------------- */

static subject subject_of(const op *op) {
    size_t act = dtype_bytes(op->type);
    switch (op->kind) {
    case OP_IMAGE_ATTENTION: {
        const op_image_attention *a = &op->image_attention;
        int width = a->heads * a->head_dim, stride = a->planar ? width : 3 * width;
        size_t next = (a->planar ? (size_t)a->rows.capacity : 1) * (size_t)width * act;
        const char *k = a->qkv ? (const char *)a->qkv + next : NULL, *v = k ? k + next : NULL;
        return (subject){.part = WHOLE,
                         .rows = &a->rows,
                         .heads = a->heads,
                         .head_dim = a->head_dim,
                         .scale = a->scale,
                         .q = a->qkv,
                         .q_stride = (size_t)stride,
                         .keys = {.image = k, .stride = stride},
                         .values = {.image = v, .stride = stride},
                         .out = a->out};
    }
    case OP_SCORES: {
        const op_scores *a = &op->scores;
        return (subject){.part = SCORES,
                         .rows = &a->rows,
                         .heads = a->heads,
                         .head_dim = a->head_dim,
                         .scale = a->scale,
                         .q = a->q,
                         .q_stride = (size_t)a->q_stride,
                         .keys = a->keys,
                         .scores = a->scores,
                         .places = a->places};
    }
    case OP_VALUES: {
        const op_values *a = &op->values;
        return (subject){.part = VALUES,
                         .rows = &a->rows,
                         .heads = a->heads,
                         .head_dim = a->head_dim,
                         .scale = 1,
                         .values = a->values,
                         .out = a->out,
                         .scores = (float *)(uintptr_t)a->scores,
                         .places = a->places};
    }
    default: {
        const op_cache_attention *a = &op->cache_attention;
        size_t stride = (size_t)a->heads * (size_t)a->cache.head_dim;
        return (subject){.part = WHOLE,
                         .rows = &a->rows,
                         .heads = a->heads,
                         .head_dim = a->cache.head_dim,
                         .scale = a->scale,
                         .q = a->q,
                         .q_stride = stride,
                         .keys = {.cache = a->cache},
                         .values = {.cache = a->cache},
                         .out = a->out};
    }
    }
}

static int of_images(const subject *s) { return s->keys.stride || s->values.stride; }

typedef struct loop {
    const cpu_kernels *kernels;
    subject subject;
    dtype type;
    int step;                    /* caches: rows of a task                                                 */
    int units;                   /* worked on at once                                                      */
    char *workers;
    size_t worker_bytes;
} loop;

static attend attend_with(const loop *l) {
    const subject *o = &l->subject;
    weight_type keys = weight_of(l->type);
    int bf16 = l->type == DTYPE_BF16 && l->kernels->product[1][keys];
    return (attend){.part = o->part,
                    .kernels = l->kernels,
                    .product = l->kernels->product[bf16][keys],
                    .type = l->type,
                    .a_type = bf16 ? DTYPE_BF16 : DTYPE_F32,
                    .head_dim = o->head_dim,
                    .scale = o->scale};
}

/* Rows of a task stay within one sample, or are cut where the sample changes. */
static void cache_task(void *argument, int task, int worker) {
    const loop *l = argument;
    const subject *o = &l->subject;
    const kv_cache *cache = o->part == VALUES ? &o->values.cache : &o->keys.cache;
    attend a = attend_with(l);
    size_t bytes = dtype_bytes(a.type), block = layout_cache_bytes(cache->capacity, o->head_dim, a.type);
    int row = task * l->step, end = row + l->step < *o->rows->count ? row + l->step : *o->rows->count;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, l->units, cache->capacity,
                           o->head_dim, 0, NULL);
    a.capacity = cache->capacity;
    a.heads = o->heads;
    a.q = o->q;
    a.out = o->out;
    a.q_stride = a.out_stride = (size_t)a.head_dim * bytes;
    a.keys = o->rows->keys;
    a.scores = o->scores;
    a.line = (size_t)o->places;
    while (row < end) {
        int sample = o->rows->sample[row], first = row;
        while (row < end && o->rows->sample[row] == sample) row++;
        if (o->keys.cache.k) a.k = (const char *)o->keys.cache.k + (size_t)sample * block;
        if (o->values.cache.v) a.v = (const char *)o->values.cache.v + (size_t)sample * block;
        attend_units(&a, first * a.heads, row * a.heads, l->units, &s);
    }
}

/* Keys of one head of one image. */
static void pack_keys(const attend *a, const scratch *s, const char *keys, size_t stride) {
    size_t bytes = dtype_bytes(a->type), panel_bytes = (size_t)round_up(a->head_dim, PANEL) * PANEL * bytes;
    int d = a->head_dim, words = (int)((size_t)d * bytes / 4);
    for (int place = 0; place < a->capacity; place += PANEL) {
        const void *rows[PANEL];
        uint32_t *to = (uint32_t *)(s->k + (size_t)(place / PANEL) * panel_bytes);
        for (int i = 0; i < PANEL; i++) rows[i] = keys + (size_t)(place + i) * stride;
        a->kernels->elements->columns(to, rows, words);
        memset(to + (size_t)words * PANEL, 0, panel_bytes - (size_t)words * PANEL * 4);
        if (a->type == DTYPE_BF16 && d & 1)
            for (int i = 0; i < PANEL; i++) to[words * PANEL + i] = ((const bf16 *)rows[i])[d - 1];
    }
}

static void pack_values(const attend *a, const scratch *s, const char *values, size_t stride) {
    size_t bytes = dtype_bytes(a->type);
    int d = a->head_dim;
    for (int panel = 0; panel < panels_of(d); panel++) {
        int first = panel * PANEL, n = d - first < PANEL ? d - first : PANEL;
        for (int place = 0; place < a->capacity; place += a->type == DTYPE_BF16 ? 2 : 1) {
            char *to = s->v + layout_value(a->type, a->capacity, place, first) * bytes;
            const char *from = values + (size_t)place * stride + (size_t)first * bytes;
            if (a->type == DTYPE_BF16)
                a->kernels->elements->pairs((uint32_t *)to, (const bf16 *)from, (const bf16 *)(from + stride),
                                            n);
            else
                memcpy(to, from, (size_t)n * bytes);
        }
    }
}

static void image_task(void *argument, int task, int worker) {
    const loop *l = argument;
    const subject *o = &l->subject;
    attend a = attend_with(l);
    size_t bytes = dtype_bytes(a.type), width = (size_t)o->heads * (size_t)o->head_dim * bytes;
    size_t row = (size_t)(task / o->heads) * OPENPI_IMAGE_TOKENS, h = (size_t)(task % o->heads),
           head = h * (size_t)o->head_dim * bytes;
    size_t k_stride = (size_t)o->keys.stride * bytes, v_stride = (size_t)o->values.stride * bytes;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, l->units, OPENPI_IMAGE_TOKENS,
                           o->head_dim, 1, NULL);
    a.capacity = OPENPI_IMAGE_TOKENS;
    a.heads = 1;
    a.q_stride = o->q_stride * bytes;
    a.out_stride = width;
    a.k = s.k;
    a.v = s.v;
    if (o->part != WHOLE) {
        a.keys = o->rows->keys + row;
        a.line = (size_t)o->heads * (size_t)o->places;
        a.scores = o->scores + row * a.line + h * (size_t)o->places;
    }
    if (o->part != VALUES) {
        a.q = o->q + row * a.q_stride + head;
        pack_keys(&a, &s, (const char *)o->keys.image + row * k_stride + head, k_stride);
    }
    if (o->part != SCORES) {
        a.out = o->out + row * width + head;
        pack_values(&a, &s, (const char *)o->values.image + row * v_stride + head, v_stride);
    }
    attend_units(&a, 0, OPENPI_IMAGE_TOKENS, l->units, &s);
}

size_t cpu_attention_bytes(const cpu_kernels *kernels, pool *pool, const op *op, int units) {
    subject o = subject_of(op);
    size_t worker;
    (void)kernels;
    int image = of_images(&o);
    int capacity = image              ? OPENPI_IMAGE_TOKENS
                   : o.part == VALUES ? o.values.cache.capacity
                                      : o.keys.cache.capacity;
    scratch_of(NULL, units, capacity, o.head_dim, image, &worker);
    return worker * (size_t)pool_threads(pool);
}

void cpu_attention_run(const cpu_kernels *kernels, pool *pool, const op *op, int units, void *work) {
    loop l = {
        .kernels = kernels, .subject = subject_of(op), .type = op->type, .units = units, .workers = work};
    const subject *o = &l.subject;
    l.worker_bytes = cpu_attention_bytes(kernels, pool, op, units) / (size_t)pool_threads(pool);
    if (of_images(o)) {
        pool_run(pool, image_task, &l, *o->rows->count / OPENPI_IMAGE_TOKENS * o->heads);
        return;
    }
    int rows = *o->rows->count, threads = pool_threads(pool), most = units / o->heads;
    l.step = (rows + threads - 1) / threads;
    if (l.step > most) l.step = most;
    if (l.step < 1) l.step = 1;
    pool_run(pool, cache_task, &l, (rows + l.step - 1) / l.step);
}
