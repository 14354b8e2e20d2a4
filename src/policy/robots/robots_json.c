/* A robot's record in JSON (docs/robots.md): every key is read and checked here, for built-in robots,
 * openpi's configs and users' files alike. */
#include <stdio.h>
#include <string.h>

#include "base/guess.h"
#include "base/json.h"
#include "base/report.h"
#include "policy/robots/robots_parts.h"

static openpi_status get_text(const json_t *object, const char *key, const char *name, char *out,
                              size_t bytes, int *found, openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text) return OPENPI_OK;
    size_t length = strlen(text);
    if (length >= bytes)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" has %zu bytes, at most %zu expected", name, key,
                      length, bytes - 1);
    memcpy(out, text, length + 1);
    if (found) *found = 1;
    return OPENPI_OK;
}

typedef struct keyword {
    const char *text;
    int value;
} keyword;

static openpi_status get_keyword(const json_t *object, const char *key, const char *name,
                                 const keyword *keywords, int *out, openpi_error *error) {
    const char *text = NULL;
    char known[128] = "";
    size_t at = 0;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text) return OPENPI_OK;
    for (const keyword *k = keywords; k->text; k++) {
        if (!strcmp(k->text, text)) {
            *out = k->value;
            return OPENPI_OK;
        }
        at += (size_t)snprintf(known + at, sizeof known - at, "%s\"%s\"", k == keywords ? "" : ", ", k->text);
    }
    report(error, OPENPI_BAD_FILE, "%s: \"%s\" is \"%s\", expected one of %s", name, key, text, known);
    return guess_add(error, OPENPI_BAD_FILE, text, known);
}

/* "KEY": "slot" (required) | {"slot": "slot"|null, "required": bool} | null (accepted, unused) */
static openpi_status read_camera(const char *key, const json_t *value, const char *name, robot_camera *out,
                                 openpi_error *error) {
    const char *slot = NULL;
    out->required = 1;
    if (json_is_string(value)) {
        slot = json_string_value(value);
    } else if (json_is_object(value)) {
        const char *member;
        json_t *ignored;
        json_object_foreach((json_t *)(uintptr_t)value, member, ignored) {
            if (!strcmp(member, "slot") || !strcmp(member, "required")) continue;
            return report(error, OPENPI_BAD_FILE,
                          "%s: camera \"%s\" has an unknown key \"%s\", known are slot and required", name,
                          key, member);
        }
        TRY(json_get_string(value, "slot", name, &slot, error));
        TRY(json_get_bool(value, "required", name, &out->required, error));
    } else if (!json_is_null(value)) {
        return report(error, OPENPI_BAD_FILE,
                      "%s: camera \"%s\" is %s, expected a slot's name, an object or null", name, key,
                      json_kind(value));
    }
    out->slot = slot ? robot_slot(slot) : ROBOT_SLOT_UNUSED;
    if (out->slot == ROBOT_SLOT_UNKNOWN)
        return report(error, OPENPI_BAD_FILE,
                      "%s: camera \"%s\" has slot \"%s\", expected base, left_wrist or right_wrist", name,
                      key, slot);
    if (out->slot == ROBOT_SLOT_UNUSED) out->required = 0;
    return OPENPI_OK;
}

static openpi_status check_key(const char *key, const char *name, const char *what, openpi_error *error) {
    size_t length = strlen(key);
    if (length && length < ROBOT_KEY_BYTES) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: the key \"%.80s\" of %s has %zu bytes, expected 1 to %d", name,
                  key, what, length, ROBOT_KEY_BYTES - 1);
}

static openpi_status read_cameras(const json_t *root, const char *name, robot *out, openpi_error *error) {
    json_t *object = json_object_get(root, "cameras"), *value;
    const char *key;
    if (!object) return OPENPI_OK;
    if (!json_is_object(object))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"cameras\" is %s, expected an object of request keys and slots", name,
                      json_kind(object));
    out->camera_count = 0;
    json_object_foreach(object, key, value) {
        if (out->camera_count == ROBOT_CAMERAS)
            return report(error, OPENPI_BAD_FILE, "%s: \"cameras\" has %zu entries, at most %d expected",
                          name, json_object_size(object), ROBOT_CAMERAS);
        robot_camera *camera = &out->cameras[out->camera_count++];
        TRY(check_key(key, name, "\"cameras\"", error));
        memcpy(camera->key, key, strlen(key) + 1);
        TRY(read_camera(key, value, name, camera, error));
    }
    return OPENPI_OK;
}

