/* A request: from one observation to a sample, and from the model's actions to the robot's.
 *
 *   pictures -> slots (robots.h or lerobot.h) -> 224×224 (image.h)
 *   state    -> robot transform -> normalised (normalize.h or lerobot.h) -> padded to 32
 *   prompt   -> ids (prompt.h)
 *   model actions -> unnormalised -> absolute -> robot transform
 *
 * Memory for what is usual is allocated when a request is created; what a longer prompt or a larger picture
 * takes is given back at once.
 *
 * Note: relative (delta) actions are added to the state as openpi keeps it: normalised, rounded to fp32 and
 * unnormalised again, not to the caller's own numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/clock.h"
#include "base/guess.h"
#include "base/report.h"
#include "checkpoint/variant.h"
#include "policy/cameras.h"
#include "policy/extras.h"
#include "policy/limited.h"
#include "policy/pictures/image.h"
#include "policy/policy.h"
#include "policy/prompt.h"
#include "policy/wire/unpack.h"

enum {
    PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
    DIMS = OPENPI_ACTION_DIM,
    READY_TEXT = 16 << 10,       /* bytes of a prompt that fits without another allocation,               */
    READY_WORD = 4 << 10,        /* bytes of its longest word, with as much as is tokenised before it     */
    READY_PICTURE = 1 << 20,     /* bytes of scratch: enough for 1280×720 and for 720×1280                */
    MAX_TEXT = 1 << 20,          /* bytes of a prompt                                                     */
};

struct openpi_request {
    const openpi_policy *policy;
    openpi_sample sample;
    uint8_t *bytes[OPENPI_CAMERAS];           /* [224][224][3], openpi                                    */
    float *floats[OPENPI_CAMERAS];            /* [224][224][3], LeRobot                                   */
    uint8_t blank[OPENPI_CAMERAS];            /* 1: the slot's memory is the padding value throughout     */
    int borrows;                 /* 1: pictures that need no resize stay where they are                   */
    int32_t *tokens;             /* [max_prompt + 1]: one more detects a truncated prompt                 */
    float padded[DIMS];          /* the sample's state                                                    */
    double state[DIMS];          /* normalised                                                            */
    double raw_state[DIMS];      /* in the robot's units                                                  */
    int state_count;
    double reference[DIMS];      /* what relative actions are added to, openpi                            */
    float lerobot_reference[DIMS];            /* the same, LeRobot                                        */
    const char *prompt;          /* [prompt_bytes], the caller's or the next line's                       */
    char *kept_prompt;           /* of a message that holds it as another text; NULL: none                */
    size_t prompt_bytes;
    prompt_buffer *text;
    tokenizer_scratch *scratch;
    image_scratch resize;
    int truncated, prepared;
    extras extras;               /* extras of the message                                                 */
    notes notes;                 /* notes about the last prepare                                          */
    limited *limited;            /* its actions against the robot's limits                                */
    wire_message *message;       /* that is read and not prepared; NULL: none                              */
    unpacked parts;              /* its parts                                                             */
    const char *came;            /* "; the request has …" of a message that is prepared, else ""          */
    const char *strangers;       /* its keys that nothing reads and that may be one misspelt, else ""     */
    openpi_image given[OPENPI_CAMERAS];       /* by slot or feature; without a name: none                 */
    double state_text[DIMS];     /* the state as the prompt shows it                                      */
};

/* ---- memory --------------------------------------------------------------------------------------- */

static void make_blank(openpi_request *request, int slot) {
    if (request->blank[slot]) return;
    if (request->policy->lerobot)
        for (int i = 0; i < PIXELS; i++) request->floats[slot][i] = -1.0f;
    else memset(request->bytes[slot], 0, PIXELS);
    request->blank[slot] = 1;
}

