/* Names of a LeRobot checkpoint's actions: what its training wrote into config.json as action_feature_names.
 *
 * Note: they change no number. Names that are not one of each action are told and left out, because whoever
 * maps actions to joints by a wrong name moves the wrong joint. */
#include <stdio.h>
#include <string.h>

#include "policy/lerobot/lerobot_parts.h"

#define KEY "action_feature_names"

/* What keeps a name out of tables and CSV files; NULL: nothing does. */
static const char *odd(const json_t *item) {
    const char *text = json_string_value(item);
    if (!text) return "no string";
    if (!*text) return "empty";
    if (strlen(text) >= LEROBOT_NAME_BYTES || strlen(text) != json_string_length(item)) return "too long";
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == ',' || *c == '"')
            return "with a comma, quote or control character";
    return NULL;
}

static int twice(const lerobot *pipeline, int action) {
    for (int i = 0; i < action; i++)
        if (!strcmp(pipeline->action_names[i], pipeline->action_names[action])) return 1;
    return 0;
}

void lerobot_read_names(const json_t *root, const char *name, lerobot *out, notes *notes) {
    const json_t *names = json_object_get(root, KEY);
    const char *why = NULL;
    char what[64] = "";
    if (!names || json_is_null(names)) return;
    if (!json_is_array(names)) snprintf(what, sizeof what, "is %s", json_kind(names));
    else if (json_array_size(names) != (size_t)out->action_dim)
        snprintf(what, sizeof what, "has %zu entries", json_array_size(names));
    for (int i = 0; i < out->action_dim && !what[0]; i++) {
        const json_t *item = json_array_get(names, (size_t)i);
        why = odd(item);
        if (!why) memcpy(out->action_names[i], json_string_value(item), json_string_length(item) + 1);
        if (!why && twice(out, i)) why = "there twice";
        if (why) snprintf(what, sizeof what, "[%d] is %s", i, why);
    }
    if (!what[0]) return;
    memset(out->action_names, 0, sizeof out->action_names);
    notes_add(notes, 1, "%s: \"" KEY "\"%s%s, expected a different name of 1 to %d bytes for each of the %d "
              "actions: the actions have no names", name, what[0] == '[' ? "" : " ", what,
              LEROBOT_NAME_BYTES - 1, out->action_dim);
}
