/* Names of the switches. */
#include "ops/switches.h"

#include <stdio.h>
#include <string.h>

#include "base/guess.h"
#include "base/report.h"

static const struct {
    const char *name, *text;
} rows[SWITCHES] = {
#define X(constant, name, text) {name, text},
    SWITCH_LIST(X)
#undef X
};

const char *switch_name(op_switch which) { return (unsigned)which < SWITCHES ? rows[which].name : "unknown"; }

const char *switch_text(op_switch which) { return (unsigned)which < SWITCHES ? rows[which].text : ""; }

static openpi_status no_switch(const char *name, int length, openpi_error *error) {
    char word[64], known[512] = "";
    size_t at = 0;
    for (int i = 0; i < SWITCHES && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s ", rows[i].name);
    snprintf(word, sizeof word, "%.*s", length, name);
    report(error, OPENPI_BAD_ARGUMENT,
           "there is no switch \"%s\", expected names such as %s,%s (openpi ladder --list)", word,
           rows[SWITCH_FUSED_QKV].name, rows[SWITCH_GRAPH_REPLAY].name);
    return guess_add(error, OPENPI_BAD_ARGUMENT, word, known);
}

openpi_status switches_parse(const char *names, uint32_t *off, openpi_error *error) {
    *off = 0;
    if (!names || !*names) return OPENPI_OK;
    for (const char *at = names;; at++) {
        size_t length = strcspn(at, ",");
        int found = -1;
        for (int i = 0; i < SWITCHES; i++)
            if (strlen(rows[i].name) == length && !memcmp(rows[i].name, at, length)) found = i;
        if (found < 0) return no_switch(at, length > 60 ? 60 : (int)length, error);
        *off |= 1u << found;
        at += length;
        if (!*at) return OPENPI_OK;
    }
}

void switches_write(uint32_t off, char *names, size_t bytes) {
    size_t used = 0;
    if (bytes) names[0] = 0;
    for (int i = 0; i < SWITCHES; i++) {
        if (!switch_off(off, (op_switch)i)) continue;
        int n = snprintf(names + used, bytes - used, "%s%s", used ? "," : "", rows[i].name);
        if (n < 0 || (size_t)n >= bytes - used) return;
        used += (size_t)n;
    }
}
