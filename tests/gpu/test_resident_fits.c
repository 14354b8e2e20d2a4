/* Whether the resident denoise kernels are used, by what the driver says when the device opens: their blocks
 * wait for each other, so all clusters have to be on the card at once: 15, and 64 of the kernels for many
 * rows. Over a driver that is not there, so this runs everywhere. The card holds no resident vision
 * kernel (test_vision_fits), which is asked for last. */
#include "backend/gpu/cuda/resident/many/resident_long.h"
#include "fake_launches.h"

/* Four kernels for few rows, shifts among them and apart, with bf16 and int8 weights, an exchange each. */
enum {
    HORIZON = 10,
    STEPS = 4,
    KERNELS = 4,
    EXCHANGE = KERNELS * (RESIDENT_SUMS_BYTES + RESIDENT_LAYERS * RESIDENT_NEW_BYTES)
};

static openpi_error error = OPENPI_ERROR_INIT;

static openpi_variant variant;

/* A model with the action expert's sizes and one layer, on a card that holds so many clusters. */
static openpi_status open_engine(int clusters, const char *path, uint32_t off, openpi_engine **engine) {
    static const char dims[] = "{\"vision\":[72,1,1,24],\"vlm\":[24,1,8,256,40],"
                               "\"expert\":[1024,4096],\"vocab\":2048}";
    fake.clusters = clusters;
    return fake_engine_of(dims, variant, path, off, engine, &error);
}

static int horizon = HORIZON, samples = 1;

static openpi_session *open_session(openpi_engine *engine) {
    return fake_session(engine, samples, horizon, STEPS);
}

static int calls_of(const char *name) {
    int count = 0;
    assert_true(fake.calls <= LOG);
    for (int i = 0; i < fake.calls; i++) count += !strcmp(fake.log[i], name);
    return count;
}

/* On a card that holds so many clusters: is the kernel available, is its memory taken, is it launched? A call
 * works with it and without. */
static void check(int clusters, const char *path, uint32_t off, int available, launches *launched) {
    openpi_engine *engine;
    reset();
    assert_int_equal(open_engine(clusters, path, off, &engine), OPENPI_OK);
    assert_int_equal(calls_of("max_clusters"), clusters && strcmp(path, "portable") ? KERNELS + 3 : 0);
    assert_int_equal(!switch_off(gpu_missing(engine->device), SWITCH_PERSISTENT_DENOISE), available);
    assert_int_equal(fake.memory, engine->model->bytes + (available ? EXCHANGE : 0));
    openpi_session *session = open_session(engine);
    fake_launches(session, "resident_denoise", launched);
    /* The first step has the state token among its rows, so it is a launch of its own. */
    assert_int_equal(launched->resident, available && !off ? 2 : 0);
    assert_int_equal(((gpu_device *)engine->device)->whole_device_recordings, launched->resident > 0);
    assert_int_equal(fake_infer(session, 3, NULL, &error), OPENPI_OK);
    fake_close(session, engine);
}

static launches launched;

static void enough_clusters(void **state) {
    (void)state;
    for (int clusters = RESIDENT_CLUSTERS; clusters <= RESIDENT_CLUSTERS + 1; clusters++) {
        check(clusters, "hopper", 0, 1, &launched);
        assert_int_equal(fake.asked.cluster, WIDE_CLUSTER);        /* the last one asked for         */
        assert_int_equal(fake.asked.blocks, LONG_BLOCKS);
        assert_int_equal(fake.asked.threads, WIDE_THREADS);
        assert_int_equal(fake.asked.shared_bytes, WIDE_SHARED);
    }
}

/* How much shared memory the resident launches of π0.5 with so many actions have. */
static void check_shared(int actions, int launches_expected, unsigned shared_bytes) {
    openpi_engine *engine;
    reset();
    variant = OPENPI_PI05, horizon = actions;
    assert_int_equal(open_engine(RESIDENT_CLUSTERS, "hopper", 0, &engine), OPENPI_OK);
    openpi_session *session = open_session(engine);
    fake_launches(session, "resident_denoise", &launched);
    assert_int_equal(launched.resident, launches_expected);
    for (int i = 0; i < launched.count; i++)
        if (!strcmp(launched.list[i].kernel, "resident_denoise"))
            assert_int_equal(launched.list[i].shared_bytes, shared_bytes);
    fake_close(session, engine);
    variant = OPENPI_PI0, horizon = HORIZON;
}

/* The shift is one of 12 rows, or apart from 16. */
static void shifts_apart(void **state) {
    (void)state;
    check_shared(11, 1, RESIDENT_SHARED);
    check_shared(12, 1, RESIDENT_APART_SHARED);
    check_shared(15, 1, RESIDENT_APART_SHARED);
    check_shared(16, 1, RESIDENT_APART_SHARED);
    check_shared(17, 0, 0);
}

/* More than four samples, or 64 rows of several, are the other kernel's for many rows. */
static int is_wide(int batch, int actions) { return batch > 1 && batch * (actions + 1) > LONG_ROWS; }

