/* labels: threads */
/* Memory of the CPU backend: what does not fit is refused with the numbers before it is touched; what was
 * given is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/free_memory.h"
#include "base/sanitizer.h"
#include "fork_child.h"
#include "openpi_internal.h"
#include "ops/limits.h"
#include "scratch.h"

int mincore(void *start, size_t bytes, unsigned char *pages);   /* not of POSIX */

static openpi_error error = OPENPI_ERROR_INIT;

/* ---- what is free ------------------------------------------------------------------------------------- */

static scratch box;

static void put(const char *name, const char *text) {
    char folder[sizeof box.path];
    snprintf(folder, sizeof folder, "%s", scratch_path(&box, name));
    for (char *c = folder + strlen(box.folder) + 1; (c = strchr(c, '/')); *c++ = '/') {
        *c = 0;
        mkdir(folder, 0700);
    }
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
}

static uint64_t in_box(uint64_t (*figure)(const char *proc, const char *groups)) {
    char proc[100], groups[100];
    snprintf(proc, sizeof proc, "%s/proc", box.folder);
    snprintf(groups, sizeof groups, "%s/groups", box.folder);
    return figure(proc, groups);
}

static uint64_t free_in_box(void) { return in_box(free_memory_at); }

static void the_least_counts(void **state) {
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    assert_true(free_in_box() == UINT64_MAX);                  /* nothing says so */
    put("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 5000 kB\nSwapFree: 1000 kB\n");
    assert_int_equal(free_in_box(), 6000 * 1024);
    put("proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/a/b\n");
    put("groups/a/b/memory.max", "max\n");
    put("groups/a/b/memory.current", "500\n");
    assert_int_equal(free_in_box(), 6000 * 1024);              /* no limit */
    put("groups/a/memory.max", "100000\n");                    /* the group above has one */
    put("groups/a/memory.current", "70000\n");
    assert_int_equal(free_in_box(), 30000);
    put("groups/a/memory.stat", "anon 1\nfile 30000\ninactive_file 15000\nactive_file 5000\n");
    assert_int_equal(free_in_box(), 50000);                    /* pages of files are given back */
    put("groups/a/b/memory.max", "400\n");
    assert_int_equal(free_in_box(), 0);                        /* over its limit */
    put("proc/self/cgroup", "4:memory:/not/seen\n");           /* version 1; only its root is seen here */
    put("groups/memory/memory.limit_in_bytes", "4000000\n");
    put("groups/memory/memory.usage_in_bytes", "3000000\n");
    put("groups/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 20\n");
    assert_int_equal(free_in_box(), 1000120);
    put("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(free_in_box(), 6000 * 1024);
    scratch_close(&box);
}

/* All memory, free or not: the machine's or the least limit of the group and those above it, whatever is in
 * use. */
static void limits_of_containers(void **state) {
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    assert_true(in_box(total_memory_at) == UINT64_MAX);
    put("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nSwapTotal: 1000 kB\n");
    assert_int_equal(in_box(total_memory_at), 10000 * 1024);
    put("proc/self/cgroup", "0::/pod/container\n");           /* version 2 */
    assert_int_equal(in_box(total_memory_at), 10000 * 1024);   /* no file of the group is there */
    put("groups/pod/container/memory.max", "max\n");
    put("groups/pod/container/memory.current", "9999999\n");
    assert_int_equal(in_box(total_memory_at), 10000 * 1024);
    put("groups/pod/memory.max", "3000000\n");
    assert_int_equal(in_box(total_memory_at), 3000000);
    put("groups/memory.max", "2000000\n");
    assert_int_equal(in_box(total_memory_at), 2000000);
    put("proc/self/cgroup", "7:memory:/pod\n");               /* version 1 */
    put("groups/memory/pod/memory.limit_in_bytes", "1500000\n");
    assert_int_equal(in_box(total_memory_at), 1500000);
    put("groups/memory/pod/memory.limit_in_bytes", "9223372036854771712\n");     /* version 1's "no limit" */
    assert_int_equal(in_box(total_memory_at), 10000 * 1024);
    scratch_close(&box);
}

/* Files that are missing, empty or hold something else limit nothing; what can be read still counts. */
static void broken_files(void **state) {
    static const char *const groups[] = {
        "", "\n", "0:", "::::", "0::", "garbage\n", "0:memory\n", "\xff\xfe", "9:cpu:/a\n", "memory:/a\n"};
    static const char *const numbers[] = {"", "\n", "no number\n", "max", "\xff\xfe\n"};
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n");
    put("groups/a/memory.max", "700\n");
    put("groups/a/memory.current", "200\n");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        put("proc/self/cgroup", groups[i]);
        assert_int_equal(in_box(free_memory_at), 5000 * 1024);
        assert_int_equal(in_box(total_memory_at), 9000 * 1024);
    }
    put("proc/self/cgroup", "0::/a\n");
    assert_int_equal(in_box(free_memory_at), 500);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        put("groups/a/memory.current", numbers[i]);
        assert_int_equal(in_box(free_memory_at), 5000 * 1024); /* a limit alone does not say what is free */
        assert_int_equal(in_box(total_memory_at), 700);
        put("groups/a/memory.current", "200\n");
        put("groups/a/memory.max", numbers[i]);
        assert_int_equal(in_box(free_memory_at), 5000 * 1024);
        assert_int_equal(in_box(total_memory_at), 9000 * 1024);
        put("groups/a/memory.max", "700\n");
        put("groups/a/memory.stat", numbers[i]);
        assert_int_equal(in_box(free_memory_at), 500);
    }
    put("proc/meminfo", "garbage without numbers\n\nMemTotal\nMemAvailable: many kB\n");
    assert_int_equal(in_box(free_memory_at), 500);             /* the group's figure alone */
    assert_int_equal(in_box(total_memory_at), 700);
    put("proc/self/cgroup", "");
    assert_true(in_box(free_memory_at) == UINT64_MAX && in_box(total_memory_at) == UINT64_MAX);
    scratch_close(&box);
}

