/* See tokens.h. */
#include "tokens.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "fail.h"
#include "serve.h"

enum { FIELDS = 4, LINE_BYTES = 1024, MOST_TOKENS = 100000, KEY_BYTES = 32 };

static const char blanks[] = " \t\r\n";

/* Where in the file a sentence is about. */
typedef struct place {
    const char *path;
    int line;
} place;

/* ---- one line --------------------------------------------------------------------------------------- */

static int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit = (char)tolower((unsigned char)digit);
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Returns 0 where the text is not a digest. */
static int read_digest(const char *text, uint8_t digest[DIGEST_BYTES]) {
    if (strlen(text) != 2 * DIGEST_BYTES) return 0;
    for (int i = 0; i < DIGEST_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0) return 0;
        digest[i] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static void write_hex(const uint8_t *bytes, int count, char *text) {
    for (int i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* Letters, digits and "._-": a name stands in log lines as it is. */
static int is_name(const char *text) {
    size_t count = strlen(text);
    if (!count || count >= TOKEN_NAME) return 0;
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr("._-", *text)) return 0;
    return 1;
}

static openpi_status read_rate(const place *at, const char *text, token *out, openpi_error *error) {
    char *end;
    if (out->class == SCHEDULER_SHARED) {
        if (!strcmp(text, "-")) return OPENPI_OK;
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the rate of '%s' is '%.40s'; a %s token has none, expected -", at->path,
                    at->line, out->name, text, out->admin ? "admin" : "shared");
    }
    out->rate = strtod(text, &end);
    if (!*end && isdigit((unsigned char)*text) && out->rate > 0 && out->rate <= TOKEN_RATE) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s, line %d: the rate of '%s' is '%.40s', expected calls a second, above 0 and at most %d",
                at->path, at->line, out->name, text, TOKEN_RATE);
}

static openpi_status read_fields(const place *at, char *const fields[FIELDS], token *out,
                                 openpi_error *error) {
    if (!is_name(fields[0]))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the name is '%.80s', expected 1 to %d letters, digits, dots, - and _",
                    at->path, at->line, fields[0], TOKEN_NAME - 1);
    snprintf(out->name, sizeof out->name, "%s", fields[0]);
    int reserved = !strcmp(fields[1], "reserved");
    out->admin = !strcmp(fields[1], "admin");
    if (!reserved && !out->admin && strcmp(fields[1], "shared"))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the class of '%s' is '%.40s', expected reserved, shared or admin", at->path,
                    at->line, out->name, fields[1]);
    out->class = reserved ? SCHEDULER_RESERVED : SCHEDULER_SHARED;
    SERVE_TRY(read_rate(at, fields[2], out, error));
    if (read_digest(fields[3], out->digest)) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s, line %d: the key of '%s' is not a SHA-256, expected %d hex digits", at->path, at->line,
                out->name, 2 * DIGEST_BYTES);
}

/* *found: 1, or 0 on a line without a token. */
static openpi_status read_line(const place *at, char *line, token *out, int *found, openpi_error *error) {
    char *fields[FIELDS + 1], *rest = NULL;
    int count = 0;
    line[strcspn(line, "#")] = 0;
    for (char *word = strtok_r(line, blanks, &rest); word && count <= FIELDS;
         word = strtok_r(NULL, blanks, &rest))
        fields[count++] = word;
    *found = count > 0;
    if (!count) return OPENPI_OK;
    if (count == FIELDS) return read_fields(at, fields, out, error);
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s, line %d: %s%d fields, expected %d: a name, a class, a rate, a SHA-256",
                at->path, at->line, count > FIELDS ? "more than " : "", count > FIELDS ? FIELDS : count,
                FIELDS);
}

/* ---- the file --------------------------------------------------------------------------------------- */

static openpi_status add(const place *at, tokens *all, const token *one, openpi_error *error) {
    for (int i = 0; i < all->count; i++) {
        int name = !strcmp(all->items[i].name, one->name);
        if (name || digest_equal(all->items[i].digest, one->digest))
            return fail(error, OPENPI_BAD_ARGUMENT, "%s, line %d: '%s' has the %s of an earlier token%s%s",
                        at->path, at->line, one->name, name ? "name" : "key", name ? "" : ", ",
                        name ? "" : all->items[i].name);
    }
    token *more = all->count < MOST_TOKENS
                      ? realloc(all->items, (size_t)(all->count + 1) * sizeof *more) : NULL;
    if (!more)
        return fail(error, OPENPI_NO_MEMORY, "%s, line %d: no memory for more tokens", at->path, at->line);
    all->items = more;
    all->items[all->count++] = *one;
    return OPENPI_OK;
}

