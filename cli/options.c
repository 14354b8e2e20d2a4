/* From a verb's record: its parser, its help page and its man page.
 *
 * Note: getopt_long prints nothing, so that each mistake gets our own sentence. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "cli.h"
#include "words.h"

enum { ROWS_MAX = 96, CODE_ROW = 1000, CODE_HELP = 1, CODE_MAN = 2, WIDTH = 96, INDENT = 26 };

/* ---- parsing -------------------------------------------------------------------------------------- */

static int whole_number(const char *text, uint64_t *out) {
    char *end;
    if (!ascii_is_digit(text[0])) return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end) return 0;
    *out = value;
    return 1;
}

static int byte_count(const char *text, uint64_t *out) {
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"kB", 1000}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},
                 {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *end;
    if (!ascii_is_digit(text[0])) return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno) return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit)) continue;
        if (value > UINT64_MAX / units[i].bytes) return 0;
        *out = value * units[i].bytes;
        return 1;
    }
    return 0;
}

/* 1-based place of `text` in "a|b|c", 0 where it is not there. */
static int choice(const char *choices, const char *text) {
    size_t length = strlen(text);
    for (int place = 1;; place++) {
        size_t here = strcspn(choices, "|");
        if (here == length && !memcmp(choices, text, length)) return place;
        if (!choices[here]) return 0;
        choices += here + 1;
    }
}

static int wrong_choice(const verb *verb, const option_row *row, const char *text) {
    char guessed[GUESS_TEXT];
    guess g;
    guess_start(&g, text, strlen(text));
    for (const char *at = row->argument; *at; at += strspn(at, "|")) {
        size_t length = strcspn(at, "|");
        guess_offer(&g, at, length);
        at += length;
    }
    return usage_error(verb, "--%s is '%s', expected one of %s%s", row->name, text, row->argument,
                       guess_text(&g, "", guessed));
}

static int take(const verb *verb, const option_row *row, const char *text, void *values) {
    void *field = (char *)values + row->offset;
    uint64_t number;
    switch (row->kind) {
    case OPTION_HEADING: break;
    case OPTION_FLAG: *(int *)field = 1; break;
    case OPTION_TEXT:
    case OPTION_INPUT:
    case OPTION_OUTPUT:
        if (!*text && !strcmp(row->argument, "FILE"))
            return usage_error(verb, "--%s is empty, expected a path", row->name);
        *(const char **)field = text;
        break;
    case OPTION_TEXTS: {
        text_list *list = field;
        if (list->count == TEXT_LIST_MAX)
            return usage_error(verb, "--%s is given more than %d times", row->name, TEXT_LIST_MAX);
        list->items[list->count++] = text;
        break;
    }
    case OPTION_INT:
        if (!whole_number(text, &number) || number < (uint64_t)row->low || number > (uint64_t)row->high)
            return usage_error(verb, "--%s is '%s', expected a whole number from %d to %d", row->name, text,
                               row->low, row->high);
        *(int *)field = (int)number;
        break;
    case OPTION_U64:
        if (!whole_number(text, field))
            return usage_error(verb, "--%s is '%s', expected a whole number from 0 to 2^64-1", row->name,
                               text);
        break;
    case OPTION_BYTES:
        if (!byte_count(text, field) || !*(uint64_t *)field)
            return usage_error(verb, "--%s is '%s', expected a size such as 500MB, 2GB or 1GiB", row->name,
                               text);
        break;
    case OPTION_CHOICE: {
        int place = choice(row->argument, text);
        if (!place) return wrong_choice(verb, row, text);
        *(int *)field = place;
        break;
    }
    }
    return END_FINE;
}

static int row_index(const verb *verb, const char *name) {
    for (int i = 0; verb->options[i].name; i++)
        if (verb->options[i].kind != OPTION_HEADING && !strcmp(verb->options[i].name, name)) return i;
    return -1;
}

static int check_conflicts(const verb *verb, const unsigned char *given, int positional) {
    for (const conflict *pair = verb->conflicts; pair && pair->a; pair++) {
        int a = *pair->a ? given[row_index(verb, pair->a)] : positional > 0;
        int b = *pair->b ? given[row_index(verb, pair->b)] : positional > 0;
        if (!a || !b) continue;
        const char *dash_a = *pair->a ? "--" : "", *dash_b = *pair->b ? "--" : "";
        return usage_error(verb, "%s%s and %s%s contradict each other: %s", dash_a,
                           *pair->a ? pair->a : verb->positional, dash_b,
                           *pair->b ? pair->b : verb->positional, pair->why);
    }
    return END_FINE;
}