static openpi_status take_memory(openpi_request *request, openpi_error *error) {
    int max = request->policy->max_prompt;
    size_t element = request->policy->lerobot ? sizeof(float) : 1;
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++) {
        void *pixels = malloc(PIXELS * element);
        if (!pixels) return report_no_memory(error, PIXELS * element, "a picture of a request");
        request->sample.images[slot] = pixels;
        if (request->policy->lerobot) request->floats[slot] = pixels;
        else request->bytes[slot] = pixels;
        make_blank(request, slot);
    }
    request->tokens = malloc((size_t)(max + 1) * sizeof *request->tokens);
    request->limited = calloc(1, sizeof *request->limited);
    if (!request->limited)
        return report_no_memory(error, sizeof *request->limited, "the limits of a request");
    limited_clear(request->limited);
    if (!request->tokens)
        return report_no_memory(error, (size_t)(max + 1) * sizeof *request->tokens,
                                "the tokens of a request");
    request->resize.memory = malloc(READY_PICTURE);
    if (!request->resize.memory) return report_no_memory(error, READY_PICTURE, "the resize of a request");
    request->resize.bytes = READY_PICTURE;
    TRY(prompt_buffer_create(READY_TEXT, DIMS, &request->text, error));
    return tokenizer_scratch_create(READY_WORD, &request->scratch, error);
}

openpi_status openpi_request_create(const openpi_policy *policy, openpi_request **request,
                                    openpi_error *error) {
    if (!policy || !request)
        return report(error, OPENPI_BAD_ARGUMENT, "request create: %s is NULL",
                      policy ? "request" : "policy");
    openpi_request *made = calloc(1, sizeof *made);
    if (!made) return report_no_memory(error, sizeof *made, "a request");
    made->policy = policy;
    openpi_status status = take_memory(made, error);
    if (status != OPENPI_OK) {
        openpi_request_close(made);
        return status;
    }
    made->sample.size = sizeof made->sample;
    made->sample.pixels = policy->lerobot ? OPENPI_PIXELS_F32 : OPENPI_PIXELS_U8;
    made->sample.tokens = made->tokens;
    *request = made;
    return OPENPI_OK;
}

void openpi_request_close(openpi_request *request) {
    if (!request) return;
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++) {
        free(request->bytes[slot]);
        free(request->floats[slot]);
    }
    free(request->tokens);
    free(request->limited);
    image_scratch_free(&request->resize);
    prompt_buffer_close(request->text);
    tokenizer_scratch_close(request->scratch);
    wire_message_free(request->message);
    free(request->kept_prompt);
    extras_clear(&request->extras);
    free(request);
}

/* Columns that the message's noise lacks are zeros in the request's. */
static size_t noise_bytes(size_t message_bytes) {
    size_t most = (size_t)OPENPI_MAX_BATCH * OPENPI_MAX_HORIZON * DIMS * sizeof(float);
    return message_bytes < most / DIMS ? message_bytes * DIMS : most;
}

/* What take_memory takes, and what a message may add to it. */
size_t openpi_request_bytes(const openpi_policy *policy, size_t message_bytes, size_t *kept) {
    if (kept) *kept = 0;
    if (!policy) return 0;
    size_t tokens = (size_t)(policy->max_prompt + 1) * sizeof(int32_t),
           pixels = OPENPI_CAMERAS * PIXELS * (policy->lerobot ? sizeof(float) : 1);
    size_t text = message_bytes < MAX_TEXT ? message_bytes : MAX_TEXT, noise = noise_bytes(message_bytes);
    size_t made = sizeof(openpi_request) + sizeof(limited) + pixels + tokens + READY_PICTURE +
                  prompt_bytes(READY_TEXT, DIMS) + tokenizer_scratch_bytes(READY_WORD);
    if (kept) *kept = made + text + noise;
    if (!message_bytes) return made;
    return made + text + noise + wire_most_bytes(message_bytes) + prompt_bytes(text, DIMS) +
           tokenizer_scratch_bytes(prompt_bytes(text, DIMS)) + image_scratch_most(message_bytes);
}

void openpi_request_borrow(openpi_request *request, int borrows) {
    if (request) request->borrows = borrows != 0;
}

/* ---- pictures ------------------------------------------------------------------------------------- */