/* ---- refused before it hurts -------------------------------------------------------------------------- */

static openpi_status open_dims(openpi_dims dims, openpi_engine **engine) {
    openpi_synthetic model = {.size = sizeof model, .dims = dims, .variant = OPENPI_PI0, .seed = 5};
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.synthetic = &model;
    options.dtype = OPENPI_F32;
    options.threads = 2;
    return openpi_engine_open(NULL, &options, engine, &error);
}

/* The largest model that there may be: 800 GB. */
static void a_model_beyond_the_memory(void **state) {
    (void)state;
    openpi_dims dims = {sizeof dims, LIMIT_WIDTH,  LIMIT_DEPTH, 16,  LIMIT_INPUTS,
                        LIMIT_WIDTH, LIMIT_DEPTH,  8,           256, LIMIT_INPUTS,
                        LIMIT_WIDTH, LIMIT_INPUTS, 16,          {0}};
    openpi_engine *engine = NULL;
    unsigned long long needed = 0, unused = 0;
    if (free_memory() > UINT64_C(500) << 30) skip();           /* a machine that has it */
    assert_int_equal(open_dims(dims, &engine), OPENPI_NO_MEMORY);
    const char *form = "out of memory: %llu bytes for the model's weights, %llu bytes are free";
    if (sscanf(error.message, form, &needed, &unused) != 2)
        fail_msg("%s", error.message);
    assert_true(needed > unused && unused > 0);
}

#if !SANITIZED                   /* whose shadows need the address space                                   */
static int open_with_little_space(void *argument) {
    (void)argument;
    openpi_dims dims = {sizeof dims, 72, 1, 1, 72, 1024, 24, 1, 256, 4096, 64, 64, 16, {0}};
    openpi_engine *engine = NULL;
    struct rlimit limit = {400 << 20, 400 << 20};
    if (setrlimit(RLIMIT_AS, &limit)) return 1;
    openpi_status status = open_dims(dims, &engine);
    int good = status == OPENPI_NO_MEMORY && strstr(error.message, "bytes for the model's weights, ") &&
               strstr(error.message, "but this process may not have them (ulimit)");
    if (!good) fprintf(stderr, "status %d, \"%s\"\n", (int)status, error.message);
    return !good;
}

static void a_process_that_may_not(void **state) {
    (void)state;
    in_child(open_with_little_space, NULL);
}
#endif

/* ---- given is there ----------------------------------------------------------------------------------- */

enum { MAPPED = 4 << 20 };       /* larger blocks are mapped */

static void must_be_there(const char *what, const void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)memory / page * page;
    size_t count = ((uintptr_t)memory + bytes - from + page - 1) / page, absent = 0;
    unsigned char *pages = malloc(count);
    assert_non_null(pages);
    assert_int_equal(mincore((void *)from, count * page, pages), 0);
    for (size_t i = 0; i < count; i++) absent += !(pages[i] & 1);
    free(pages);
    if (absent) fail_msg("%s: %zu of %zu pages are not there", what, absent, count);
}

static void given_is_there(void **state) {
    (void)state;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine;
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    assert_int_equal(openpi_synthetic_parse("tiny", &tiny, &error), OPENPI_OK);
    if (open_dims(tiny.dims, &engine) != OPENPI_OK) fail_msg("%s", error.message);
    options.batch = 3;
    assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
    assert_true(session->plan->device_bytes > MAPPED && engine->model->bytes > MAPPED);
    must_be_there("weights", engine->model->block, engine->model->bytes);
    must_be_there("buffers", session->memory, session->plan->device_bytes);
    if (session->kinds.work_bytes > MAPPED)
        must_be_there("work block", session->work, session->kinds.work_bytes);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_least_counts),
                                       cmocka_unit_test(limits_of_containers),
                                       cmocka_unit_test(broken_files),
                                       cmocka_unit_test(a_model_beyond_the_memory),
#if !SANITIZED
                                       cmocka_unit_test(a_process_that_may_not),
#endif
                                       cmocka_unit_test(given_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
