/* Whether the resident vision kernel is used, by what the driver says when the device opens: its blocks, one
 * a multiprocessor, wait for each other, so all of them have to be on the card at once. And what it is
 * launched with. Over a driver that is not there, so this runs everywhere. */
#include "backend/gpu/cuda/resident/few/resident.h"
#include "backend/gpu/cuda/resident/few/resident_family.h"
#include "backend/gpu/cuda/resident/vision/vision.h"
#include "fake_launches.h"

enum { LAYERS = 2, MULTIPROCESSORS = 132 };

/* The family's memory: of each image counters, moments of 256 rows for 24 parts of the columns, two centers a
 * row; sums of 128 x 112 a multiprocessor; hidden values of 768 rows. */
enum {
    COUNTERS = 128 + 22 * 8 * 4 + 64,
    SUMS_AT = 3 * (COUNTERS + 256 * 24 * 8 + 256 * 2 * 4),
    SUMS = 128 * 112 * 4,
    HIDDEN_PITCH = 4352,
    HIDDEN_BYTES = 768 * HIDDEN_PITCH * 2
};
static size_t hidden_at(int multiprocessors) { return SUMS_AT + (size_t)multiprocessors * SUMS; }

static openpi_error error = OPENPI_ERROR_INIT;

static launches launched;

/* A model with the vision tower's sizes and two layers, on a card that holds so many blocks. */
static openpi_status open_engine(int blocks, const char *path, uint32_t off, openpi_engine **engine) {
    static const char dims[] = "{\"vision\":[1152,2,16,4304],\"vlm\":[24,1,8,256,40],"
                               "\"expert\":[24,40],\"vocab\":2048}";
    fake.single_blocks = blocks;
    return fake_engine_of(dims, OPENPI_PI0, path, off, engine, &error);
}

static openpi_session *open_session(openpi_engine *engine, int batch) {
    return fake_session(engine, batch, 10, 2);     /* 10 as fake_infer expects                              */
}

/* On a card that holds so many blocks: is the kernel available, is its memory taken, is it launched? A call
 * works with it and without. */
static void check(int blocks, const char *path, uint32_t off, int batch, int available, launches *to) {
    openpi_engine *engine;
    const int expected = available && !off && batch == 1,
              multiprocessors = fake.multiprocessors ? fake.multiprocessors : MULTIPROCESSORS;
    const size_t memory = available ? hidden_at(multiprocessors) + HIDDEN_BYTES : 0;
    assert_int_equal(open_engine(blocks, path, off, &engine), OPENPI_OK);
    assert_int_equal(!switch_off(gpu_missing(engine->device), SWITCH_PERSISTENT_VISION), available);
    assert_true(switch_off(gpu_missing(engine->device), SWITCH_PERSISTENT_DENOISE));
    assert_int_equal(fake.memory, engine->model->bytes + memory);
    openpi_session *session = open_session(engine, batch);
    fake_launches(session, "resident_vision", to);
    assert_int_equal(to->resident, expected);
    assert_int_equal(((gpu_device *)engine->device)->whole_device_recordings, expected);
    assert_int_equal(fake_infer(session, 3, NULL, &error), OPENPI_OK);
    fake_close(session, engine);
}

static void enough_blocks(void **state) {
    (void)state;
    for (int blocks = MULTIPROCESSORS; blocks <= MULTIPROCESSORS + 1; blocks++) {
        reset();
        check(blocks, "hopper", 0, 1, 1, &launched);
        assert_int_equal(fake.asked_single.cluster, 1);
        assert_int_equal(fake.asked_single.blocks, MULTIPROCESSORS);
        assert_int_equal(fake.asked_single.threads, VISION_THREADS);
        assert_int_equal(fake.asked_single.shared_bytes, VISION_SHARED);
        for (int i = 0; i < launched.count; i++) {
            const launch_record *l = &launched.list[i];
            if (strcmp(l->kernel, "resident_vision")) continue;
            assert_int_equal(l->ops, LAYERS * LAYER_OPS);
            assert_int_equal(l->grid[0], MULTIPROCESSORS);
            assert_int_equal(l->grid[1] * l->grid[2], 1);
            assert_int_equal(l->block[0], VISION_THREADS);
            assert_int_equal(l->cluster, 1);
            assert_int_equal(l->shared_bytes, VISION_SHARED);
        }
    }
}