static openpi_status take_picture(openpi_request *request, const openpi_image *image, int camera,
                                  openpi_image *given, openpi_error *error) {
    if (given->name)
        return report(error, OPENPI_BAD_INPUT, "pictures \"%.64s\" and \"%.64s\" are of the same camera",
                      given->name, image->name);
    *given = *image;
    if (cameras_by_position(request->policy, image->name))
        notes_add(&request->notes, 0,
                  "picture \"%.64s\" was taken for camera \"%s\" by its position: no camera has that name; "
                  "give it the camera's own", image->name,
                  lerobot_camera_name(&request->policy->pipeline, camera));
    return OPENPI_OK;
}

static openpi_status sort_pictures(openpi_request *request, const openpi_observation *observation,
                                   openpi_error *error) {
    const openpi_policy *policy = request->policy;
    openpi_image *given = request->given;
    char list[256];
    int count = 0;
    memset(given, 0, sizeof request->given);
    if (observation->image_count < 0 || (observation->image_count && !observation->images))
        return report(error, OPENPI_BAD_ARGUMENT, "the observation has %d pictures at %s",
                      observation->image_count, observation->images ? "an address" : "NULL");
    for (int i = 0; i < observation->image_count; i++) {
        openpi_image image;
        TRY(BOUNDARY_TAKE_AT(openpi_image, observation->images, i, &image, error));
        if (!image.name)
            return report(error, OPENPI_BAD_INPUT, "picture %d has no name; robot \"%s\" has cameras %s", i,
                          cameras_robot(policy), cameras_describe(policy, list, sizeof list));
        int camera = cameras_find(policy, image.name);
        if (camera == ROBOT_SLOT_UNKNOWN) {
            report(error, OPENPI_BAD_INPUT, "robot \"%s\" has no camera \"%.64s\", it has %s",
                   cameras_robot(policy), image.name, cameras_describe(policy, list, sizeof list));
            return guess_add(error, OPENPI_BAD_INPUT, image.name, list);
        }
        if (camera == ROBOT_SLOT_UNUSED) continue;
        TRY(take_picture(request, &image, camera, &given[camera], error));
        TRY(image_check_fields(&image, error));
        count++;
    }
    for (int c = 0; !policy->lerobot && c < policy->robot.camera_count; c++) {
        const robot_camera *camera = &policy->robot.cameras[c];
        if (!camera->required || given[camera->slot].name) continue;
        report(error, OPENPI_BAD_INPUT,
               "the picture of camera \"%s\" (%s), which robot \"%s\" needs, is missing%s", camera->key,
               robot_slot_name(camera->slot), policy->robot.name, request->came);
        return guess_add_missing(error, OPENPI_BAD_INPUT, camera->key, request->strangers);
    }
    if (!count)
        return report(error, OPENPI_BAD_INPUT, "no picture is given; robot \"%s\" has cameras %s%s",
                      cameras_robot(policy), cameras_describe(policy, list, sizeof list), request->came);
    return OPENPI_OK;
}

static openpi_status fill_slot(openpi_request *request, int slot, const openpi_image *image,
                               openpi_error *error) {
    int lerobot = request->policy->lerobot;
    request->sample.image_mask[slot] = image != NULL;
    request->sample.images[slot] = lerobot ? (const void *)request->floats[slot] : request->bytes[slot];
    if (!image) {
        make_blank(request, slot);
        return OPENPI_OK;
    }
    TRY(image_check(image, error));
    if (request->borrows && !lerobot && image_is_ready(image)) {
        request->sample.images[slot] = image->data;
        return OPENPI_OK;
    }
    request->blank[slot] = 0;
    if (lerobot) return image_resize_lerobot(image, &request->resize, request->floats[slot], error);
    return image_resize_openpi(image, &request->resize, request->bytes[slot], error);
}

static openpi_status take_pictures(openpi_request *request, openpi_error *error) {
    const openpi_image *ordered[OPENPI_CAMERAS] = {0};
    int slot = 0;
    for (int c = 0; c < OPENPI_CAMERAS; c++) { /* LeRobot: present cameras come first */
        if (!request->given[c].name) continue;
        if (!request->policy->lerobot) ordered[c] = &request->given[c];
        else ordered[slot++] = &request->given[c];
    }
    for (slot = 0; slot < OPENPI_CAMERAS; slot++) TRY(fill_slot(request, slot, ordered[slot], error));
    return OPENPI_OK;
}

