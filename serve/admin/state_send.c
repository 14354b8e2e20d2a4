/* See state.h. What a robot sends: as values for programs, and as a client for people, in Python. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

static const char *const slot_names[OPENPI_CAMERAS] = {"base", "left_wrist", "right_wrist"};

/* ---- values ----------------------------------------------------------------------------------------- */

static void put_pictures(const openpi_policy *policy, text *out) {
    const char *key;
    int slot, required, chw, count = 0;
    text_put(out, "\"pictures\":[");
    for (int i = 0; (key = openpi_policy_camera(policy, i, &slot, &required, &chw)); i++) {
        if (!*key || slot < 0) continue;
        text_put(out, count++ ? ",{\"key\":" : "{\"key\":");
        text_quote(out, key);
        text_put(out, ",\"slot\":\"%s\",\"required\":%s,\"type\":\"uint8\",\"shape\":%s}",
                 slot_names[slot < OPENPI_CAMERAS ? slot : 0], required ? "true" : "false",
                 chw ? "[3,\"height\",\"width\"]" : "[\"height\",\"width\",3]");
    }
    text_put(out, "]");
}

static void put_state_parts(const openpi_policy *policy, text *out) {
    const char *key;
    int length;
    text_put(out, ",\"state\":[");
    for (int i = 0; (key = openpi_policy_state_key(policy, i, &length)); i++) {
        text_put(out, i ? ",{\"key\":" : "{\"key\":");
        text_quote(out, key);
        text_put(out, ",\"type\":\"float64\",\"shape\":[");
        if (length) text_put(out, "%d", length);
        else text_put(out, "\"1 to %d\"", OPENPI_ACTION_DIM);
        text_put(out, "]}");
    }
    text_put(out, "]");
}

static void put_prompt(const openpi_policy *policy, text *out) {
    const char *prompt = openpi_policy_prompt(policy);
    text_put(out, ",\"prompt\":{\"key\":\"prompt\",\"type\":\"str\",\"required\":%s",
             prompt ? "false" : "true");
    if (prompt) {
        text_put(out, ",\"default\":");
        text_quote(out, prompt);
    }
    text_put(out, "}");
}

static void put_labels(const char *name, const openpi_policy *policy, int count,
                       const char *(*label)(const openpi_policy *, int), text *out) {
    text_put(out, ",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        const char *text = label(policy, i);
        text_put(out, i ? "," : "");
        text_quote(out, text ? text : "");
    }
    text_put(out, "]");
}

static void put_limit(const char *name, const double *limit, int count, text *out) {
    text_put(out, ",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        if (i) text_put(out, ",");
        if (isfinite(limit[i])) text_put(out, "%.6g", limit[i]);
        else text_put(out, "null");
    }
    text_put(out, "]");
}

/* null: the robot has none. */
static void put_limits(const openpi_policy *policy, int count, text *out) {
    static const char *const verbs[] = {
        [OPENPI_CLAMP] = "clamp", [OPENPI_HOLD] = "hold", [OPENPI_STOP] = "stop"};
    openpi_limits limits = OPENPI_LIMITS_INIT;
    text_put(out, ",\"limits\":");
    if (openpi_policy_get_limits(policy, &limits, NULL) != OPENPI_OK || !limits.count) {
        text_put(out, "null");
        return;
    }
    text_put(out, "{\"on_violation\":\"%s\"", verbs[limits.on_violation]);
    put_limit("min", limits.min, count, out);
    put_limit("max", limits.max, count, out);
    put_limit("max_step", limits.max_step, count, out);
    put_limit("max_start_jump", limits.max_start_jump, count, out);
    text_put(out, "}");
}

static void put_actions(const state *s, text *out) {
    const openpi_policy *policy = s->model->policy;
    text_put(out, ",\"actions\":{\"key\":\"actions\",\"type\":\"float64\",\"shape\":[%d,%d],\"rate_hz\":%.6g",
             s->horizon, s->action_dim, openpi_policy_rate(policy));
    put_labels("names", policy, s->action_dim, openpi_policy_action_name, out);
    put_labels("units", policy, s->action_dim, openpi_policy_action_unit, out);
    put_limits(policy, s->action_dim, out);
    text_put(out, "}");
}

/* ---- a client --------------------------------------------------------------------------------------- */

/* A string of Python within a string of JSON. */
static void put_key(const char *key, text *out) {
    text_put(out, "\\\"");
    for (; *key; key++) {
        if (*key == '"' || *key == '\\') text_put(out, "\\\\\\%c", *key);
        else text_put(out, "%c", (unsigned char)*key < ' ' ? ' ' : *key);
    }
    text_put(out, "\\\"");
}

static void put_observation(const openpi_policy *policy, text *out) {
    const char *key;
    int slot, required, chw, length;
    for (int i = 0; (key = openpi_policy_camera(policy, i, &slot, &required, &chw)); i++) {
        if (!*key || slot < 0) continue;
        text_put(out, "    ");
        put_key(key, out);
        text_put(out, ": np.zeros(%s, np.uint8),\\n", chw ? "(3, 480, 640)" : "(480, 640, 3)");
    }
    for (int i = 0; (key = openpi_policy_state_key(policy, i, &length)); i++) {
        text_put(out, "    ");
        put_key(key, out);
        text_put(out, ": np.zeros(%d),\\n", length ? length : OPENPI_ACTION_DIM);
    }
    text_put(out, "    \\\"prompt\\\": ");
    put_key(openpi_policy_prompt(policy) ? openpi_policy_prompt(policy) : "pick up the cup", out);
    text_put(out, ",\\n");
}

static void put_client(const state *s, text *out) {
    text_put(out, ",\"python\":\"# pip install openpi-client typing_extensions numpy\\n"
                  "import numpy as np\\n"
                  "from openpi_client.websocket_client_policy import WebsocketClientPolicy\\n\\n"
                  "policy = WebsocketClientPolicy(\\\"%s\\\"%s)\\n"
                  "observation = {\\n",
             s->about->address, s->about->tokens ? ", api_key=\\\"KEY\\\"" : "");
    put_observation(s->model->policy, out);
    text_put(out, "}\\nactions = policy.infer(observation)[\\\"actions\\\"]  # [%d][%d]\\n\"", s->horizon,
             s->action_dim);
}

void state_write_send(const state *s, text *out) {
    text_put(out, ",\"send\":{");
    put_pictures(s->model->policy, out);
    put_state_parts(s->model->policy, out);
    put_prompt(s->model->policy, out);
    put_client(s, out);
    text_put(out, "}");
    put_actions(s, out);
}
