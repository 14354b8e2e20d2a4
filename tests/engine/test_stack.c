/* labels: skips */
/* What openpi.h says a call needs of its stack: each call runs on a stack that was painted before, and the
 * paint that is gone is counted. So a call that jumps over the guard page of a small thread is found, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "backend/cpu/isa.h"
#include "base/report.h"
#include "base/sanitizer.h"
#include "policy_golden.h"
#include "scratch.h"
#include "structs.h"

enum { KILOBYTES = 64, STACK = 2 << 20, PAINT = 0xa5 };
enum { SIDE = OPENPI_IMAGE_SIZE, STEPS = 4, DIMS = OPENPI_ACTION_DIM };

typedef openpi_status step(void *subject, openpi_error *error);

typedef struct call {
    step *step;
    void *subject;
    openpi_status status;
    openpi_error error;
} call;

static void *run_call(void *argument) {
    call *c = argument;
    c->status = c->step(c->subject, &c->error);
    return NULL;
}

static _Alignas(4096) unsigned char stack[STACK];

/* Runs a step on the painted stack; what it and the thread itself took. */
static openpi_status measure(step *step, void *subject, openpi_error *error, size_t *bytes) {
    call c = {step, subject, OPENPI_OK, OPENPI_ERROR_INIT};
    pthread_attr_t attributes;
    pthread_t thread;
    memset(stack, PAINT, STACK);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, stack, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run_call, &c), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    size_t clean = 0;
    while (clean < STACK && stack[clean] == PAINT) clean++;
    *bytes = STACK - clean;
    pthread_attr_destroy(&attributes);
    *error = c.error;
    return c.status;
}

static void needs_little(const char *name, step *step, void *subject) {
    openpi_error error = OPENPI_ERROR_INIT;
    size_t bytes;
    if (measure(step, subject, &error, &bytes)) fail_msg("%s: %s", name, error.message);
    print_message("           %5.1f kB  %s\n", (double)bytes / 1024, name);
    if (bytes > KILOBYTES << 10)
        fail_msg("%s takes %zu bytes of stack, openpi.h says %d kB", name, bytes, KILOBYTES);
}

/* ---- a robot's whole day ------------------------------------------------------------------------------ */

typedef struct day {
    const char *checkpoint, *folder, *isa;
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy *policy;
    openpi_request *request;
    double actions[STEPS * DIMS], kept[STEPS * DIMS];
    float model[STEPS * DIMS], previous[STEPS * DIMS];
} day;

static uint8_t picture[SIDE * SIDE * 3];
static double state[DIMS];

static openpi_status none(void *subject, openpi_error *error) {
    (void)subject, (void)error;
    return OPENPI_OK;
}

static openpi_status list_devices(void *subject, openpi_error *error) {
    static openpi_device devices[16];
    int count;
    (void)subject;
    devices[0].size = sizeof *devices;
    return openpi_devices(devices, 16, &count, error);
}

static openpi_status open_engine(void *subject, openpi_error *error) {
    day *d = subject;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.isa = d->isa;
    options.threads = 1;
    return openpi_engine_open(d->checkpoint, &options, &d->engine, error);
}

static openpi_status create_session(void *subject, openpi_error *error) {
    day *d = subject;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = STEPS;
    options.steps = 2;
    options.rtc = 1;
    return openpi_session_create(d->engine, &options, &d->session, error);
}

static openpi_status run_guided(void *subject, openpi_error *error) {
    day *d = subject;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_rtc rtc = OPENPI_RTC_INIT;
    rtc.mode = OPENPI_RTC_GUIDED;
    rtc.delay = 1;
    rtc.previous = d->previous;
    rtc.rows = STEPS;
    rtc.dims = 1;
    rtc.max_weight = 1;
    TRY(openpi_request_sample(d->request, &sample, error));
    return openpi_session_run_rtc(d->session, &sample, &rtc, 1, NULL, d->model, NULL, error);
}

static openpi_status open_policy(void *subject, openpi_error *error) {
    day *d = subject;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    TRY(openpi_policy_open(d->checkpoint, &options, &d->policy, error));
    return openpi_request_create(d->policy, &d->request, error);
}

