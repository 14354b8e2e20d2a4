/* openpi's training configs by name (its training/config.py and training/misc/), each as a robot with a
 * model's settings: variant, horizon, prompt length, state in the prompt, deltas, prompt, statistics.
 *
 * Note: several of openpi's names are here only to be refused, each with its reason. */
#include "policy/configs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guess.h"
#include "base/report.h"

#define JSON(...) #__VA_ARGS__

typedef struct config {
    const char *name, *record;
} config;

static const config configs[] = {
    {"pi0_aloha", JSON({"like": "aloha", "variant": "pi0", "horizon": 50, "max_prompt": 48,
                        "reset_pose": [0, -1.5, 1.5, 0, 0, 0]})},
    {"pi05_aloha", JSON({"like": "aloha", "variant": "pi05", "horizon": 50, "max_prompt": 200,
                         "reset_pose": [0, -1.5, 1.5, 0, 0, 0]})},
    {"pi0_aloha_towel", JSON({"like": "aloha", "variant": "pi0", "horizon": 50, "max_prompt": 48,
                              "prompt": "fold the towel", "reset_pose": [0, -1.5, 1.5, 0, 0, 0]})},
    {"pi0_aloha_tupperware", JSON({"like": "aloha", "variant": "pi0", "horizon": 50, "max_prompt": 48,
                                   "prompt": "open the tupperware and put the food on the plate",
                                   "reset_pose": [0, -1.5, 1.5, 0, 0, 0]})},
    {"pi0_aloha_pen_uncap", JSON({"like": "aloha", "variant": "pi0", "horizon": 50, "max_prompt": 48,
                                  "prompt": "uncap the pen"})},
    {"pi05_aloha_pen_uncap", JSON({"like": "aloha", "variant": "pi05", "horizon": 50, "max_prompt": 200,
                                   "prompt": "uncap the pen"})},
    {"pi0_aloha_sim", JSON({"like": "aloha_sim", "variant": "pi0", "horizon": 50, "max_prompt": 48})},
    {"pi0_droid", JSON({"like": "droid", "variant": "pi0", "horizon": 10, "max_prompt": 48})},
    {"pi05_droid", JSON({"like": "droid", "variant": "pi05", "horizon": 15, "max_prompt": 200})},
    {"pi05_full_droid_finetune", JSON({"like": "droid_jointpos", "variant": "pi05", "horizon": 16,
                                       "max_prompt": 200})},
    {"pi05_droid_finetune", JSON({"like": "droid", "variant": "pi05", "horizon": 16, "max_prompt": 200})},
    {"pi0_libero", JSON({"like": "libero", "variant": "pi0", "horizon": 50, "max_prompt": 48,
                         "delta": [6, -1]})},
    {"pi0_libero_low_mem_finetune", JSON({"like": "libero", "variant": "pi0", "horizon": 50,
                                          "max_prompt": 48, "delta": [6, -1],
                                          "lora": {"vlm": 16, "expert": 32}})},
    {"pi05_libero", JSON({"like": "libero", "variant": "pi05", "horizon": 10, "max_prompt": 200,
                          "prompt_state": "off"})},
    {"pi05_droid_jointpos_polaris", JSON({"like": "droid_jointpos", "variant": "pi05", "horizon": 15,
                                          "max_prompt": 200})},
    {"pi0_droid_jointpos_polaris", JSON({"like": "droid_jointpos", "variant": "pi0", "horizon": 10,
                                         "max_prompt": 100})},
    {"pi0_droid_jointpos_100k_polaris", JSON({"like": "droid_jointpos", "variant": "pi0", "horizon": 10,
                                              "max_prompt": 100})},
};

#define FAST "it is a π0-FAST model, which writes actions as tokens; this engine runs π0 and π0.5"
#define DEBUG "it is a debugging config of a dummy model size with fake data"
#define BROKEN "openpi's own config fails: it passes action_dim to DroidInputs, which takes none"