static openpi_status read_state(const json_t *root, const char *name, robot *out, openpi_error *error) {
    json_t *object = json_object_get(root, "state"), *value;
    const char *key;
    if (!object) return OPENPI_OK;
    if (!json_is_object(object))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"state\" is %s, expected an object of request keys and lengths", name,
                      json_kind(object));
    size_t size = json_object_size(object);
    if (!size || size > ROBOT_PARTS)
        return report(error, OPENPI_BAD_FILE, "%s: \"state\" has %zu entries, expected 1 to %d", name, size,
                      ROBOT_PARTS);
    out->part_count = out->state_length = out->has_starts = 0;
    memset(out->state_limits, 0, sizeof out->state_limits);
    json_object_foreach(object, key, value) {
        robot_part *part = &out->parts[out->part_count++];
        TRY(check_key(key, name, "\"state\"", error));
        memcpy(part->key, key, strlen(key) + 1);
        if (json_is_null(value))
            return report(error, OPENPI_BAD_FILE, "%s: state \"%s\" is null, expected its length", name, key);
        TRY(json_get_int(object, key, name, size == 1 ? 0 : 1, OPENPI_ACTION_DIM, &part->length, error));
        out->state_length += part->length;
    }
    if (out->state_length > OPENPI_ACTION_DIM)
        return report(error, OPENPI_BAD_FILE, "%s: \"state\" has %d numbers in all, at most %d expected",
                      name, out->state_length, OPENPI_ACTION_DIM);
    return OPENPI_OK;
}

/* openpi's make_bool_mask: n > 0 is n relative dimensions, n < 0 is |n| absolute ones. */
static openpi_status read_delta(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *array = json_object_get(root, "delta");
    if (!array) return OPENPI_OK;
    if (!json_is_array(array))
        return report(error, OPENPI_BAD_FILE, "%s: \"delta\" is %s, expected an array such as [6, -1]", name,
                      json_kind(array));
    out->delta_count = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t run = json_integer_value(item);
        json_int_t length = run < 0 && run >= -OPENPI_ACTION_DIM ? -run : run;
        if (!json_is_integer(item) || length < 1 || length > OPENPI_ACTION_DIM - out->delta_count)
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"delta\"[%zu] is no run that fits: expected integers other than 0, in all at "
                          "most %d dimensions",
                          name, i, OPENPI_ACTION_DIM);
        for (json_int_t k = 0; k < length; k++) out->delta[out->delta_count++] = run > 0;
    }
    return OPENPI_OK;
}

/* Names and units are printed unchanged in tables, plots and CSV files. */
static openpi_status read_label(const json_t *value, const char *name, const char *key, size_t index,
                                      char out[ROBOT_LABEL_BYTES], openpi_error *error) {
    const char *text = json_string_value(value);
    size_t length = text ? json_string_length(value) : 0;
    if (!text)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\"[%zu] is %s, expected a string", name, key, index,
                      json_kind(value));
    int odd = 0;
    for (size_t i = 0; i < length; i++)
        odd |= (unsigned char)text[i] < 0x20 || text[i] == ',' || text[i] == '"';
    if (!length || length >= ROBOT_LABEL_BYTES || odd)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"%s\"[%zu] is \"%.64s\", expected 1 to %d bytes without commas, quotes and "
                      "control characters",
                      name, key, index, text, ROBOT_LABEL_BYTES - 1);
    memcpy(out, text, length + 1);
    return OPENPI_OK;
}

