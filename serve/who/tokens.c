/* See tokens.h. */
#include "tokens.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/ascii.h"
#include "serve/small/fail.h"
#include "serve/log/log_text.h"
#include "serve/small/regular.h"
#include "serve/serve.h"

enum {
    FIELDS = 4,
    LINE_BYTES = 1024,
    MOST_TOKENS = 100000,
    FILE_BYTES = 1 << 24,        /* 167 a token, more than its line takes without a comment                */
    KEY_BYTES = 32,
};

static const char blanks[] = " \t\r\n";

/* Where in the file a sentence is about. */
typedef struct place {
    const char *path;
    int line;
} place;

enum { SHOWN = 120 };

/* What a file or a command line says, as it can stand in a sentence on a terminal. */
static const char *show(const char *text, char out[SHOWN]) {
    log_escape(out, SHOWN, text, LOG_TEXT);
    return out;
}

/* ---- one line --------------------------------------------------------------------------------------- */

static int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit = (char)ascii_lower(digit);
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
        if (!ascii_is_alnum(*text) && !strchr("._-", *text)) return 0;
    return 1;
}

static openpi_status read_rate(const place *at, const char *text, token *out, openpi_error *error) {
    char *end, shown[SHOWN];
    if (out->class == SCHEDULER_SHARED) {
        if (!strcmp(text, "-")) return OPENPI_OK;
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the rate of '%s' is '%.40s'; a %s token has none, expected -", at->path,
                    at->line, out->name, show(text, shown), out->admin ? "admin" : "shared");
    }
    out->rate = ascii_number(text, &end);
    if (!*end && ascii_is_digit(*text) && out->rate > 0 && out->rate <= TOKEN_RATE) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s, line %d: the rate of '%s' is '%.40s', expected calls a second, above 0 and at most %d",
                at->path, at->line, out->name, show(text, shown), TOKEN_RATE);
}

static openpi_status read_fields(const place *at, char *const fields[FIELDS], token *out,
                                 openpi_error *error) {
    char shown[SHOWN];
    if (!is_name(fields[0]))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the name is '%.80s', expected 1 to %d letters, digits, dots, - and _",
                    at->path, at->line, show(fields[0], shown), TOKEN_NAME - 1);
    snprintf(out->name, sizeof out->name, "%s", fields[0]);
    int reserved = !strcmp(fields[1], "reserved");
    out->admin = !strcmp(fields[1], "admin");
    if (!reserved && !out->admin && strcmp(fields[1], "shared"))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s, line %d: the class of '%s' is '%.40s', expected reserved, shared or admin", at->path,
                    at->line, out->name, show(fields[1], shown));
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

/* ---- no two alike ----------------------------------------------------------------------------------- */

/* A token, and an earlier one that has the same name or key. */
typedef struct repeat {
    const token *one, *earlier;
    const char *what;
} repeat;

static int compare_names(const token *a, const token *b) { return strcmp(a->name, b->name); }

static int compare_keys(const token *a, const token *b) { return memcmp(a->digest, b->digest, DIGEST_BYTES); }

/* Those that are alike stand as in the file. */
static int order(const void *a, const void *b, int (*compare)(const token *a, const token *b)) {
    const token *left = *(const token *const *)a, *right = *(const token *const *)b;
    int way = compare(left, right);
    return way ? way : (left > right) - (left < right);
}

static int order_names(const void *a, const void *b) { return order(a, b, compare_names); }

static int order_keys(const void *a, const void *b) { return order(a, b, compare_keys); }

/* Tokens that are alike are neighbours in a sorted list. *first stays where it is the earlier one in the
 * file. */
static void find_repeat(const token *const *sorted, int count, int (*compare)(const token *a, const token *b),
                        const char *what, repeat *first) {
    for (int i = 1; i < count; i++) {
        const token *earlier = sorted[i - 1], *one = sorted[i];
        if (compare(earlier, one)) continue;
        if (first->one && (one > first->one || (one == first->one && earlier >= first->earlier))) continue;
        *first = (repeat){.one = one, .earlier = earlier, .what = what};
    }
}

/* Refuses two that are alike, and leaves by_key. To compare each with each would take minutes for
 * MOST_TOKENS. */
