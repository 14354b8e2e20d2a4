/* What a LeRobot checkpoint's files say that changes actions and is no error. Every sentence names the file,
 * what is done, and where there is one the option that decides. */
#include <string.h>

#include "checkpoint/variant.h"
#include "policy/lerobot/lerobot.h"

enum { NAME = 120 };             /* bytes of a checkpoint's name in a sentence */

/* Its end identifies a path best. */
static const char *tail(const char *name) {
    size_t length = strlen(name);
    return length > NAME ? name + length - NAME : name;
}

/* ---- statistics -------------------------------------------------------------------------------------- */

static int is_missing(const lerobot_statistics *from) { return !from->file[0] && !from->meant; }

/* A base model has none by intent: no step names a state file, and no training went before. */
static int is_base(const lerobot *p) {
    return is_missing(&p->state_statistics) && is_missing(&p->action_statistics) && !p->said.fine_tune &&
           !p->state_statistics.named && !p->action_statistics.named;
}

/* norm_stats.json has numbers for these modes alone, and a step that is not there takes none. */
static const char *remedy(const lerobot_statistics *from) {
    int taken = !strcmp(from->mode, "MEAN_STD") || !strcmp(from->mode, "QUANTILES");
    return taken ? "; norm_stats gives statistics" : "";
}

static void tell_statistics(const lerobot *p, const char *name, notes *notes) {
    const lerobot_statistics *state = &p->state_statistics, *actions = &p->action_statistics;
    if (is_base(p)) {
        notes_add(notes, 0,
                  "%s: neither state nor actions have statistics, as in a base model: states go in and "
                  "actions come out in normalised units%s",
                  name, *remedy(state) ? remedy(actions) : "");
        return;
    }
    if (!state->file[0])
        notes_add(notes, !state->meant,
                  "%s/policy_preprocessor.json: the state is not normalised, since %s%s%s", name, state->why,
                  state->meant ? "" : ": it goes into the model as it comes",
                  state->meant ? "" : remedy(state));
    if (!actions->file[0])
        notes_add(notes, !actions->meant,
                  "%s/policy_postprocessor.json: the actions are not unnormalised, since %s%s%s", name,
                  actions->why,
                  actions->meant ? "" : ": they leave in the model's units, which no robot takes",
                  actions->meant ? "" : remedy(actions));
}

static void tell_modes(const lerobot *p, const char *name, notes *notes) {
    const struct {
        const char *key, *said, *mode;
    } modes[] = {{"STATE", p->said.state_mode, p->state_statistics.mode},
                 {"ACTION", p->said.action_mode, p->action_statistics.mode}};
    for (int m = 0; m < 2; m++)
        if (modes[m].said[0] && strcmp(modes[m].said, modes[m].mode))
            notes_add(notes, 1,
                      "%s/config.json: normalization_mapping.%s is %s, but the processor's norm_map says %s, "
                      "which is done, as in LeRobot",
                      name, modes[m].key, modes[m].said, modes[m].mode);
}

/* ---- relative actions -------------------------------------------------------------------------------- */

static int place_of(const lerobot_step *steps, int count, lerobot_kind kind) {
    for (int i = 0; i < count; i++)
        if (steps[i].kind == kind) return i;
    return -1;
}

/* 1: the state that is added is normalised, but the actions are not any more, or the other way round. */
static int units_differ(const lerobot *p) {
    int normalize = place_of(p->before, p->before_count, LEROBOT_NORMALIZE),
        relative = place_of(p->before, p->before_count, LEROBOT_RELATIVE),
        unnormalize = place_of(p->after, p->after_count, LEROBOT_UNNORMALIZE),
        absolute = place_of(p->after, p->after_count, LEROBOT_ABSOLUTE);
    if (absolute < 0 || relative < 0 || normalize < 0 || unnormalize < 0) return 0;
    return (relative > normalize) != (absolute < unnormalize);
}