/* One block too few, a driver that cannot tell, too little shared memory, a card with fewer multiprocessors
 * than images: the launches are those of a card that holds the kernel, with the kernel switched off. */
static void too_small(void **state) {
    static const struct {
        int blocks, shared_bytes;
    } cards[] = {{MULTIPROCESSORS - 1, 0}, {1, 0}, {0, 0}, {MULTIPROCESSORS, 2048 + VISION_SHARED - 1}};
    static launches switched_off;
    (void)state;
    reset();
    check(MULTIPROCESSORS, "hopper", 1u << SWITCH_PERSISTENT_VISION, 1, 1, &switched_off);
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        reset();
        fake.shared_bytes = cards[i].shared_bytes;
        check(cards[i].blocks, "hopper", 0, 1, 0, &launched);
        fake_launches_same(&launched, &switched_off);
    }
    for (int multiprocessors = 1; multiprocessors <= VISION_IMAGES; multiprocessors++) {
        reset();
        fake.multiprocessors = multiprocessors;
        check(MULTIPROCESSORS, "hopper", 0, 1, multiprocessors >= VISION_IMAGES, &launched);
    }
}

static void other_kernels(void **state) {
    (void)state;
    reset();
    check(MULTIPROCESSORS, "portable", 0, 1, 0, &launched);
    assert_int_equal(fake.asked_single.blocks, 0);
    reset();
    check(MULTIPROCESSORS, "hopper", 0, 2, 1, &launched);  /* six images */
}

/* ---- arguments --------------------------------------------------------------------------------------- */

enum { LAUNCHES = 3 };
static gpu_vision given[LAUNCHES];
static int given_count;

static void keep_arguments(const cuda_launch *launch, const void *arguments) {
    if (launch->block[0] != VISION_THREADS || launch->shared_bytes != VISION_SHARED) return;
    assert_in_range(given_count, 0, LAUNCHES - 1);
    memcpy(&given[given_count++], arguments, sizeof *given);
}

/* A bf16 matrix of so many rows, in boxes of 64 x 64. */
static void check_rows(const gpu_tensor_map *map, const void *base, uint64_t k, uint64_t pitch,
                       uint64_t rows) {
    fake_map_is(map, base, CUDA_MAP_BF16, CUDA_MAP_SWIZZLE_128, 2, (uint64_t[]){k, rows},
                (unsigned[]){64, 64}, (uint64_t[]){2 * pitch});
}

static void check_heads(const gpu_tensor_map *map, const void *base, int swizzle, unsigned first,
                        unsigned box_rows, uint64_t rows) {
    fake_map_is(map, base, CUDA_MAP_BF16, swizzle, 4, (uint64_t[]){72, 16, 3, rows},
                (unsigned[]){first, 1, 1, box_rows}, (uint64_t[]){144, 2304, 6912});
}

/* Atoms of a matrix of n columns: 256 words each, of one k those of all groups of 8 columns. */
static void check_weights(const gpu_tensor_map *map, const matrix *m, uint64_t n, uint64_t k,
                          unsigned groups) {
    const uint64_t blocks = (k + 63) / 64;
    assert_int_equal(m->n, n);
    assert_int_equal(m->k, k);
    fake_map_is(map, m->data, CUDA_MAP_FLOAT32, CUDA_MAP_SWIZZLE_NONE, 3, (uint64_t[]){256, blocks, n / 8},
                (unsigned[]){256, 1, groups}, (uint64_t[]){1024, 1024 * blocks});
}

/* What was prepared for a layer: of qkv and then of fc1 sums and biases, in whole lines of 128 bytes. */
enum { PREPARED_FC1 = 2 * 3456, PREPARED = 15552 };
static const float *prepared_of(const model *m, int layer) {
    assert_non_null(m->blocks[BLOCK_VISION_LAYERS].prepared);
    return (const float *)m->blocks[BLOCK_VISION_LAYERS].prepared + layer * PREPARED;
}

