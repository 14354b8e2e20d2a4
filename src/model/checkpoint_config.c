#include "model/checkpoint_config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "ops/limits.h"

static openpi_status expect_number(const checkpoint_config *c, const char *key, double expected,
                                   openpi_error *error) {
    const json_t *value = json_object_get(c->root, key);
    if (!value || (json_is_number(value) && json_number_value(value) == expected)) return OPENPI_OK;
    if (!json_is_number(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected %g", c->path, key, json_kind(value),
                      expected);
    return report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is %g, expected %g", c->path, key,
                  json_number_value(value), expected);
}

/* The place of a text among names, from 1 on; untouched where the key is absent or null. */
static openpi_status read_name(const checkpoint_config *c, const json_t *object, const char *key,
                               const char *const *names, int *out, openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, c->path, &text, error));
    if (!text) return OPENPI_OK;
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text)) *out = i + 1;
    if (*out) return OPENPI_OK;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: rtc_config.\"%s\" is \"%.40s\", expected a name such as \"%s\"", c->path, key, text,
                  names[0]);
}

/* LeRobot policies/rtc/configuration_rtc.py. A mode or schedule that is not known matters to nobody while
 * rtc_config is not enabled. */
static openpi_status read_rtc(checkpoint_config *c, openpi_error *error) {
    static const char *const modes[] = {"guided", "trained", NULL};
    static const char *const schedules[] = {"ZEROS", "ONES", "LINEAR", "EXP", NULL};
    const json_t *rtc = json_object_get(c->root, "rtc_config");
    int enabled = 1, mode = 0, schedule = 0, max_delay = 0;
    TRY(json_get_int(c->root, "rtc_training_max_delay", c->path, 0, INT_MAX, &max_delay, error));
    c->rtc.max_delay = max_delay;
    if (!rtc || json_is_null(rtc)) return OPENPI_OK;
    if (!json_is_object(rtc))
        return report(error, OPENPI_BAD_FILE, "%s: \"rtc_config\" is %s, expected an object", c->path,
                      json_kind(rtc));
    TRY(json_get_bool(rtc, "enabled", c->path, &enabled, error));
    if (!enabled) return OPENPI_OK;
    TRY(read_name(c, rtc, "mode", modes, &mode, error));
    TRY(read_name(c, rtc, "prefix_attention_schedule", schedules, &schedule, error));
    TRY(json_get_int(rtc, "execution_horizon", c->path, 1, INT_MAX, &c->rtc.horizon, error));
    const json_t *weight = json_object_get(rtc, "max_guidance_weight");
    if (weight && !(json_is_number(weight) && json_number_value(weight) > 0))
        return report(error, OPENPI_BAD_FILE,
                      "%s: rtc_config.\"max_guidance_weight\" is %s, expected a number above 0", c->path,
                      json_is_number(weight) ? "not above 0" : json_kind(weight));
    c->rtc.mode = mode ? (openpi_rtc_mode)mode : OPENPI_RTC_GUIDED;
    c->rtc.schedule = (openpi_rtc_schedule)schedule;
    c->rtc.max_weight = weight ? json_number_value(weight) : 0;
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

    static const struct {
        const char *key;
        double expected;
    } numbers[] = {{"max_state_dim", OPENPI_ACTION_DIM}, {"min_period", 0.004}, {"max_period", 4.0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(expect_number(c, numbers[i].key, numbers[i].expected, error));

    static const char *const memories[] = {"use_visual_memory", "use_proprioceptive_memory"};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        int on = 0;
        TRY(json_get_bool(c->root, memories[i], c->path, &on, error));
        if (on)
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: \"%s\" is true, expected false: memory is not supported", c->path,
                          memories[i]);
    }

    double size[2];
    int sizes;
    TRY(json_get_doubles(c->root, "image_resolution", c->path, size, 2, &sizes, error));
    if (sizes == 1)
        return report(error, OPENPI_UNSUPPORTED, "%s: \"image_resolution\" is [%g], expected [224, 224]",
                      c->path, size[0]);
    if (sizes == 2 && (size[0] != OPENPI_IMAGE_SIZE || size[1] != OPENPI_IMAGE_SIZE))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"image_resolution\" is [%g, %g], expected [224, 224]",
                      c->path, size[0], size[1]);
    TRY(json_get_int(c->root, "max_action_dim", c->path, 1, INT_MAX, &c->action_dim, error));
    TRY(json_get_int(c->root, "chunk_size", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error));
    TRY(json_get_int(c->root, "num_inference_steps", c->path, 1, OPENPI_MAX_STEPS, &c->steps, error));
    TRY(read_rtc(c, error));
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
    return json_get_int(c->root, "action_horizon", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error);
}
