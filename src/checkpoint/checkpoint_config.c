#include "checkpoint/checkpoint_config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/closed_world.h"
#include "ops/limits.h"

/* The place of a text among names, from 1 on, 0 where the key is absent or null. Other texts are refused
 * before (closed_world.h). */
static int place_of(const json_t *object, const char *key, const char *const *names) {
    const char *text = json_string_value(json_object_get(object, key));
    for (int i = 0; text && names[i]; i++)
        if (!strcmp(names[i], text)) return i + 1;
    return 0;
}

/* LeRobot policies/rtc/configuration_rtc.py. */
static openpi_status read_rtc(checkpoint_config *c, openpi_error *error) {
    static const char *const modes[] = {"guided", "trained", NULL};
    static const char *const schedules[] = {"ZEROS", "ONES", "LINEAR", "EXP", NULL};
    const json_t *rtc = json_object_get(c->root, "rtc_config");
    int enabled = 1, max_delay = 0;
    TRY(json_get_int(c->root, "rtc_training_max_delay", c->path, 0, INT_MAX, &max_delay, error));
    c->rtc.max_delay = max_delay;
    if (!rtc || json_is_null(rtc)) return OPENPI_OK;
    if (!json_is_object(rtc))
        return report(error, OPENPI_BAD_FILE, "%s: \"rtc_config\" is %s, expected an object", c->path,
                      json_kind(rtc));
    TRY(json_get_bool(rtc, "enabled", c->path, &enabled, error));
    if (!enabled) return OPENPI_OK;
    int mode = place_of(rtc, "mode", modes);
    TRY(json_get_int(rtc, "execution_horizon", c->path, 1, INT_MAX, &c->rtc.horizon, error));
    const json_t *weight = json_object_get(rtc, "max_guidance_weight");
    if (weight && !(json_is_number(weight) && json_number_value(weight) > 0))
        return report(error, OPENPI_BAD_FILE,
                      "%s: rtc_config.\"max_guidance_weight\" is %s, expected a number above 0", c->path,
                      json_is_number(weight) ? "not above 0" : json_kind(weight));
    c->rtc.mode = mode ? (openpi_rtc_mode)mode : OPENPI_RTC_GUIDED;
    c->rtc.schedule = (openpi_rtc_schedule)place_of(rtc, "prefix_attention_schedule", schedules);
    c->rtc.max_weight = weight ? json_number_value(weight) : 0;
    return OPENPI_OK;
}

/* Its old name is LeRobot 0.1 to 0.3's. */
static openpi_status read_steps(checkpoint_config *c, openpi_error *error) {
    int old = 0;
    TRY(json_get_int(c->root, "num_inference_steps", c->path, 1, OPENPI_MAX_STEPS, &c->steps, error));
    TRY(json_get_int(c->root, "num_steps", c->path, 1, OPENPI_MAX_STEPS, &old, error));
    if (old && c->steps && old != c->steps)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"num_steps\" is %d and \"num_inference_steps\" is %d, expected one of them "
                      "or the same number",
                      c->path, old, c->steps);
    if (old) c->steps = old;
    return OPENPI_OK;
}

static openpi_status read_lerobot(checkpoint_config *c, openpi_error *error) {
    const char *type = NULL;
    TRY(json_get_string(c->root, "type", c->path, &type, error));
    if (type && !strcmp(type, "pi0_fast"))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"type\" is \"pi0_fast\", a model that writes its actions as tokens, expected "
                      "\"pi0\" or \"pi05\": run it with LeRobot in Python",
                      c->path);
    if (!type || !variant_parse(type, strlen(type), &c->type))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"type\" is \"%s\", expected \"pi0\" or \"pi05\"",
                      c->path, type ? type : "null");

    TRY(closed_world_check("config.json", c->root, c->path, "", error));
    TRY(json_get_int(c->root, "max_action_dim", c->path, 1, INT_MAX, &c->action_dim, error));
    TRY(json_get_int(c->root, "chunk_size", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error));
    TRY(read_steps(c, error));
    TRY(read_rtc(c, error));
    TRY(json_get_bool(c->root, "use_peft", c->path, &c->use_peft, error));
    return json_get_int(c->root, "tokenizer_max_length", c->path, 1, LIMIT_PROMPT, &c->max_prompt, error);
}

/* FOLDER/config.json, if it is there. */
static openpi_status find_config(const char *folder, checkpoint_config *c, openpi_error *error) {
    char *path = file_join(folder, "config.json");
    if (!path) return report_no_memory(error, strlen(folder) + 16, folder);
    snprintf(c->path, sizeof c->path, "%s", path);
    openpi_status status = file_exists(path) ? json_read(path, &c->root, error) : OPENPI_OK;
    free(path);
    return status;
}

openpi_status checkpoint_config_read(const model_place *place, checkpoint_config *c, openpi_error *error) {
    if (place->adapter) TRY(find_config(place->adapter, c, error));
    if (!c->root && file_is_folder(place->base)) TRY(find_config(place->base, c, error));
    if (!c->root) return OPENPI_OK;
    if (!json_is_object(c->root))
        return report(error, OPENPI_BAD_FILE, "%s: is %s, expected an object", c->path, json_kind(c->root));
    c->lerobot = json_object_get(c->root, "type") != NULL;
    if (c->lerobot) return read_lerobot(c, error);
    TRY(json_get_int(c->root, "action_dim", c->path, 1, INT_MAX, &c->action_dim, error));
    TRY(json_get_int(c->root, "action_horizon", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error));
    if (json_object_get(c->root, "action_horizon_from")) c->horizon = 0;     /* a default: openpi_convert.c */
    return OPENPI_OK;
}
