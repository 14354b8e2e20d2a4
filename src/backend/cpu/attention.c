/* Softmax attention: the same products as everywhere, keys and values in the place of weights.
 *
 * A unit is one query: a row and a head. All heads of a row share the cache's keys and values, so units of many rows
 * fill the blocks of one product; an image's heads have their own, packed into the worker's scratch first.
 *
 *   scores = Q·Kᵀ     per group of units, [block][panel of keys][rows][32]
 *   P      = softmax  row by row, exact, over the row's own keys; rounded to act, packed as an A
 *   out    = P·V      over the keys that the group's longest row sees
 *
 * The surprise: places behind the last key may hold anything, NaN too, and zero times NaN is NaN. Scores of such places
 * are columns nobody reads; but values are rows of a product, so the last piece of V is copied and cleaned. */
#include "backend/cpu/attention.h"

#include <string.h>

#include "backend/cpu/layout.h"

enum { GROUP = 48, ALIGN = 256 };

typedef struct attend {
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

static scratch scratch_of(char *base, int capacity, int head_dim, int image, size_t *bytes) {
    size_t d = (size_t)round_up(head_dim, PANEL), keys = (size_t)round_up(capacity, PANEL), used = 0, w = sizeof(float);
    size_t q = take(&used, GROUP * d * w), p = take(&used, GROUP * keys * w);
    size_t line = take(&used, MAX_BLOCK_ROWS * (keys > d ? keys : d) * w);
    size_t scores = take(&used, GROUP * keys * w), c = take(&used, MAX_BLOCK_ROWS * PANEL * w), tail = take(&used, d * K_PAD * w);
    size_t block = image ? layout_cache_bytes(capacity, head_dim, DTYPE_F32) : 0;
    size_t k = take(&used, block), v = take(&used, block);
    if (bytes) *bytes = used;
    if (!base) return (scratch){0};
    return (scratch){base + q,    base + p, base + line, (float *)(base + scores), (float *)(base + c),
                     base + tail, base + k, base + v};
}

static const cpu_ahead nothing_ahead;

/* ---- one group of units ----------------------------------------------------------------------------------- */

static int unit_keys(const attend *a, int unit) { return a->keys ? a->keys[unit / a->heads] : a->capacity; }

/* Units first … first+count-1 (at most GROUP), cut into blocks of `block`. */
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
            a->kernels->elements->normalise(&no_norm, (cpu_statistics){0, 1}, rows[r], a->type, 0, a->head_dim, wide, a->a_type);
            rows[r] = wide;
        }
        a->product->pack(s->q + (size_t)(b * g->block) * (size_t)k * bytes, rows, count, a->head_dim);
    }
}

static void score(const attend *a, const scratch *s, const unit_group *g, int k) {
    size_t bytes = dtype_bytes(a->a_type), panel_bytes = (size_t)round_up(a->head_dim, PANEL) * PANEL * dtype_bytes(a->type);
    int panels = panels_of(g->keys), padded = panels * PANEL;
    for (int panel = 0; panel < panels; panel++)
        for (int b = 0; b < g->blocks; b++) {
            int rows = block_rows(g, b), stored = round_up(rows, a->product->row_step);
            float *c = s->scores + (size_t)(b * g->block) * (size_t)padded + (size_t)(panel * stored) * PANEL;
            a->product->run(rows, k, s->q + (size_t)(b * g->block) * (size_t)k * bytes, a->k + (size_t)panel * panel_bytes, c, 0,
                            nothing_ahead);
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
            a->kernels->elements->softmax(scores, stored * PANEL, unit_keys(a, g->first + b * g->block + r), p_k, a->scale,
                                          a->type, line, a->a_type);
            lines[r] = line;
        }
        a->product->pack(s->p + (size_t)(b * g->block) * (size_t)p_k * bytes, lines, rows, p_k);
    }
}