/* One label for each action; `single`: or one string for all. */
static openpi_status read_labels(const json_t *root, const char *name, const char *key, int single,
                                       int actions, char out[][ROBOT_LABEL_BYTES], openpi_error *error) {
    const json_t *value = json_object_get(root, key);
    if (!value) return OPENPI_OK;
    if (single && json_is_string(value)) {
        for (int i = 0; i < actions; i++) TRY(read_label(value, name, key, (size_t)i, out[i], error));
        return OPENPI_OK;
    }
    if (!json_is_array(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected an array of strings%s", name, key,
                      json_kind(value), single ? " or one string" : "");
    if (json_array_size(value) != (size_t)actions)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"%s\" has %zu entries, expected %d, as many as \"actions\" says", name, key,
                      json_array_size(value), actions);
    for (int i = 0; i < actions; i++)
        TRY(read_label(json_array_get(value, (size_t)i), name, key, (size_t)i, out[i], error));
    return OPENPI_OK;
}

/* With another number of actions than the robot that it is like, what that robot says of them does not apply;
 * with other names its starts do not. */
static openpi_status read_actions(const json_t *root, const char *name, robot *out, openpi_error *error) {
    int before = out->action_dim;
    TRY(json_get_int(root, "actions", name, 1, OPENPI_ACTION_DIM, &out->action_dim, error));
    if (out->action_dim != before) {
        memset(out->action_names, 0, sizeof out->action_names);
        memset(out->units, 0, sizeof out->units);
        memset(out->action_limits, 0, sizeof out->action_limits);
    }
    if (out->action_dim != before || json_object_get(root, "action_names")) {
        out->has_starts = 0;
        memset(out->kinds, 0, sizeof out->kinds);
    }
    TRY(read_labels(root, name, "action_names", 0, out->action_dim, out->action_names, error));
    TRY(read_labels(root, name, "units", 1, out->action_dim, out->units, error));
    for (int i = 0; i < out->action_dim; i++)
        for (int j = 0; j < i && out->action_names[i][0]; j++)
            if (!strcmp(out->action_names[i], out->action_names[j]))
                return report(error, OPENPI_BAD_FILE,
                              "%s: \"action_names\"[%d] and [%d] are both \"%s\", expected different names",
                              name, j, i, out->action_names[i]);
    const json_t *rate = json_object_get(root, "rate_hz");
    if (!rate) return OPENPI_OK;
    if (!json_is_number(rate))
        return report(error, OPENPI_BAD_FILE, "%s: \"rate_hz\" is %s, expected a number above 0", name,
                      json_kind(rate));
    out->rate_hz = json_number_value(rate);
    if (!(out->rate_hz > 0 && out->rate_hz <= ROBOT_MAX_RATE))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"rate_hz\" is %g, expected a number above 0 and at most %d", name, out->rate_hz,
                      ROBOT_MAX_RATE);
    return OPENPI_OK;
}

/* What openpi's server sends to clients as metadata; ALOHA's program moves each arm there. */
static openpi_status read_reset_pose(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *array = json_object_get(root, "reset_pose");
    if (!array) return OPENPI_OK;
    if (!json_is_array(array))
        return report(error, OPENPI_BAD_FILE, "%s: \"reset_pose\" is %s, expected an array of numbers", name,
                      json_kind(array));
    size_t count = json_array_size(array);
    if (count > ROBOT_POSE)
        return report(error, OPENPI_BAD_FILE, "%s: \"reset_pose\" has %zu numbers, at most %d expected", name,
                      count, ROBOT_POSE);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_number(item))
            return report(error, OPENPI_BAD_FILE, "%s: \"reset_pose\"[%zu] is %s, expected a number", name, i,
                          json_kind(item));
        out->reset_pose[i] = json_number_value(item);
    }
    out->reset_pose_count = (int)count;
    return OPENPI_OK;
}

