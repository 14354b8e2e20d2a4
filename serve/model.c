/* See model.h. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/small/fail.h"

void model_take_notes(serve_model *m, const openpi_engine *engine) {
    const char *text;
    m->note_count = m->warning_count = 0;
    for (int i = 0, warning; i < MODEL_NOTES && (text = openpi_note(engine, m->policy, i, &warning)); i++) {
        model_note *note = &m->notes[m->note_count++];
        note->warning = warning;
        m->warning_count += warning;
        snprintf(note->text, sizeof note->text, "%s", text);
    }
}

void model_say_notes(const serve_model *m, logger *log) {
    for (const model_note *note = m->notes; note < m->notes + m->note_count; note++) {
        log_entry entry = {.level = note->warning ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, .event = "note"};
        log_entry_write(log, &entry, "%s%s", note->warning ? "warning: " : "", note->text);
    }
}

openpi_status model_open(const char *checkpoint, const openpi_policy_options *options, int horizon,
                         uint64_t number, serve_model **out, openpi_error *error) {
    serve_model *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: a policy");
    atomic_init(&made->holders, 1);
    made->number = number;
    made->info = (openpi_policy_info)OPENPI_POLICY_INFO_INIT;
    openpi_policy_options sized = *options;
    sized.horizon = horizon;
    openpi_status status = openpi_policy_open(checkpoint, &sized, &made->policy, error);
    if (status == OPENPI_OK) status = openpi_policy_get_info(made->policy, &made->info, error);
    if (status != OPENPI_OK) {
        model_drop(made);
        return status;
    }
    made->horizon = horizon ? horizon : made->info.horizon;
    *out = made;
    return OPENPI_OK;
}

openpi_status model_default_prompt(serve_model *model, const char *prompt, openpi_error *error) {
    return prompt ? openpi_policy_default_prompt(model->policy, prompt, error) : OPENPI_OK;
}

serve_model *model_hold(serve_model *model) {
    atomic_fetch_add(&model->holders, 1);
    return model;
}

void model_drop(serve_model *model) {
    if (!model || atomic_fetch_sub(&model->holders, 1) != 1) return;
    openpi_policy_close(model->policy);
    free(model);
}

/* ---- another one in its place ----------------------------------------------------------------------- */

static openpi_status same_robot(const serve_model *running, const serve_model *fresh, openpi_error *error) {
    const openpi_policy_info *a = &running->info, *b = &fresh->info;
    if (strcmp(a->robot, b->robot))
        return fail(error, OPENPI_BAD_ARGUMENT, "the new checkpoint's robot is %s, expected %s", b->robot,
                    a->robot);
    if (a->action_dim != b->action_dim)
        return fail(error, OPENPI_BAD_ARGUMENT, "the new checkpoint has %d actions a step, expected %d",
                    b->action_dim, a->action_dim);
    for (int i = 0; i < OPENPI_CAMERAS; i++)
        if (strcmp(a->cameras[i], b->cameras[i]))
            return fail(error, OPENPI_BAD_ARGUMENT, "camera %d of the new checkpoint is '%s', expected '%s'",
                        i + 1, b->cameras[i], a->cameras[i]);
    return OPENPI_OK;
}

static openpi_status same_reset_pose(const serve_model *running, const serve_model *fresh,
                                     openpi_error *error) {
    int a_count, b_count;
    const double *a = openpi_policy_reset_pose(running->policy, &a_count);
    const double *b = openpi_policy_reset_pose(fresh->policy, &b_count);
    if (a_count == b_count && (!a_count || !memcmp(a, b, (size_t)a_count * sizeof *a))) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "the new checkpoint has another reset_pose, which connected robots would not learn");
}

openpi_status model_fits(const serve_model *running, const serve_model *fresh, openpi_error *error) {
    SERVE_TRY(same_robot(running, fresh, error));
    SERVE_TRY(same_reset_pose(running, fresh, error));
    if (fresh->horizon && fresh->horizon != running->horizon)
        return fail(error, OPENPI_BAD_ARGUMENT, "the new checkpoint's chunks have %d steps, expected %d",
                    fresh->horizon, running->horizon);
    if (!fresh->rtc.horizon || fresh->rtc.max_delay == running->rtc.max_delay) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "the new checkpoint was trained for real-time chunking with delays up to %d, expected %d",
                fresh->rtc.max_delay, running->rtc.max_delay);
}