static int check_needs(const verb *verb, const unsigned char *given) {
    for (const option_pair *pair = verb->needs; pair && pair->name; pair++)
        if (given[row_index(verb, pair->name)] && !given[row_index(verb, pair->without)])
            return usage_error(verb, "--%s has no effect without --%s", pair->name, pair->without);
    return END_FINE;
}

static int check_alone(const verb *verb, const unsigned char *given) {
    const option_alone *alone = verb->alone;
    if (!alone || !given[row_index(verb, alone->name)]) return END_FINE;
    for (int i = 0; verb->options[i].name; i++) {
        const char *name = verb->options[i].name;
        int fits = !given[i] || !strcmp(name, alone->name);
        for (const char *const *with = alone->with; *with && !fits; with++) fits = !strcmp(name, *with);
        if (!fits)
            return usage_error(verb, "--%s has no effect with --%s: %s", name, alone->name, alone->why);
    }
    return END_FINE;
}

static int wrong_option(const verb *verb, const char *text) {
    char guessed[GUESS_TEXT];
    guess g;
    guess_start(&g, text + 2, strcspn(text + 2, "="));
    for (const option_row *row = verb->options; row->name; row++)
        if (row->kind != OPTION_HEADING) guess_offer(&g, row->name, strlen(row->name));
    guess_offer(&g, "help", 4);
    return usage_error(verb, "unknown or ambiguous option '%s'%s", text, guess_text(&g, "--", guessed));
}

/* The option's name as typed, of the element that getopt_long has read last. */
static const char *typed_name(char **argv) {
    return (optarg && optarg == argv[optind - 1] ? argv[optind - 2] : argv[optind - 1]) + 2;
}

/* 1: the name is whole, or cut within its last word: "--hor" is "--horizon". "--norm" is not "--norm-stats":
 * what ends before a hyphen is another name, of another verb or version. */
static int is_whole(const char *typed, const char *name) {
    return !strchr(name + strcspn(typed, "="), '-');
}

int options_parse(const verb *verb, int argc, char **argv, void *values, char ***positional, int *count) {
    struct option longs[ROWS_MAX + 3];
    unsigned char given[ROWS_MAX] = {0};
    int n = 0, code, end;
    for (int i = 0; verb->options[i].name; i++) {
        const option_row *row = &verb->options[i];
        if (i == ROWS_MAX) return usage_error(verb, "its table of options has more than %d rows", ROWS_MAX);
        if (row->kind == OPTION_HEADING) continue;
        int argument = row->kind == OPTION_FLAG ? no_argument : required_argument;
        longs[n++] = (struct option){row->name, argument, NULL, CODE_ROW + i};
    }
    longs[n++] = (struct option){"help", no_argument, NULL, CODE_HELP};
    longs[n++] = (struct option){"man", no_argument, NULL, CODE_MAN};
    longs[n] = (struct option){0};

    opterr = 0;
    while ((code = getopt_long(argc, argv, ":h", longs, NULL)) != -1) {
        if (code == CODE_HELP || code == 'h') {
            help_verb(verb);
            return -1;
        }
        if (code == CODE_MAN) {
            man_verb(verb);
            return -1;
        }
        if (code == ':')
            return usage_error(verb, "option '%s' needs an argument: %s", argv[optind - 1],
                               verb->options[optopt - CODE_ROW].argument);
        if (code == '?' && optopt >= CODE_ROW)
            return usage_error(verb, "option '--%s' takes no argument",
                               verb->options[optopt - CODE_ROW].name);
        if (code == '?' && optopt > CODE_MAN) return usage_error(verb, "unknown option '-%c'", optopt);
        if (code == '?') return wrong_option(verb, argv[optind - 1]);
        const option_row *row = &verb->options[code - CODE_ROW];
        if (!is_whole(typed_name(argv), row->name)) return wrong_option(verb, typed_name(argv) - 2);
        if (given[code - CODE_ROW] && row->kind != OPTION_TEXTS)
            return usage_error(verb, "--%s is given twice", row->name);
        given[code - CODE_ROW] = 1;
        if (row->kind == OPTION_FLAG && row->argument && optind < argc && !strcmp(argv[optind], "-"))
            optind++;
        if ((end = take(verb, row, optarg, values)) != END_FINE) return end;
    }
    *positional = argv + optind;
    *count = argc - optind;
    if (!verb->positional && *count) return usage_error(verb, "unexpected argument '%s'", argv[optind]);
    if (verb->positional_max >= 0 && *count > verb->positional_max)
        return usage_error(verb, "unexpected argument '%s' after %s", argv[optind + verb->positional_max],
                           verb->positional);
    if (*count < verb->positional_min) return usage_error(verb, "%s is missing", verb->positional);
    end = check_conflicts(verb, given, *count);
    if (end == END_FINE) end = check_needs(verb, given);
    return end == END_FINE ? check_alone(verb, given) : end;
}