/* ---- state ---------------------------------------------------------------------------------------- */

/* π0.5 without the state in its prompt does not read it: a robot whose state may have any length may then
 * omit it. */
static int state_is_optional(const openpi_policy *policy) {
    return !policy->state_length && !variant_of(policy->variant)->state_token && !policy->state_in_prompt;
}

static openpi_status check_state(const openpi_request *request, const openpi_observation *observation,
                                 openpi_error *error) {
    const openpi_policy *policy = request->policy;
    int count = observation->state_length, wanted = policy->state_length;
    if (count < 0 || (count && !observation->state))
        return report(error, OPENPI_BAD_ARGUMENT, "the observation's state has %d numbers at %s", count,
                      observation->state ? "an address" : "NULL");
    if (wanted && count != wanted)
        return report(error, OPENPI_BAD_INPUT, "the state has %d numbers, robot \"%s\" has %d", count,
                      cameras_robot(policy), wanted);
    if (!wanted && count > DIMS)
        return report(error, OPENPI_BAD_INPUT, "the state has %d numbers, expected at most %d", count, DIMS);
    if (!count && !state_is_optional(policy))
        return report(error, OPENPI_BAD_INPUT, "the state is missing, expected 1 to %d numbers%s", DIMS,
                      request->came);
    if (policy->mode != STATS_NONE && count > policy->state.dims)
        return report(error, OPENPI_BAD_INPUT, "the state has %d numbers, its statistics have %d", count,
                      policy->state.dims);
    for (int i = 0; i < count; i++)
        if (!isfinite(observation->state[i]))
            return report(error, OPENPI_BAD_INPUT, "state[%d] is %f, expected a finite number", i,
                          observation->state[i]);
    return OPENPI_OK;
}

static void take_lerobot_state(openpi_request *request, const double *raw, float *text) {
    float state[DIMS];
    for (int i = 0; i < request->state_count; i++) state[i] = (float)raw[i];
    lerobot_state_in(&request->policy->pipeline, state, request->lerobot_reference, text);
    for (int i = 0; i < request->state_count; i++) request->state[i] = (double)state[i];
}

static void take_robot_state(openpi_request *request, const double *raw) {
    const openpi_policy *policy = request->policy;
    memcpy(request->state, raw, (size_t)request->state_count * sizeof *raw);
    robot_limit_all(policy->robot.state_limits, request->state_count, request->state);
    robot_state_in(&policy->robot, request->state);
    normalize_apply(policy->mode, &policy->state, request->state, request->state_count);
}

static openpi_status take_state(openpi_request *request, const openpi_observation *observation,
                                openpi_error *error) {
    const openpi_policy *policy = request->policy;
    float lerobot_text[DIMS] = {0};
    TRY(check_state(request, observation, error));
    request->state_count = observation->state_length;
    for (int i = 0; i < request->state_count; i++) request->raw_state[i] = observation->state[i];
    if (policy->lerobot) take_lerobot_state(request, observation->state, lerobot_text);
    else if (request->state_count) take_robot_state(request, observation->state);
    for (int i = 0; i < DIMS; i++) {
        int known = i < request->state_count;
        request->padded[i] = known ? (float)request->state[i] : 0.0f;
        if (!isfinite(request->padded[i]))
            return report(error, OPENPI_BAD_INPUT,
                          "state[%d] is %g, which is %g normalised, expected a finite number", i,
                          observation->state[i], request->state[i]);
        request->state_text[i] =
            !known ? 0.0 : policy->lerobot ? (double)lerobot_text[i] : request->state[i];
        request->reference[i] = (double)request->padded[i];
    }
    if (!policy->lerobot)
        normalize_invert_model(policy->mode, &policy->state, request->padded, request->reference, DIMS);
    request->sample.state = request->padded;
    return OPENPI_OK;
}

/* ---- prompt --------------------------------------------------------------------------------------- */

