/* What inspect says of devices: needed, free, fits or not; and that a device which is full or lost is
 * described like any other. The devices are the CPU under other names, which report what a test gives
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/free_memory.h"
#include "base/report.h"
#include "openpi_internal.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- made-up devices ------------------------------------------------------------------------------ */

static uint64_t free_bytes, all_bytes;

static int two_devices(openpi_device *devices, int capacity) {
    assert_true(capacity >= 2);
    int count = backend_cpu.devices(devices, capacity);
    assert_int_equal(count, 1);
    devices[1] = devices[0];
    strcpy(devices[0].name, "toy:0");
    strcpy(devices[1].name, "toy:1");
    return 2;
}

static openpi_status tell_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *why) {
    (void)device, (void)why;
    *unused = free_bytes;
    *total = all_bytes;
    return OPENPI_OK;
}

static openpi_status lose_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *why) {
    (void)device, (void)unused, (void)total;
    return report(why, OPENPI_DEVICE_LOST, "toy: the device is lost");
}

static openpi_status take_pinned(device *device, size_t bytes, const char *what, void **out,
                                 openpi_error *why) {
    (void)device, (void)bytes, (void)what, (void)out;
    return report(why, OPENPI_NO_MEMORY, "not asked for by this test");
}

static backend toy;
static int own_memory = 1;                             /* as a GPU has it                              */
static int shared_memory;                              /* as an integrated GPU has it                  */

static openpi_status open_as_cpu(const char *which, const device_options *options, device **out,
                                 openpi_error *why) {
    assert_true(!strncmp(which, "toy:", 4));
    TRY(backend_cpu.open("cpu", options, out, why));
    (*out)->backend = &toy;
    (*out)->shared_memory = shared_memory;
    return OPENPI_OK;
}

/* The first is full, the second opens. */
static openpi_status open_second(const char *which, const device_options *options, device **out,
                                 openpi_error *why) {
    if (!strcmp(which, "toy:0"))
        return report(why, OPENPI_NO_MEMORY, "toy:0: out of memory making a context");
    return open_as_cpu(which, options, out, why);
}

static int (*percent)(const device *device);           /* that a table may win; NULL: not known */
static const char *formats;      /* the user's list; NULL: none */
static int fp32_file;                                  /* the checkpoint's tensors are as those of one */

static json_t *ask(openpi_status (*open)(const char *, const device_options *, device **, openpi_error *),
                   openpi_status (*memory)(device *, uint64_t *, uint64_t *, openpi_error *)) {
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    checkpoint *c;
    const backend *const list[] = {&toy, NULL};
    json_t *out = json_array();
    toy = backend_cpu;
    toy.name = "toy";
    toy.devices = two_devices;
    toy.open = open;
    toy.memory = memory;
    toy.untuned_percent = percent;
    if (own_memory) toy.allocate_host = take_pinned;
    must(openpi_synthetic_parse("tiny:pi05", &tiny, &error));
    must(checkpoint_open(NULL, &tiny, &c, &error));
    for (int i = 0; fp32_file && i < tensors_count(c->tensors); i++)
        ((tensor *)(uintptr_t)tensors_at(c->tensors, i))->type = DTYPE_F32;
    must(inspect_devices(c, list, formats, out, &error));
    checkpoint_close(c);
    return out;
}

static const char *word(const json_t *out, size_t row, const char *key) {
    const char *text = json_string_value(json_object_get(json_array_get(out, row), key));
    return text ? text : "";
}

static uint64_t bytes_of(const json_t *out, size_t row, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(json_array_get(out, row), key));
}

static void must_say(const json_t *out, size_t row, const char *key, const char *part) {
    if (!strstr(word(out, row, key), part))
        fail_msg("row %zu: %s is \"%s\", expected \"%s\"", row, key, word(out, row, key), part);
}

static int three_percent(const device *device) {
    (void)device;
    return 3;
}

/* ---- tests ---------------------------------------------------------------------------------------- */

