/* labels: long command cost no_asan */
/* What the verbs write: opened before the work, whole or not there at all, one status for all of them. One
 * table of verbs and results; each test walks it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "scratch.h"

#include "cli_sources.h"
#include "command.h"

#define PICTURE "--image base='" TESTS_DIR "/pictures/rgb.png'"
#define OBSERVATION "--robot none " PICTURE " --state 0.1,0.2 --prompt x"
#define TINY "--synthetic tiny"
#define TUNED "--variant pi0 --threads 1 --horizons 2 --cameras 1 --prompts 3 --rounds 1 --least-share 400"
#define LONGER "--rounds 64 --batches 1,2,3,4,5,6,7,8 --least-share 0"
#define CALL "--steps 1 --horizon 2 --threads 1"

typedef enum form { TABLE, JSON, SVG, HTML, GZIP, FOLDER } form;

/* openpi VERB MODEL WORDS OPTION target; an OPTION of "" is an argument: openpi VERB MODEL target WORDS. */
static const struct {
    const char *verb, *option;
    form form;
    const char *model, *words;
    const char *longer; /* added, it works until it is interrupted                               */
    const char *kept;   /* what a run that failed leaves beside its target, by intent            */
    int slow;           /* takes seconds: 1: asked less often; 2: its verb's other result is asked */
} cases[] = {
    {"run", "--out", TABLE, TINY, OBSERVATION " " CALL, "--noise pipe", NULL, 0},
    {"run", "--plot", SVG, TINY, OBSERVATION " " CALL, "--noise pipe", NULL, 0},
    {"synth", "", FOLDER, "", "--preset tiny", "--preset full --threads 1", NULL, 0},
    {"convert", "", FOLDER, "checkpoint", "--threads 1", "", NULL, 0},
    {"bench", "--json", JSON, TINY, CALL " --warmup 0 --runs 2 --no-energy", "--runs 100000", NULL, 0},
    {"bench", "--svg", SVG, TINY, CALL " --warmup 0 --runs 2 --no-energy", "--runs 100000", NULL, 2},
    {"bench", "--save", JSON, TINY, CALL " --warmup 0 --runs 2 --no-energy", "--runs 100000", NULL, 1},
    {"profile", "--json", JSON, TINY, CALL " --warmup 0 --runs 2", "--runs 100000", NULL, 1},
    {"ladder", "--json", JSON, TINY, CALL " --cameras 100 --prompt 2 --warmup 0 --runs 1 --dtype f32",
     "--runs 100000", NULL, 1},
    {"ladder", "--svg", SVG, TINY, CALL " --cameras 100 --prompt 2 --warmup 0 --runs 1 --dtype f32",
     "--runs 100000", NULL, 2},
    {"roof", "--json", JSON, "", "--threads 1", "", NULL, 0},
    {"tune", "--out", JSON, TINY, TUNED, LONGER, ".part", 2},
    {"tune", "--json", JSON, TINY, TUNED, LONGER, NULL, 1},
    {"trace", "", JSON, TINY, CALL " --warmup 0", "--warmup 100000", NULL, 0},
    {"report", "--out", HTML, "", "bench.json", "pipe", NULL, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Verbs that need a recording, requests or a plan, which tests of their own make and whose results those
 * read. main.c opens, finishes and discards these results as it does the others. */
static const struct {
    const char *verb, *option, *test;
} elsewhere[] = {
    {"doctor", "--json", "test_cli"},
    {"doctor", "--html", "test_cli"},
    {"quantize", "--out", "test_cli_w8"},
    {"replay", "--json", "test_serve_record"},
};
enum { ELSEWHERE = sizeof elsewhere / sizeof *elsewhere };

/* ---- running -------------------------------------------------------------------------------------- */

/* The words of case i with its result in `target`; a later word wins over the one of the table that it
 * repeats. */
static const char *words_of(int i, const char *target, const char *more) {
    static char text[2000];
    char words[1000] = "", *keep = NULL;
    snprintf(text, sizeof text, "%s", cases[i].words);
    for (char *word = strtok_r(text, " ", &keep); word; word = strtok_r(NULL, " ", &keep)) {
        char option[64];
        snprintf(option, sizeof option, "%.40s ", word);
        if (!strncmp(word, "--", 2) && strstr(more, option)) {
            strtok_r(NULL, " ", &keep); /* its argument */
            continue;
        }
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s ", word);
    }
    snprintf(text, sizeof text, "%s %s %s %s %s %s %s", cases[i].verb, cases[i].model,
             *cases[i].option ? "" : target, words, cases[i].option, *cases[i].option ? target : "", more);
    return text;
}

/* Everything in the box by name, one a line, in order; what the tests themselves make is left out. */
static char *listing(void) {
    struct dirent **entries;
    int count = scandir(box.folder, &entries, NULL, alphasort);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (strcmp(name, "out") && strcmp(name, "err")) strcat(strcat(text, name), "\n");
        free(entries[i]);
    }
    free(entries);
    return text;
}

static void must_leave(const char *before, const char *words) {
    char *now = listing();
    if (strcmp(now, before)) fail_msg("openpi %s: the folder held\n%sand holds\n%s", words, before, now);
    free(now);
}

static void must_hold(const char *name, const char *text, const char *words) {
    char *now = slurp(scratch_path(&box, name), NULL);
    if (strcmp(now, text)) fail_msg("openpi %s: %s holds\n%.200s", words, name, now);
    free(now);
}

static void remove_kept(int i, const char *target) {
    char name[64];
    if (!cases[i].kept) return;
    snprintf(name, sizeof name, "%s%s", target, cases[i].kept);
    remove(scratch_path(&box, name));
}

static void put_old(void) { assert_int_equal(scratch_write(&box, "old", "as it was\n", 10), 0); }

/* Starts openpi; its stderr comes out of *said. `largest`: no file may grow beyond so many bytes; -1: any
 * may. */
static pid_t start(const char *words, long largest, int *said) {
    int ends[2];
    char line[3000];
    assert_int_equal(pipe(ends), 0);
    snprintf(line, sizeof line, "exec '%s' %s", OPENPI_COMMAND, words);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        const struct rlimit limit = {(rlim_t)largest, (rlim_t)largest};
        int null = open("/dev/null", O_RDWR);
        if (chdir(box.folder) || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(ends[1], 2) < 0) _exit(99);
        close(ends[0]);
        if (largest >= 0 && setrlimit(RLIMIT_FSIZE, &limit)) _exit(98);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(97);
    }
    close(ends[1]);
    *said = ends[0];
    return child;
}