static void check_layer(const vision_layer_weights *layer, const op *ops, const float *prepared) {
    static const unsigned boxes[VISION_MATRICES][VISION_MAPS] = VISION_BOXES;
    const op_norm_linear *qkv = &ops[LAYER_QKV].norm_linear, *fc1 = &ops[LAYER_UP].norm_linear;
    const op_linear_residual *out = &ops[LAYER_OUT].linear_residual,
                             *fc2 = &ops[LAYER_DOWN].linear_residual;
    for (int i = 0; i < VISION_MAPS; i++) {
        check_weights(&layer->maps[i], &qkv->weight, 3456, 1152, boxes[VISION_MATRIX_QKV][i]);
        check_weights(&layer->maps[2 + i], &out->weight, 1152, 1152, boxes[VISION_MATRIX_OUT][i]);
        check_weights(&layer->maps[4 + i], &fc1->weight, 4304, 1152, boxes[VISION_MATRIX_FC1][i]);
    }
    check_weights(&layer->maps[6], &fc2->weight, 1152, 4304, boxes[VISION_MATRIX_FC2][0]);
    assert_ptr_equal(layer->bias[VISION_MATRIX_QKV], prepared + 3456);
    assert_ptr_equal(layer->bias[VISION_MATRIX_OUT], out->bias);
    assert_ptr_equal(layer->bias[VISION_MATRIX_FC1], prepared + PREPARED_FC1 + 4304);
    assert_ptr_equal(layer->bias[VISION_MATRIX_FC2], fc2->bias);
    assert_ptr_equal(layer->sums[0], prepared);
    assert_ptr_equal(layer->sums[1], prepared + PREPARED_FC1);
    assert_ptr_equal(layer->norm_weight[0], qkv->norm.weight);
    assert_ptr_equal(layer->norm_weight[1], fc1->norm.weight);
}

/* What is stored, by images: columns in groups of 8 and rows of a box. */
static void check_stores(const gpu_vision *p, uint64_t rows) {
    static const unsigned boxes[VISION_IMAGES][VISION_STORES][2] = VISION_STORE_BOXES;
    for (int images = 0; images < VISION_IMAGES; images++)
        for (int i = 0; i < VISION_STORES; i++) {
            const int to_qkv = i == VISION_STORE_QKV, to_hidden = i == VISION_STORE_HIDDEN;
            const void *to = to_qkv ? p->to_qkv : to_hidden ? p->to_hidden
                             : i == VISION_STORE_ATTENDED ? p->to_attended
                             : i == VISION_STORE_X ? p->x : p->to_scaled;
            const uint64_t columns = to_qkv ? 3456 : to_hidden ? 4304 : 1152,
                           pitch = to_hidden ? HIDDEN_PITCH : columns;
            fake_map_is(&p->stores[images][i], to, CUDA_MAP_BF16, CUDA_MAP_SWIZZLE_NONE, 2,
                        (uint64_t[]){columns, rows},
                        (unsigned[]){8 * boxes[images][i][0], boxes[images][i][1]}, (uint64_t[]){2 * pitch});
        }
}

/* The family's memory, of which the driver cleared what belongs to images and nothing else. */
static void check_state(const gpu_vision *p, int multiprocessors) {
    const char *const state = (const char *)p->images;
    assert_int_equal(fake_bytes_at(state), hidden_at(multiprocessors) + HIDDEN_BYTES);
    for (int i = 0; i < SUMS_AT; i++) assert_int_equal(state[i], 0);
    assert_ptr_equal(p->sums, state + SUMS_AT);
    assert_ptr_equal(p->to_hidden, state + hidden_at(multiprocessors));
    assert_int_equal(hidden_at(multiprocessors) % 128, 0);
}