/* A device whose table is not in the library is told so once; a CPU, where nothing is known of it, is not. */
static void a_table_may_win(void **state) {
    (void)state;
    all_bytes = free_bytes = 1 << 30;
    json_t *out = ask(open_as_cpu, tell_memory);
    assert_string_equal(word(out, 0, "tuning"), "");
    json_decref(out);
    percent = three_percent;
    out = ask(open_as_cpu, tell_memory);
    percent = NULL;
    must_say(out, 0, "tuning", "no tuning table for this card (");
    must_say(out, 0, "tuning", "`openpi tune` may win 3 % of a call");
    assert_string_equal(word(out, 1, "tuning"), "");
    json_decref(out);
}

/* What is needed is what opening an engine and a session takes, byte for byte. */
static void needed_is_what_is_taken(void **state) {
    (void)state;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    all_bytes = free_bytes = 1 << 30;
    own_memory = 0;                                    /* else a session has staging memory too */
    json_t *out = ask(open_as_cpu, tell_memory);
    own_memory = 1;
    assert_int_equal(json_array_size(out), 4);
    must(openpi_synthetic_parse("tiny:pi05", &tiny, &error));
    for (size_t row = 0; row < 4; row++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine;
        uint64_t session;
        options.synthetic = &tiny;
        options.dtype = row % 2 ? OPENPI_F32 : OPENPI_BF16;
        must(openpi_engine_open(NULL, &options, &engine, &error));
        must(openpi_session_bytes(engine, NULL, &session, &error));
        assert_string_equal(word(out, row, "device"), row < 2 ? "toy:0" : "toy:1");
        assert_string_equal(word(out, row, "dtype"), row % 2 ? "f32" : "bf16");
        assert_true(bytes_of(out, row, "weight_bytes") == engine->model->bytes);
        assert_true(bytes_of(out, row, "session_bytes") == session);
        assert_true(bytes_of(out, row, "needed_bytes") == engine->model->bytes + session);
        assert_true(*word(out, row, "hardware"));
        openpi_engine_close(engine);
    }
    json_decref(out);
}

/* An fp32 file has a third setting, which saves memory: fp32 arithmetic over bf16 weights. */
static void fp32_file_has_bf16_weights_too(void **state) {
    (void)state;
    all_bytes = free_bytes = 1 << 30;
    fp32_file = 1;
    json_t *out = ask(open_as_cpu, tell_memory);
    fp32_file = 0;
    assert_int_equal(json_array_size(out), 6);
    for (size_t first = 0; first < 6; first += 3) {
        uint64_t bf16 = bytes_of(out, first, "weight_bytes"), f32 = bytes_of(out, first + 1, "weight_bytes");
        assert_string_equal(word(out, first, "weights"), "");
        assert_string_equal(word(out, first + 1, "weights"), "");
        assert_string_equal(word(out, first + 2, "dtype"), "f32");
        assert_string_equal(word(out, first + 2, "weights"), "bf16");
        assert_true(bytes_of(out, first + 2, "weight_bytes") == bf16 && f32 > bf16 * 3 / 2);
    }
    json_decref(out);
}

/* A row more with the user's list, and the bytes of each group in all rows. */
static void a_list_of_formats_has_its_row(void **state) {
    (void)state;
    all_bytes = free_bytes = 1 << 30;
    formats = "expert=int8,ffn=int8x8";
    json_t *out = ask(open_as_cpu, tell_memory);
    formats = NULL;
    assert_int_equal(json_array_size(out), 6);
    for (size_t first = 0; first < 6; first += 3) {
        const json_t *plain = json_object_get(json_array_get(out, first), "groups"),
                     *own = json_object_get(json_array_get(out, first + 2), "groups");
        assert_string_equal(word(out, first + 2, "weights"), "bf16,ffn=int8x8,expert=int8");
        assert_string_equal(word(out, first + 2, "dtype"), "bf16");
        const char *group;
        json_t *bytes;
        json_object_foreach((json_t *)(uintptr_t)plain, group, bytes) {
            json_int_t before = json_integer_value(bytes);
            json_int_t now = json_integer_value(json_object_get(own, group));
            int less = !strcmp(group, "ffn_bytes") || !strcmp(group, "expert_bytes");
            assert_true(before > 0 && (less ? now < before * 2 / 3 && now > before * 4 / 10 : now == before));
        }
        assert_int_equal(json_object_size(plain), 6);
    }
    json_decref(out);
}