/* Waits for it; its words on stderr are in `err`. */
static int finish(pid_t child, int said, const char *words) {
    int status;
    size_t at = 0, capacity = 1 << 16;
    ssize_t got;
    free(err);
    err = calloc(1, capacity);
    assert_non_null(err);
    while ((got = read(said, err + at, capacity - 1 - at)) > 0) at += (size_t)got;
    close(said);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("openpi %s: ended by a signal; it said:\n%s", words, err);
    return WEXITSTATUS(status);
}

/* ---- the table ------------------------------------------------------------------------------------ */

/* Every option that a source declares as a result stands in the table. */
static void test_table_is_whole(void **state) {
    (void)state;
    char option[40], verb[40];
    glob_t sources = cli_sources();
    int found = 0;
    for (size_t s = 0; s < sources.gl_pathc; s++) {
        char *source = slurp(sources.gl_pathv[s], NULL);
        for (const char *at = source; (at = strstr(at, "{OPTION_OUTPUT, \"")) != NULL; at++, found++) {
            const char *record = strstr(source, "const verb verb_"),
                       *name = record ? strstr(record, ".name = \"") : NULL;
            int known = 0;
            assert_non_null(name);
            assert_int_equal(sscanf(name, ".name = \"%39[a-z]", verb), 1);
            option[0] = option[1] = '-';
            assert_int_equal(sscanf(at, "{OPTION_OUTPUT, \"%37[a-z-]", option + 2), 1);
            for (int i = 0; i < CASES; i++)
                known |= !strcmp(cases[i].verb, verb) && !strcmp(cases[i].option, option);
            for (int i = 0; i < ELSEWHERE; i++)
                known |= !strcmp(elsewhere[i].verb, verb) && !strcmp(elsewhere[i].option, option);
            if (!known) fail_msg("openpi %s %s is not in the table of this test", verb, option);
        }
        free(source);
    }
    globfree(&sources);
    assert_int_equal(found, CASES + ELSEWHERE - 3); /* those of "" are arguments */
}