static openpi_observation look(void) {
    static openpi_image image = IMAGE("base", picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    openpi_observation observation = OBSERVATION(&image, 1, state, DIMS, "pick up the fork", 0);
    return observation;
}

static openpi_status infer(void *subject, openpi_error *error) {
    day *d = subject;
    openpi_observation observation = look();
    return openpi_policy_infer(d->request, d->session, &observation, NULL, d->actions, CAPACITY(d->actions),
                               NULL, error);
}

static openpi_status keep_and_lead(void *subject, openpi_error *error) {
    day *d = subject;
    int rows, dims;
    TRY(openpi_request_keep(d->request, d->model, STEPS, d->kept, CAPACITY(d->kept), error));
    return openpi_request_previous(d->request, d->kept, STEPS, 1, d->previous, CAPACITY(d->previous), &rows,
                                   &dims, error);
}

/* {"state": nil}: refused after it was read. */
static openpi_status read_message(void *subject, openpi_error *error) {
    static const char message[] = "\x81\xa5" "state\xc0";
    day *d = subject;
    openpi_status status =
        openpi_request_prepare_msgpack(d->request, message, sizeof message - 1, NULL, error);
    return status == OPENPI_BAD_INPUT ? OPENPI_OK : OPENPI_SYSTEM;
}

static openpi_status look_at(void *subject, openpi_error *error) {
    day *d = subject;
    char *json = NULL;
    openpi_status status = openpi_inspect(d->checkpoint, NULL, &json, error);
    openpi_free(json);
    return status;
}

static openpi_status convert(void *subject, openpi_error *error) {
    day *d = subject;
    return openpi_convert(d->checkpoint, d->folder, NULL, error);
}

static openpi_status close_all(void *subject, openpi_error *error) {
    day *d = subject;
    (void)error;
    openpi_request_close(d->request);
    openpi_policy_close(d->policy);
    openpi_session_close(d->session);
    openpi_engine_close(d->engine);
    d->request = NULL, d->policy = NULL, d->session = NULL, d->engine = NULL;
    return OPENPI_OK;
}

static const struct {
    const char *name;
    step *step;
} steps[] = {
    {"nothing, the thread alone", none},
    {"openpi_devices", list_devices},
    {"openpi_engine_open", open_engine},
    {"openpi_session_create", create_session},
    {"openpi_policy_open", open_policy},
    {"openpi_policy_infer", infer},
    {"openpi_session_run_rtc", run_guided},
    {"openpi_request_keep and openpi_request_previous", keep_and_lead},
    {"openpi_request_prepare_msgpack", read_message},
    {"openpi_inspect", look_at},
    {"the close functions", close_all},
};

static void whole_day(const char *checkpoint, const char *isa) {
    day d = {.checkpoint = checkpoint, .isa = isa};
    print_message("           %s, %s\n", checkpoint, isa ? isa : "the level that is chosen");
    for (size_t i = 0; i < CAPACITY(steps); i++) needs_little(steps[i].name, steps[i].step, &d);
}

static scratch box;

static void write_checkpoint(const char *name, openpi_variant variant, int lerobot) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    WORKS(openpi_synthetic_parse("tiny", &synthetic, &error));
    synthetic.variant = variant;
    synthetic.lerobot = lerobot;
    WORKS(openpi_synthetic_write(&synthetic, scratch_path(&box, name), 0, 1, NULL, NULL, &error));
}

static void every_level(void **unused) {
    (void)unused;
    char path[400];
    write_checkpoint("pi0", OPENPI_PI0, 0);
    strcpy(path, scratch_path(&box, "pi0"));
    for (int level = 0; level < cpu_isa_count(); level++)
        if (cpu_isa_available(level)) whole_day(path, cpu_isa_name(level));
}

static void lerobots(void **unused) {
    (void)unused;
    char path[400];
    write_checkpoint("lerobot", OPENPI_PI05, 1);
    strcpy(path, scratch_path(&box, "lerobot"));
    whole_day(path, NULL);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static void converting(void **unused) {
    static const char *const checkpoints[] = {"ocdbt_deep", "zarr3", "pi0_lora"};
    (void)unused;
    for (size_t i = 0; i < CAPACITY(checkpoints); i++) {
        char path[512], out[400];
        day d = {.checkpoint = path, .folder = out};
        snprintf(path, sizeof path, TESTS_DIR "/orbax/%s", checkpoints[i]);
        snprintf(out, sizeof out, "%s", scratch_path(&box, checkpoints[i]));
        openpi_error error = OPENPI_ERROR_INIT;
        size_t bytes;
        openpi_status status = measure(convert, &d, &error, &bytes);
        print_message("           %5.1f kB  openpi_convert %s: %s\n", (double)bytes / 1024, checkpoints[i],
                      status ? error.message : "ok");
        assert_true(bytes <= KILOBYTES << 10);
    }
}

typedef struct file {
    char *data;
    size_t bytes;
} file;

static openpi_status decode(void *subject, openpi_error *error) {
    file *f = subject;
    uint8_t *pixels = NULL;
    int height, width;
    openpi_status status = openpi_image_decode(f->data, f->bytes, NULL, &pixels, &height, &width, error);
    openpi_free(pixels);
    return status;
}

static void pictures(void **unused) {
    static const char *const names[] = {"rgb.png", "interlaced.png", "progressive.jpg", "rotated.jpg"};
    (void)unused;
    for (size_t i = 0; i < CAPACITY(names); i++) {
        char path[512];
        file f;
        snprintf(path, sizeof path, TESTS_DIR "/pictures/%s", names[i]);
        f.data = golden_read(path, &f.bytes);
        needs_little(names[i], decode, &f);
        free(f.data);
    }
}

static int open_box(void **unused) {
    (void)unused;
    return scratch_open(&box);
}
static int close_box(void **unused) {
    (void)unused;
    scratch_close(&box);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level),
        cmocka_unit_test(lerobots),
        cmocka_unit_test(converting),
        cmocka_unit_test(pictures),
    };
    if (SANITIZED) return 77;                              /* a sanitizer's frames are larger */
    return cmocka_run_group_tests(tests, open_box, close_box);
}