static const struct {
    const char *name, *reason;
} refused[] = {
    {"pi0_fast_droid", FAST},
    {"pi0_fast_libero", FAST},
    {"pi0_fast_libero_low_mem_finetune", FAST},
    {"pi0_fast_full_droid_finetune", FAST},
    {"pi0_fast_droid_jointpos_polaris", FAST},
    {"paligemma_binning_droid_jointpos", FAST},
    {"debug", DEBUG},
    {"debug_restore", DEBUG},
    {"debug_pi05", DEBUG},
    {"paligemma_diffusion_droid", BROKEN},
    {"paligemma_binning_droid", BROKEN},
    {"paligemma_fast_droid", BROKEN},
    {"paligemma_fast_specialist_droid", BROKEN},
    {"paligemma_vq_droid", BROKEN},
};

enum { CONFIGS = sizeof configs / sizeof *configs, REFUSED = sizeof refused / sizeof *refused };

const char *config_name(int index) {
    return index >= 0 && index < CONFIGS ? configs[index].name : NULL;
}

/* openpi scripts/serve_policy.py, DEFAULT_CHECKPOINT, and the same robot for the other variant. */
static const struct {
    const char *robot, *names[2];          /* [variant]                                                   */
} served[] = {
    {"aloha", {[OPENPI_PI0] = "pi0_aloha", [OPENPI_PI05] = "pi05_aloha"}},
    {"aloha_sim", {[OPENPI_PI0] = "pi0_aloha_sim", [OPENPI_PI05] = "pi05_aloha"}},
    {"droid", {[OPENPI_PI0] = "pi0_droid", [OPENPI_PI05] = "pi05_droid"}},
    {"droid_jointpos",
     {[OPENPI_PI0] = "pi0_droid_jointpos_polaris", [OPENPI_PI05] = "pi05_droid_jointpos_polaris"}},
    {"libero", {[OPENPI_PI0] = "pi0_libero", [OPENPI_PI05] = "pi05_libero"}},
};

const char *config_served(const char *robot, openpi_variant variant) {
    for (size_t i = 0; i < sizeof served / sizeof *served; i++)
        if (!strcmp(served[i].robot, robot)) return served[i].names[variant];
    return NULL;
}

openpi_status config_find(const char *name, const char **record, openpi_error *error) {
    for (int i = 0; i < CONFIGS; i++) {
        if (strcmp(configs[i].name, name)) continue;
        *record = configs[i].record;
        return OPENPI_OK;
    }
    for (int i = 0; i < REFUSED; i++)
        if (!strcmp(refused[i].name, name))
            return report(error, OPENPI_UNSUPPORTED, "config \"%s\" cannot be run: %s", name,
                          refused[i].reason);
    char list[512] = "";
    size_t at = 0;
    for (int i = 0; i < CONFIGS && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", configs[i].name);
    report(error, OPENPI_NOT_FOUND, "config \"%.64s\" is not known; known are %s", name, list);
    return guess_add(error, OPENPI_NOT_FOUND, name, list);
}

int config_horizons(const char *robot, char *text, size_t bytes) {
    char like[80];
    int differ = 0, before[CONFIGS] = {0}, count = 0;
    size_t at = 0;
    snprintf(like, sizeof like, "\"like\": \"%s\"", robot);
    *text = 0;
    for (int i = 0; i < CONFIGS; i++) {
        const char *horizon = strstr(configs[i].record, "\"horizon\": ");
        int steps = horizon ? atoi(horizon + 11) : 0, known = !steps || !strstr(configs[i].record, like);
        for (int k = 0; k < count; k++) known |= before[k] == steps;
        if (known) continue;
        before[count++] = steps;
        differ |= steps != 50;
        if (at < bytes)
            at += (size_t)snprintf(text + at, bytes - at, "%s%d (%s)", at ? ", " : "", steps,
                                   configs[i].name);
    }
    return differ;
}