static void tell_relative(const lerobot *p, const char *name, notes *notes) {
    int relative = p->relative_enabled == 1, absolute = p->absolute_enabled == 1;
    if (relative && !absolute)
        notes_add(notes, 1,
                  "%s: relative_actions_processor is enabled in policy_preprocessor.json, but "
                  "absolute_actions_processor is %s in policy_postprocessor.json: actions leave relative to "
                  "the state",
                  name, p->absolute_enabled < 0 ? "absent" : "not enabled");
    if (!relative && absolute)
        notes_add(notes, 1,
                  "%s: absolute_actions_processor is enabled in policy_postprocessor.json, but "
                  "relative_actions_processor is not enabled in policy_preprocessor.json: the state is added "
                  "to actions that may be absolute already",
                  name);
    if (relative == absolute && p->said.relative >= 0 && p->said.relative != absolute)
        notes_add(notes, 1,
                  "%s/config.json: use_relative_actions is %s, but the processors' steps are %s, which is "
                  "done, as in LeRobot",
                  name, p->said.relative ? "true" : "false", absolute ? "enabled" : "not enabled");
    if (absolute && p->said.excluded[0] && strcmp(p->said.excluded, p->excluded))
        notes_add(notes, 1,
                  "%s/config.json: relative_exclude_joints is %.60s, but the processor's exclude_joints is "
                  "%.60s, which is done, as in LeRobot",
                  name, p->said.excluded, p->excluded[0] ? p->excluded : "[]");
    if (absolute && p->other_names)
        notes_add(notes, 1,
                  "%s/policy_preprocessor.json: %d of action_names are not those of config.json's "
                  "action_feature_names; those of the step say which actions are excluded, as in LeRobot",
                  name, p->other_names);
    if (absolute && p->unexcluded[0])
        notes_add(notes, 1,
                  "%s/policy_preprocessor.json: exclude_joints has \"%.40s\", but no action_names has it: no "
                  "action is excluded by it, as in LeRobot",
                  name, p->unexcluded);
    if (units_differ(p))
        notes_add(notes, 1,
                  "%s: one half of the relative actions lies on the wrong side of the normalisation: the "
                  "state that is added and the actions are in different units, as in LeRobot",
                  name);
}

/* ---- prompt, pictures -------------------------------------------------------------------------------- */

static void tell_prompt(const lerobot *p, const char *name, notes *notes) {
    int text = place_of(p->before, p->before_count, LEROBOT_STATE_TEXT),
        normalize = place_of(p->before, p->before_count, LEROBOT_NORMALIZE);
    const variant_traits *traits = variant_of(p->variant);
    if (p->state_in_prompt != traits->state_in_prompt)
        notes_add(notes, 1,
                  "%s/policy_preprocessor.json: its steps write %s into the prompt, which is done; %s was "
                  "trained %s",
                  name, p->state_in_prompt ? "the state" : "no state", traits->symbol,
                  traits->state_in_prompt ? "with the state there" : "without");
    if (text >= 0 && normalize > text)
        notes_add(notes, 1,
                  "%s/policy_preprocessor.json: the state is written into the prompt before it is normalised",
                  name);
    if (text >= 0 && p->relative_enabled < 0 && p->state_length < LEROBOT_DIMS)
        notes_add(notes, 0,
                  "%s was saved by LeRobot 0.4 or 0.5.0: 0.4 wrote %d numbers into the prompt, 0 where the "
                  "state has none; the state's %d are written, as in every later LeRobot",
                  name, LEROBOT_DIMS, p->state_length);
    if (p->said.max_prompt && p->said.max_prompt != p->max_prompt)
        notes_add(notes, 1,
                  "%s/config.json: tokenizer_max_length is %d, but the tokenizer's step has max_length %d, "
                  "which is taken, as in LeRobot; max_prompt decides",
                  name, p->said.max_prompt, p->max_prompt);
}

static void tell_features(const lerobot *p, const char *name, notes *notes) {
    if (!p->said.state)
        notes_add(notes, 0,
                  "%s/config.json: input_features has no \"observation.state\": its length is %d, LeRobot's "
                  "default", name, p->state_length);
    if (!p->said.actions)
        notes_add(notes, 0,
                  "%s/config.json: output_features has no \"action\": there are %d actions, LeRobot's "
                  "default", name, p->action_dim);
    if (p->said.unread[0])
        notes_add(notes, 0,
                  "%s/config.json: the model does not read \"%.64s\" of input_features, as in LeRobot",
                  name, p->said.unread);
    if (p->said.old_resize)
        notes_add(notes, 1,
                  "%s/config.json: resize_imgs_with_padding is of LeRobot 0.1 to 0.3, which padded pictures "
                  "on the left and at the top; here they are centred, as in every later LeRobot",
                  name);
}

void lerobot_tell(const lerobot *pipeline, const char *checkpoint, notes *notes) {
    const char *name = tail(checkpoint);
    tell_statistics(pipeline, name, notes);
    tell_modes(pipeline, name, notes);
    tell_relative(pipeline, name, notes);
    tell_prompt(pipeline, name, notes);
    tell_features(pipeline, name, notes);
}
