/* What tests of bad input share: a folder with small models that are right, and what is asked of a refusal.
 *
 * Of each row of a table is asked: the status, in the return value and in the error; one sentence with the
 * row's part in it; the same status without an error to write into; outputs as they were; and that the
 * handles still work afterwards. */
#ifndef REFUSALS_H
#define REFUSALS_H

#include <string.h>

#include "base/utf8.h"
#include "policy_golden.h"
#include "scratch.h"
#include "structs.h"

#define LENGTH(table) (sizeof(table) / sizeof *(table))
#define DIMS OPENPI_ACTION_DIM

enum { HORIZON = 4, STEPS = 2, BATCH = 2, PROMPT = 8, VOCAB = 12 };

static openpi_error error = OPENPI_ERROR_INIT;
static scratch place; /* holds good (π0), good5 (π0.5), bare (π0, the tensors alone)    */
static openpi_synthetic small[2];
static char *model[2];                                 /* the bytes of good's and good5's model.safetensors */
static size_t model_bytes[2];
static int refused;                                    /* rows that went through                       */

/* ---- what is asked of a refusal ------------------------------------------------------------------------ */

static inline void is_sentence(const char *what) {
    const char *text = error.message;
    size_t length = strnlen(text, sizeof error.message);
    if (length < 12 || length >= sizeof error.message) fail_msg("%s: a sentence of %zu bytes", what, length);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20) fail_msg("%s: a control character in \"%s\"", what, text);
    if (utf8_valid_prefix(text, length) != length) fail_msg("%s: \"%s\" is not UTF-8", what, text);
    if (*text == ' ' || strchr(" :,;=", text[length - 1]) || strstr(text, "(null)") || strstr(text, "%"))
        fail_msg("%s: \"%s\" is no sentence", what, text);
}

static inline void is_refused(const char *what, openpi_status found, openpi_status expected,
                              const char *part) {
    if (found != expected || error.status != expected || !strstr(error.message, part))
        fail_msg("%s: %s, \"%s\", expected %s with \"%s\"", what, openpi_status_text(found), error.message,
                 openpi_status_text(expected), part);
    is_sentence(what);
}

/* The call is made twice, the second time with nowhere to write the sentence. */
#define REFUSED(what, call, expected, part)                                                 \
    do {                                                                                    \
        openpi_error *to = &error;                                                          \
        error = (openpi_error)OPENPI_ERROR_INIT;                                            \
        is_refused(what, (call), expected, part);                                           \
        to = NULL;                                                                          \
        if ((call) != (expected)) fail_msg("%s: another status without an error", what);    \
        refused++;                                                                          \
    } while (0)

static char untouched; /* its address is what handles hold before a call that fails     */

#define UNTOUCHED ((void *)&untouched)

/* ---- what is right -------------------------------------------------------------------------------- */

static inline int make_place(void **state) {
    static const char *const folders[] = {"good", "good5"};
    (void)state;
    if (scratch_open(&place)) return -1;
    for (int v = 0; v < 2; v++) {
        small[v] = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
        small[v].variant = (openpi_variant)v;
        small[v].seed = 7;
        WORKS(openpi_dims_parse("{\"vision\":[72,1,1,8],\"vlm\":[16,1,2,4,8],\"expert\":[6,10],\"vocab\":12}",
                                &small[v].dims, &error));
        WORKS(openpi_synthetic_write(&small[v], scratch_path(&place, folders[v]), 0, 1, NULL, NULL, &error));
        strncat(place.path, "/model.safetensors", sizeof place.path - strlen(place.path) - 1);
        model[v] = golden_read(place.path, &model_bytes[v]);
    }
    if (mkdir(scratch_path(&place, "bare"), 0700)) return -1;
    return scratch_write(&place, "bare/model.safetensors", model[0], model_bytes[0]);
}

static inline int remove_place(void **state) {
    (void)state;
    free(model[0]);
    free(model[1]);
    scratch_close(&place);
    return 0;
}
/* The end of a table's row: what must come back. */
#define SAYS(says) OPENPI_BAD_FILE, .part = (says)
#define UNSUPPORTED(says) OPENPI_UNSUPPORTED, .part = (says)

/* ---- handles -------------------------------------------------------------------------------------- */

#define ENGINE(...) {.size = sizeof(openpi_engine_options), __VA_ARGS__}

static inline openpi_engine *open_engine(int variant) {
    openpi_engine_options options = ENGINE(.threads = 1, .dtype = OPENPI_F32, .synthetic = &small[variant]);
    openpi_engine *engine;
    WORKS(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

static inline openpi_session *open_session(openpi_engine *engine) {
    openpi_session_options options = {.size = sizeof options,
                                      .batch = BATCH,
                                      .horizon = HORIZON,
                                      .steps = STEPS,
                                      .max_prompt = PROMPT,
                                      .seed = 7};
    openpi_session *session;
    WORKS(openpi_session_create(engine, &options, &session, &error));
    return session;
}

/* A picture of one color. */
static uint8_t grey[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];

/* A test that breaks fewer than so many things has lost some of its rows. */
static inline void were_enough(int least) {
    if (refused < least) fail_msg("%d broken inputs, expected at least %d", refused, least);
}

#endif
