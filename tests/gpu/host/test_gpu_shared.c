/* A GPU that shares the processor's memory, as the frame of src/backend/gpu sees it over the tests' vendor
 * (host.h): weights are in memory once, a session's inputs are where the session writes them, and pages of
 * the checkpoint are let go. Every count is also taken on the same device with memory of its own, which keeps
 * its behaviour. */
#define _DEFAULT_SOURCE                    /* mincore */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "backend/gpu/device.h"
#include "base/file.h"
#include "base/sanitizer.h"
#include "host.h"
#include "openpi_internal.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* Everything that was taken from the driver has been given back; the device is as the program found it. */
static int nothing_left(void **state) {
    (void)state;
    host_integrate(0);
    host_set_memory(0);
    return host_alive() || host_device_bytes() || host_pinned_bytes() ? -1 : 0;
}

enum { SLOTS = GPU_SLOTS * GPU_SLOT_BYTES };           /* bytes that weights pass through */

/* ---- calls --------------------------------------------------------------------------------------------- */

enum { ACTIONS = 10, VALUES = ACTIONS * OPENPI_ACTION_DIM, PIXELS = 224 * 224 * 3, TOKENS = 20 };

typedef struct call {
    const char *spec, *without;
    int rtc;
    float actions[VALUES];
    host_counts copied;                    /* by its second run                                            */
    uint64_t session, staged;              /* bytes that the session says it has; of its inputs            */
} call;

static openpi_engine *open_engine(const call *c) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    must(openpi_synthetic_parse(c->spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = "host:0";
    options.without = c->without;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

/* Two calls of two cameras each; the second one's pictures are others. */
static void run_twice(openpi_session *session, call *c) {
    static uint8_t image[PIXELS];
    int32_t tokens[TOKENS];
    float state[OPENPI_ACTION_DIM], noise[VALUES];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 31 * i;
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) state[i] = (float)i * 0x1p-5f;
    openpi_noise(3, 0, noise, VALUES);
    openpi_sample sample = {.size = sizeof sample, .tokens = tokens, .token_count = TOKENS, .state = state};
    for (int i = 0; i < 2; i++) sample.images[i] = image, sample.image_mask[i] = 1;
    for (int time = 0; time < 2; time++) {
        for (int i = 0; i < PIXELS; i++) image[i] = (uint8_t)((i + time) * 2654435761u >> 24);
        host_count();
        must(openpi_session_run(session, &sample, 1, noise, c->actions, NULL, &error));
    }
    c->copied = host_counted();
}

/* The counts of a call; on the way, that engine and session have the bytes that they say, and the slots. */
static void measure(call *c, int integrated) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_session *session;
    host_integrate(integrated);
    openpi_engine *engine = open_engine(c);
    assert_int_equal(engine->device->shared_memory, integrated);
    assert_int_equal(host_device_bytes() + host_pinned_bytes(), engine->model->bytes + SLOTS);
    options.horizon = ACTIONS;
    options.max_prompt = TOKENS;
    options.rtc = c->rtc;
    must(openpi_session_bytes(engine, &options, &c->session, &error));
    must(openpi_session_create(engine, &options, &session, &error));
    must(openpi_session_get_info(session, &info, &error));
    assert_int_equal(info.bytes, c->session);
    assert_int_equal(host_device_bytes() + host_pinned_bytes(), engine->model->bytes + SLOTS + info.bytes);
    c->staged = session->in.bytes;
    run_twice(session, c);
    openpi_session_close(session);
    openpi_engine_close(engine);
    assert_int_equal(host_device_bytes() + host_pinned_bytes(), 0);
}

/* Pictures, noise and tables are read where the session wrote them: nothing is copied in a call, the actions
 * are the same bits, and the session has its inputs once. */
