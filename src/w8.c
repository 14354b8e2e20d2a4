/* Opening with a weight plan (model/w8_plan.h): found, read, and its stored observation run again. */
#include <stdlib.h>

#include "base/ascii.h"
#include "base/report.h"
#include "openpi_internal.h"

openpi_status w8_take(const checkpoint_source *source, const checkpoint *checkpoint, const char *formats,
                      openpi_dtype type, int accept, w8_plan **plan, openpi_error *error) {
    char path[W8_PATH];
    *plan = NULL;
    if (!w8_asked(formats)) return OPENPI_OK;
    TRY(w8_place(formats, source->path, source->adapter, source->without_lora, path, error));
    return w8_read(path, checkpoint, source->path ? source->path : "--synthetic",
                   type == OPENPI_F32 ? DTYPE_F32 : DTYPE_BF16, accept, plan, error);
}

static openpi_status run_stored(openpi_engine *e, const w8_check *c, float *noise, float *actions,
                                openpi_error *error) {
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session = NULL;
    shape.horizon = c->horizon;
    shape.steps = c->steps;
    shape.max_prompt = c->max_prompt;
    openpi_noise(c->seed, c->stream, noise, (size_t)c->horizon * OPENPI_ACTION_DIM);
    TRY(openpi_session_create(e, &shape, &session, error));
    openpi_status status = openpi_session_run(session, &c->sample, 1, noise, actions, NULL, error);
    openpi_session_close(session);
    return status;
}

/* Among the notes, which every program shows. */
static void note_plan(openpi_engine *e, double found) {
    const w8_plan *p = e->w8;
    const w8_bound *b = &p->bounds[p->worst];
    char numbers[120];
    ascii_print(numbers, sizeof numbers, "%.4g of the %.4g allowed", b->found, b->limit);
    notes_add(&e->checkpoint->notes, p->synthetic,
              "weights are those of %s: %s is %s, on %d %sobservation%s%s", p->path, b->what, numbers,
              p->observations, p->synthetic ? "made-up " : "", p->observations == 1 ? "" : "s",
              p->synthetic ? ", which prove little: run openpi quantize with recorded ones" : "");
    if (!e->error_accepted) return;
    ascii_print(numbers, sizeof numbers, "%.4g here, %.4g recorded", found, p->check.rms);
    notes_add(
        &e->checkpoint->notes, 1,
        "the error of the 8-bit weights is above what was allowed, and was accepted (accept_error); its "
        "stored observation is off by rms %s",
        numbers);
}

openpi_status w8_prove(openpi_engine *e, const char *source, int accept, openpi_error *error) {
    const w8_plan *p = e->w8;
    size_t bytes = (size_t)p->check.horizon * OPENPI_ACTION_DIM * sizeof(float);
    float *noise = malloc(bytes), *actions = malloc(bytes);
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_status status = noise && actions ? run_stored(e, &p->check, noise, actions, error)
                                            : report_no_memory(error, bytes, "the plan's observation");
    if (status == OPENPI_OK) {
        double found = w8_distance(&p->check, actions);
        status = w8_judge(p, found, source, &why);
        e->error_accepted = accept && (status != OPENPI_OK || w8_above(&p->bounds[p->worst]));
        if (status != OPENPI_OK && !accept) report_again(error, &why);
        else status = OPENPI_OK;
        if (status == OPENPI_OK) note_plan(e, found);
    }
    free(noise);
    free(actions);
    return status;
}