/* `from` in `text`, where it is there, becomes `to`, which is as long. */
static void exchange(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    assert_int_equal(strlen(from), strlen(to));
    if (at) memcpy(at, to, strlen(to));
}

/* A result that cannot be is said before anything is read: the model and the files to read are not there
 * either. */
static void test_said_first(void **state) {
    static const struct {
        const char *target, *why;
    } targets[] = {
        {"absent/x", "No such file or directory"}, {"old/x", "Not a directory"}, {"folder", ""}, {"''", ""}};
    (void)state;
    put_old();
    char *before = listing();
    for (int i = 0; i < CASES; i++)
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
            char words[2000];
            snprintf(words, sizeof words, "%s", words_of(i, targets[t].target, ""));
            exchange(words, TINY, "not-there       ");
            exchange(words, "checkpoint", "not-there ");
            exchange(words, "bench.json ", "not-there  ");
            int status = run("%s", words);
            const char *sentence = strchr(err, ':');
            assert_non_null(sentence);
            if (status != 2 || !strstr(err, targets[t].why) || strstr(err, "not-there") ||
                (*targets[t].target != '\'' && !strstr(sentence, targets[t].target)))
                fail_msg("openpi %s: status %d, expected 2 and \"%s: …%s\"; it said:\n%s", words, status,
                         targets[t].target, targets[t].why, err);
            must_leave(before, words);
        }
    free(before);
}

/* ---- nothing is left behind ----------------------------------------------------------------------- */

static void test_full_disk(void **state) {
    (void)state;
    put_old();
    char *before = listing();
    for (int i = 0; i < CASES; i++)
        for (int device = 0; device < 2; device++) {
            int said;
            if (cases[i].slow == 2 && cases[i].form == SVG) continue;
            if (device && (cases[i].form == FOLDER || cases[i].slow)) continue;
            const char *target = device ? "/dev/full" : cases[i].form == FOLDER ? "new" : "old";
            char words[2000];
            snprintf(words, sizeof words, "%s", words_of(i, target, ""));
            pid_t child = start(words, device ? -1 : 1, &said);
            int status = finish(child, said, words);
            const char *why =
                device ? "cannot be written: No space left on device" : "cannot be written: File too large";
            if (status != 2 || !strstr(err, why) || !strstr(err, target))
                fail_msg("openpi %s: status %d, expected 2 and \"%s: %s\"; it said:\n%s", words, status,
                         target, why, err);
            remove_kept(i, target);
            must_hold("old", "as it was\n", words);
            must_leave(before, words);
        }
    free(before);
}

/* Until a temporary is there, the command has not opened its result. */
static void wait_for_temporary(pid_t child, const char *words) {
    const struct timespec moment = {0, 1000000};
    for (int status;; nanosleep(&moment, NULL)) {
        char *now = listing();
        int there = strstr(now, ".openpi-") != NULL;
        free(now);
        if (there) return;
        if (waitpid(child, &status, WNOHANG))
            fail_msg("openpi %s: ended before it could be interrupted", words);
    }
}

static void test_interrupted(void **state) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    (void)state;
    put_old();
    for (int i = 0; i < CASES; i++) {
        int said, which = signals[i % 3];
        const char *target = cases[i].form == FOLDER ? "new" : "old";
        char words[2000], *before = listing();
        snprintf(words, sizeof words, "%s", words_of(i, target, cases[i].longer));
        exchange(words, "checkpoint", "blocked-ck"); /* its assets are copied for seconds */
        pid_t child = start(words, -1, &said);
        wait_for_temporary(child, words);
        kill(child, which);
        int status = finish(child, said, words);
        if (status != 130 || !strstr(err, ": interrupted\n"))
            fail_msg("openpi %s: status %d after signal %d, expected 130; it said:\n%s", words, status, which,
                     err);
        remove_kept(i, target);
        must_hold("old", "as it was\n", words);
        must_leave(before, words);
        free(before);
    }
}

/* A reader that leaves early, as head does, ends the command quietly; its other result is there. */
static void test_broken_pipe(void **state) {
    (void)state;
    char line[2000];
    static const char *const ways[] = {"--plot p.svg", "--plot p.svg --out -", "--plot p.svg --format json"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(line, sizeof line, "cd '%s' && { '%s' run %s %s 2>err; echo $? >out; } | true", box.folder,
                 OPENPI_COMMAND, TINY " " OBSERVATION " " CALL, ways[i]);
        assert_int_equal(system(line), 0);
        must_hold("out", "0\n", line);
        must_hold("err", "", line);
        assert_int_equal(remove(scratch_path(&box, "p.svg")), 0);
    }
}

