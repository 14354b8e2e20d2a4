/* openpi run: one observation in, a chunk of robot actions out.
 *
 * Everything small is read and checked before the weights are, so that a mistyped state costs no minute. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "input.h"
#include "lab/measure/bench.h"
#include "progress.h"
#include "run.h"

/* ---- computing ------------------------------------------------------------------------------------ */

/* The noise that a client sent with its request (docs/serve.md), where --noise names no other. */
static int take_noise(run_job *j) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    if (openpi_request_extras(j->request, &extras, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    if (!extras.noise || j->noise) return END_FINE;
    size_t need = (size_t)extras.noise_rows * OPENPI_ACTION_DIM * sizeof *j->noise;
    j->noise = allocate(need);
    memcpy(j->noise, extras.noise, need);
    j->noise_rows = extras.noise_rows;
    j->noise_columns = OPENPI_ACTION_DIM;
    return END_FINE;
}

/* The noise has the model's shape; one with the columns of a model that has fewer gets zeros for the others,
 * which that model does not read. */
static int check_noise(run_job *j) {
    int horizon = j->session_info.horizon, dims = j->engine_info.action_dim, columns = j->noise_columns;
    char narrow[32] = "";
    if (!j->noise || (j->noise_rows == horizon && columns == OPENPI_ACTION_DIM)) return END_FINE;
    if (dims < OPENPI_ACTION_DIM) snprintf(narrow, sizeof narrow, " or [%d, %d]", horizon, dims);
    if (columns != OPENPI_ACTION_DIM && columns != dims)
        return input_error(&verb_run, "%s: shape is [%d, %d], expected [%d, %d]%s", run_noise_name(j),
                           j->noise_rows, columns, horizon, OPENPI_ACTION_DIM, narrow);
    if (j->noise_rows != horizon)
        return input_error(&verb_run,
                           "%s: shape is [%d, %d], but the horizon is %d, expected [%d, %d]%s; --horizon %d "
                           "would take it", run_noise_name(j), j->noise_rows, columns, horizon, horizon,
                           OPENPI_ACTION_DIM, narrow, j->noise_rows);
    float *wide = allocate((size_t)horizon * OPENPI_ACTION_DIM * sizeof *wide);
    memset(wide, 0, (size_t)horizon * OPENPI_ACTION_DIM * sizeof *wide);
    for (int i = 0; i < horizon; i++)
        memcpy(wide + i * OPENPI_ACTION_DIM, j->noise + i * columns, (size_t)columns * sizeof *wide);
    free(j->noise);
    j->noise = wide;
    return END_FINE;
}

static int prepare(run_job *j) {
    const run_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char cache[HOME_PATH];
    policy_of_model(&j->model, &v->lora, &v->policy, cache, &options);
    options.horizon = v->horizon;
    if (openpi_policy_open(j->model.checkpoint, &options, &j->policy, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    j->policy_info.size = sizeof j->policy_info;
    if (openpi_policy_get_info(j->policy, &j->policy_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    for (int d = 0; d < j->policy_info.action_dim; d++) {
        j->names[d] = openpi_policy_action_name(j->policy, d);
        j->units[d] = openpi_policy_action_unit(j->policy, d);
        if (*j->names[d]) snprintf(j->heads[d], sizeof j->heads[d], "%s", j->names[d]);
        else snprintf(j->heads[d], sizeof j->heads[d], "action %d", d);
    }
    if (openpi_request_create(j->policy, &j->request, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);

    openpi_observation observation = {.size = sizeof observation,
                                      .images = j->pictures,
                                      .image_count = v->images.count,
                                      .state = j->state,
                                      .state_length = j->state_count,
                                      .prompt = v->prompt,
                                      .prompt_length = v->prompt ? strlen(v->prompt) : 0};
    j->timing.size = sizeof j->timing;
    double start = now_ms();
    openpi_status status = v->request ? openpi_request_prepare_msgpack(j->request, j->request_bytes,
                                                                       j->request_count, &j->timing, &error)
                                      : openpi_request_prepare(j->request, &observation, &j->timing, &error);
    if (status == OPENPI_BAD_INPUT && v->request)
        return input_error(&verb_run, "%s: %s", input_name(v->request), error.message);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    j->timing.total_ms = now_ms() - start;
    for (int d = 0; d < j->policy_info.action_dim; d++)
        j->starts[d] = openpi_request_action_start(j->request, d);
    int end = take_noise(j);
    return end != END_FINE ? end : previous_prepare(&verb_run, &v->previous, j->request, &j->previous);
}

static int load(run_job *j) {
    const run_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    progress bar;
    progress_start(&bar);
    char without[SWITCH_TEXT];
    machine_options(&v->machine, without, &options);
    engine_of_model(&j->model, &v->lora, &options);
    options.progress = progress_show;
    options.progress_user = &bar;
    openpi_status status = openpi_engine_open(j->model.checkpoint, &options, &j->engine, &error);
    progress_end(&bar);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    j->engine_info.size = sizeof j->engine_info;
    if (openpi_engine_get_info(j->engine, &j->engine_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    device_facts facts;
    if (bench_device_facts(j->engine, &facts, &error) != OPENPI_OK) return library_error(&verb_run, &error);
    head_hardware(v->machine.device ? v->machine.device : "cpu", facts.name, j->hardware);

    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    shape.horizon = v->horizon ? v->horizon : j->policy_info.horizon;
    shape.steps = v->steps;
    shape.max_prompt = j->policy_info.max_prompt;
    shape.seed = v->seed;
    shape.rtc = v->previous.mode != 0;
    if (openpi_session_create(j->engine, &shape, &j->session, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    j->session_info.size = sizeof j->session_info;
    if (openpi_session_get_info(j->session, &j->session_info, &error) != OPENPI_OK)
        return library_error(&verb_run, &error);
    if (v->verbose) machine_say_table(&verb_run, &j->engine_info, j->session);
    machine_warn_table(&verb_run, &j->engine_info);
    machine_say_notes(&verb_run, j->engine, j->policy);
    previous_say(&verb_run, &v->previous, &j->previous, &j->engine_info, j->session_info.steps);
    if (j->session_info.not_recorded[0])
        fprintf(stderr, "openpi run: runs operation by operation, not as one graph: %s\n",
                j->session_info.not_recorded);
    return check_noise(j);
}

static int compute(run_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing ran = OPENPI_TIMING_INIT;
    int horizon = j->session_info.horizon, dims = j->policy_info.action_dim;
    ticker *seconds = ticker_start("computing");
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    j->model_actions = allocate((size_t)horizon * OPENPI_ACTION_DIM * sizeof *j->model_actions);
    openpi_status status = openpi_request_sample(j->request, &sample, &error);
    if (status == OPENPI_OK)
        status = openpi_session_run_rtc(j->session, &sample, &j->previous.rtc, 1, j->noise, j->model_actions,
                                        &ran, &error);
    ticker_stop(seconds);
    if (status == OPENPI_OK) status = openpi_session_get_info(j->session, &j->session_info, &error);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);

    size_t capacity = (size_t)horizon * (size_t)dims;
    j->actions = allocate(capacity * sizeof(double));
    double start = now_ms();
    if (openpi_request_finish(j->request, j->model_actions, horizon, j->actions, capacity, &error))
        return library_error(&verb_run, &error);
    j->limited = (openpi_limited)OPENPI_LIMITED_INIT;
    if (openpi_request_get_limited(j->request, &j->limited, &error)) return library_error(&verb_run, &error);
    double finish = now_ms() - start, before = j->timing.total_ms;
    for (int s = 0; s < OPENPI_STAGES; s++) j->timing.stage_ms[s] += ran.stage_ms[s];
    j->timing.stage_ms[OPENPI_STAGE_ACTIONS] = finish;
    j->timing.device_ms = ran.device_ms;
    j->timing.total_ms = before + ran.total_ms + finish;
    for (int i = 0; i < horizon * dims; i++)
        if (!(j->actions[i] - j->actions[i] == 0))
            return input_error(&verb_run,
                               "step %d, action %d is %g, expected a finite number: the weights or the "
                               "statistics hold one that "
                               "is not",
                               i / dims, i % dims, j->actions[i]);
    return END_FINE;
}

/* A prompt that was cut, a camera that was found by its position only. */
static void say_request_notes(const run_job *j) {
    const char *text;
    int warning;
    for (int i = 0; (text = openpi_request_note(j->request, i, &warning)); i++)
        fprintf(stderr, "openpi run: %s: %s\n", warning ? "warning" : "note", text);
}

static void say_limited(const run_job *j) {
    const openpi_limited *l = &j->limited;
    if (!l->changed) return;
    fprintf(stderr,
            "openpi run: warning: the robot's limits changed %d numbers of the chunk, the first in step %d: "
            "%d below min, %d above max, %d beyond max_step, %d beyond max_start_jump; %d steps are held\n",
            l->changed, l->step, l->below_min, l->above_max, l->beyond_step, l->beyond_start, l->held);
}

static int run_run(const void *values, char **positional, int count) {
    run_job j = {.v = values};
    int end = run_choose_format(&j);
    if (end != END_FINE) return end;
    end = model_name_read(&verb_run, j.v->synthetic, positional, count, &j.model);
    if (end == END_FINE) end = run_read(&j);
    if (end == END_FINE) end = prepare(&j);
    if (end == END_FINE) {
        say_request_notes(&j);
        end = load(&j);
    }
    if (end == END_FINE) end = compute(&j);
    if (end == END_FINE)
        end = previous_keep(&verb_run, &j.v->previous, j.request, j.model_actions, j.session_info.horizon);
    if (end == END_FINE) {
        say_limited(&j);
        run_show(&j);
    }

    openpi_session_close(j.session);
    openpi_engine_close(j.engine);
    openpi_request_close(j.request);
    openpi_policy_close(j.policy);
    for (int i = 0; i < TEXT_LIST_MAX; i++) {
        openpi_free((void *)(uintptr_t)j.pictures[i].data);
        free(j.picture_names[i]);
    }
    free(j.request_bytes);
    free(j.noise);
    previous_free(&j.previous);
    free(j.model_actions);
    free(j.actions);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(run_values, field)

static const option_row options[] = {
    {OPTION_HEADING, .name = "Model"},
    SYNTHETIC_OPTION(run_values, synthetic),
    LORA_OPTIONS(run_values, lora),
    {OPTION_HEADING, .name = "Observation"},
    {OPTION_TEXTS, "image", "NAME=FILE",
     "a camera's picture, PNG or JPEG of any size; NAME is base, left_wrist or right_wrist, or the "
     "robot's own key such as cam_high; once for each camera", .offset = AT(images)},
    {OPTION_TEXT, "state", "NUMBERS|FILE",
     "the robot's state: \"0.1,-0.2,1\", or a file that ends in .json and holds an array of numbers, or "
     "an object with one under \"state\"", .offset = AT(state)},
    {OPTION_TEXT, "prompt", "TEXT",
     "the instruction, in any bytes (default: the robot's own, where it has one)", .offset = AT(prompt)},
    {OPTION_TEXT, "request", "FILE",
     "a whole observation as an openpi client sends it: msgpack with numpy arrays", .offset = AT(request)},
    {OPTION_HEADING, .name = "Policy"},
    POLICY_OPTIONS(run_values, policy),
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "horizon", "N",
     "actions of the chunk (default: the config's or the checkpoint's)",
     .offset = AT(horizon), .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N",
     "denoising steps (default: the checkpoint's, 10)",
     .offset = AT(steps), .low = 1, .high = OPENPI_MAX_STEPS},
    {OPTION_TEXT, "noise", "FILE",
     "start from this noise: a .npy file, float32 [horizon, 32], or as many columns as a model of fewer "
     "action dimensions has (default: \"openpi/noise\" of the request, where it has one)",
     .offset = AT(noise)},
    {OPTION_U64, "seed", "N",
     "draw the noise from this seed (default: 0); the same on every machine", .offset = AT(seed)},
    {OPTION_HEADING, .name = "Real-time chunking"},
    PREVIOUS_OPTIONS(run_values, previous),
    {OPTION_HEADING, .name = "Result"},
    {OPTION_FLAG, "verbose", NULL,
     "also say how much of the model the tuner's table knows", .offset = AT(verbose)},
    {OPTION_CHOICE, "format", "table|json|csv|npy",
     "table for people; json {\"actions\": [[…]], \"timing\": {…}}; csv with a head line; npy float64 "
     "[horizon, actions] (default: what the name of --out ends in, else table)", .offset = AT(format)},
    {OPTION_FLAG, "json", "[-]", "as --format json", .offset = AT(json)},
    {OPTION_OUTPUT, "plot", "FILE",
     "also draw the chunk into this SVG file; a dot at time 0 is the number of the state that an action "
     "starts at, where the robot says which one that is", .offset = AT(plot)},
    {OPTION_OUTPUT, "out", "FILE",
     "write the result here instead of to stdout; the name's end says the form: .json, .csv, .npy, or .txt "
     "and none for the table", .offset = AT(out)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(run_values, machine),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"request", "image", "a request contains its pictures"},
    {"request", "state", "a request contains its state"},
    {"request", "prompt", "a request contains its prompt"},
    {"noise", "seed", "the noise is either read or drawn"},
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {"json", "format", "both name the form of the result"},
    {0},
};

static const example examples[] = {
    {"a small synthetic model that needs no file but a picture", "openpi run --synthetic tiny --robot none "
                                                                 "--image "
                                                                 "base=front.png --state 0.1,0.2 --prompt "
                                                                 "\"pick up the fork\""},
    {"a DROID arm with openpi's own checkpoint and settings", "openpi run pi05_droid/ --config pi05_droid "
                                                              "--image base=ext.png "
                                                              "--image left_wrist=wrist.jpg --state "
                                                              "state.json --prompt \"open "
                                                              "the drawer\""},
    {"what a client sent, answered as JSON, with a plot", "openpi run pi0_aloha_sim/ --robot aloha_sim "
                                                          "--request request.msgpack "
                                                          "--json --plot chunk.svg"},
    {"a LeRobot checkpoint says everything itself", "openpi run my_lerobot_policy/ --image "
                                                    "observation.images.top=top.png "
                                                    "--state 0,0,0,0,0,0 --prompt \"stack the cups\""},
    {"a chunk, kept so that the next one can follow on from it", "openpi run ckpt/ --robot droid --request "
                                                                 "r1.msgpack --keep chunk.npy"},
    {"the next one: 25 steps are done, and 3 more will be when it is there",
     "openpi run ckpt/ --robot droid --request r2.msgpack --previous chunk.npy --rtc guided --executed 25 "
     "--delay 3"},
    {"the same noise as another implementation, the numbers for numpy", "openpi run ckpt/ --robot droid "
                                                                        "--request r.msgpack "
                                                                        "--noise noise.npy "
                                                                        "--out actions.npy"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT [options]",
                                       "--synthetic PRESET[:pi0|pi05[:SEED]] [options]", NULL};

const verb verb_run = {
    .name = "run",
    .summary = "one observation in, a chunk of robot actions out",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Loads a model, computes the actions for one observation, and shows them with the time of "
                   "each stage.\n\n"
                   "CHECKPOINT is a folder as openpi (JAX's or its PyTorch port) or LeRobot write it, or a "
                   "single .safetensors file; F32, BF16 or F16. "
                   "Variant and sizes "
                   "are read off its tensors. The robot says which pictures and which state an observation "
                   "contains and what its "
                   "actions mean; where "
                   "neither the checkpoint nor --robot nor --config says it, openpi asks instead of "
                   "guessing.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(run_values),
    .run = run_run,
};