static openpi_status encode_with(openpi_request *request, int *count, openpi_error *error) {
    const openpi_policy *policy = request->policy;
    const tokenizer *tokenizer = policy->tokenizer;
    tokenizer_scratch *scratch = request->scratch;
    const char *text = request->prompt;
    size_t bytes = request->prompt_bytes;
    int most = policy->max_prompt + 1;
    if (!policy->lerobot)
        return prompt_openpi(tokenizer, scratch, request->text, text, bytes, request->state_text,
                             policy->state_in_prompt ? request->state_count : 0, request->tokens, most, count,
                             error);
    if (policy->state_in_prompt)
        return prompt_lerobot_pi05(tokenizer, scratch, request->text, text, bytes, request->state_text,
                                   request->state_count, request->tokens, most, count, error);
    return prompt_lerobot_pi0(tokenizer, scratch, request->text, text, bytes, request->tokens, most, count,
                              error);
}

/* What a prompt takes that is longer than usual is given back. */
static openpi_status encode_prompt(openpi_request *request, int *count, openpi_error *error) {
    openpi_status status = encode_with(request, count, error);
    prompt_buffer_trim(request->text, READY_TEXT, DIMS);
    tokenizer_scratch_trim(request->scratch, READY_WORD);
    return status;
}

static openpi_status check_prompt(openpi_request *request, const openpi_observation *observation,
                                  openpi_error *error) {
    const openpi_policy *policy = request->policy;
    const char *text = observation->prompt;
    size_t bytes = text && !observation->prompt_length ? strlen(text) : observation->prompt_length;
    if (!text && policy->robot.has_prompt && (!policy->lerobot || policy->given_prompt)) {
        text = policy->robot.prompt;
        bytes = strlen(text);
    }
    if (!text) {
        report(error, OPENPI_BAD_INPUT,
               "a prompt is required: the observation has none, and robot \"%s\" has no default%s",
               cameras_robot(policy), request->came);
        return guess_add_missing(error, OPENPI_BAD_INPUT, "prompt", request->strangers);
    }
    request->prompt = text;
    request->prompt_bytes = bytes;
    if (bytes <= MAX_TEXT) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT, "the prompt has %zu bytes, expected at most %d", bytes, MAX_TEXT);
}

static openpi_status take_prompt(openpi_request *request, openpi_error *error) {
    int count, max = request->policy->max_prompt;
    TRY(encode_prompt(request, &count, error));
    request->truncated = count > max;
    request->sample.token_count = request->truncated ? max : count;
    if (request->truncated)
        notes_add(&request->notes, 1,
                  "the prompt is longer than the %d tokens that the policy takes; its end was cut%s", max,
                  request->policy->state_in_prompt
                      ? ", and with it the state, which the prompt holds at its end"
                      : "");
    return OPENPI_OK;
}

/* ---- preparing ------------------------------------------------------------------------------------ */

/* Nothing is left of a request before. */
static void begin(openpi_request *request) {
    request->prepared = 0;
    request->came = request->strangers = "";
    request->notes.count = 0;
    limited_clear(request->limited);
    extras_clear(&request->extras);
    wire_message_free(request->message);
    request->message = NULL;
    free(request->kept_prompt);
    request->kept_prompt = NULL;
}

/* All that can be wrong and is known without looking at every pixel and word: who is refused costs no more
 * than that. */
static openpi_status check(openpi_request *request, const openpi_observation *observation,
                           openpi_error *error) {
    TRY(sort_pictures(request, observation, error));
    TRY(take_state(request, observation, error));
    return check_prompt(request, observation, error);
}

/* The rest of a request that was checked. */
static openpi_status complete(openpi_request *request, openpi_timing *timing, openpi_error *error) {
    openpi_timing own = OPENPI_TIMING_INIT;
    double start = clock_ms();
    TRY(take_prompt(request, error));
    double prompt = clock_ms();
    openpi_status status = take_pictures(request, error);
    image_scratch_trim(&request->resize, READY_PICTURE);
    if (status != OPENPI_OK) return status;
    request->prepared = 1;
    own.stage_ms[OPENPI_STAGE_PROMPT] = prompt - start;
    own.stage_ms[OPENPI_STAGE_PICTURE] = clock_ms() - prompt;
    BOUNDARY_GIVE(openpi_timing, &own, timing);
    return OPENPI_OK;
}