/* ---- where results go ----------------------------------------------------------------------------- */

static void must_be(form form, const char *text, size_t bytes, const char *words) {
    json_error_t where;
    json_t *root;
    switch (form) {
    case TABLE: must_contain(text, "robot none"); break;
    case SVG:
        if (strncmp(text, "<svg", 4) || strcmp(text + bytes - 7, "</svg>\n"))
            fail_msg("openpi %s: no SVG:\n%s", words, text);
        break;
    case HTML:
        if (strncmp(text, "<!doctype", 9) || strcmp(text + bytes - 8, "</html>\n"))
            fail_msg("openpi %s: no page", words);
        break;
    case JSON:
        root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
        if (!root) fail_msg("openpi %s: line %d is not JSON: %s in\n%s", words, where.line, where.text, text);
        json_decref(root);
        break;
    case GZIP: assert_memory_equal(text, "\x1f\x8b", 2); break;
    case FOLDER: break;
    }
}

/* "-" is standard output, and nothing else is on it; a table is then written to standard error. */
static void test_standard_output(void **state) {
    (void)state;
    char *before = listing();
    for (int i = 0; i < CASES; i++) {
        char words[2000];
        if (cases[i].slow == 2) continue;
        snprintf(words, sizeof words, "%s", words_of(i, "-", ""));
        int status = run("%s", words);
        if (cases[i].form == FOLDER) {
            assert_int_equal(status, 2);
            must_contain(err, " is '-', expected a folder");
            continue;
        }
        if (status) fail_msg("openpi %s: status %d: %s", words, status, err);
        must_be(cases[i].form, out, out_bytes, words);
        must_leave(before, words);
    }
    must_refuse("bench " TINY " --json - --svg -",
                "two results are to go to standard output, --svg is the second");
    must_refuse("run " TINY " " OBSERVATION " --format csv --plot -",
                "the plot and the result are both to go to standard output: give --out FILE");
    must_refuse("bench " TINY " --json x --svg ./x", "--svg is './x', which another result is written to");
    for (int i = 0; i < 2; i++) {
        const char *verb = i ? "inspect --synthetic tiny" : "devices";
        json_t *both[2];
        for (int dash = 0; dash < 2; dash++) {
            assert_int_equal(run("%s --json%s", verb, dash ? " -" : ""), 0);
            assert_string_equal(err, "");
            both[dash] = json_loadb(out, out_bytes, JSON_REJECT_DUPLICATES, NULL);
            assert_non_null(both[dash]);
            assert_int_equal(json_object_del(both[dash], "date"), 0);
            json_object_del(both[dash], "memory");         /* what is free changes */
        }
        assert_true(json_equal(both[0], both[1]));
        json_decref(both[0]);
        json_decref(both[1]);
    }
    must_leave(before, "all of them");
    free(before);
}

/* A link stays and its file is replaced, which keeps its mode; a new one has the usual mode; a pipe is
 * written straight. */