static void test_inputs_in_place(void **state) {
    static const char graph[] = "graph-replay", slots[] = "batched-vision";
    static const call cases[] = {{.spec = "odd:pi0"},
                                 {.spec = "odd:pi05"},
                                 {.spec = "odd:pi05", .without = graph},
                                 {.spec = "odd:pi0", .without = slots},
                                 {.spec = "odd:pi05", .rtc = 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        call own = cases[i], shared = own;
        measure(&own, 0);
        measure(&shared, 1);
        assert_memory_equal(own.actions, shared.actions, sizeof own.actions);
        assert_true(own.copied.up > 2 * PIXELS && own.copied.up <= own.staged);
        assert_int_equal(own.copied.down, sizeof own.actions);
        assert_int_equal(own.copied.copies, own.without == slots ? 4 : 2);
        assert_int_equal(shared.copied.copies, 0);
        assert_int_equal(own.session, shared.session + own.staged);
    }
}

/* ---- loading ------------------------------------------------------------------------------------------- */

/* A checkpoint in a file, many times larger than the slots' share. */
static void write_checkpoint(scratch *s) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse("tiny:pi05", &synthetic, &error));
    must(openpi_dims_parse("{\"vision\":[64,1,2,128],\"vlm\":[512,4,4,64,2048],\"expert\":[128,256],"
                           "\"vocab\":64000}",
                           &synthetic.dims, &error));
    must(openpi_synthetic_write(&synthetic, scratch_path(s, "model"), 0, 2, NULL, NULL, &error));
    int fd = open(scratch_path(s, "model/model.safetensors"), O_RDONLY);
    assert_true(fd >= 0 && !fsync(fd));    /* else its pages stay */
    close(fd);
}

/* Pages of the file that the kernel has cached. */
static size_t cached_pages(scratch *s) {
    static unsigned char pages[1 << 18];
    file_reader file;
    size_t cached = 0;
    must(file_reader_open(scratch_path(s, "model/model.safetensors"), &file, &error));
    const size_t count = ((size_t)file.bytes + 4095) / 4096;
    assert_in_range(count, 1, sizeof pages);
    void *map = mmap(NULL, (size_t)file.bytes, PROT_READ, MAP_SHARED, file.fd, 0);
    assert_true(map != MAP_FAILED && !mincore(map, (size_t)file.bytes, pages));
    for (size_t i = 0; i < count; i++) cached += pages[i] & 1;
    munmap(map, (size_t)file.bytes);
    file_reader_close(&file);
    return cached;
}

/* A line of /proc/self/status in bytes; 0: there is none. */
static size_t status_bytes(const char *name) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[200];
    size_t kb = 0, length = strlen(name);
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == ':') sscanf(line + length + 1, "%zu", &kb);
    fclose(file);
    return kb * 1024;
}

/* Starts VmHWM anew. 0: this kernel does not. */
static int reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY), done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0) close(fd);
    return done;
}

static openpi_status load(scratch *s, openpi_engine **engine) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.device = "host:0";
    options.threads = 2;
    return openpi_engine_open(scratch_path(s, "model"), &options, engine, &error);
}

/* Device and pinned memory are at most the weights and the slots at any time, and so is what the process has
 * of the machine's, but for a little. */
static size_t load_once(scratch *s) {
    enum { A_LITTLE = 12 << 20 };          /* rows that are being packed, lists, stacks */
    openpi_engine *engine;
    const int measured = reset_peak();
    const size_t before = status_bytes("VmRSS");
    host_count();
    must(load(s, &engine));
    const size_t weights = engine->model->bytes, grown = status_bytes("VmHWM") - before;
    assert_int_equal(host_counted().most, weights + SLOTS);
    if (!SANITIZED && measured && grown > weights + SLOTS + A_LITTLE)
        fail_msg("loading %zu bytes of weights took %zu bytes", weights, grown);
    openpi_engine_close(engine);
    return weights;
}

/* The file is more than half of the memory that there is for weights, slots and a session together: it loads,
 * its cached pages go, and a byte less than weights and slots does not do. */
static void test_large_checkpoint(void **state) {
    scratch s;
    openpi_engine *engine;
    struct stat st;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    write_checkpoint(&s);
    host_integrate(0);
    const size_t weights = load_once(&s);
    const size_t kept = cached_pages(&s);
    host_integrate(1);
    host_set_memory(weights + SLOTS);
    assert_int_equal(load_once(&s), weights);
    const size_t left = cached_pages(&s);
    assert_int_equal(stat(scratch_path(&s, "model/model.safetensors"), &st), 0);
    assert_true(weights > 3 * SLOTS && (size_t)st.st_size > (weights + SLOTS) / 2);
    assert_true(kept > 0);
    file_forget_pages(scratch_path(&s, "model/model.safetensors"));
    if (cached_pages(&s) < kept) assert_int_equal(left, 0);
    else print_message("this file system keeps cached pages: not checked that they go\n");
    host_set_memory(weights + SLOTS - 1);
    assert_int_equal(load(&s, &engine), OPENPI_NO_MEMORY);
    assert_non_null(strstr(error.message, "out of memory on host:0"));
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_inputs_in_place, nothing_left),
        cmocka_unit_test_teardown(test_large_checkpoint, nothing_left),
    };
    return cmocka_run_group_tests_name("gpu vendor, shared memory", tests, NULL, NULL);
}