static openpi_status sort(const char *path, tokens *all, openpi_error *error) {
    repeat first = {.one = NULL};
    size_t count = (size_t)all->count;
    if (!count) return OPENPI_OK;
    all->by_key = malloc(count * sizeof *all->by_key);
    if (!all->by_key)
        return fail(error, OPENPI_NO_MEMORY, "%s: no memory to compare its %d tokens", path, all->count);
    for (size_t i = 0; i < count; i++) all->by_key[i] = &all->items[i];
    qsort(all->by_key, count, sizeof *all->by_key, order_names);
    find_repeat(all->by_key, all->count, compare_names, "name", &first);
    qsort(all->by_key, count, sizeof *all->by_key, order_keys);
    find_repeat(all->by_key, all->count, compare_keys, "key", &first);
    if (!first.one) return OPENPI_OK;
    int key = !strcmp(first.what, "key");
    return fail(error, OPENPI_BAD_ARGUMENT, "%s, line %d: '%s' has the %s of an earlier token%s%s", path,
                first.one->line, first.one->name, first.what, key ? ", " : "",
                key ? first.earlier->name : "");
}

/* ---- the file --------------------------------------------------------------------------------------- */

/* Memory doubles, so that few tokens are copied again. */
static openpi_status add(const place *at, tokens *all, const token *one, openpi_error *error) {
    int full = !(all->count & (all->count - 1));               /* 0 or a power of 2                        */
    size_t capacity = all->count ? 2 * (size_t)all->count : 1;
    token *items = all->items;
    if (all->count == MOST_TOKENS)
        return fail(error, OPENPI_BAD_ARGUMENT, "%s, line %d: more than %d tokens", at->path, at->line,
                    MOST_TOKENS);
    if (full) items = realloc(items, capacity * sizeof *items);
    if (!items)
        return fail(error, OPENPI_NO_MEMORY, "%s, line %d: no memory for more tokens", at->path, at->line);
    all->items = items;
    all->items[all->count] = *one;
    all->items[all->count++].line = at->line;
    return OPENPI_OK;
}

static openpi_status read_lines(FILE *file, const char *path, tokens *out, openpi_error *error) {
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
    return OPENPI_OK;
}

/* The first line that is wrong gets the sentence: a repeat stands before the line where reading stopped. */
static openpi_status read_file(FILE *file, const char *path, tokens *out, openpi_error *error) {
    openpi_status status = read_lines(file, path, out, error);
    SERVE_TRY(sort(path, out, error));
    SERVE_TRY(status);
    for (int i = 0; i < out->count; i++)
        if (!out->items[i].admin) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT, "%s has no token of a robot, so none could connect", path);
}

openpi_status tokens_open(const char *path, tokens *out, openpi_error *error) {
    struct stat about;
    char why[REGULAR_WHY];
    *out = (tokens){.count = 0};
    FILE *file = regular_open(path, FILE_BYTES, &about, why);
    if (!file) return fail(error, OPENPI_BAD_ARGUMENT, "cannot read %s: %s", path, why);
    openpi_status status = OPENPI_OK;
    if (about.st_mode & S_IWOTH)
        status = fail(error, OPENPI_BAD_ARGUMENT,
                      "%s: everybody on this machine can write the tokens (mode %03o), expected at most "
                      "mode 664",
                      path, (unsigned)about.st_mode & 0777);
    if (status == OPENPI_OK) status = read_file(file, path, out, error);
    fclose(file);
    if (status != OPENPI_OK) tokens_close(out);
    return status;
}

void tokens_close(tokens *tokens) {
    free(tokens->items);
    free(tokens->by_key);
    tokens->items = NULL;
    tokens->by_key = NULL;
    tokens->count = 0;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* The key after "Api-Key" or "Bearer"; NULL: neither. */
static const char *key_of(const char *authorization) {
    static const char *const schemes[] = {"Api-Key", "Bearer"};
    for (int i = 0; i < 2; i++) {
        size_t count = strlen(schemes[i]);
        if (!ascii_begins(authorization, schemes[i]) || authorization[count] != ' ') continue;
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

static int compare_digest(const void *digest, const void *place) {
    return memcmp(digest, (*(const token *const *)place)->digest, DIGEST_BYTES);
}

/* A binary search, for the gate asks it for all connections in one turn of the I/O thread. Its time tells
 * nobody anything: these keys have been accepted before. */
int tokens_has_robot(const tokens *tokens, const uint8_t *digest) {
    const token *const *found = bsearch(digest, tokens->by_key, (size_t)tokens->count,
                                        sizeof *tokens->by_key, compare_digest);
    return found && !(*found)->admin;
}

int tokens_has_admin(const tokens *tokens) {
    int has = 0;
    for (int i = 0; i < tokens->count; i++) has |= tokens->items[i].admin;
    return has;
}

openpi_status serve_new_token(const char *name, const char *class, int rate, serve_token *out,
                              openpi_error *error) {
    uint8_t bytes[KEY_BYTES], digest[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1], calls[16], shown[SHOWN];
    if (!is_name(name))
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "--new-token is '%.80s', expected 1 to %d letters, digits, dots, - and _",
                    show(name, shown), TOKEN_NAME - 1);
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
