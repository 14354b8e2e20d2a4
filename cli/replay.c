/* openpi replay: what `openpi serve --record` wrote, computed again and compared.
 *
 * A call is taken as it was: the request's bytes, the noise of its seed, what was left of the chunk before.
 * So one call's difference is not carried into the next. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "head.h"
#include "input.h"
#include "json_file.h"
#include "lab/verify/verify.h"
#include "output.h"
#include "progress.h"
#include "recording/call.h"

typedef struct replay_values {
    const char *synthetic, *json;
    int horizon, steps, first;
    lora_values lora;
    policy_values policy;
    machine_values machine;
} replay_values;

enum { SHOWN = 10, DIMS = OPENPI_ACTION_DIM, NUMBERS = OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM };

/* How far a call is from what was recorded. */
typedef struct difference {
    double model;                /* largest, of the model's actions                                        */
    double robot;                /* largest, of the robot's, in its units                                  */
    int step, action;            /* where that is                                                          */
} difference;

typedef struct replay {
    const replay_values *v;
    const char *path;            /* the recording's                                                        */
    model_name model;
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy *policy;
    openpi_request *request;
    openpi_engine_info engine_info;
    openpi_session_info session_info;
    openpi_policy_info policy_info;
    recording_reader *reader;
    float noise[NUMBERS], actions[NUMBERS];
    double robot_actions[NUMBERS], recorded[NUMBERS];
    int calls, refused, equal, shown;
    difference worst;
    uint64_t worst_order;
    json_t *rows;                /* --json; NULL: none                                                     */
} replay;

/* ---- the model ---------------------------------------------------------------------------------------- */

static int about_number(const recording_reader *reader, const char *key) {
    const char *text = recording_about(reader, key);
    return text ? atoi(text) : 0;
}

/* The robot that was served, where the options name none. */
static int open_policy(replay *r) {
    const replay_values *v = r->v;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    char cache[HOME_PATH];
    policy_of_model(&r->model, &v->lora, &v->policy, cache, &options);
    if (!v->policy.robot && !v->policy.config) options.config = recording_about(r->reader, "config");
    if (!v->policy.robot && !options.config) options.robot = recording_about(r->reader, "robot");
    options.horizon = v->horizon ? v->horizon : about_number(r->reader, "horizon");
    if (openpi_policy_open(r->model.checkpoint, &options, &r->policy, &error) != OPENPI_OK)
        return library_error(&verb_replay, &error);
    r->policy_info = (openpi_policy_info)OPENPI_POLICY_INFO_INIT;
    if (openpi_policy_get_info(r->policy, &r->policy_info, &error) != OPENPI_OK ||
        openpi_request_create(r->policy, &r->request, &error) != OPENPI_OK)
        return library_error(&verb_replay, &error);
    return END_FINE;
}

static int open_session(replay *r) {
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    shape.horizon = r->v->horizon ? r->v->horizon : about_number(r->reader, "horizon");
    shape.steps = r->v->steps ? r->v->steps : about_number(r->reader, "steps");
    shape.max_prompt = r->policy_info.max_prompt;
    shape.rtc = 1;
    if (openpi_session_create(r->engine, &shape, &r->session, &error) != OPENPI_OK)
        return library_error(&verb_replay, &error);
    r->session_info = (openpi_session_info)OPENPI_SESSION_INFO_INIT;
    if (openpi_session_get_info(r->session, &r->session_info, &error) != OPENPI_OK ||
        openpi_policy_match(r->policy, r->session, &error) != OPENPI_OK)
        return library_error(&verb_replay, &error);
    return END_FINE;
}

/* Other weights than those that were recorded: each difference is then theirs. */
static void say_other_weights(const replay *r) {
    const char *recorded = recording_about(r->reader, "checkpoint_hash");
    if (!recorded || !strcmp(recorded, r->engine_info.checkpoint_hash)) return;
    const char *name = recording_about(r->reader, "checkpoint");
    printf("other weights: the recording is of checkpoint %s (%s), this one is %s\n", recorded,
           name ? name : "without a name", r->engine_info.checkpoint_hash);
}

static int open_model(replay *r) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    char without[SWITCH_TEXT];
    progress bar;
    int end = open_policy(r);
    if (end != END_FINE) return end;
    machine_options(&r->v->machine, without, &options);
    engine_of_model(&r->model, &r->v->lora, &options);
    options.progress = progress_show;
    options.progress_user = &bar;
    progress_start(&bar);
    openpi_status status = openpi_engine_open(r->model.checkpoint, &options, &r->engine, &error);
    progress_end(&bar);
    if (status != OPENPI_OK) return library_error(&verb_replay, &error);
    machine_say_notes(&verb_replay, r->engine, r->policy);
    r->engine_info = (openpi_engine_info)OPENPI_ENGINE_INFO_INIT;
    if (openpi_engine_get_info(r->engine, &r->engine_info, &error) != OPENPI_OK)
        return library_error(&verb_replay, &error);
    say_other_weights(r);
    return open_session(r);
}

