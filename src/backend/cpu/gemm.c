/* Rows times packed weights: packs A, shares panels and blocks of rows out over the pool, passes finished
 * tiles to the op's epilogue.
 *
 *   span     rows that are packed at once; more rows than that (large batches) are done span by span
 *   block    rows of one tile, at most product.rows; sizes are evened out, so that no block is small
 *   chunk    blocks of one task
 *   group    panels of one task
 *   cut      a piece of k, of which A and B stay in cache; C waits in the worker's scratch meanwhile
 *
 * Note: with few rows every worker packs A for itself. Packing is then cheaper than waiting for each other,
 * and the loop that streams the weights starts at once. No choice made here changes a bit of the result. */
#include "backend/cpu/gemm.h"

#include <string.h>

#include "backend/cpu/layout.h"
#include "ops/int8_rows.h"
#include "ops/limits.h"

enum {
    SPAN = 1024,                 /* most rows packed at once                                              */
    OWN = 48 * 1024,             /* elements of A up to which each worker packs its own                   */
    SEGMENT = 640,               /* elements of a row normalised before they are packed; holds a patch    */
    TILES = 8192,                /* rows · panels of C that a worker's scratch holds                      */
    GROUP = 64,                  /* k that share a scale, where a format has groups                       */
    FEW_BLOCKS = 8,              /* up to here a panel is read once and meets all rows                    */
    TASKS_A_THREAD = 8, CHUNKS = 16, ALIGN = 256, LINE = 64,
    INTEGERS = SPAN * (sizeof(float) + sizeof(int32_t)),   /* bytes of a span's `integers`                */
    PATCH = 14, PATCHES = 16, PATCH_INPUTS = PATCH * PATCH * 3,
};

typedef struct geometry {
    int k, cut;                  /* k padded for the product; piece of it                                 */
    int first, rows;             /* rows of this span                                                     */
    int block, blocks;           /* rows of a block, number of blocks                                     */
    int chunk, chunks;           /* blocks of a chunk, number of chunks                                   */
    int panels, group, groups;
    int own;
} geometry;

/* Rows that are made of integers. */
typedef struct integers {
    float *scales;               /* [row]                                                                 */
    int32_t *bias;               /* [row] what B's bias adds to its sums                                  */
} integers;

typedef struct loop {
    const cpu_gemm *gemm;
    const cpu_product *product;
    geometry g;
    dtype a_type;
    float pixel[256];            /* u8 to float, as ops.h defines it                                      */
    int floats;                  /* pictures are float                                                    */
    char *a;                     /* packed by all                                                         */
    integers integers;           /* [SPAN] rows of the span                                               */
    int *counted;                /* [1] 1: a worker has counted what its rows of the span lose            */
    char *workers;               /* [threads][worker_bytes]                                               */
    size_t worker_bytes;
} loop;

/* A worker's own memory. */
typedef struct scratch {
    int32_t *packed;             /* [1] its own A is packed                                               */
    char *a, *segment;
    float *c;
    float *group_sums, *group_scales;      /* [MAX_BLOCK_ROWS][32]; [groups][32] of a panel               */
    integers integers;           /* [SPAN] rows of its own A                                              */
} scratch;