static void check_arguments(const gpu_vision *p, const plan *plan, const op *ops, uint64_t rows,
                            int multiprocessors) {
    const op_norm_linear *qkv = &ops[LAYER_QKV].norm_linear;
    assert_int_equal(qkv->rows.capacity, rows);
    assert_non_null(qkv->rows.count);
    assert_ptr_equal(p->count, qkv->rows.count);
    assert_ptr_equal(p->x, ops[LAYER_DOWN].linear_residual.x);
    assert_ptr_equal(p->to_qkv, plan->buffers.vision_qkv);
    assert_ptr_equal(p->to_attended, plan->buffers.vision_o);
    assert_int_equal(p->depth, LAYERS);
    assert_true(p->eps == qkv->norm.eps && p->eps > 0);
    assert_true(p->scale == ops[LAYER_ATTENTION].image_attention.scale && p->scale > 0);
    check_state(p, multiprocessors);
    check_rows(&p->scaled, p->to_scaled, 1152, 1152, rows);
    check_rows(&p->attended, p->to_attended, 1152, 1152, rows);
    check_rows(&p->hidden, p->to_hidden, 4304, HIDDEN_PITCH, rows);
    check_heads(&p->rows_main, p->to_qkv, CUDA_MAP_SWIZZLE_128, 64, 64, rows);
    check_heads(&p->rows_rest, p->to_qkv, CUDA_MAP_SWIZZLE_NONE, 8, 64, rows);
    check_heads(&p->keys_main, p->to_qkv, CUDA_MAP_SWIZZLE_128, 64, 256, rows);
    check_heads(&p->keys_rest, p->to_qkv, CUDA_MAP_SWIZZLE_NONE, 8, 256, rows);
    check_stores(p, rows);
    for (int i = 0; i < LAYERS; i++)
        check_layer(&p->layers[i], ops + i * LAYER_OPS, prepared_of(plan->model, i));
}

/* The arguments are what the ops say, also where each image is a pass of its own; scaled rows are at the
 * beginning of the work block, which is large enough. */
static void check_launches(int multiprocessors, uint32_t off, int launches_expected) {
    openpi_engine *engine;
    const size_t scaled_bytes = (size_t)768 * 1152 * sizeof(bf16);
    const int images = 3 / launches_expected;
    reset();
    fake.multiprocessors = multiprocessors;
    assert_int_equal(open_engine(multiprocessors, "hopper", off, &engine), OPENPI_OK);
    fake.on_launch = keep_arguments;
    given_count = 0;
    openpi_session *session = open_session(engine, 1);
    assert_int_equal(given_count, launches_expected);
    const plan *plan = session->plan;
    const op *ops = plan->ops;
    for (int i = 0; i < given_count; i++, ops += LAYER_OPS * LAYERS) {
        while (strcmp(ops->name, "vision.qkv")) ops++;
        check_arguments(&given[i], plan, ops, (uint64_t)images * 256, multiprocessors);
        assert_ptr_equal(given[i].to_scaled, (char *)session->work + GPU_COUNTERS * sizeof(uint32_t));
        /* Also where single ops need less. */
        assert_true(backend_cuda.work_bytes(engine->device, ops, 0) >= scaled_bytes);
    }
    assert_ptr_equal(given[0].x, plan->buffers.vision_x);
    assert_true(backend_cuda.work_bytes(engine->device, plan->ops, plan->count) >= scaled_bytes);
    fake_close(session, engine);
}

static void arguments(void **state) {
    (void)state;
    check_launches(MULTIPROCESSORS, 0, 1);
    check_launches(114, 0, 1);
    check_launches(VISION_IMAGES, 0, 1);
    check_launches(MULTIPROCESSORS, 1u << SWITCH_BATCHED_VISION, 3);
}

/* The rest of a tower finds what was prepared for its own layers. */
static void the_rest(void **state) {
    openpi_engine *engine;
    (void)state;
    reset();
    assert_int_equal(open_engine(MULTIPROCESSORS, "hopper", 0, &engine), OPENPI_OK);
    openpi_session *session = open_session(engine, 1);
    const op_list all = plan_list(session->plan);
    for (int layer = 0; layer < LAYERS; layer++) {
        op_block rest;
        assert_true(block_at(&all, (int)(all.blocks->ops - all.ops) + layer * LAYER_OPS, &rest));
        const op_list list = {rest.ops, rest.count, &rest, 1};
        fake.on_launch = keep_arguments;
        given_count = 0;
        assert_int_equal(backend_cuda.run(engine->device, list, session->work, NULL, &error), OPENPI_OK);
        assert_int_equal(given_count, 1);
        assert_int_equal(given->depth, LAYERS - layer);
        check_layer(&given->layers[0], rest.ops, prepared_of(engine->model, layer));
    }
    fake_close(session, engine);
}