/* ---- a call ------------------------------------------------------------------------------------------- */

/* What the recorded actions of the model are in the robot's units is computed here, too: the reply has them
 * as this version writes them. */
static openpi_status compute(replay *r, const recorded_call *call, openpi_error *error) {
    const verify_call given = {.request = call->request,
                               .request_bytes = call->request_bytes,
                               .seed = call->seed,
                               .stream = call->stream,
                               .rtc = &call->rtc,
                               .horizon = call->horizon};
    size_t numbers = (size_t)call->horizon * (size_t)r->policy_info.action_dim;
    openpi_status status = verify_call_run(r->session, r->request, &given, r->noise, r->actions, error);
    if (status == OPENPI_OK)
        status = openpi_request_finish(r->request, r->actions, call->horizon, r->robot_actions, numbers,
                                       error);
    if (status == OPENPI_OK)
        status = openpi_request_finish(r->request, call->model_actions, call->horizon, r->recorded, numbers,
                                       error);
    return status;
}

static difference compare(const replay *r, const recorded_call *call) {
    difference d = {0, 0, 0, 0};
    int dims = r->policy_info.action_dim;
    for (int i = 0; i < call->horizon * DIMS; i++)
        d.model = fmax(d.model, fabs((double)r->actions[i] - (double)call->model_actions[i]));
    for (int i = 0; i < call->horizon * dims; i++) {
        double off = fabs(r->robot_actions[i] - r->recorded[i]);
        if (off <= d.robot) continue;
        d.robot = off;
        d.step = i / dims;
        d.action = i % dims;
    }
    return d;
}

static int is_equal(const replay *r, const recorded_call *call) {
    return !memcmp(r->actions, call->model_actions, (size_t)call->horizon * DIMS * sizeof *r->actions);
}

static const char *action_name(const replay *r, int action, char text[32]) {
    const char *name = openpi_policy_action_name(r->policy, action);
    snprintf(text, 32, "action %d", action);
    return name && *name ? name : text;
}

static void show(replay *r, const recorded_call *call, const difference *d) {
    char name[32];
    const char *unit = openpi_policy_action_unit(r->policy, d->action);
    if (++r->shown > SHOWN) return;
    printf("call %llu of connection %llu: differs by up to %.3g, the robot's %s at step %d by %.3g%s%s\n",
           (unsigned long long)call->order, (unsigned long long)call->connection, d->model,
           action_name(r, d->action, name), d->step, d->robot, unit && *unit ? " " : "", unit ? unit : "");
}

static void add_row(replay *r, const recorded_call *call, const difference *d, int equal) {
    if (!r->rows) return;
    json_array_append_new(r->rows, json_pack("{s:I, s:I, s:b, s:f, s:f, s:i, s:i}", "order",
                                             (json_int_t)call->order, "connection",
                                             (json_int_t)call->connection, "equal", equal, "model", d->model,
                                             "robot", d->robot, "step", d->step, "action", d->action));
}

static int replay_call(replay *r, const recorded_call *call) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (call->status != OPENPI_OK) {
        r->refused++;
        return END_FINE;
    }
    if (call->horizon != r->session_info.horizon)
        return input_error(&verb_replay, "%s: call %llu: its chunk has %d steps, but the session's has %d",
                           r->path, (unsigned long long)call->order, call->horizon, r->session_info.horizon);
    if (compute(r, call, &error) != OPENPI_OK)
        return input_error(&verb_replay, "%s: call %llu: %s", r->path, (unsigned long long)call->order,
                           error.message);
    difference d = compare(r, call);
    int equal = is_equal(r, call);
    r->calls++;
    r->equal += equal;
    add_row(r, call, &d, equal);
    if (!equal) show(r, call, &d);
    if (d.model <= r->worst.model) return END_FINE;
    r->worst = d;
    r->worst_order = call->order;
    return END_FINE;
}

/* ---- the recording ------------------------------------------------------------------------------------ */

/* The first call is read before the model is opened: it says which robot was served. */
static int replay_all(replay *r) {
    openpi_error error = OPENPI_ERROR_INIT;
    recorded_call call;
    int more, end = END_FINE;
    for (int count = 0; end == END_FINE && (!r->v->first || count < r->v->first); count++) {
        if (recording_next(r->reader, &call, &more, &error) != OPENPI_OK)
            return library_error(&verb_replay, &error);
        if (!more) break;
        if (!r->session) end = open_model(r);
        if (end == END_FINE) end = replay_call(r, &call);
    }
    return end;
}