static size_t align(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static int divide(int n, int by) { return (n + by - 1) / by; }
static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

/* The type of rows before they are packed, or become integers. */
static dtype a_type(const cpu_gemm *m) {
    int bf16 = !m->patches && m->type == DTYPE_BF16 && m->weight->input == INPUT_ACT &&
               m->kernels->product[CPU_BF16][m->weight->type];
    return bf16 ? DTYPE_BF16 : DTYPE_F32;
}

/* 1: products sum integers. 0, although rows are integers: their codes are summed as numbers, for want of
 * such a product. */
static int sums_integers(const cpu_gemm *m) {
    return m->weight->input == INPUT_INT8 && m->kernels->product[CPU_INT8][m->weight->type];
}

static const cpu_product *product_of(const cpu_gemm *m) {
    cpu_input input = sums_integers(m) ? CPU_INT8 : a_type(m) == DTYPE_BF16 ? CPU_BF16 : CPU_F32;
    return m->kernels->product[input][m->weight->type];
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static integers integers_at(char *base) { return (integers){(float *)base, (int32_t *)base + SPAN}; }

static scratch scratch_of(char *base, size_t *bytes) {
    size_t a = ALIGN, segment = a + align(OWN * sizeof(float) + MAX_BLOCK_ROWS * K_PAD * sizeof(float));
    size_t c = segment + align((size_t)MAX_BLOCK_ROWS * SEGMENT * sizeof(float));
    size_t sums = c + align((size_t)(TILES + MAX_BLOCK_ROWS) * PANEL * sizeof(float));
    size_t scales = sums + align((size_t)MAX_BLOCK_ROWS * PANEL * sizeof(float));
    size_t own = scales + align((size_t)(LIMIT_INPUTS / GROUP) * PANEL * sizeof(float));
    if (bytes) *bytes = own + align(INTEGERS);
    if (!base) return (scratch){0};
    return (scratch){.packed = (int32_t *)base,
                     .a = base + a,
                     .segment = base + segment,
                     .c = (float *)(base + c),
                     .group_sums = (float *)(base + sums),
                     .group_scales = (float *)(base + scales),
                     .integers = integers_at(base + own)};
}

static int spans_of(int rows) { return most(divide(rows, SPAN), 1); }

static size_t packed_bytes(const cpu_gemm *m, int rows) {
    const cpu_product *p = product_of(m);
    return align((size_t)round_up(rows, p->row_step) * (size_t)round_up(m->weight->k, p->k_step) *
                 (size_t)p->a_bytes);
}

size_t cpu_gemm_bytes(const cpu_gemm *m) {
    size_t worker;
    scratch_of(NULL, &worker);
    return packed_bytes(m, least(m->rows, SPAN)) + INTEGERS + worker * (size_t)pool_threads(m->pool);
}

int cpu_gemm_streams(const cpu_gemm *m) {
    return divide(most(m->rows, 1), product_of(m)->rows) <= FEW_BLOCKS;
}

/* ---- A ------------------------------------------------------------------------------------------------- */

/* The inputs of one patch: channel, row, column. */
static void read_patch(const loop *l, int row, float *out) {
    const op_patch_embed *a = l->gemm->patches;
    int patch = row % (PATCHES * PATCHES);
    size_t corner =
        (size_t)(row / (PATCHES * PATCHES)) * OPENPI_IMAGE_SIZE + (size_t)(patch / PATCHES * PATCH);
    for (int y = 0; y < PATCH; y++) {
        size_t at = ((corner + (size_t)y) * OPENPI_IMAGE_SIZE + (size_t)(patch % PATCHES * PATCH)) * 3;
        for (int x = 0; x < PATCH; x++)
            for (int c = 0; c < 3; c++, at++)
                out[c * PATCH * PATCH + y * PATCH + x] =
                    l->floats ? ((const float *)a->images)[at] : l->pixel[((const uint8_t *)a->images)[at]];
    }
}

static const char *x_row(const cpu_gemm *m, int row) {
    if (m->group) row = row / m->group * m->stride + m->offset + row % m->group;
    return (const char *)m->x + (size_t)row * (size_t)m->weight->k * dtype_bytes(m->type);
}

/* Elements at … at+count-1 of rows first … first+rows-1, normalised, to the rows of `segment`. */
static void normalise_segment(const loop *l, const cpu_statistics *statistics, int first, int rows, int at,
                              int count, char *segment) {
    const cpu_gemm *m = l->gemm;
    for (int r = 0; r < rows; r++) {
        const norm own = norm_of_row(&m->norm, m->set, first + r);
        m->kernels->elements->normalise(&own, statistics[r], x_row(m, first + r), m->type, at, count,
                                        segment + (size_t)r * SEGMENT * dtype_bytes(l->a_type), l->a_type);
    }
}

/* Integer rows: their scales, given or from a pass over all of k. */
static void find_int8_rows(const loop *l, const cpu_statistics *statistics, int first, int rows,
                           char *segment, int8_row *out) {
    uint32_t tops[MAX_BLOCK_ROWS] = {0};
    const cpu_elements *elements = l->gemm->kernels->elements;
    int k = l->gemm->weight->k, fixed = l->gemm->weight->row_scale > 0;
    for (int r = 0; fixed && r < rows; r++) out[r] = int8_row_fixed(l->gemm->weight->row_scale);
    if (fixed) return;
    for (int at = 0; at < k; at += SEGMENT) {
        int count = least(k - at, SEGMENT);
        normalise_segment(l, statistics, first, rows, at, count, segment);
        for (int r = 0; r < rows; r++)
            tops[r] = elements->int8_top((const float *)segment + (size_t)r * SEGMENT, count, tops[r]);
    }
    for (int r = 0; r < rows; r++) out[r] = int8_row_of(tops[r]);
}

/* A segment's numbers become codes, at their place; lost: of each row, where all have one scale. */
static void encode_segment(const loop *l, const int8_row *rows, int count, char *segment, int elements,
                           int32_t *bias, int8_lost *lost) {
    const cpu_gemm *m = l->gemm;
    for (int r = 0; r < count; r++) {
        float *x = (float *)segment + (size_t)r * SEGMENT;
        if (m->weight->row_scale > 0) int8_row_clip(rows[r], x, elements, &lost[r]);
        if (sums_integers(m))
            bias[r] += l->product->bias *
                       m->kernels->elements->int8_codes(x, elements, rows[r].inverse, (int8_t *)x);
        else
            int8_row_codes(rows[r], x, elements, x);
    }
}

/* Rows first … first+rows-1 to a packed block; `integers`: the block's. counts: where what the rows lose is
 * counted, or NULL. */
static void pack_block(const loop *l, int first, int rows, char *to, char *segment, integers integers,
                       uint32_t *counts) {
    const cpu_gemm *m = l->gemm;
    int8_lost lost[MAX_BLOCK_ROWS] = {{0}};
    const void *from[MAX_BLOCK_ROWS];
    cpu_statistics statistics[MAX_BLOCK_ROWS];
    int8_row own[MAX_BLOCK_ROWS];
    size_t bytes = dtype_bytes(l->a_type), stored = (size_t)round_up(rows, l->product->row_step);
    int k = m->weight->k, int8 = m->weight->input == INPUT_INT8;
    if (m->patches) {
        for (int r = 0; r < rows; r++) {
            from[r] = segment + (size_t)r * SEGMENT * bytes;
            read_patch(l, first + r, (float *)from[r]);
        }
        l->product->pack(to, from, rows, k);
        return;
    }
    if (m->norm.kind == NORM_NONE && m->type == l->a_type && !int8) {
        for (int r = 0; r < rows; r++) from[r] = x_row(m, first + r);
        l->product->pack(to, from, rows, k);
        return;
    }
    for (int r = 0; r < rows; r++) {
        statistics[r] = m->kernels->elements->statistics(&m->norm, x_row(m, first + r), m->type, k);
        from[r] = segment + (size_t)r * SEGMENT * bytes;
    }
    if (int8) find_int8_rows(l, statistics, first, rows, segment, own);
    for (int r = 0; int8 && r < rows; r++) integers.scales[r] = own[r].scale, integers.bias[r] = 0;
    for (int at = 0; at < k; at += SEGMENT) {
        int count = least(k - at, SEGMENT);
        normalise_segment(l, statistics, first, rows, at, count, segment);
        if (int8) encode_segment(l, own, rows, segment, count, integers.bias, lost);
        l->product->pack(to + (size_t)at * stored * (size_t)l->product->a_bytes, from, rows, count);
    }
    for (int r = 0; r < rows; r++) int8_row_count(counts, lost[r]);
}

static char *block_at(const loop *l, char *a, int block) {
    return a + (size_t)block * (size_t)l->g.block * (size_t)l->g.k * (size_t)l->product->a_bytes;
}

static integers integers_from(integers all, int row) {
    return (integers){all.scales + row, all.bias + row};
}

static int block_rows(const geometry *g, int block) { return least(g->block, g->rows - block * g->block); }

static void pack_task(void *argument, int task, int worker) {
    const loop *l = argument;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, NULL);
    pack_block(l, l->g.first + task * l->g.block, block_rows(&l->g, task), block_at(l, l->a, task),
               s.segment, integers_from(l->integers, task * l->g.block), l->gemm->weight->counts);
}

/* ---- products ------------------------------------------------------------------------------------------ */

typedef struct corner {
    int panel, panel_end, block, block_end;
} corner;

static const char *panel_at(const loop *l, int panel, int at) {
    const matrix *w = l->gemm->weight;
    return (const char *)w->data + (size_t)panel * layout_panel_bytes(w->type, w->k) +
           PANEL * weight_row_bytes(&weight_formats[w->type], at);
}

/* Share i of n of the next piece of B: it is prefetched while this one is used. */
static cpu_ahead share_of(const loop *l, const char *piece, int i, int n) {
    int lines = (int)(PANEL * weight_row_bytes(&weight_formats[l->gemm->weight->type], l->g.cut)) / LINE;
    int from = (int)((int64_t)lines * i / n), to = (int)((int64_t)lines * (i + 1) / n);
    return (cpu_ahead){piece + (size_t)from * LINE, to - from};
}

/* Scales of a panel's groups from `at` on, for `count` of k: [group][32]. */
static void find_scales(const matrix *w, const cpu_elements *elements, int panel, int at, int count,
                        float *to) {
    int outputs[PANEL], groups = weight_groups(&weight_formats[w->type], w->k);
    const void *rows[PANEL];
    layout_columns(w, panel, outputs);
    for (int i = 0; i < PANEL; i++)
        rows[i] = outputs[i] < 0 ? NULL : w->scales + (size_t)outputs[i] * (size_t)groups + at / GROUP;
    elements->columns((uint32_t *)to, rows, divide(count, GROUP));
}

/* The product of a tile over a cut of k, where each group of k has a scale: group by group. */
static void run_groups(const loop *l, const scratch *s, int rows, const char *a, int panel, int at, int cut,
                       float *c) {
    const cpu_elements *elements = l->gemm->kernels->elements;
    size_t stored = (size_t)round_up(rows, l->product->row_step) * (size_t)l->product->a_bytes;
    find_scales(l->gemm->weight, elements, panel, at, cut, s->group_scales);
    for (int done = 0, g = 0; done < cut; done += GROUP, g++) {
        cpu_product_run(l->product, rows, least(GROUP, cut - done), a + (size_t)done * stored,
                        panel_at(l, panel, at + done), s->group_sums, 0, (cpu_ahead){NULL, 0});
        elements->scale_add(c, s->group_sums, rows, s->group_scales + g * PANEL, at + done != 0);
    }
}

/* Sums of integers become numbers, in the order of ops.h. `own`: of the tile's rows. */
static void scale_tile(const cpu_gemm *m, int panel, integers own, int rows, float *c) {
    int outputs[PANEL];
    float scales[PANEL];
    layout_columns(m->weight, panel, outputs);
    for (int i = 0; i < PANEL; i++) scales[i] = outputs[i] < 0 ? 0 : m->weight->scales[outputs[i]];
    if (sums_integers(m)) {
        m->kernels->elements->int8_scale(c, rows, own.bias, own.scales, scales);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PANEL; i++) c[r * PANEL + i] *= own.scales[r] * scales[i];
}

/* One piece of k over all tiles of a corner. */
static void run_cut(const loop *l, char *a, const scratch *s, corner t, int at) {
    const geometry *g = &l->g;
    int cut = least(g->cut, g->k - at), last = at + cut == g->k, single = g->cut >= g->k;
    int panels = t.panel_end - t.panel, blocks = t.block_end - t.block, outer = l->product->panel_outer;
    for (int i = 0; i < panels * blocks; i++) {
        int p = outer ? i / blocks : i % panels, b = outer ? i % blocks : i / panels;
        int panel = t.panel + p, block = t.block + b, rows = block_rows(g, block);
        size_t stored = (size_t)round_up(rows, l->product->row_step);
        const char *a_at = block_at(l, a, block) + (size_t)at * stored * (size_t)l->product->a_bytes;
        float *c = s->c + (single ? 0 : (size_t)((p * blocks + b) * g->block) * PANEL);
        cpu_ahead ahead = {NULL, 0};
        if (outer && p + 1 < panels)
            ahead = share_of(l, panel_at(l, panel + 1, at), b, blocks);
        else if (outer && !last)
            ahead = share_of(l, panel_at(l, t.panel, at + cut), b, blocks);
        if (weight_formats[l->gemm->weight->type].group > 0)
            run_groups(l, s, rows, a_at, panel, at, cut, c);
        else
            cpu_product_run(l->product, rows, cut, a_at, panel_at(l, panel, at), c, at != 0, ahead);
        if (last && l->gemm->weight->input == INPUT_INT8)
            scale_tile(l->gemm, panel,
                       integers_from(g->own ? s->integers : l->integers, block * g->block), rows, c);
        if (last) l->gemm->finisher(&l->gemm->finish, panel, g->first + block * g->block, rows, c);
    }
}

/* All rows of the span, for one worker. What they lose is counted by the first. */
static void pack_own(const loop *l, const scratch *s) {
    const geometry *g = &l->g;
    uint32_t *counts = l->gemm->weight->counts;
    if (counts && __atomic_exchange_n(l->counted, 1, __ATOMIC_RELAXED)) counts = NULL;
    for (int b = 0; b < g->blocks; b++)
        pack_block(l, g->first + b * g->block, block_rows(g, b), block_at(l, s->a, b), s->segment,
                   integers_from(s->integers, b * g->block), counts);
}

static void gemm_task(void *argument, int task, int worker) {
    const loop *l = argument;
    const geometry *g = &l->g;
    scratch s = scratch_of(l->workers + (size_t)worker * l->worker_bytes, NULL);
    char *a = l->a;
    int group = task / g->chunks, chunk = task % g->chunks;
    corner t = {group * g->group, least((group + 1) * g->group, g->panels), chunk * g->chunk,
                least((chunk + 1) * g->chunk, g->blocks)};
    if (g->own) {
        a = s.a;
        if (!*s.packed) pack_own(l, &s);
        *s.packed = 1;
    }
    if (l->product->enter) l->product->enter();
    if (g->blocks <= FEW_BLOCKS)               /* panel by panel, in the order of memory: a stream */
        for (corner one = t; one.panel < t.panel_end; one.panel++) {
            one.panel_end = one.panel + 1;
            for (int at = 0; at < g->k; at += g->cut) run_cut(l, a, &s, one, at);
        }
    else
        for (int at = 0; at < g->k; at += g->cut) run_cut(l, a, &s, t, at);
    if (l->product->leave) l->product->leave();
}

/* ---- sharing out --------------------------------------------------------------------------------------- */

/* Few rows: reading the weights from memory limits. Every task is a stretch of panels. */
static void share_stream(geometry *g, int tasks, int threads) {
    g->chunk = g->blocks;
    g->group = most(1, g->panels / (tasks * threads));
}

/* Many rows: the cheapest of all groups and chunks, counting rounds of tasks, what every task has to
 * fetch, and half a task for threads that do not finish together. */
static void share_blocks(geometry *g, const cpu_product *p, const cpu_blocking *by, int threads) {
    int most_panels = by->panels ? by->panels : p->panels, fit = by->fit ? most(by->fit, 0) : p->a_fit;
    double best = 0;
    g->group = g->chunk = 1;
    for (int group = 1; group <= most_panels; group++)
        for (int chunks = 1; chunks <= least(CHUNKS, g->blocks); chunks++) {
            int chunk = divide(g->blocks, chunks),
                tasks = divide(g->panels, group) * divide(g->blocks, chunk);
            double task = group * chunk * (1 + p->a_cost / group + p->b_cost / chunk);
            double cost = task * (divide(tasks, threads) + (threads > 1 ? 0.5 : 0));
            if (group * chunk * g->block > TILES || (best > 0 && cost >= best)) continue;
            if (fit && chunk > 1 && (int64_t)chunk * g->block * g->cut * p->a_bytes > fit)
                continue;
            best = cost;
            g->group = group;
            g->chunk = chunk;
        }
}

static geometry plan_span(const loop *l, int first, int rows) {
    const cpu_gemm *m = l->gemm;
    const cpu_product *p = l->product;
    const cpu_blocking *by = &m->blocking;
    int k_block = by->cut ? by->cut : p->k_block;
    geometry g = {.first = first,
                  .rows = rows,
                  .k = round_up(m->weight->k, p->k_step),
                  .panels = layout_panels(m->weight)};
    g.block = round_up(divide(rows, divide(rows, p->rows)), p->row_step);
    g.blocks = divide(rows, g.block);
    g.cut = g.blocks == 1 ? g.k
                          : round_up(divide(g.k, divide(g.k, k_block)), layout_k_step(m->weight->type));
    g.own = !by->share && (size_t)round_up(rows, p->row_step) * (size_t)g.k <= OWN;
    if (g.blocks <= FEW_BLOCKS)
        share_stream(&g, by->tasks ? by->tasks : TASKS_A_THREAD, pool_threads(m->pool));
    else
        share_blocks(&g, p, by, pool_threads(m->pool));
    g.chunks = divide(g.blocks, g.chunk);
    g.groups = divide(g.panels, g.group);
    return g;
}

void cpu_gemm_run(const cpu_gemm *m, void *work) {
    int threads = pool_threads(m->pool), counted;
    loop l = {
        .gemm = m, .product = product_of(m), .a_type = a_type(m), .a = work, .counted = &counted};
    if (m->patches) {
        l.floats = *m->patches->pixels == OPENPI_PIXELS_F32;
        for (int i = 0; i < 256; i++) l.pixel[i] = (float)i / 255.0f * 2.0f - 1.0f;
    }
    scratch_of(NULL, &l.worker_bytes);
    char *integers = (char *)work + packed_bytes(m, least(m->rows, SPAN));
    l.integers = integers_at(integers);
    l.workers = integers + INTEGERS;
    int span = round_up(divide(m->rows, spans_of(m->rows)), MAX_BLOCK_ROWS);
    for (int first = 0; first < m->rows; first += span) {
        l.g = plan_span(&l, first, least(span, m->rows - first));
        counted = 0;
        if (l.g.own)
            for (int i = 0; i < threads; i++)
                *scratch_of(l.workers + (size_t)i * l.worker_bytes, NULL).packed = 0;
        else
            pool_run(m->pool, pack_task, &l, l.g.blocks);
        pool_run(m->pool, gemm_task, &l, l.g.groups * l.g.chunks);
    }
}