static void test_targets(void **state) {
    (void)state;
    struct stat now;
    for (int i = 0; i < CASES; i++) {
        if (cases[i].form == FOLDER || cases[i].slow) continue;
        char words[2000];
        put_old();
        assert_int_equal(chmod(scratch_path(&box, "old"), 0640), 0);
        assert_int_equal(symlink("old", scratch_path(&box, "link")), 0);
        snprintf(words, sizeof words, "%s", words_of(i, "link", ""));
        if (run("%s", words)) fail_msg("openpi %s: %s", words, err);
        size_t bytes;
        char *text = slurp(scratch_path(&box, "old"), &bytes);
        must_be(cases[i].form, text, bytes, words);
        free(text);
        assert_int_equal(lstat(scratch_path(&box, "link"), &now), 0);
        assert_true(S_ISLNK(now.st_mode));
        assert_int_equal(stat(scratch_path(&box, "old"), &now), 0);
        assert_int_equal(now.st_mode & 07777, 0640);
        assert_int_equal(unlink(scratch_path(&box, "link")), 0);
    }
    mode_t mask = umask(0);
    umask(mask);
    char line[2000];
    const char *call = "run " TINY " " OBSERVATION " " CALL " --format csv";
    assert_int_equal(run("%s --out new.csv", call), 0);
    assert_int_equal(stat(scratch_path(&box, "new.csv"), &now), 0);
    assert_int_equal(now.st_mode & 07777, 0666 & ~mask);
    assert_int_equal(run("%s --out /dev/null --plot /dev/null", call), 2); /* one place for two results */
    assert_int_equal(run("%s --out /dev/null", call), 0);
    assert_int_equal(stat("/dev/null", &now), 0);
    assert_true(S_ISCHR(now.st_mode));
    snprintf(line, sizeof line,
             "cd '%s' && { cat pipe >copy & '%s' %s --out pipe && wait && cmp copy new.csv; }", box.folder,
             OPENPI_COMMAND, call);
    assert_int_equal(system(line), 0);
    unlink(scratch_path(&box, "new.csv"));
    unlink(scratch_path(&box, "copy"));

    assert_int_equal(run("trace t.json.gz " TINY " " CALL " --warmup 0"), 0);
    char *packed = slurp(scratch_path(&box, "t.json.gz"), NULL);
    must_be(GZIP, packed, 0, "trace");
    free(packed);
    unlink(scratch_path(&box, "t.json.gz"));
}