static int save(replay *r) {
    json_t *root = head_json("replay");
    char hardware[HARDWARE_TEXT];
    head_hardware(r->v->machine.device ? r->v->machine.device : "cpu", "", hardware);
    json_object_set_new(root, "recording", head_text(r->path));
    json_object_set_new(root, "machine", head_machine(&r->engine_info, hardware));
    json_object_set_new(root, "calls", json_integer(r->calls));
    json_object_set_new(root, "equal", json_integer(r->equal));
    json_object_set_new(root, "refused", json_integer(r->refused));
    json_object_set(root, "differences", r->rows);
    return json_save(&verb_replay, r->v->json, root);
}

static int say_result(replay *r) {
    char name[32];
    if (r->shown > SHOWN) printf("… and %d more\n", r->shown - SHOWN);
    printf("%d calls: %d equal to the bit, %d not; %d requests had been refused\n", r->calls, r->equal,
           r->calls - r->equal, r->refused);
    if (recording_is_cut(r->reader))
        printf("the recording was not closed: its last call may be missing\n");
    if (!r->calls) return input_error(&verb_replay, "%s: has no call that was answered", r->path);
    if (r->equal == r->calls) return END_FINE;
    printf("largest difference: call %llu, %.3g; the robot's %s by %.3g\n",
           (unsigned long long)r->worst_order, r->worst.model, action_name(r, r->worst.action, name),
           r->worst.robot);
    return END_CHECK;
}

static void close_all(replay *r) {
    openpi_request_close(r->request);
    openpi_session_close(r->session);
    openpi_engine_close(r->engine);
    openpi_policy_close(r->policy);
    recording_reader_close(r->reader);
    json_decref(r->rows);
    free(r);
}

static int replay_run(const void *values, char **positional, int count) {
    openpi_error error = OPENPI_ERROR_INIT;
    replay *r = allocate(sizeof *r);
    memset(r, 0, sizeof *r);
    r->v = values;
    r->path = positional[0];
    int end = model_name_read(&verb_replay, r->v->synthetic, positional + 1, count - 1, &r->model);
    if (end == END_FINE && r->v->json) r->rows = json_array();
    if (end == END_FINE && recording_open(r->path, &r->reader, &error) != OPENPI_OK)
        end = library_error(&verb_replay, &error);
    if (end == END_FINE) end = replay_all(r);
    if (end == END_FINE && r->rows && r->session) end = save(r);
    if (end == END_FINE) end = say_result(r);
    close_all(r);
    return end;
}

#define AT(field) offsetof(replay_values, field)

static const option_row options[] = {
    {OPTION_HEADING, .name = "Model"},
    SYNTHETIC_OPTION(replay_values, synthetic),
    LORA_OPTIONS(replay_values, lora),
    {OPTION_HEADING, .name = "Policy (default: the recording's robot or config)"},
    POLICY_OPTIONS(replay_values, policy),
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "horizon", "N", "actions of a chunk (default: the recording's)", .offset = AT(horizon),
     .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N", "denoising steps (default: the recording's)", .offset = AT(steps), .low = 1,
     .high = OPENPI_MAX_STEPS},
    {OPTION_INT, "first", "N", "only the first N requests", .offset = AT(first), .low = 1,
     .high = 1000000000},
    {OPTION_HEADING, .name = "Results"},
    {OPTION_OUTPUT, "json", "FILE", "each call's difference", .offset = AT(json)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(replay_values, machine),
    {0},
};

static const conflict conflicts[] = {
    LORA_CONFLICT,
    {"norm-stats", "assets", "both name the statistics"},
    {"robot", "config", "a config names its robot"},
    {NULL, NULL, NULL},
};

static const example examples[] = {
    {"record a day", "openpi serve pi05_droid/ --config pi05_droid --record logs/"},
    {"does this machine give what that one gave", "openpi replay logs/2026-11-28T10.mcap pi05_droid/"},
    {"what would 8-bit weights have told the robot",
     "openpi replay logs/2026-11-28T10.mcap pi05_droid/ --weights expert=int8"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"RECORDING CHECKPOINT [options]",
                                       "RECORDING --synthetic PRESET[:pi0|pi05[:SEED]] [options]", NULL};

const verb verb_replay = {
    .name = "replay",
    .summary = "compute again what a server recorded, and say what differs",
    .synopsis = synopsis,
    .positional = "RECORDING",
    .positional_min = 1,
    .positional_max = 2,
    .description =
        "Takes each call of a recording of `openpi serve --record` as it was: the request's bytes, the noise "
        "of its seed, what was left of the chunk before it. The actions are compared bit by bit with those "
        "that were recorded.\n\n"
        "On the same device, kernels and batch all are equal. On others each call that differs has a line: "
        "by how much, and which of the robot's actions the most. A difference ends with status 1.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(replay_values),
    .run = replay_run,
};