static openpi_status read_file(FILE *file, const char *path, tokens *out, openpi_error *error) {
    char line[LINE_BYTES];
    place at = {.path = path, .line = 1};
    for (; fgets(line, sizeof line, file); at.line++) {
        token one = {.rate = 0};
        int found;
        if (!strchr(line, '\n') && !feof(file))
            return fail(error, OPENPI_BAD_ARGUMENT, "%s, line %d: longer than %d bytes, or with a byte 0",
                        path, at.line, LINE_BYTES - 2);
        SERVE_TRY(read_line(&at, line, &one, &found, error));
        if (found) SERVE_TRY(add(&at, out, &one, error));
    }
    if (ferror(file)) return fail(error, OPENPI_BAD_FILE, "cannot read %s: %s", path, strerror(errno));
    for (int i = 0; i < out->count; i++)
        if (!out->items[i].admin) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT, "%s has no token of a robot, so none could connect", path);
}

openpi_status tokens_open(const char *path, tokens *out, openpi_error *error) {
    FILE *file = fopen(path, "re");
    if (!file) return fail(error, OPENPI_BAD_ARGUMENT, "cannot read %s: %s", path, strerror(errno));
    openpi_status status = read_file(file, path, out, error);
    fclose(file);
    if (status != OPENPI_OK) tokens_close(out);
    return status;
}

void tokens_close(tokens *tokens) {
    free(tokens->items);
    tokens->items = NULL;
    tokens->count = 0;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* The key after "Api-Key" or "Bearer"; NULL: neither. */
static const char *key_of(const char *authorization) {
    static const char *const schemes[] = {"Api-Key", "Bearer"};
    for (int i = 0; i < 2; i++) {
        size_t count = strlen(schemes[i]);
        if (strncasecmp(authorization, schemes[i], count) || authorization[count] != ' ') continue;
        const char *key = authorization + count + strspn(authorization + count, " ");
        return *key ? key : NULL;
    }
    return NULL;
}

/* Compares with every token, so that the time says nothing about which one it was. */
static const token *find(const tokens *tokens, const char *authorization, int admin) {
    const token *found = NULL;
    const char *key = key_of(authorization);
    uint8_t digest[DIGEST_BYTES];
    if (!key || !digest_sha256(key, strlen(key), digest)) return NULL;
    for (int i = 0; i < tokens->count; i++)
        if (digest_equal(tokens->items[i].digest, digest)) found = &tokens->items[i];
    return found && found->admin == admin ? found : NULL;
}

const token *tokens_find(const tokens *tokens, const char *authorization) {
    return find(tokens, authorization, 0);
}

const token *tokens_find_admin(const tokens *tokens, const char *authorization) {
    return find(tokens, authorization, 1);
}

int tokens_has_robot(const tokens *tokens, const uint8_t *digest) {
    for (int i = 0; i < tokens->count; i++)
        if (!tokens->items[i].admin && digest_equal(tokens->items[i].digest, digest)) return 1;
    return 0;
}

int tokens_has_admin(const tokens *tokens) {
    int has = 0;
    for (int i = 0; i < tokens->count; i++) has |= tokens->items[i].admin;
    return has;
}

openpi_status serve_new_token(const char *name, const char *class, int rate, serve_token *out,
                              openpi_error *error) {
    uint8_t bytes[KEY_BYTES], digest[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1], calls[16];
    if (!is_name(name))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "--new-token is '%.80s', expected 1 to %d letters, digits, dots, - and _", name,
                    TOKEN_NAME - 1);
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return fail(error, OPENPI_SYSTEM, "the system has no random bytes: %s", strerror(errno));
    write_hex(bytes, KEY_BYTES, out->key);
    if (!digest_sha256(out->key, strlen(out->key), digest))
        return fail(error, OPENPI_UNSUPPORTED,
                    "this openpi was built without its server, which knows SHA-256");
    write_hex(digest, DIGEST_BYTES, hex);
    snprintf(calls, sizeof calls, "%d", rate);
    snprintf(out->line, sizeof out->line, "%s %s %s %s", name, class, rate ? calls : "-", hex);
    return OPENPI_OK;
}
