/* See unpack.h.
 *
 * Note: keys that are not the robot's are ignored, whatever they hold, as openpi ignores them. Pictures are
 * not, where openpi refuses them or a camera's misspelt name would leave a LeRobot policy without it. */
#include "policy/wire/unpack.h"

#include <stdio.h>
#include <string.h>

#include "base/guess.h"
#include "base/report.h"
#include "policy/cameras.h"

enum { DIMS = OPENPI_ACTION_DIM };

static const char lerobot_state[] = "observation.state";

/* ---- what came ------------------------------------------------------------------------------------ */

static void list_keys(const wire_message *message, char *out, size_t bytes) {
    int count = wire_count(message), shown = 0;
    size_t at = (size_t)snprintf(out, bytes, "; the request has ");
    for (int i = 0; i < count; i++) {
        const wire_field *field = wire_at(message, i);
        size_t length = strlen(field->key);
        if (field->kind == WIRE_MAP && field->count) continue;           /* its entries are named         */
        if (at + length + 12 > bytes) {
            snprintf(out + at, bytes - at, ", …");
            return;
        }
        at += (size_t)snprintf(out + at, bytes - at, "%s\"%s\"", shown++ ? ", " : "", field->key);
    }
    if (!shown) snprintf(out + at, bytes - at, "no keys");
}

/* 1: the key is the state's, the prompt's or one of extras.h, so a picture under it is not a camera's: noise
 * of three chunks looks like one. */
static int is_other_part(const openpi_policy *policy, const char *key) {
    static const char *const names[] = {"prompt", "task", "state", lerobot_state};
    if (!strncmp(key, "openpi/", 7)) return 1;
    for (int i = 0; i < 4; i++)
        if (!strcmp(key, names[i])) return 1;
    for (int p = 0; !policy->lerobot && p < policy->robot.part_count; p++)
        if (!strcmp(key, policy->robot.parts[p].key)) return 1;
    return 0;
}

/* Keys that nothing reads: of a missing one, they may be misspelt. */
static void list_strangers(const openpi_policy *policy, const wire_message *message, char *out,
                           size_t bytes) {
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < wire_count(message); i++) {
        const char *key = wire_at(message, i)->key;
        if (is_other_part(policy, key) || cameras_find(policy, key) != ROBOT_SLOT_UNKNOWN) continue;
        if (at + strlen(key) + 2 > bytes) return;
        at += (size_t)snprintf(out + at, bytes - at, "%s ", key);
    }
}

/* ---- pictures ------------------------------------------------------------------------------------- */

/* 1: an array that wire_image would take. */
static int is_picture(const wire_field *field) {
    int known = field->element == WIRE_U8 || field->element == WIRE_F16 || field->element == WIRE_F32 ||
                field->element == WIRE_F64;
    return field->kind == WIRE_ARRAY && field->rank == 3 && known &&
           (field->shape[0] == 3 || field->shape[2] == 3);
}

/* None or an empty dict: a frame that was dropped. */
static int is_none(const wire_field *field) {
    int pythons = field->kind == WIRE_OTHER && field->text && !strcmp(field->text, "an empty dict");
    return pythons || field->kind == WIRE_NIL || (field->kind == WIRE_MAP && !field->count);
}

/* A key that is no camera: ignored, or refused as openpi refuses it. A dropped frame of LeRobot's is refused
 * as its picture would be. */
static openpi_status check_no_camera(const openpi_policy *policy, const wire_field *field,
                                     openpi_error *error) {
    const char *images = policy->lerobot ? "observation.images." : "images/";
    char list[256];
    int strict = policy->lerobot || policy->robot.refuse_other_pictures,
        named = !strncmp(field->key, images, strlen(images)) && (!policy->lerobot || is_none(field)),
        refused = strict && (named || is_picture(field));
    if (!refused || is_other_part(policy, field->key)) return OPENPI_OK;
    report(error, OPENPI_BAD_INPUT, "robot \"%s\" has no camera \"%s\", it has %s", cameras_robot(policy),
           field->key, cameras_describe(policy, list, sizeof list));
    return guess_add(error, OPENPI_BAD_INPUT, field->key, list);
}

static openpi_status unpack_pictures(const openpi_policy *policy, const wire_message *message, unpacked *out,
                                     openpi_error *error) {
    int count = 0, chw = !policy->lerobot && policy->robot.always_chw;
    for (int i = 0; i < wire_count(message); i++) {
        const wire_field *field = wire_at(message, i);
        int camera = cameras_find(policy, field->key);
        if (camera == ROBOT_SLOT_UNUSED) continue;
        if (camera == ROBOT_SLOT_UNKNOWN) {
            TRY(check_no_camera(policy, field, error));
            continue;
        }
        if (count == UNPACK_PICTURES)
            return report(error, OPENPI_BAD_INPUT, "the request has more than %d pictures", UNPACK_PICTURES);
        TRY(wire_image(field, chw, &out->images[count++], error));
    }
    out->observation.images = out->images;
    out->observation.image_count = count;
    return OPENPI_OK;
}

