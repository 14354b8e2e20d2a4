/* Where does one run leave another? The same made-up call of a small synthetic π0 runs twice, at level `reference` and as
 * the arguments say, and every tensor between the stages is compared: docs/finding-a-wrong-result.md.
 *
 *   cc -std=c11 tools/observe.c -o observe $(pkg-config --cflags --libs openpi) -lm
 *   ./observe avx512               a level of the CPU
 *   ./observe - cuda:0             another device */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openpi.h>

enum { MOST = 1024, PIXELS = 224 * 224 * 3, HORIZON = 10 };

/* What the first run was observed to compute, in order. */
typedef struct observed {
    int count;
    float *data;
} observed;

static observed first[MOST];
static int first_count, second_count;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) exit(fprintf(stderr, "out of memory: %zu bytes\n", bytes));
    return memory;
}

static void keep(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows, int columns) {
    observed *o = &first[first_count++];
    (void)user, (void)tensor, (void)sample, (void)index;
    if (first_count > MOST) exit(fprintf(stderr, "more than %d tensors\n", MOST));
    o->count = rows * columns;
    o->data = allocate((size_t)o->count * sizeof *data);
    memcpy(o->data, data, (size_t)o->count * sizeof *data);
}

static void compare(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                    int columns) {
    static const char *const names[] = {"image tokens", "k", "v", "suffix", "velocity", "x"};
    const observed *o = &first[second_count++];
    float largest = 0, off = 0;
    (void)user, (void)sample;
    for (int i = 0; i < o->count && i < rows * columns; i++) {
        largest = fmaxf(largest, fabsf(o->data[i]));
        off = fmaxf(off, fabsf(data[i] - o->data[i]));
    }
    printf("%-12s %2d  %4d x %-4d largest %-8.3g off %.1e of it\n", names[tensor], index, rows, columns,
           (double)largest, (double)(off / largest));
}

static void check(openpi_status status, const openpi_error *error) {
    if (status != OPENPI_OK) exit(fprintf(stderr, "%s\n", error->message));
}

static void run(const char *isa, const char *device, openpi_observer observer) {
    static uint8_t picture[PIXELS];
    float state[OPENPI_ACTION_DIM], actions[HORIZON * OPENPI_ACTION_DIM];
    const int32_t tokens[] = {2, 5, 6, 7, 8, 9, 10};
    openpi_engine_options engine_options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session_options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_synthetic recipe = OPENPI_SYNTHETIC_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine *engine;
    openpi_session *session;

    for (int i = 0; i < PIXELS; i++) picture[i] = (uint8_t)(i * 7);
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) state[i] = 0.1f * (float)i;
    for (int camera = 0; camera < OPENPI_CAMERAS; camera++) {
        sample.images[camera] = picture;
        sample.image_mask[camera] = 1;
    }
    sample.tokens = tokens;
    sample.token_count = sizeof tokens / sizeof *tokens;
    sample.state = state;
    check(openpi_synthetic_parse("tiny:pi0", &recipe, &error), &error);
    engine_options.synthetic = &recipe;
    engine_options.device = device;
    engine_options.isa = isa;
    engine_options.dtype = OPENPI_F32;
    session_options.horizon = HORIZON;
    check(openpi_engine_open(NULL, &engine_options, &engine, &error), &error);
    check(openpi_session_create(engine, &session_options, &session, &error), &error);
    openpi_session_observe(session, observer, NULL);
    check(openpi_session_run(session, &sample, 1, NULL, actions, NULL, &error), &error);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(int argc, char **argv) {
    run("reference", "cpu", keep);
    run(argc > 1 && strcmp(argv[1], "-") ? argv[1] : NULL, argc > 2 ? argv[2] : "cpu", compare);
    for (int i = 0; i < first_count; i++) free(first[i].data);
    if (first_count == second_count) return 0;
    fprintf(stderr, "%d tensors at first, then %d\n", first_count, second_count);
    return 1;
}