openpi_status openpi_request_prepare(openpi_request *request, const openpi_observation *given,
                                     openpi_timing *timing, openpi_error *error) {
    openpi_observation observation;
    if (!request || !given)
        return report(error, OPENPI_BAD_ARGUMENT, "request prepare: %s is NULL",
                      request ? "observation" : "request");
    begin(request);
    TRY(BOUNDARY_CHECK(openpi_timing, timing, error));
    TRY(BOUNDARY_TAKE(openpi_observation, given, &observation, error));
    TRY(check(request, &observation, error));
    return complete(request, timing, error);
}

/* ---- msgpack -------------------------------------------------------------------------------------- */

/* "openpi/last_action" of the message. */
static openpi_status take_last_action(openpi_request *request, openpi_error *error) {
    int count = request->extras.last_count, dims = request->policy->action_dim;
    if (count != dims)
        return report(error, OPENPI_BAD_INPUT,
                      "\"openpi/last_action\" of the request has %d numbers, expected %d, as many as an "
                      "action has", count, dims);
    return openpi_request_last_action(request, request->extras.last, count, error);
}

/* Takes the message. */
static openpi_status read_message(openpi_request *request, wire_message *message, openpi_error *error) {
    request->message = message;
    TRY(unpack_message(request->policy, message, &request->parts, error));
    request->came = request->parts.came;
    request->strangers = request->parts.strangers;
    TRY(check(request, &request->parts.observation, error));
    TRY(extras_read(message, request->policy->model_dims, &request->extras, error));
    if (!request->extras.last_count) return OPENPI_OK;
    return take_last_action(request, error);
}

/* A prompt of numpy's wide characters is not in the caller's bytes as it is prepared. */
static openpi_status keep_prompt(openpi_request *request, openpi_error *error) {
    size_t bytes = request->prompt_bytes;
    if (!bytes || !wire_owns(request->message, request->prompt)) return OPENPI_OK;
    request->kept_prompt = malloc(bytes);
    if (!request->kept_prompt) return report_no_memory(error, bytes, "a prompt");
    memcpy(request->kept_prompt, request->prompt, bytes);
    request->prompt = request->kept_prompt;
    return OPENPI_OK;
}

/* What is read, where reading it went well. */
static openpi_status complete_message(openpi_request *request, openpi_status status, openpi_timing *timing,
                                      openpi_error *error) {
    if (status == OPENPI_OK) status = BOUNDARY_CHECK(openpi_timing, timing, error);
    if (status == OPENPI_OK) status = keep_prompt(request, error);
    if (status == OPENPI_OK) status = complete(request, timing, error);
    wire_message_free(request->message);
    request->message = NULL;
    return status;
}

/* index -1: the message is one observation. */
static openpi_status read_at(openpi_request *request, const void *bytes, size_t count, int index,
                             openpi_error *error) {
    wire_message *message;
    if (!request || !bytes)
        return report(error, OPENPI_BAD_ARGUMENT, "request prepare: %s",
                      request ? "the bytes are NULL" : "the request is NULL");
    begin(request);
    TRY(index < 0 ? wire_decode(bytes, count, &message, error)
                  : wire_decode_at(bytes, count, index, &message, error));
    openpi_status status = read_message(request, message, error);
    return status == OPENPI_OK ? status : complete_message(request, status, NULL, error);
}

openpi_status openpi_request_read_msgpack(openpi_request *request, const void *bytes, size_t count,
                                          openpi_error *error) {
    return read_at(request, bytes, count, -1, error);
}

openpi_status openpi_request_read_msgpack_at(openpi_request *request, const void *bytes, size_t count,
                                             int index, openpi_error *error) {
    return read_at(request, bytes, count, index < 0 ? OPENPI_MAX_OBSERVATIONS : index, error);
}

openpi_status openpi_message_observations(const void *bytes, size_t count, int *observations,
                                          openpi_error *error) {
    int found = 0;
    if (!observations)
        return report(error, OPENPI_BAD_ARGUMENT, "message observations: observations is NULL");
    *observations = 0;
    if (!bytes && !count) return OPENPI_OK;                /* no observation: who reads it says so     */
    if (!bytes) return report(error, OPENPI_BAD_ARGUMENT, "message observations: the bytes are NULL");
    TRY(wire_observations(bytes, count, &found, error));
    *observations = found;
    return OPENPI_OK;
}