/* Is the kernel for these rows available on a card that holds so many clusters, and what is it launched
 * with? */
static void check_long(int clusters, uint32_t off, int available, int batch, int actions) {
    openpi_engine *engine;
    const int expected = available && !off ? STEPS : 0;
    reset();
    assert_int_equal(open_engine(clusters, "hopper", off, &engine), OPENPI_OK);
    assert_int_equal(fake.memory,
                     engine->model->bytes + EXCHANGE + (available ? LONG_STATE + WIDE_STATE : 0));
    horizon = actions, samples = batch;
    openpi_session *session = open_session(engine);
    const int wide = is_wide(batch, actions);
    const char *const name = wide ? "resident_wide" : "resident_long";
    fake_launches(session, name, &launched);
    assert_int_equal(launched.resident, expected);
    assert_int_equal(((gpu_device *)engine->device)->whole_device_recordings, expected > 0);
    for (int i = 0; i < launched.count; i++) {
        const launch_record *l = &launched.list[i];
        if (strcmp(l->kernel, name)) continue;
        assert_int_equal(l->grid[0], 128);
        assert_int_equal(l->grid[1] * l->grid[2], 1);
        assert_int_equal(l->block[0], wide ? WIDE_THREADS : LONG_THREADS);
        assert_int_equal(l->cluster, 2);
        assert_int_equal(l->shared_bytes, wide ? WIDE_SHARED : LONG_SHARED);
    }
    fake_close(session, engine);
    horizon = HORIZON, samples = 1;
}

static void many_rows(void **state) {
    static const int shapes[][2] = {{1, 17}, {2, 10}, {4, 15}, {5, 12}, {8, 10}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        const int batch = shapes[i][0], actions = shapes[i][1];
        check_long(64, 0, 1, batch, actions);
        check_long(66, 0, 1, batch, actions);
        check_long(64, 1u << SWITCH_PERSISTENT_DENOISE, 1, batch, actions);
        check_long(63, 0, 0, batch, actions);
    }
}

static gpu_resident_long given;

static void keep_arguments(const cuda_launch *launch, const void *arguments) {
    if (launch->shared_bytes == LONG_SHARED || launch->shared_bytes == WIDE_SHARED)
        memcpy(&given, arguments, sizeof given);
}

/* Lines of the family's memory, in boxes of `lines`. */
static void check_lines(const gpu_tensor_map *map, const void *memory, int bytes, int lines) {
    fake_map_is(map, memory, CUDA_MAP_BF16, CUDA_MAP_SWIZZLE_128, 2, (uint64_t[]){64, (uint64_t)bytes / 128},
                (unsigned[]){64, (unsigned)lines}, (uint64_t[]){128});
}

/* [sample][layer][4][place][64], the model has one layer; boxes of `chunks` times 64 dims. */
static void check_cache(const gpu_tensor_map *map, const void *base, uint64_t places, uint64_t batch,
                        unsigned chunks) {
    fake_map_is(map, base, CUDA_MAP_BF16, CUDA_MAP_SWIZZLE_128, 5, (uint64_t[]){64, places, 4, 1, batch},
                (unsigned[]){64, 64, chunks, 1, 1}, (uint64_t[]){512, 128, 512 * places, 512 * places});
}

/* The last step's arguments are what its first op says. Of several samples attention's units have 64 rows, 16
 * for each of four heads, or a sample's rows of all heads. */
static void check_arguments(int batch, int actions, int heads_log2, int height, int unit_height) {
    openpi_engine *engine;
    reset();
    variant = OPENPI_PI05, horizon = actions, samples = batch;
    assert_int_equal(open_engine(64, "hopper", 0, &engine), OPENPI_OK);
    memset(&given, 0, sizeof given);
    fake.on_launch = keep_arguments;
    openpi_session *session = open_session(engine);
    const op *ops = session->plan->ops, *op = ops + session->plan->count;
    do op--;
    while (op > ops && op->kind != OP_NORM_QKV);
    const op_norm_qkv *q = &op->norm_qkv;
    assert_int_equal(q->rows.capacity, batch * actions);
    assert_int_equal(given.rows, batch * actions);
    assert_int_equal(given.each, actions);
    assert_int_equal(given.shifts, 1);
    assert_int_equal(given.heads_log2, heads_log2);
    assert_int_equal(given.unit_height, unit_height);
    assert_int_equal(given.sample_bytes, 512 * q->cache.capacity);
    assert_ptr_equal(given.count, q->rows.count);
    assert_ptr_equal(given.position, q->rows.position);
    assert_ptr_equal(given.keys, q->rows.keys);
    assert_ptr_equal(given.k_cache, q->cache.k);
    assert_ptr_equal(given.v_cache, q->cache.v);
    const int wide = is_wide(batch, actions), bytes = wide ? WIDE_STATE : LONG_STATE;
    const unsigned chunks = wide ? 1 : 2;
    check_lines(&given.state, given.memory, bytes, 2 * height);
    check_lines(&given.queries, given.memory, bytes, (int)chunks * unit_height);
    check_cache(&given.k, q->cache.k, (uint64_t)q->cache.capacity, (uint64_t)batch, chunks);
    check_cache(&given.v, q->cache.v, (uint64_t)q->cache.capacity, (uint64_t)batch, chunks);
    fake_close(session, engine);
    variant = OPENPI_PI0, horizon = HORIZON, samples = 1;
}

