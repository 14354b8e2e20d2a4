/* labels: threads */
/* A checkpoint that is changed under openpi. Loaded, an engine needs its files no more: it holds none of them
 * open or mapped, and gives the same actions once they are emptied and deleted. Files that lose their end
 * while they are read are a sentence. Either would end the process if files were mapped: reading after a
 * mapped file's end is SIGBUS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "openpi.h"
#include "held.h"
#include "scratch.h"

enum {
    DIM = OPENPI_ACTION_DIM,
    PICTURE = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
    H = 3,
    N = 2,
    L = 12,
    VOCABULARY = 2048
};

static openpi_error error = OPENPI_ERROR_INIT;

#define WORKS(call)                                                  \
    do {                                                             \
        if ((call) != OPENPI_OK) fail_msg("%s: %s", #call, error.message); \
    } while (0)

/* A file of odd sizes, or shards of it. */
static void write_model(scratch *s, const char *model, int shards) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    assert_int_equal(scratch_open(s), 0);
    WORKS(openpi_synthetic_parse(model, &synthetic, &error));
    WORKS(openpi_synthetic_write(&synthetic, s->folder, shards ? 300000 : 0, 1, NULL, NULL, &error));
}

/* Calls `each` with every weight file's path. */
static int for_each_file(const scratch *s, void (*each)(const char *path)) {
    DIR *list = opendir(s->folder);
    const struct dirent *entry;
    int count = 0;
    assert_non_null(list);
    while ((entry = readdir(list))) {
        char path[400];
        size_t length = strlen(entry->d_name);
        if (length < 12 || strcmp(entry->d_name + length - 12, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", s->folder, entry->d_name);
        each(path);
        count++;
    }
    closedir(list);
    return count;
}

static void empty(const char *path) { assert_int_equal(truncate(path, 0), 0); }
static void drop(const char *path) { assert_int_equal(unlink(path), 0); }

static openpi_engine *open_engine(const char *folder, const char *model, openpi_dtype dtype) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine = NULL;
    WORKS(openpi_synthetic_parse(model, &synthetic, &error));
    if (!folder) options.synthetic = &synthetic;
    options.dtype = dtype;
    options.threads = 2;
    WORKS(openpi_engine_open(folder, &options, &engine, &error));
    return engine;
}

static openpi_session *open_session(openpi_engine *engine) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session = NULL;
    options.horizon = H;
    options.steps = N;
    options.max_prompt = L;
    WORKS(openpi_session_create(engine, &options, &session, &error));
    return session;
}

/* One camera, and L tokens from `first` on. */
static void run(openpi_session *session, int first, float actions[H * DIM]) {
    static uint8_t picture[PICTURE];
    static const float state[DIM] = {0.5f, -0.25f};
    int32_t tokens[L];
    for (int i = 0; i < L; i++) tokens[i] = (first + 167 * i) % VOCABULARY;
    openpi_sample sample = {.size = sizeof sample,
                            .images = {picture},
                            .image_mask = {1, 0, 0},
                            .tokens = tokens,
                            .token_count = L,
                            .state = state};
    memset(actions, 0, H * DIM * sizeof *actions);
    float noise[H * DIM];
    openpi_noise(3, 0, noise, H * DIM);
    WORKS(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error));
}

static void loaded_engine_needs_no_file(void **state) {
    static const char *const models[] = {"odd:pi0:5", "odd:pi05:5"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        const char *model = models[i & 1];
        openpi_dtype dtype = i & 2 ? OPENPI_F32 : OPENPI_BF16;
        int shards = i >> 2;
        float first[H * DIM], again[H * DIM], other[H * DIM], expected[H * DIM];
        scratch s;
        write_model(&s, model, shards);
        openpi_engine *engine = open_engine(s.folder, model, dtype),
                      *memory = open_engine(NULL, model, dtype);
        openpi_session *session = open_session(engine), *same = open_session(memory);
        nothing_is_held(&s);
        run(session, 3, first);
        int files = for_each_file(&s, empty);
        assert_true(shards ? files > 1 : files == 1);
        run(session, 3, again);
        assert_memory_equal(first, again, sizeof first);
        for_each_file(&s, drop);
        openpi_session *later = open_session(engine);
        run(later, 40, other);                             /* tokens that no call has used before */
        run(same, 40, expected);
        assert_memory_equal(other, expected, sizeof other);
        assert_memory_not_equal(other, first, sizeof other);
        openpi_session_close(session);
        openpi_session_close(later);
        openpi_session_close(same);
        openpi_engine_close(engine);
        openpi_engine_close(memory);
        scratch_close(&s);
    }
}

/* At the first progress of loading, the files lose their end. */
typedef struct cutting {
    const scratch *folder;
    int cuts;
} cutting;

static void halve(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void cut(void *user, const char *what, uint64_t done, uint64_t total) {
    cutting *c = user;
    (void)what, (void)done, (void)total;
    if (!c->cuts) c->cuts = for_each_file(c->folder, halve);
}

static void file_cut_while_it_is_read(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        scratch s;
        cutting c = {&s, 0};
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine = NULL;
        write_model(&s, "odd:pi0:5", i & 1);
        options.threads = 2;
        options.dtype = i & 2 ? OPENPI_F32 : OPENPI_BF16;
        options.progress = cut;
        options.progress_user = &c;
        assert_int_equal(openpi_engine_open(s.folder, &options, &engine, &error), OPENPI_BAD_FILE);
        assert_true(c.cuts > 0);
        assert_null(engine);
        if (!strstr(error.message, s.folder) || !strstr(error.message, "ends at byte"))
            fail_msg("%s", error.message);
        nothing_is_held(&s);
        scratch_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loaded_engine_needs_no_file),
        cmocka_unit_test(file_cut_while_it_is_read),
    };
    return cmocka_run_group_tests_name("checkpoint gone", tests, NULL, NULL);
}