openpi_status openpi_request_prepare_read(openpi_request *request, openpi_timing *timing,
                                          openpi_error *error) {
    if (!request) return report(error, OPENPI_BAD_ARGUMENT, "request prepare: the request is NULL");
    if (!request->message)
        return report(error, OPENPI_BAD_ARGUMENT, "request prepare: nothing was read, or reading it failed");
    return complete_message(request, OPENPI_OK, timing, error);
}

openpi_status openpi_request_prepare_msgpack(openpi_request *request, const void *bytes, size_t count,
                                             openpi_timing *timing, openpi_error *error) {
    TRY(openpi_request_read_msgpack(request, bytes, count, error));
    return openpi_request_prepare_read(request, timing, error);
}

openpi_status openpi_request_prepare_fields(openpi_request *request, const openpi_field *fields, int count,
                                            openpi_timing *timing, openpi_error *error) {
    wire_message *message;
    if (!request) return report(error, OPENPI_BAD_ARGUMENT, "request prepare: the request is NULL");
    begin(request);
    TRY(wire_from_fields(fields, count, &message, error));
    return complete_message(request, read_message(request, message, error), timing, error);
}

void openpi_request_clear(openpi_request *request) {
    if (request) begin(request);
}

const openpi_policy *request_policy(const openpi_request *request) { return request->policy; }

limited *request_limited(const openpi_request *request) { return request->limited; }

const double *request_reference(const openpi_request *request) {
    return request->prepared ? request->reference : NULL;
}

const float *request_lerobot_reference(const openpi_request *request) {
    return request->prepared ? request->lerobot_reference : NULL;
}

/* ---- what a prepared request holds ----------------------------------------------------------------- */

openpi_status openpi_request_sample(const openpi_request *request, openpi_sample *sample,
                                    openpi_error *error) {
    if (!request || !sample)
        return report(error, OPENPI_BAD_ARGUMENT, "request sample: %s is NULL",
                      request ? "sample" : "request");
    if (!request->prepared)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "request sample: nothing was prepared, or preparing failed");
    TRY(BOUNDARY_CHECK(openpi_sample, sample, error));
    BOUNDARY_GIVE(openpi_sample, &request->sample, sample);
    return OPENPI_OK;
}

openpi_status openpi_request_extras(const openpi_request *request, openpi_extras *out,
                                    openpi_error *error) {
    if (!request || !out)
        return report(error, OPENPI_BAD_ARGUMENT, "request extras: %s is NULL",
                      request ? "extras" : "request");
    TRY(BOUNDARY_CHECK(openpi_extras, out, error));
    openpi_extras own = OPENPI_EXTRAS_INIT;
    if (request->prepared || request->message) {
        own.noise_rows = request->extras.noise_rows;
        own.noise = own.noise_rows ? request->extras.noise : NULL;
        own.samples = request->extras.samples;
        own.deadline_ms = request->extras.deadline_ms;
        extras_give_maps(&request->extras, &own);
    }
    BOUNDARY_GIVE(openpi_extras, &own, out);
    return OPENPI_OK;
}

const char *openpi_request_prompt(const openpi_request *request, size_t *count) {
    int prepared = request && request->prepared;
    if (count) *count = prepared ? request->prompt_bytes : 0;
    return prepared ? request->prompt : NULL;
}

const double *openpi_request_raw_state(const openpi_request *request, int *count) {
    int prepared = request && request->prepared;
    if (count) *count = prepared ? request->state_count : 0;
    return prepared ? request->raw_state : NULL;
}

double openpi_request_action_start(const openpi_request *request, int action) {
    int at = request && request->prepared ? openpi_policy_action_state(request->policy, action) : -1;
    if (at < 0 || at >= request->state_count) return NAN;
    return request->policy->lerobot ? request->raw_state[at]
                                    : robot_start_value(&request->policy->robot, action, request->raw_state);
}