/* ---- help pages ----------------------------------------------------------------------------------- */

/* Columns of UTF-8 text: its code points. */
static int columns(const char *text, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Fills lines up to WIDTH; the first starts at column `at`, the others at `indent`. Ends the line. */
static void wrap(const char *text, size_t bytes, int at, int indent) {
    size_t i = 0;
    while (i < bytes) {
        size_t word = 0;
        while (i + word < bytes && text[i + word] != ' ' && text[i + word] != '\n') word++;
        int wide = columns(text + i, word);
        if (at > indent && at + 1 + wide > WIDTH) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            putchar(' ');
            at++;
        } else if (at < indent) {
            printf("%*s", indent - at, "");
            at = indent;
        }
        printf("%.*s", (int)word, text + i);
        at += wide;
        i += word;
        while (i < bytes && (text[i] == ' ' || text[i] == '\n')) i++;
    }
    putchar('\n');
}

/* Calls wrap for each paragraph, a blank line between. */
static void paragraphs(const char *text, int indent) {
    while (*text) {
        const char *stop = strstr(text, "\n\n");
        size_t bytes = stop ? (size_t)(stop - text) : strlen(text);
        wrap(text, bytes, 0, indent);
        if (!stop) break;
        putchar('\n');
        text = stop + 2;
    }
}

static const char *const ends_text =
    "0 fine; 1 a check failed (verify, bench --against or --server, ladder, tune); 2 bad usage "
    "or input, or a result that cannot be written; 3 the machine (no such device, "
    "device lost, out of memory); 130 interrupted (SIGINT, SIGTERM, SIGHUP). "
    "Results are opened before the work begins and appear when they are whole: after "
    "2, 3 and 130 none is left, and a file that was there is as it was. "
    "Where the reader of standard output leaves early (head), the rest of it is dropped and nothing is said";

/* Of a verb that takes signals itself: it writes no result. */
static const char *const served_text =
    "0 drained after SIGTERM or SIGINT, or ended by one of them while the model was loading; 2 bad usage or "
    "input, such as a port that is in use; 3 the machine (no such device, out of memory); 75 a device was "
    "lost, and a restart may help";

static const char *ends(const verb *verb) { return verb && verb->own_signals ? served_text : ends_text; }

void help_verb(const verb *verb) {
    printf("openpi %s - %s\n\nUsage:\n", verb->name, verb->summary);
    for (int i = 0; verb->synopsis[i]; i++) printf("  openpi %s %s\n", verb->name, verb->synopsis[i]);
    putchar('\n');
    paragraphs(verb->description, 0);
    printf("\nExamples:\n");
    for (int i = 0; verb->examples[i].command; i++)
        printf("  # %s\n  %s\n", verb->examples[i].comment, verb->examples[i].command);
    int headed = 0;
    for (const option_row *row = verb->options; row->name; row++) {
        if (row->kind == OPTION_HEADING) {
            printf("\n%s:\n", row->name);
            headed = 1;
            continue;
        }
        if (!headed) printf("\nOptions:\n");
        headed = 1;
        char head[128];
        int at = snprintf(head, sizeof head, "  --%s%s%s", row->name, row->argument ? " " : "",
                          row->argument ? row->argument : "");
        printf("%s", head);
        if (at > INDENT - 2) {
            printf("\n");
            at = 0;
        }
        wrap(row->help, strlen(row->help), at, INDENT);
    }
    printf("\nOther:\n  --help                  this page\n");
    printf("\nExit status:\n");
    wrap(ends(verb), strlen(ends(verb)), 0, 2);
}

static const char *const about = "π0 and π0.5 robot policies in C: camera frames, a robot state and an "
                                 "instruction go in, a chunk of actions comes out. "
                                 "It reads openpi's checkpoints, JAX's and PyTorch's, and LeRobot's, and "
                                 "can make synthetic weights of any size, so that every verb works "
                                 "before anything is downloaded.";

static const example all_examples[] = {
    {"what this machine can compute with", "openpi devices"},
    {"a small synthetic model, one picture", "openpi run --synthetic tiny --robot none --image "
                                             "base=front.png --state 0.1,0.2 "
                                             "--prompt \"pick up the fork\""},
    {"every option of a verb, with examples", "openpi run --help"},
    {NULL, NULL},
};