static void arguments_of_samples(void **state) {
    (void)state;
    check_arguments(1, 17, 0, 24, 24);
    check_arguments(1, 50, 0, 56, 56);
    check_arguments(2, 10, 2, 24, 64);
    check_arguments(3, 16, 2, 56, 64);
    check_arguments(4, 15, 2, 64, 64);
    check_arguments(4, 16, 3, 72, 128);
    check_arguments(8, 10, 3, 88, 80);
}

/* An error is not an answer here either. */
static void many_rows_fail(void **state) {
    static const char *const calls[] = {"max_clusters", "allocate", "fill"};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        openpi_engine *engine = NULL;
        reset();
        assert_int_equal(open_engine(64, "hopper", 0, &engine), OPENPI_OK);
        openpi_engine_close(engine);
        engine = NULL;
        const int at = fake_call_at(calls[i], i == 2 ? 6 : 3); /* the three families before it fill twice   */
        reset();
        fake_fail_from(at, calls[i], SICK);
        assert_int_equal(open_engine(64, "hopper", 0, &engine), OPENPI_NO_DEVICE);
        fake_refused(engine, &error, "at resident_long_hopper");
    }
}

/* One cluster too few, or a driver that cannot tell: the launches are those of a card that holds the kernel,
 * with the kernel switched off. */
static void too_few_clusters(void **state) {
    static const int few[] = {RESIDENT_CLUSTERS - 1, 1, 0};
    static launches switched_off;
    (void)state;
    check(RESIDENT_CLUSTERS, "hopper", 1u << SWITCH_PERSISTENT_DENOISE, 1, &switched_off);
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        check(few[i], "hopper", 0, 0, &launched);
        fake_launches_same(&launched, &switched_off);
    }
}

static void other_kernels(void **state) {
    (void)state;
    check(RESIDENT_CLUSTERS, "portable", 0, 0, &launched);
}

/* An error is not an answer: the device does not open, and nothing is kept. The same for the memory of the
 * kernel's exchange, which is the first that is taken. */
static void a_driver_that_fails(void **state) {
    static const struct {
        const char *call;
        int code;
        openpi_status status;
        const char *says;
    } failures[] = {
        {"max_clusters", SICK, OPENPI_NO_DEVICE,
         "does not open: unspecified launch failure (error 719) at resident_hopper"},
        {"max_clusters", CUDA_NOT_SUPPORTED, OPENPI_NO_DEVICE,
         "does not open: some error (error 801) at resident_hopper"},
        {"allocate", CUDA_OUT_OF_MEMORY, OPENPI_NO_MEMORY,
         "out of memory on cuda:0 while opening it (resident_hopper)"},
        {"fill", SICK, OPENPI_NO_DEVICE,
         "does not open: unspecified launch failure (error 719) at resident_hopper"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        openpi_engine *engine = NULL;
        reset();
        fake_fail_from(0, failures[i].call, failures[i].code);
        assert_int_equal(open_engine(RESIDENT_CLUSTERS, "hopper", 0, &engine), failures[i].status);
        fake_refused(engine, &error, failures[i].says);
    }
}

/* The same where all kernels before the last have their memory already. */
static void a_driver_that_fails_later(void **state) {
    static const char *const calls[] = {"max_clusters", "allocate", "fill"};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        openpi_engine *engine = NULL;
        reset();
        assert_int_equal(open_engine(RESIDENT_CLUSTERS, "hopper", 0, &engine), OPENPI_OK);
        openpi_engine_close(engine);
        engine = NULL;
        /* Two fills a kernel; the one for long horizons is asked for in between, and has no memory. */
        const int at = fake_call_at(calls[i], i == 0 ? 4 : i == 1 ? 3 : 6);
        reset();
        fake_fail_from(at, calls[i], SICK);
        assert_int_equal(open_engine(RESIDENT_CLUSTERS, "hopper", 0, &engine), OPENPI_NO_DEVICE);
        fake_refused(engine, &error, "at resident_shifts_hopper");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(enough_clusters),
        cmocka_unit_test(shifts_apart),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(arguments_of_samples),
        cmocka_unit_test(many_rows_fail),
        cmocka_unit_test(too_few_clusters),
        cmocka_unit_test(other_kernels),
        cmocka_unit_test(a_driver_that_fails),
        cmocka_unit_test(a_driver_that_fails_later),
    };
    return cmocka_run_group_tests_name("resident fits", tests, NULL, NULL);
}