const double *openpi_request_state(const openpi_request *request, int *count) {
    int prepared = request && request->prepared;
    if (count) *count = prepared ? request->state_count : 0;
    return prepared ? request->state : NULL;
}

int openpi_request_prompt_truncated(const openpi_request *request) {
    return request && request->prepared && request->truncated;
}

const char *openpi_request_note(const openpi_request *request, int index, int *warning) {
    return request && request->prepared ? notes_get(&request->notes, index, warning) : NULL;
}

/* ---- finishing ------------------------------------------------------------------------------------ */

static void finish_lerobot(const openpi_request *request, const float *model, double *out) {
    const lerobot *pipeline = &request->policy->pipeline;
    float actions[DIMS];
    memcpy(actions, model, (size_t)pipeline->action_dim * sizeof *actions);
    lerobot_actions_out(pipeline, request->lerobot_reference, actions);
    for (int d = 0; d < pipeline->action_dim; d++) out[d] = (double)actions[d];
}

static void finish_robot(const openpi_request *request, const float *model, double *out) {
    const openpi_policy *policy = request->policy;
    double actions[DIMS];
    normalize_invert_model(policy->mode, &policy->actions, model, actions, DIMS);
    for (int d = 0; d < policy->robot.delta_count; d++)
        if (policy->robot.delta[d]) actions[d] += request->reference[d];
    robot_actions_out(&policy->robot, actions);
    robot_limit_all(policy->robot.action_limits, policy->robot.action_dim, actions);
    memcpy(out, actions, (size_t)policy->action_dim * sizeof *out);
}

openpi_status request_check_capacity(const openpi_request *request, int horizon, size_t capacity,
                                     openpi_error *error) {
    size_t needed = (size_t)horizon * (size_t)request->policy->action_dim;
    if (capacity >= needed) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "actions holds %zu numbers, expected %zu: horizon %d times %d action dimensions",
                  capacity, needed, horizon, request->policy->action_dim);
}

openpi_status openpi_request_finish(const openpi_request *request, const float *model_actions, int horizon,
                                    double *actions, size_t capacity, openpi_error *error) {
    if (!request || !model_actions || !actions)
        return report(error, OPENPI_BAD_ARGUMENT, "request finish: %s is NULL",
                      !request        ? "request"
                      : model_actions ? "actions"
                                      : "model_actions");
    if (!request->prepared)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "request finish: nothing was prepared, or preparing failed");
    if (horizon < 1 || horizon > OPENPI_MAX_HORIZON)
        return report(error, OPENPI_BAD_ARGUMENT, "request finish: horizon is %d, expected 1 to %d", horizon,
                      OPENPI_MAX_HORIZON);
    TRY(request_check_capacity(request, horizon, capacity, error));
    for (int i = 0; i < horizon * DIMS; i++)
        if (!isfinite(model_actions[i]))
            return report(error, OPENPI_BAD_INPUT,
                          "the model's action of step %d, dimension %d is %f, expected a finite number",
                          i / DIMS, i % DIMS, (double)model_actions[i]);
    int dims = request->policy->action_dim;
    double finished[OPENPI_MAX_HORIZON * DIMS];
    for (int h = 0; h < horizon; h++) {
        const float *model = model_actions + (size_t)h * DIMS;
        double *out = finished + (size_t)h * (size_t)dims;
        if (request->policy->lerobot) finish_lerobot(request, model, out);
        else finish_robot(request, model, out);
        for (int d = 0; d < dims; d++)
            if (!isfinite(out[d]))
                return report(error, OPENPI_BAD_INPUT,
                              "the robot's action of step %d, dimension %d is %f, expected a finite number: "
                              "the model's is %g, and the statistics or the state take it beyond what a "
                              "%s holds",
                              h, d, isnan(out[d]) ? (double)NAN : out[d], (double)model[d],
                              request->policy->lerobot ? "float" : "double");
    }
    TRY(limited_apply(request->limited, request->policy, request->raw_state, finished, horizon, error));
    memcpy(actions, finished, (size_t)horizon * (size_t)dims * sizeof *actions);
    return OPENPI_OK;
}