/* The places main … keys-1 of every panel of V, zeros behind them, [panel][k_step][32]. */
static void clean_tail(const attend *a, const scratch *s, int main, int keys) {
    int step = a->product->k_step;
    size_t bytes = dtype_bytes(a->type), piece = (size_t)step * PANEL * bytes;
    for (int panel = 0; panel < panels_of(a->head_dim); panel++) {
        char *to = s->tail + (size_t)panel * piece;
        memcpy(to, a->v + layout_value(a->type, a->capacity, main, panel * PANEL) * bytes, piece);
        for (int place = keys - main; place < step; place++)
            for (int i = 0; i < PANEL; i++) memset(to + layout_value(a->type, step, place, i) * bytes, 0, bytes);
    }
}

static void gather(const attend *a, const scratch *s, const unit_group *g, int p_k) {
    int step = a->product->k_step, main = g->keys / step * step;
    size_t bytes = dtype_bytes(a->a_type), v_bytes = dtype_bytes(a->type);
    if (main < g->keys) clean_tail(a, s, main, g->keys);
    for (int panel = 0; panel < panels_of(a->head_dim); panel++)
        for (int b = 0; b < g->blocks; b++) {
            int rows = block_rows(g, b), n = a->head_dim - panel * PANEL < PANEL ? a->head_dim - panel * PANEL : PANEL;
            const char *p = s->p + (size_t)(b * g->block) * (size_t)p_k * bytes;
            const char *v = a->v + layout_value(a->type, a->capacity, 0, panel * PANEL) * v_bytes;
            if (main) a->product->run(rows, main, p, v, s->c, 0, nothing_ahead);
            if (main < g->keys)
                a->product->run(rows, step, p + (size_t)main * (size_t)round_up(rows, a->product->row_step) * bytes,
                                s->tail + (size_t)panel * (size_t)step * PANEL * v_bytes, s->c, main != 0, nothing_ahead);
            for (int r = 0; r < rows; r++)
                a->kernels->elements->store(
                    s->c + r * PANEL, n,
                    a->out + (size_t)(g->first + b * g->block + r) * a->out_stride + (size_t)(panel * PANEL) * v_bytes, a->type);
        }
}

static void attend_units(const attend *a, int first, int end, const scratch *s) {
    const cpu_product *p = a->product;
    int k = round_up(a->head_dim, p->k_step);
    if (p->enter) p->enter();
    for (; first < end; first += GROUP) {
        unit_group g = {.first = first, .count = end - first < GROUP ? end - first : GROUP};
        int wanted = (g.count + p->rows - 1) / p->rows;
        g.block = round_up((g.count + wanted - 1) / wanted, p->row_step);
        g.blocks = (g.count + g.block - 1) / g.block;
        for (int u = 0; u < g.count; u++)
            if (unit_keys(a, first + u) > g.keys) g.keys = unit_keys(a, first + u);
        int p_k = round_up(g.keys, p->k_step);
        pack_queries(a, s, &g, k);
        score(a, s, &g, k);
        weigh(a, s, &g, p_k);
        gather(a, s, &g, p_k);
    }
    if (p->leave) p->leave();
}

/* ---- the two ops ------------------------------------------------------------------------------------------ */

typedef struct loop {
    const cpu_kernels *kernels;
    const op *op;
    int step;                    /* cache attention: rows of a task                                        */
    char *workers;
    size_t worker_bytes;
} loop;

static attend attend_with(const cpu_kernels *kernels, dtype type) {
    int bf16 = type == DTYPE_BF16 && kernels->product[1][1];
    return (attend){.kernels = kernels, .product = kernels->product[bf16][type == DTYPE_BF16], .type = type,
                    .a_type = bf16 ? DTYPE_BF16 : DTYPE_F32};
}

