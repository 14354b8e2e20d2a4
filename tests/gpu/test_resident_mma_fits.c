/* Which cards take the layers of a denoise step as one launch of resident_mma without a tuning table, and
 * with which ring: by what the driver says when the device opens. Over a driver that is not there, so this
 * runs everywhere. */
#include "backend/gpu/cuda/resident/portable/resident_mma.h"
#include "fake_launches.h"

enum { STEPS = 4, LEAST = 58 };

static openpi_error error = OPENPI_ERROR_INIT;
static launches launched;

/* A card: compute capability times ten, multiprocessors, KB of shared memory a multiprocessor. */
typedef struct card {
    int capability, multiprocessors, kb;
} card;

static const card rtx4090 = {89, 128, 100};

static const char full[] = "\"expert\":[1024,4096]", narrow[] = "\"expert\":[960,4096]";

/* With the full model's heads, `expert` and one layer: how many launches are the resident kernel's, and each
 * has the ring of `slots`. */
static void check(card is, const char *expert, int heads, uint32_t off, int expected, int slots) {
    openpi_engine *engine = NULL;
    char dims[128], kernel[32];
    snprintf(dims, sizeof dims, "{\"vision\":[72,1,1,24],\"vlm\":[24,1,%d,256,40],%s,\"vocab\":2048}",
             heads, expert);
    snprintf(kernel, sizeof kernel, "resident_mma_%d", slots);
    reset();
    fake.most_blocks = 1;
    fake.capability = is.capability;
    fake.multiprocessors = is.multiprocessors;
    fake.all_shared_bytes = is.kb << 10;
    fake.shared_bytes = (is.kb - 1) << 10;
    if (fake_engine_of(dims, OPENPI_PI0, "portable", off, &engine, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
    openpi_session *session = fake_session(engine, 1, 10, STEPS);
    fake_launches(session, kernel, &launched);
    assert_int_equal(launched.resident, expected);
    for (int i = 0; i < launched.count; i++) {
        const launch_record *l = &launched.list[i];
        if (strcmp(l->kernel, kernel)) {
            assert_null(strstr(l->kernel, "resident_mma"));
            continue;
        }
        assert_int_equal(l->grid[0], is.multiprocessors);
        assert_int_equal(l->block[0], RESIDENT_MMA_THREADS);
        assert_int_equal(l->shared_bytes, (unsigned)slots * RESIDENT_MMA_SLOT + RESIDENT_MMA_BESIDE);
    }
    assert_int_equal(((gpu_device *)engine->device)->whole_device_recordings > 0, expected > 0);
    fake_close(session, engine);
    fake_nothing_kept();
}

/* Wherever no kernel starts early, and multiprocessors are enough; the ring is the longest that fits. */
static void test_cards(void **state) {
    (void)state;
    check(rtx4090, full, 8, 0, STEPS, 6);
    check((card){86, 82, 100}, full, 8, 0, STEPS, 6);
    check((card){80, 108, 164}, full, 8, 0, STEPS, 14);
    check((card){89, LEAST, 100}, full, 8, 0, STEPS, 6);
    check((card){89, LEAST - 1, 100}, full, 8, 0, 0, 6);
    check((card){87, 16, 164}, full, 8, 0, 0, 14);
    check((card){90, 132, 228}, full, 8, 0, 0, 22);
    check((card){120, 170, 100}, full, 8, 0, 0, 6);
}

static void test_what_it_takes(void **state) {
    (void)state;
    check(rtx4090, full, 8, 1u << SWITCH_PERSISTENT_DENOISE, 0, 6);
    check(rtx4090, full, 8, 1u << SWITCH_DEPENDENT_LAUNCH, STEPS, 6);
    check(rtx4090, full, 4, 0, 0, 6);
    check(rtx4090, narrow, 8, 0, 0, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),
        cmocka_unit_test(test_what_it_takes),
    };
    return cmocka_run_group_tests_name("resident_mma fits", tests, NULL, NULL);
}
