/* What stands at the head of every JSON that the command writes. */
#ifndef TESTS_JSON_HEAD_H
#define TESTS_JSON_HEAD_H

#include <ctype.h>
#include <string.h>
#include <time.h>

#include "openpi.h"

static inline const char *head_word(const json_t *root, const char *key) {
    const char *text = json_string_value(json_object_get(root, key));
    if (!text || !*text) fail_msg("\"%s\" is missing", key);
    return text;
}

/* The date is of today: within a day of this test's clock. */
static inline void has_head(const json_t *root, const char *kind) {
    struct tm at = {0};
    assert_string_equal(head_word(root, "kind"), kind);
    assert_int_equal(json_integer_value(json_object_get(root, "format")), 1);
    assert_string_equal(head_word(root, "version"), openpi_version());
    for (const char *c = head_word(root, "revision"); *c; c++)
        assert_true(isalnum((unsigned char)*c) || strchr("._-", *c));
    const char *date = head_word(root, "date");
    int fields = sscanf(date, "%4d-%2d-%2dT%2d:%2d:%2dZ", &at.tm_year, &at.tm_mon, &at.tm_mday, &at.tm_hour,
                        &at.tm_min, &at.tm_sec);
    if (fields != 6 || strlen(date) != 20) fail_msg("the date is %s", date);
    at.tm_year -= 1900;
    at.tm_mon -= 1;
    double off = difftime(mktime(&at), time(NULL));      /* and the clock of a time zone */
    assert_true(off > -2 * 86400.0 && off < 2 * 86400.0);
}

#endif