/* Rows of a task stay within one sample, or are cut where the sample changes. */
static void cache_task(void *argument, int task, int worker) {
    const loop *l = argument;
    const op_cache_attention *o = &l->op->cache_attention;
    attend a = attend_with(l->kernels, l->op->type);
    size_t bytes = dtype_bytes(a.type), block = layout_cache_bytes(o->cache.capacity, o->cache.head_dim, a.type);
    int row = task * l->step, end = row + l->step < *o->rows.count ? row + l->step : *o->rows.count;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, o->cache.capacity, o->cache.head_dim, 0, NULL);
    a.capacity = o->cache.capacity;
    a.head_dim = o->cache.head_dim;
    a.heads = o->heads;
    a.scale = o->scale;
    a.q = o->q;
    a.out = o->out;
    a.q_stride = a.out_stride = (size_t)a.head_dim * bytes;
    a.keys = o->rows.keys;
    while (row < end) {
        int sample = o->rows.sample[row], first = row;
        while (row < end && o->rows.sample[row] == sample) row++;
        a.k = (const char *)o->cache.k + (size_t)sample * block;
        a.v = (const char *)o->cache.v + (size_t)sample * block;
        attend_units(&a, first * a.heads, row * a.heads, &s);
    }
}

/* Keys and values of one head of one image. */
static void pack_image(const attend *a, const scratch *s, const char *keys, const char *values, size_t stride) {
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
    for (int panel = 0; panel < panels_of(d); panel++) {
        int first = panel * PANEL, n = d - first < PANEL ? d - first : PANEL;
        for (int place = 0; place < a->capacity; place += a->type == DTYPE_BF16 ? 2 : 1) {
            char *to = s->v + layout_value(a->type, a->capacity, place, first) * bytes;
            const char *from = values + (size_t)place * stride + (size_t)first * bytes;
            if (a->type == DTYPE_BF16)
                a->kernels->elements->pairs((uint32_t *)to, (const bf16 *)from, (const bf16 *)(from + stride), n);
            else
                memcpy(to, from, (size_t)n * bytes);
        }
    }
}

static void image_task(void *argument, int task, int worker) {
    const loop *l = argument;
    const op_image_attention *o = &l->op->image_attention;
    attend a = attend_with(l->kernels, l->op->type);
    size_t bytes = dtype_bytes(a.type), width = (size_t)o->heads * (size_t)o->head_dim * bytes;
    size_t row = (size_t)(task / o->heads) * OPENPI_IMAGE_TOKENS, head = (size_t)(task % o->heads) * (size_t)o->head_dim * bytes;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, OPENPI_IMAGE_TOKENS, o->head_dim, 1, NULL);
    a.capacity = OPENPI_IMAGE_TOKENS;
    a.head_dim = o->head_dim;
    a.heads = 1;
    a.scale = o->scale;
    a.q = (const char *)o->qkv + row * 3 * width + head;
    a.out = (char *)o->out + row * width + head;
    a.q_stride = 3 * width;
    a.out_stride = width;
    a.k = s.k;
    a.v = s.v;
    pack_image(&a, &s, a.q + width, a.q + 2 * width, 3 * width);
    attend_units(&a, 0, OPENPI_IMAGE_TOKENS, &s);
}

size_t cpu_attention_bytes(const cpu_kernels *kernels, pool *pool, const op *op) {
    size_t worker;
    (void)kernels;
    if (op->kind == OP_IMAGE_ATTENTION)
        scratch_of(NULL, OPENPI_IMAGE_TOKENS, op->image_attention.head_dim, 1, &worker);
    else
        scratch_of(NULL, op->cache_attention.cache.capacity, op->cache_attention.cache.head_dim, 0, &worker);
    return worker * (size_t)pool_threads(pool);
}

void cpu_attention_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work) {
    loop l = {.kernels = kernels, .op = op, .workers = work};
    l.worker_bytes = cpu_attention_bytes(kernels, pool, op) / (size_t)pool_threads(pool);
    if (op->kind == OP_IMAGE_ATTENTION) {
        pool_run(pool, image_task, &l, *op->image_attention.rows.count / OPENPI_IMAGE_TOKENS * op->image_attention.heads);
        return;
    }
    int rows = *op->cache_attention.rows.count, threads = pool_threads(pool), most = GROUP / op->cache_attention.heads;
    l.step = (rows + threads - 1) / threads;
    if (l.step > most) l.step = most;
    if (l.step < 1) l.step = 1;
    pool_run(pool, cache_task, &l, (rows + l.step - 1) / l.step);
}