/* ---- state ---------------------------------------------------------------------------------------- */

static openpi_status unpack_part(const wire_message *message, const char *key, int length, unpacked *out,
                                 openpi_error *error) {
    const wire_field *field = wire_find(message, key);
    int *at = &out->observation.state_length, count;
    if (!field && !length) return OPENPI_OK;
    if (!field || (length && field->kind == WIRE_NIL)) {
        report(error, OPENPI_BAD_INPUT, "the request has no \"%s\", expected %d numbers of the state%s", key,
               length, out->came);
        return guess_add_missing(error, OPENPI_BAD_INPUT, key, out->strangers);
    }
    TRY(wire_read_doubles(field, out->state + *at, DIMS - *at, &count, error));
    if (length && count != length)
        return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request has %d numbers, expected %d", key,
                      count, length);
    *at += count;
    return OPENPI_OK;
}

/* The numbers of another name of the state are those of `first`. */
static openpi_status check_same_state(const wire_message *message, const char *first, const char *other,
                                      const unpacked *out, openpi_error *error) {
    double state[DIMS];
    int count;
    TRY(wire_read_doubles(wire_find(message, other), state, DIMS, &count, error));
    int same = count == out->observation.state_length;
    for (int i = 0; same && i < count; i++) same = state[i] == out->state[i];
    if (same) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "\"%s\" and \"%s\" of the request are the state, and they differ: expected one of them",
                  first, other);
}

/* By its name before renaming, or by either of the names that openpi and LeRobot have for it. */
static openpi_status unpack_lerobot_state(const lerobot *pipeline, const wire_message *message, unpacked *out,
                                          openpi_error *error) {
    const char *names[LEROBOT_RENAMES + 2], *first = NULL;
    int count = 0;
    for (int r = 0; r < pipeline->rename_count; r++)
        if (!strcmp(pipeline->renames[r][1], lerobot_state)) names[count++] = pipeline->renames[r][0];
    names[count++] = "state";
    names[count++] = lerobot_state;
    for (int i = 0; i < count; i++) {
        int again = 0;
        for (int j = 0; j < i; j++) again |= !strcmp(names[i], names[j]);
        if (again || !wire_find(message, names[i])) continue;
        if (first) TRY(check_same_state(message, first, names[i], out, error));
        else TRY(unpack_part(message, names[i], pipeline->state_length, out, error));
        if (!first) first = names[i];
    }
    return first ? OPENPI_OK : unpack_part(message, lerobot_state, pipeline->state_length, out, error);
}

/* ---- prompt --------------------------------------------------------------------------------------- */

/* NULL where it is absent or None, which asks for the robot's default. */
static const wire_field *find_text(const wire_message *message, const char *key) {
    const wire_field *field = wire_find(message, key);
    return field && field->kind != WIRE_NIL ? field : NULL;
}

static openpi_status unpack_prompt(const openpi_policy *policy, const wire_message *message, unpacked *out,
                                   openpi_error *error) {
    const wire_field *prompt = find_text(message, "prompt"),
                     *task = policy->lerobot ? find_text(message, "task") : NULL;
    openpi_observation *to = &out->observation;
    const char *other;
    size_t length;
    if (!prompt && !task) return OPENPI_OK;
    TRY(wire_text(prompt ? prompt : task, &to->prompt, &to->prompt_length, error));
    if (prompt && task) {
        TRY(wire_text(task, &other, &length, error));
        if (length != to->prompt_length || memcmp(other, to->prompt, length))
            return report(error, OPENPI_BAD_INPUT,
                          "\"prompt\" and \"task\" of the request differ: expected one of them");
    }
    if (!to->prompt_length) to->prompt = "";             /* a length of 0 would ask for strlen            */
    return OPENPI_OK;
}

openpi_status unpack_message(const openpi_policy *policy, const wire_message *message, unpacked *out,
                             openpi_error *error) {
    out->observation = (openpi_observation)OPENPI_OBSERVATION_INIT;
    list_keys(message, out->came, sizeof out->came);
    list_strangers(policy, message, out->strangers, sizeof out->strangers);
    TRY(unpack_pictures(policy, message, out, error));
    if (policy->lerobot) TRY(unpack_lerobot_state(&policy->pipeline, message, out, error));
    for (int p = 0; !policy->lerobot && p < policy->robot.part_count; p++)
        TRY(unpack_part(message, policy->robot.parts[p].key, policy->robot.parts[p].length, out, error));
    out->observation.state = out->state;
    return unpack_prompt(policy, message, out, error);
}