/* ---- what is prepared ---------------------------------------------------------------------------------- */

enum { FOLDS = 2 * LAYERS, FOLD_THREADS = 256 };
static gpu_vision_fold folded[FOLDS];
static int folded_count;

/* Other kernels that run when a model is loaded have as many threads, and larger arguments. */
static void keep_folds(const cuda_launch *launch, const void *arguments) {
    gpu_vision_fold fold;
    if (launch->block[0] != FOLD_THREADS) return;
    memcpy(&fold, arguments, sizeof fold);
    if (fold.k != 1152 || (unsigned)fold.n != 8 * launch->grid[0]) return;
    assert_int_equal(launch->attribute_count, 0);          /* waits for the launch before */
    assert_in_range(folded_count, 0, FOLDS - 1);
    folded[folded_count++] = fold;
}

static void check_fold(const gpu_vision_fold *f, const norm *norm, const matrix *weight, const float *bias,
                       const float *out) {
    assert_ptr_equal(f->weight, weight->data);
    assert_ptr_equal(f->norm_weight, norm->weight);
    assert_ptr_equal(f->norm_bias, norm->bias);
    assert_ptr_equal(f->bias, bias);
    assert_non_null(out);
    assert_ptr_equal(f->out, out);
    assert_int_equal(f->n, weight->n);
    assert_int_equal(f->k, 1152);
}

/* When a model is loaded, both norms of each layer are folded, also where the kernel is switched off, which
 * may change. */
static void folds(void **state) {
    (void)state;
    for (int off = 0; off < 2; off++) {
        openpi_engine *engine;
        reset();
        fake.on_launch = keep_folds;
        folded_count = 0;
        assert_int_equal(open_engine(MULTIPROCESSORS, "hopper", off ? 1u << SWITCH_PERSISTENT_VISION : 0,
                                     &engine),
                         OPENPI_OK);
        assert_int_equal(folded_count, FOLDS);
        for (int i = 0; i < LAYERS; i++) {
            const vision_layer *v = &engine->model->vision[i];
            const float *prepared = prepared_of(engine->model, i);
            check_fold(&folded[2 * i], &v->norm1, &v->qkv, v->qkv_bias, prepared);
            check_fold(&folded[2 * i + 1], &v->norm2, &v->fc1, v->fc1_bias, prepared + PREPARED_FC1);
        }
        openpi_engine_close(engine);
    }
}

/* Folds of an engine, and the memory of its weights that they take. */
static void expect_folds(const char *dims, int blocks, uint32_t off, int folds_expected) {
    openpi_engine *engine;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    reset();
    fake.single_blocks = blocks;
    fake.on_launch = keep_folds;
    folded_count = 0;
    assert_int_equal(openpi_dims_parse(dims, &synthetic.dims, &error), OPENPI_OK);
    assert_int_equal(fake_engine_open(&backend_cuda, &synthetic, "hopper", off, &engine, &error), OPENPI_OK);
    assert_int_equal(folded_count, folds_expected);
    const block_weights *tower = &engine->model->blocks[BLOCK_VISION_LAYERS];
    assert_int_equal(!tower->prepared, !folds_expected);
    assert_int_equal(backend_cuda.prepared_bytes(engine->device, tower), folds_expected / 2 * PREPARED * 4);
    for (int i = BLOCK_PREFIX_LAYERS; i < BLOCK_KINDS; i++) assert_null(engine->model->blocks[i].prepared);
    openpi_engine_close(engine);
    fake_nothing_kept();
}