static void verdicts(void **state) {
    (void)state;
    all_bytes = free_bytes = 1 << 30;
    json_t *out = ask(open_as_cpu, tell_memory);
    uint64_t needed = bytes_of(out, 0, "needed_bytes");
    json_decref(out);
    const struct {
        uint64_t unused, total;
        int fits;                                      /* -1: nobody knows */
        const char *verdict;
    } cases[] = {
        {2 * needed, 4 * needed, 1, "fits: "},
        {needed, 4 * needed, 1, "fits, but closely: "},
        {needed - 1, 4 * needed, 0, "does not fit: "},
        {0, 4 * needed, 0, " GB too few"},
        {0, 0, -1, "the device does not report what is free"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        free_bytes = cases[i].unused;
        all_bytes = cases[i].total;
        out = ask(open_as_cpu, tell_memory);
        const json_t *fits = json_object_get(json_array_get(out, 0), "fits");
        must_say(out, 0, "verdict", cases[i].verdict);
        assert_true(cases[i].fits < 0 ? json_is_null(fits)
                                      : json_is_boolean(fits) && json_is_true(fits) == cases[i].fits);
        if (cases[i].total) assert_true(bytes_of(out, 0, "free_bytes") == cases[i].unused);
        json_decref(out);
    }
}

/* A GPU that uses the processor's memory says so, whether the model fits or not. */
static void memory_is_shared(void **state) {
    (void)state;
    all_bytes = 1 << 30;
    for (int on = 0; on < 2; on++)
        for (int fits = 0; fits < 2; fits++) {
            shared_memory = on;
            free_bytes = fits ? all_bytes : 1;
            json_t *out = ask(open_as_cpu, tell_memory);
            const json_t *told = json_object_get(json_array_get(out, 0), "shared_memory");
            assert_true(json_is_boolean(told) && json_is_true(told) == on);
            assert_int_equal(!!strstr(word(out, 0, "verdict"), ", shared with the CPU"), on);
            json_decref(out);
        }
    shared_memory = 0;
}

/* One that cannot be opened, or is lost meanwhile, is described, and so is the next. */
static void full_or_lost(void **state) {
    (void)state;
    free_bytes = all_bytes = 1 << 30;
    json_t *out = ask(open_second, tell_memory);
    assert_int_equal(json_array_size(out), 3);
    assert_string_equal(word(out, 0, "device"), "toy:0");
    must_say(out, 0, "verdict", "cannot be used: toy:0: out of memory making a context");
    assert_string_equal(word(out, 1, "device"), "toy:1");
    must_say(out, 2, "verdict", "fits: ");
    json_decref(out);
    out = ask(open_as_cpu, lose_memory);
    assert_int_equal(json_array_size(out), 2);
    must_say(out, 0, "reason", "toy: the device is lost");
    must_say(out, 1, "verdict", "cannot be used: toy: the device is lost");
    json_decref(out);
}

/* What the host has to give is within what it has. */
static void memory_of_the_host(void **state) {
    uint64_t available = free_memory(), total = total_memory();
    (void)state;
    assert_true(total != UINT64_MAX);
    assert_true(total > 0 && available > 0 && available <= total);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_may_win),
        cmocka_unit_test(needed_is_what_is_taken),
        cmocka_unit_test(fp32_file_has_bf16_weights_too),
        cmocka_unit_test(a_list_of_formats_has_its_row),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(memory_is_shared),
        cmocka_unit_test(full_or_lost),
        cmocka_unit_test(memory_of_the_host),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