static openpi_status check_keys(const json_t *root, const char *name, openpi_error *error) {
    static const char *const known[] = {
        "like",    "name",    "about",      "cameras",       "layout",       "other_pictures", "state",
        "actions", "delta",   "transform",  "normalization", "prompt_state", "prompt",         "assets",
        "variant", "horizon", "max_prompt", "action_names",  "units",        "rate_hz",        "lora",
        "questions", "reset_pose", "limits", "starts", "kinds"};
    enum { KNOWN = sizeof known / sizeof *known };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value) {
        int found = 0;
        for (int i = 0; i < KNOWN; i++) found |= !strcmp(known[i], key);
        if (found) continue;
        char list[420] = "";
        size_t at = 0;
        for (int i = 0; i < KNOWN; i++)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", known[i]);
        report(error, OPENPI_BAD_FILE, "%s: unknown key \"%.64s\", known are %s", name, key, list);
        return guess_add(error, OPENPI_BAD_FILE, key, list);
    }
    return OPENPI_OK;
}

/* What tools/openpi_config.py could not find out: nothing is guessed in place of the answers. */
static openpi_status check_questions(const json_t *root, const char *name, openpi_error *error) {
    const json_t *questions = json_object_get(root, "questions");
    size_t count = json_array_size(questions);
    if (questions && !json_is_array(questions))
        return report(error, OPENPI_BAD_FILE, "%s: \"questions\" is %s, expected an array of strings", name,
                      json_kind(questions));
    if (!count) return OPENPI_OK;
    const char *first = json_string_value(json_array_get(questions, 0));
    return report(error, OPENPI_BAD_FILE,
                  "%s: %zu of the \"questions\" %s unanswered, the first is \"%.160s\": write the answers "
                  "into the file and take \"questions\" out of it",
                  name, count, count == 1 ? "is" : "are", first ? first : "");
}

/* {"vlm": rank, "expert": rank}, each may be absent. */
static openpi_status read_lora(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *lora = json_object_get(root, "lora");
    const char *key;
    json_t *ignored;
    if (!lora) return OPENPI_OK;
    if (!json_is_object(lora))
        return report(error, OPENPI_BAD_FILE, "%s: \"lora\" is %s, expected an object of ranks", name,
                      json_kind(lora));
    json_object_foreach((json_t *)(uintptr_t)lora, key, ignored) {
        if (strcmp(key, "vlm") && strcmp(key, "expert"))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"lora\" has an unknown key \"%.64s\", known are vlm and expert", name, key);
    }
    TRY(json_get_int(lora, "vlm", name, 1, ROBOT_MAX_RANK, &out->lora_vlm, error));
    return json_get_int(lora, "expert", name, 1, ROBOT_MAX_RANK, &out->lora_expert, error);
}

static openpi_status check_record(const robot *r, const char *name, openpi_error *error) {
    int slots = 0;
    if (!r->name[0])
        return report(error, OPENPI_BAD_FILE, "%s: \"name\" is absent, expected the robot's name", name);
    for (int c = 0; c < r->camera_count; c++) slots += r->cameras[c].slot >= 0;
    if (!slots)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"cameras\" fill no slot, expected at least one of base, left_wrist, right_wrist",
                      name);
    if (!r->part_count)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"state\" is absent, expected an object of request keys and lengths", name);
    if (!r->action_dim)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"actions\" is absent, expected the number of action dimensions", name);
    if (r->delta_count > r->action_dim)
        return report(error, OPENPI_BAD_FILE, "%s: \"delta\" covers %d dimensions, \"actions\" are %d", name,
                      r->delta_count, r->action_dim);
    for (int i = 0; i < r->delta_count; i++)
        if (r->delta[i] && i >= r->state_length)
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"delta\" makes action %d relative to the state, which has %d numbers", name,
                          i, r->state_length);
    if (r->transform == ROBOT_ALOHA && (r->state_length != 14 || r->action_dim != 14))
        return report(
            error, OPENPI_BAD_FILE,
            "%s: the transform \"aloha\" needs a state of 14 and 14 actions, here they are %d and %d", name,
            r->state_length, r->action_dim);
    if (r->assets[0] == '/' || strstr(r->assets, ".."))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"assets\" is \"%s\", expected a folder's name inside the checkpoint's assets",
                      name, r->assets);
    return OPENPI_OK;
}