/* Not on a card that does not hold the kernel, nor for a tower that it does not compute. */
static void folds_where_legal(void **state) {
#define TOWER(vision) "{\"vision\":" vision ",\"vlm\":[24,1,8,256,40],\"expert\":[24,40],\"vocab\":2048}"
    static const char whole[] = TOWER("[1152,2,16,4304]");
    (void)state;
    expect_folds(whole, MULTIPROCESSORS, 0, FOLDS);
    expect_folds(whole, MULTIPROCESSORS - 1, 0, 0);
    expect_folds(whole, MULTIPROCESSORS, 1u << SWITCH_FUSED_ATTENTION, FOLDS);     /* may change, too     */
    expect_folds(whole, MULTIPROCESSORS, 1u << SWITCH_FUSED_QKV, 0);
    expect_folds(whole, MULTIPROCESSORS, 1u << SWITCH_FUSED_POINTWISE, 0);
    expect_folds(whole, MULTIPROCESSORS, 1u << SWITCH_PACKED_WEIGHTS, 0);
    expect_folds(TOWER("[1152,2,16,4288]"), MULTIPROCESSORS, 0, 0);
#undef TOWER
}

/* Layers of which nothing is prepared are not taken. */
static void not_prepared(void **state) {
    openpi_engine *engine;
    (void)state;
    reset();
    assert_int_equal(open_engine(MULTIPROCESSORS, "hopper", 0, &engine), OPENPI_OK);
    for (int prepared = 1; prepared >= 0; prepared--) {
        if (!prepared) engine->model->blocks[BLOCK_VISION_LAYERS].prepared = NULL;
        openpi_session *session = open_session(engine, 1);
        fake_launches(session, "resident_vision", &launched);
        assert_int_equal(launched.resident, prepared);
        openpi_session_close(session);
    }
    openpi_engine_close(engine);
    fake_nothing_kept();
}

/* ---- failures ---------------------------------------------------------------------------------------- */

/* An error is not an answer: the device does not open, and nothing is kept. Without clusters on the card the
 * resident denoise kernels ask only, all; with them those for few rows take their memory first, in one piece
 * each, which they fill in two. */
static void a_driver_that_fails(void **state) {
    enum { FEW = RESIDENT_LONG, DENOISE = RESIDENT_WIDE + 1 };     /* families: for few rows, and all       */
    static const struct {
        int clusters, before;              /* calls of that name before that of this family                 */
        const char *call;
        int code;
        openpi_status status;
        const char *says;
    } failures[] = {
        {0, DENOISE, "max_clusters", SICK, OPENPI_NO_DEVICE,
         "does not open: unspecified launch failure (error 719) at vision_hopper"},
        {0, 0, "allocate", CUDA_OUT_OF_MEMORY, OPENPI_NO_MEMORY,
         "out of memory on cuda:0 while opening it (vision_hopper)"},
        {0, 0, "fill", SICK, OPENPI_NO_DEVICE,
         "does not open: unspecified launch failure (error 719) at vision_hopper"},
        {RESIDENT_CLUSTERS, FEW, "allocate", SICK, OPENPI_NO_DEVICE, "at vision_hopper"},
        {RESIDENT_CLUSTERS, 2 * FEW, "fill", SICK, OPENPI_NO_DEVICE, "at vision_hopper"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        openpi_engine *engine = NULL;
        reset();
        fake.clusters = failures[i].clusters;
        assert_int_equal(open_engine(MULTIPROCESSORS, "hopper", 0, &engine), OPENPI_OK);
        openpi_engine_close(engine);
        engine = NULL;
        const int at = fake_call_at(failures[i].call, failures[i].before);
        reset();
        fake.clusters = failures[i].clusters;
        fake_fail_from(at, failures[i].call, failures[i].code);
        assert_int_equal(open_engine(MULTIPROCESSORS, "hopper", 0, &engine), failures[i].status);
        fake_refused(engine, &error, failures[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(enough_blocks), cmocka_unit_test(too_small),
        cmocka_unit_test(other_kernels), cmocka_unit_test(arguments),
        cmocka_unit_test(the_rest),      cmocka_unit_test(folds),
        cmocka_unit_test(not_prepared),  cmocka_unit_test(folds_where_legal),
        cmocka_unit_test(a_driver_that_fails),
    };
    return cmocka_run_group_tests_name("vision fits", tests, NULL, NULL);
}