void help_all(void) {
    printf("openpi %s\n\n", openpi_version());
    paragraphs(about, 0);
    printf("\nUsage:\n  openpi VERB [options]\n");
    for (const verb_group *group = verb_groups; group->title; group++) {
        printf("\n%s:\n", group->title);
        for (const verb *const *v = group->verbs; *v; v++) printf("  %-10s%s\n", (*v)->name, (*v)->summary);
    }
    printf("\nExamples:\n");
    for (int i = 0; all_examples[i].command; i++)
        printf("  # %s\n  %s\n", all_examples[i].comment, all_examples[i].command);
    printf("\nOther:\n  openpi help VERB        options and examples of a verb; also openpi VERB --help\n"
           "  openpi --verbs          the verbs, one a line\n  openpi --version        version, revision, compiler, kernels\n");
    printf("\nExit status:\n");
    wrap(ends_text, strlen(ends_text), 0, 2);
}

/* ---- man pages ------------------------------------------------------------------------------------ */

/* roff takes a leading dot or quote as a command and a plain dash as a hyphen. */
static void roff(const char *text, size_t bytes) {
    int start = 1;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (start && (c == '.' || c == '\'')) fputs("\\&", stdout);
        if (c == '-') fputs("\\-", stdout);
        else if (c == '\\') fputs("\\e", stdout);
        else putchar(c);
        start = c == '\n';
    }
}

static void roff_line(const char *text) {
    roff(text, strlen(text));
    putchar('\n');
}

static void roff_paragraphs(const char *text) {
    while (*text) {
        const char *stop = strstr(text, "\n\n");
        roff(text, stop ? (size_t)(stop - text) : strlen(text));
        putchar('\n');
        if (!stop) break;
        printf(".PP\n");
        text = stop + 2;
    }
}

static void roff_examples(const example *examples) {
    printf(".SH EXAMPLES\n");
    for (int i = 0; examples[i].command; i++) {
        printf(i ? ".PP\n" : "");
        roff_line(examples[i].comment);
        printf(".PP\n.nf\n.RS\n");
        roff_line(examples[i].command);
        printf(".RE\n.fi\n");
    }
}

static void roff_head(const char *page, const char *summary) {
    printf(".TH %s 1 \"\" \"openpi %s\" \"openpi\"\n.SH NAME\n", page, openpi_version());
    roff(page, strlen(page));
    printf(" \\- ");
    roff_line(summary);
}

static void roff_tail(const verb *verb) {
    printf(".SH EXIT STATUS\n");
    roff_line(ends(verb));
    printf(".SH SEE ALSO\n");
    if (verb) printf(".BR openpi (1)");
    const struct verb *other;
    for (int i = 0, n = verb != NULL; (other = verb_at(i)); i++)
        if (other != verb) printf("%s.BR openpi\\-%s (1)", n++ ? ",\n" : "", other->name);
    putchar('\n');
}

void man_verb(const verb *verb) {
    char page[64];
    snprintf(page, sizeof page, "openpi-%s", verb->name);
    roff_head(page, verb->summary);
    printf(".SH SYNOPSIS\n");
    for (int i = 0; verb->synopsis[i]; i++) {
        printf(".B openpi %s\n", verb->name);
        roff_line(verb->synopsis[i]);
        if (verb->synopsis[i + 1]) printf(".br\n");
    }
    printf(".SH DESCRIPTION\n");
    roff_paragraphs(verb->description);
    printf(".SH OPTIONS\n");
    for (const option_row *row = verb->options; row->name; row++) {
        if (row->kind == OPTION_HEADING) {
            printf(".SS %s\n", row->name);
            continue;
        }
        printf(".TP\n\\fB\\-\\-");
        roff(row->name, strlen(row->name));
        printf("\\fR");
        if (row->argument) {
            printf(" \\fI");
            roff(row->argument, strlen(row->argument));
            printf("\\fR");
        }
        putchar('\n');
        roff_line(row->help);
    }
    printf(".TP\n\\fB\\-\\-help\\fR\nthis page\n");
    roff_examples(verb->examples);
    roff_tail(verb);
}

void man_all(void) {
    roff_head("openpi", "robot policies from camera frames to actions");
    printf(".SH SYNOPSIS\n.B openpi\n\\fIVERB\\fR [options]\n.SH DESCRIPTION\n");
    roff_paragraphs(about);
    printf(".SH VERBS\n");
    for (const verb_group *group = verb_groups; group->title; group++) {
        printf(".SS %s\n", group->title);
        for (const verb *const *v = group->verbs; *v; v++) {
            printf(".TP\n\\fB%s\\fR\n", (*v)->name);
            roff_line((*v)->summary);
        }
    }
    roff_examples(all_examples);
    roff_tail(NULL);
}
