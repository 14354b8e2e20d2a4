/* labels: skips */
/* ffn=int8x8+static on a card: every choice of gate_up leaves the definition's codes to the bit, and down
 * gives the same bits from codes and from numbers. Without a GPU every test is counted and skipped. */
#include "gpu_engine.h"
#include "left_codes.h"

static void check(const char *dims, int cameras) {
    openpi_engine *engine;
    openpi_status status = codes_open("cuda:0", dims, NULL, &engine);
    if (status == OPENPI_NO_DEVICE) {
        print_message("skipped: %s\n", error.message);
        without_gpu = 1;
        return;
    }
    must(status);
    int choices = codes_check(engine, cameras);
    print_message("           %d choices, %u numbers clipped\n", choices, left.lost[INT8_CLIPPED]);
    openpi_engine_close(engine);
}

static void test_ragged(void **state) {
    (void)state;
    check(CODES_RAGGED, 1);
}

static void test_full(void **state) {
    (void)state;
    for (int cameras = 1; cameras <= OPENPI_CAMERAS && !without_gpu; cameras++) check(CODES_FULL, cameras);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ragged), cmocka_unit_test(test_full)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return verdict(cmocka_run_group_tests_name("gpu codes", tests, NULL, NULL));
}
