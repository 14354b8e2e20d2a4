/* A case's row and memory, and its engine: see verify_case.h. */
#include "lab/verify/verify_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "openpi_internal.h"

/* ---- rows and memory -------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    max_align_t data[];
} block;

typedef struct closer {
    struct closer *next;
    void (*close)(void *thing);
    void *thing;
} closer;

void case_begin(verify_case *c, const verify_walk *walk, const char *name) {
    *c = (verify_case){.options = &walk->options, .row = {.max = NAN, .rms = NAN}};
    snprintf(c->row.name, sizeof c->row.name, "%s", name);
    snprintf(c->row.device, sizeof c->row.device, "-");
    snprintf(c->row.dtype, sizeof c->row.dtype, "exact");
}

void case_end(verify_case *c, verify_walk *walk, openpi_status status, const openpi_error *error) {
    if (status != OPENPI_OK) case_fail(c, "%s", error->message);
    for (closer *next, *at = c->closers; at; at = next) {
        next = at->next;
        at->close(at->thing);
        free(at);
    }
    for (block *next, *at = c->blocks; at; at = next) {
        next = at->next;
        free(at);
    }
    c->closers = c->blocks = NULL;
    walk->rows++;
    walk->each(walk->user, &c->row);
}

void *case_alloc(verify_case *c, size_t count, size_t size) {
    if (size && count > (SIZE_MAX / 2) / size) return NULL;
    block *b = calloc(1, sizeof *b + count * size);
    if (!b) return NULL;
    b->next = c->blocks;
    c->blocks = b;
    return b->data;
}

openpi_status case_take(verify_case *c, size_t count, size_t size, void *out, openpi_error *error) {
    void *memory = case_alloc(c, count, size);
    if (!memory) return report_no_memory(error, count * size, "a golden");
    memcpy(out, &memory, sizeof memory);
    return OPENPI_OK;
}

openpi_status case_close_later(verify_case *c, void (*close)(void *thing), void *thing, openpi_error *error) {
    closer *l = malloc(sizeof *l);
    if (!l) {
        close(thing);
        return report_no_memory(error, sizeof *l, "a golden");
    }
    *l = (closer){c->closers, close, thing};
    c->closers = l;
    return OPENPI_OK;
}

void case_fail(verify_case *c, const char *format, ...) {
    if (c->row.result == VERIFY_FAIL) return;
    openpi_error cut = OPENPI_ERROR_INIT; /* report cuts between characters and keeps one line */
    va_list list;
    va_start(list, format);
    char text[sizeof cut.message];
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    report(&cut, OPENPI_BAD_INPUT, "%.*s", (int)sizeof c->row.detail - 1, text);
    snprintf(c->row.detail, sizeof c->row.detail, "%.*s", (int)sizeof c->row.detail - 1, cut.message);
    c->row.result = VERIFY_FAIL;
}

int case_failed(const verify_case *c) { return c->row.result == VERIFY_FAIL; }

/* ---- running ---------------------------------------------------------------------------------------- */

static void close_engine(void *thing) { openpi_engine_close(thing); }
static void close_session(void *thing) { openpi_session_close(thing); }
static void close_policy(void *thing) { openpi_policy_close(thing); }
static void close_request(void *thing) { openpi_request_close(thing); }

static openpi_status open_engine(verify_case *c, const char *checkpoint, const openpi_synthetic *synthetic,
                                 openpi_engine **out, openpi_error *error) {
    const verify_options *v = c->options;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.device = v->device;
    options.isa = v->isa;
    options.path = v->path;
    options.as_card = v->as_card;
    options.without = v->without;
    options.table = v->table;
    options.dtype = v->dtype;
    options.weights = v->weights;
    options.formats = v->formats;
    options.threads = v->threads;
    options.synthetic = synthetic;
    options.adapter = checkpoint ? v->adapter : NULL;
    options.without_lora = v->without_lora;
    options.missing_chunks_are_zero = checkpoint && v->missing_chunks_are_zero;
    options.accept_error = v->accept_error;
    options.progress = v->progress;
    options.progress_user = v->progress_user;
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", v->dtype == OPENPI_F32 ? "f32" : "bf16");
    return openpi_engine_open(checkpoint, &options, out, error);
}

void case_on_engine(verify_case *c, const openpi_engine *engine) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_engine_get_info(engine, &info, NULL);
    snprintf(c->row.device, sizeof c->row.device, "%s/%.12s", info.device, info.path);
}

openpi_status case_engine(verify_case *c, const openpi_synthetic *synthetic, openpi_engine **out,
                          openpi_error *error) {
    TRY(open_engine(c, NULL, synthetic, out, error));
    TRY(case_close_later(c, close_engine, *out, error));
    case_on_engine(c, *out);
    if (c->options->on_engine) c->options->on_engine(c->options->hook_user, *out);
    return OPENPI_OK;
}

openpi_status case_checkpoint(verify_case *c, openpi_engine **out, openpi_error *error) {
    TRY(open_engine(c, c->options->checkpoint, NULL, out, error));
    if (c->options->on_engine) c->options->on_engine(c->options->hook_user, *out);
    return OPENPI_OK;
}

static openpi_status open_session(verify_case *c, openpi_engine *engine,
                                  const openpi_session_options *options, openpi_session **out,
                                  openpi_error *error) {
    TRY(session_create(engine, options, c->options->state_every_step, out, error));
    TRY(case_close_later(c, close_session, *out, error));
    if (c->options->on_session) c->options->on_session(c->options->hook_user, *out);
    return OPENPI_OK;
}

openpi_status case_session(verify_case *c, openpi_engine *engine, int batch, int horizon, int steps,
                           int max_prompt, openpi_session **out, openpi_error *error) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = max_prompt;
    return open_session(c, engine, &options, out, error);
}

openpi_status case_chunking_session(verify_case *c, openpi_engine *engine, int horizon, int steps,
                                    int max_prompt, openpi_session **out, openpi_error *error) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = max_prompt;
    options.rtc = 1;
    return open_session(c, engine, &options, out, error);
}

openpi_status case_policy(verify_case *c, const char *checkpoint, const openpi_policy_options *options,
                          openpi_policy **policy, openpi_request **request, openpi_error *error) {
    TRY(openpi_policy_open(checkpoint, options, policy, error));
    TRY(case_close_later(c, close_policy, *policy, error));
    if (c->options->on_policy) c->options->on_policy(c->options->hook_user, *policy);
    TRY(openpi_request_create(*policy, request, error));
    return case_close_later(c, close_request, *request, error);
}