/* A folder that is there and empty is filled, not replaced. */
static void test_empty_folder(void **state) {
    (void)state;
    struct stat before, after;
    assert_int_equal(mkdir(scratch_path(&box, "empty"), 0750), 0);
    assert_int_equal(stat(scratch_path(&box, "empty"), &before), 0);
    assert_int_equal(run("synth empty --preset tiny"), 0);
    assert_int_equal(stat(scratch_path(&box, "empty"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(after.st_mode & 07777, 0750);
    assert_int_equal(run("synth new/ --preset tiny"), 0);
    char line[1000];
    snprintf(line, sizeof line, "cd '%s' && diff -r new empty && ls -A new | wc -l | grep -qx 4", box.folder);
    assert_int_equal(system(line), 0);
    scratch_remove(scratch_path(&box, "empty"));
    scratch_remove(scratch_path(&box, "new"));
}

/* --force puts a checkpoint in the place of another one and of nothing else; a conversion that fails leaves
 * the old one as it was. */
static void test_replaced_folder(void **state) {
    (void)state;
    char line[1000], *before;
    assert_int_equal(run("convert checkpoint replaced --shard-size 1MB"), 0);
    must_refuse("convert checkpoint replaced", "expected a new or empty folder, or --force");
    must_refuse("convert absent replaced --force", "absent: ");
    must_refuse("convert replaced replaced --force", "replaced: is inside of the checkpoint replaced");
    must_refuse("convert replaced/model-00001-of-00010.safetensors replaced --force",
                "replaced: holds the checkpoint replaced/model-00001-of-00010.safetensors, which --force");
    assert_int_equal(run("convert checkpoint new --shard-size 1MB"), 0);
    snprintf(line, sizeof line, "cd '%s' && diff -r new replaced && ls new | grep -q -- -of-", box.folder);
    assert_int_equal(system(line), 0);
    assert_int_equal(run("convert checkpoint replaced --force"), 0);
    scratch_remove(scratch_path(&box, "new"));
    assert_int_equal(run("convert checkpoint new"), 0);
    snprintf(line, sizeof line, "cd '%s' && diff -r new replaced", box.folder);
    assert_int_equal(system(line), 0);
    assert_int_equal(scratch_write(&box, "replaced/thesis", "x", 1), 0);
    before = listing();
    must_refuse("convert checkpoint replaced --force",
                "replaced: holds \"thesis\", which openpi convert does not write");
    must_leave(before, "convert --force");
    free(before);
    scratch_remove(scratch_path(&box, "new"));
    scratch_remove(scratch_path(&box, "replaced"));
}

/* ---- standard input ------------------------------------------------------------------------------- */

/* What is read from "-" is what is read from the file. */
static void test_standard_input(void **state) {
    static const struct {
        const char *words, *file;
    } reads[] = {
        {"run " TINY " --robot none --prompt x --state 0 " CALL " --format csv --image base=%s",
         TESTS_DIR "/pictures/rgb.png"},
        {"run " TINY " --robot none --prompt x " CALL " " PICTURE " --format csv --state %s", "state.json"},
        {"run " TINY ":pi0 --robot droid " CALL " --format csv --norm-stats '" GOLDEN "/policy/droid_pi0/"
                                                                                      "norm_stats.json' "
         "--tokenizer '" GOLDEN "/tokenizer.model' --request %s",
         GOLDEN "/policy/droid_pi0/request.msgpack"},
        {"run " TINY ":pi0 --robot droid " CALL " --format csv --tokenizer '" GOLDEN
         "/tokenizer.model' --request '" GOLDEN "/policy/droid_pi0/request.msgpack' --norm-stats %s",
         GOLDEN "/policy/droid_pi0/norm_stats.json"},
        {"run " TINY ":pi0 --robot droid " CALL " --format csv --norm-stats '" GOLDEN
         "/policy/droid_pi0/norm_stats.json' --request '" GOLDEN "/policy/droid_pi0/request.msgpack' "
                                                                 "--tokenizer %s",
         GOLDEN "/tokenizer.model"},
        {"run " TINY " " PICTURE " --state 0.1,0.2 --prompt x " CALL " --format csv --robot %s", "robot."
                                                                                                 "json"},
        {"inspect " TINY " --robot %s | sed '/free/d;/openpi run/d'", "robot.json"},
        {"inspect " TINY " --json --robot %s | sed '/\"date\"/d; /free/d'", "cut.json"},
        {"profile " TINY " " CALL " --warmup 0 --runs 2 --table %s | grep '^cameras'", "table.json"},
        {"verify %s | cut -c31-", GOLDEN "/model/pi0_odd.safetensors"}, /* less the case's name */
        {"report --out - %s", "bench.json"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        char words[2][1500], line[4000];
        for (int standard = 0; standard < 2; standard++) {
            int head = (int)(strstr(reads[i].words, "%s") - reads[i].words);
            snprintf(words[standard], sizeof words[standard], "%.*s%s%s", head, reads[i].words,
                     standard ? "-" : reads[i].file, reads[i].words + head + 2);
        }
        if (run("%s", words[0]) || !*out) fail_msg("openpi %s: %s", words[0], err);
        snprintf(line, sizeof line,
                 "cd '%s' && cat '%s' | { '%s' %s; } 2>err | sed 's/standard input/%s/g' | cmp - out",
                 box.folder, reads[i].file, OPENPI_COMMAND, words[1],
                 strchr(reads[i].file, '/') ? "" : reads[i].file);
        if (system(line)) fail_msg("openpi %s: not what openpi %s prints", words[1], words[0]);
    }
    char line[1000];
    snprintf(line, sizeof line, "cd '%s' && '%s' report - - --out page <bench.json 2>err", box.folder,
             OPENPI_COMMAND);
    assert_int_equal(WEXITSTATUS(system(line)), 2);
    must_hold("err",
              "openpi report: two inputs are '-', but standard input can be read once\n"
              "Try 'openpi report --help'.\n",
              line);
    must_refuse("run " TINY " --robot none --prompt x " PICTURE " --state -",
                "standard input: not valid JSON: ");
    must_refuse("run " TINY " " PICTURE " --state - --prompt x --robot -", "two inputs are '-'");
    must_refuse("run " TINY " " PICTURE " --state 0 --prompt x --robot -", "standard input: not valid "
                                                                           "JSON: ");
    must_refuse("run " TINY " " OBSERVATION " --table -", "standard input: not valid JSON: the text is "
                                                          "empty");
    must_refuse("run " TINY " " OBSERVATION " --tokenizer -", "standard input: neither a SentencePiece model "
                                                              "nor");
    must_refuse("run - " OBSERVATION, "CHECKPOINT is '-', expected a path: weights are read in pieces");
    must_refuse("verify --checkpoint - x", "--checkpoint is '-', expected a path: weights are read in "
                                           "pieces");
    must_refuse("verify -", "standard input: no golden: expected model/NAME.safetensors");
    must_refuse("bench " TINY " --table - --save best.json", "--save with --table -: a saved configuration "
                                                             "names");
}

/* A table whose kernels have changed since is said to have, once, without --verbose. */
static void test_old_table(void **state) {
    static const char *const verbs[] = {"bench " TINY " --batch 1,2 --warmup 0 --runs 1 --no-energy",
                                        "profile " TINY " --warmup 0 --runs 1", "run " TINY " " OBSERVATION};
    json_t *root = load("table.json");
    json_t *entry = json_pack("{ss ss ss ss si si si ss si ss si sb}", "op", "linear_residual", "form",
                              "plain", "norm", "none", "dtype", "bf16", "m", 1, "n", 2, "k", 3, "choice",
                              "old", "time_us", 1, "heuristic", "old", "heuristic_us", 1, "confirmed", 1);
    (void)state;
    assert_int_equal(json_object_set_new(root, "kernels", json_pack("{ss}", "old", "0123456789abcdef")), 0);
    assert_int_equal(json_array_append_new(json_object_get(root, "entries"), entry), 0);
    assert_int_equal(json_dump_file(root, scratch_path(&box, "old.json"), 0), 0);
    json_decref(root);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char line[300];
        if (run("%s " CALL " --table old.json", verbs[i])) fail_msg("openpi %s: %s", verbs[i], err);
        snprintf(line, sizeof line, "openpi %.*s: table old.json: 1 of 1 entries ignored: old changed since "
                                    "the table was made\n",
                 (int)strcspn(verbs[i], " "), verbs[i]);
        const char *said = strstr(err, line);
        if (!said || strstr(said + 1, line))
            fail_msg("openpi %s: expected once %sfound %s", verbs[i], line, err);
    }
}

/* ---- the box -------------------------------------------------------------------------------------- */

static const char robot_json[] = "{\"name\": \"arm\", \"cameras\": {\"base\": \"base\"}, \"state\": "
                                 "{\"joints\": 2}, "
                                 "\"actions\": 2, \"normalization\": \"none\"}";

/* A table without entries for the machine that bench.json is of. */
static int write_table(void) {
    json_t *root = load("bench.json"), *machine = json_object_get(root, "machine");
    char text[400];
    int length = snprintf(text, sizeof text,
                          "{\"kind\": \"tuning\", \"format\": 2, \"openpi\": \"0.1.0\", \"device\": \"%s\", "
                          "\"path\": \"%s\", \"threads\": 1, \"kernels\": {}, \"entries\": []}",
                          word(machine, "hardware"), word(machine, "path"));
    json_decref(root);
    return scratch_write(&box, "table.json", text, (size_t)length);
}

/* The largest file that is copied, under many names: the copies take seconds. */
static int link_often(void) {
    char first[512], other[560];
    snprintf(first, sizeof first, "%s", scratch_path(&box, "blocked-ck/assets/long"));
    for (int i = 0; i < 64; i++) {
        snprintf(other, sizeof other, "%s-%d", first, i);
        if (link(first, other)) return -1;
    }
    return 0;
}

static int setup(void **state) {
    (void)state;
    if (scratch_open(&box) || mkdir(scratch_path(&box, "folder"), 0700) ||
        scratch_write(&box, "folder/x", "x", 1))
        return -1;
    if (mkfifo(scratch_path(&box, "pipe"), 0600) || scratch_write(&box, "state.json", "[0.1, 0.2]", 10))
        return -1;
    put_old();
    if (scratch_write(&box, "robot.json", robot_json, sizeof robot_json - 1) ||
        scratch_write(&box, "cut.json", robot_json, 40))
        return -1;
    if (run("synth checkpoint --preset tiny") || run("synth blocked-ck --preset tiny") ||
        scratch_write(&box, "blocked-ck/assets/long", "", 0) ||
        truncate(scratch_path(&box, "blocked-ck/assets/long"), (off_t)1 << 26) || link_often())
        return -1;
    return run("bench " TINY " " CALL " --warmup 0 --runs 2 --no-energy --json bench.json") || write_table();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_whole), cmocka_unit_test(test_said_first),
        cmocka_unit_test(test_full_disk),      cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_broken_pipe),    cmocka_unit_test(test_standard_output),
        cmocka_unit_test(test_targets),        cmocka_unit_test(test_empty_folder),
        cmocka_unit_test(test_replaced_folder), cmocka_unit_test(test_standard_input),
        cmocka_unit_test(test_old_table),
    };
    return cmocka_run_group_tests(tests, setup, close_box);
}