static openpi_status read_record(const json_t *root, const char *name, robot *out, openpi_error *error) {
    static const keyword layouts[] = {{"auto", 0}, {"chw", 1}, {NULL, 0}};
    static const keyword others[] = {{"refuse", 1}, {"ignore", 0}, {NULL, 0}};
    static const keyword transforms[] = {{"none", ROBOT_PLAIN}, {"aloha", ROBOT_ALOHA}, {NULL, 0}};
    static const keyword normalizations[] = {{"auto", ROBOT_NORM_AUTO},
                                          {"zscore", ROBOT_NORM_ZSCORE},
                                          {"quantile", ROBOT_NORM_QUANTILE},
                                          {"none", ROBOT_NORM_NONE},
                                          {NULL, 0}};
    static const keyword switches[] = {{"auto", OPENPI_PROMPT_STATE_DEFAULT},
                                    {"on", OPENPI_PROMPT_STATE_ON},
                                    {"off", OPENPI_PROMPT_STATE_OFF},
                                    {NULL, 0}};
    static const keyword variants[] = {
        {"any", ROBOT_VARIANT_ANY}, {"pi0", OPENPI_PI0}, {"pi05", OPENPI_PI05}, {NULL, 0}};
    const char *like = NULL;
    if (!json_is_object(root))
        return report(error, OPENPI_BAD_FILE, "%s: the robot is %s, expected an object", name,
                      json_kind(root));
    TRY(check_keys(root, name, error));
    TRY(check_questions(root, name, error));
    TRY(json_get_string(root, "like", name, &like, error));
    if (like) {
        const char *record = robot_builtin(like);
        char list[128];
        if (!record) {
            report(error, OPENPI_BAD_FILE, "%s: \"like\" is \"%.64s\", expected one of %s", name, like,
                   robot_builtin_names(list, sizeof list));
            return guess_add(error, OPENPI_BAD_FILE, like, list);
        }
        TRY(robot_parse(record, strlen(record), like, out, error));
    } else {
        *out = (robot){.refuse_other_pictures = 1, .variant = ROBOT_VARIANT_ANY};
    }
    int normalization = (int)out->normalization, transform = (int)out->transform,
        prompt_state = (int)out->prompt_state;
    TRY(get_text(root, "name", name, out->name, sizeof out->name, NULL, error));
    TRY(read_cameras(root, name, out, error));
    TRY(get_keyword(root, "layout", name, layouts, &out->always_chw, error));
    TRY(get_keyword(root, "other_pictures", name, others, &out->refuse_other_pictures, error));
    TRY(read_state(root, name, out, error));
    TRY(read_actions(root, name, out, error));
    TRY(read_delta(root, name, out, error));
    TRY(robot_read_kinds(root, name, out, error));
    TRY(robot_read_starts(root, name, out, error));
    TRY(robot_read_limits(root, name, out, error));
    TRY(get_keyword(root, "transform", name, transforms, &transform, error));
    TRY(get_keyword(root, "normalization", name, normalizations, &normalization, error));
    TRY(get_keyword(root, "prompt_state", name, switches, &prompt_state, error));
    TRY(get_text(root, "prompt", name, out->prompt, sizeof out->prompt, &out->has_prompt, error));
    TRY(get_text(root, "assets", name, out->assets, sizeof out->assets, NULL, error));
    TRY(get_keyword(root, "variant", name, variants, &out->variant, error));
    TRY(json_get_int(root, "horizon", name, 1, OPENPI_MAX_HORIZON, &out->horizon, error));
    TRY(json_get_int(root, "max_prompt", name, 1, ROBOT_MAX_PROMPT, &out->max_prompt, error));
    TRY(read_lora(root, name, out, error));
    TRY(read_reset_pose(root, name, out, error));
    out->normalization = (robot_normalization)normalization;
    out->transform = (robot_transform)transform;
    out->prompt_state = (openpi_prompt_state)prompt_state;
    return check_record(out, name, error);
}

openpi_status robot_parse(const char *text, size_t bytes, const char *name, robot *out, openpi_error *error) {
    json_t *root;
    TRY(json_parse(text, bytes, name, &root, error));
    openpi_status status = read_record(root, name, out, error);
    json_decref(root);
    return status;
}
