/* labels: command */
/* The command's words: what is refused with a sentence, and what help and man pages say. */
#include "tiny_command.h"

#include "cli_sources.h"

__attribute__((format(printf, 1, 2))) static int run_full(const char *format, ...) {
    va_list list;
    va_start(list, format);
    int status = run_to("/dev/full", format, list);
    va_end(list);
    return status;
}

/* ---- bad words ------------------------------------------------------------------------------------ */

static const struct {
    const char *args;
    int status;
    const char *sentence;
} bad[] = {
    {"", 2, ""},
    {"fly", 2, "openpi: there is no verb 'fly'"},
    {"--fly", 2, "openpi: unknown option '--fly'"},
    {"run --fly", 2, "openpi run: unknown or ambiguous option '--fly'"},
    {"run -x", 2, "openpi run: unknown option '-x'"},
    {"run --prompt", 2, "openpi run: option '--prompt' needs an argument: TEXT"},
    {"run --pin=3", 2, "openpi run: option '--pin' takes no argument"},
    {"run", 2, "openpi run: no model: give a CHECKPOINT folder or --synthetic PRESET"},
    {"run a b", 2, "openpi run: unexpected argument 'b' after CHECKPOINT"},
    {"run a --synthetic tiny", 2,
     "CHECKPOINT and --synthetic contradict each other: the weights are either read or made"},
    {"run --synthetic huge --image base=x.png", 2, "huge"},
    {"run --synthetic tiny", 2, "no picture: give --image NAME=FILE, or a whole request with --request FILE"},
    {"run --synthetic tiny --image base", 2, "--image is 'base', expected NAME=FILE"},
    {"run --synthetic tiny --image =x", 2, "--image is '=x', expected NAME=FILE"},
    {"run --synthetic tiny --image base=absent.png", 2,
     "absent.png: cannot be opened: No such file or directory"},
    {"run --synthetic tiny --image base=text", 2, "text: "},
    {"run --synthetic tiny --request absent", 2, "absent: cannot be opened"},
    {"run --synthetic tiny --request text --robot none", 2, "msgpack"},
    {"run --synthetic tiny --request r --prompt p", 2,
     "--request and --prompt contradict each other: a request contains its prompt"},
    {"run --synthetic tiny --request r --image a=b", 2, "--request and --image contradict each other"},
    {"run --synthetic tiny --request r --state 1", 2, "--request and --state contradict each other"},
    {SMALL " --noise n.npy --seed 3", 2,
     "--noise and --seed contradict each other: the noise is either read or drawn"},
    {SMALL " --config pi0_droid", 2, "--robot and --config contradict each other: a config names its robot"},
    {TINY " --state 1", 2, "--state is given twice"},
    {TINY " --horizon 0", 2, "--horizon is '0', expected a whole number from 1 to 64"},
    {TINY " --horizon 65", 2, "--horizon is '65', expected a whole number from 1 to 64"},
    {TINY " --steps 101", 2, "--steps is '101', expected a whole number from 1 to 100"},
    {TINY " --steps ten", 2, "--steps is 'ten', expected a whole number from 1 to 100"},
    {TINY " --steps -1", 2, "--steps is '-1', expected a whole number from 1 to 100"},
    {TINY " --seed -1", 2, "--seed is '-1', expected a whole number from 0 to 2^64-1"},
    {TINY " --seed 18446744073709551616", 2, "--seed is '18446744073709551616'"},
    {TINY " --format xml", 2, "--format is 'xml', expected one of table|json|csv|npy"},
    {TINY " --dtype f16", 2, "--dtype is 'f16', expected one of bf16|f32"},
    {TINY " --prompt-state maybe", 2, "--prompt-state is 'maybe', expected one of off|on"},
    {TINY " --robot nobody", 2, "--robot is given twice"},
    {TINY " --device cuda:77", 3, "cuda:77"},
    {TINY " --isa sse9", 2, "sse9"},
    {TINY " --image base=text", 2, "--image base is given twice"},
    {TINY " --image tail='" TESTS_DIR "/pictures/rgb.png'", 2, "tail"},
    {TINY " --tokenizer absent.model", 2, "absent.model"},
    {TINY " --norm-stats text", 2, "text"},
    {TINY " --noise absent.npy", 2, "absent.npy: cannot be opened"},
    {TINY " --noise text", 2, "text: not a .npy file"},
    {TINY " --rtc guided", 2, "--rtc needs the chunk that the robot is executing: --previous FILE"},
    {TINY " --previous absent.npy", 2, "--previous needs --rtc: guided for any checkpoint, or trained"},
    {TINY " --previous absent.npy --rtc guided", 2, "absent.npy: cannot be opened"},
    {TINY " --previous text --rtc guided", 2, "text: not a .npy file"},
    {TINY " --previous text --rtc vjp", 2, "--rtc vjp, guidance through the denoiser's Jacobian, needs a backward pass"},
    {TINY " --previous text --rtc soft", 2, "--rtc is 'soft', expected one of guided|trained|vjp"},
    {TINY " --previous text --rtc trained --schedule exp", 2, "--schedule belongs to --rtc guided, and --rtc is trained"},
    {TINY " --previous text --rtc trained --overlap 4", 2, "--overlap belongs to --rtc guided"},
    {TINY " --previous text --rtc guided --max-weight x", 2, "--max-weight is 'x', expected a number above 0"},
    {TINY " --previous text --rtc guided --max-weight -1", 2, "--max-weight is '-1', expected a number above 0"},
    {TINY " --previous text --rtc guided --schedule cosine", 2, "--schedule is 'cosine', expected one of zeros|ones|linear|exp"},
    {TINY " --delay 3", 2, "--delay has no effect without --rtc and --previous"},
    {TINY " --executed 3", 2, "--executed has no effect without --rtc and --previous"},
    {TINY " --delay 65", 2, "--delay is '65', expected a whole number from 0 to 64"},
    {SMALL " --keep absent/x.npy", 2, "absent/x.npy: cannot be written: No such file or directory"},
    {SMALL " --out absent/x", 2, "absent/x: cannot be written: No such file or directory"},
    {SMALL " --plot absent/x.svg", 2, "absent/x.svg: cannot be written: No such file or directory"},
    {"run --synthetic tiny --robot none --image base=x --state 1,x", 2, ""},
    {"run --synthetic tiny --robot none --image base=/dev/zero --state 0 --prompt x", 2,
     "/dev/zero: neither a PNG nor a JPEG file (1048576 bytes)"},
    {"run absent --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --state 1 --prompt x", 2,
     "absent"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state 1,x",
     2, "--state: value 2 is 'x', expected a number"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state "
                                                                  "1,2,",
     2, "--state ends with a comma"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state abc",
     2, "--state is 'abc', expected numbers"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state nan",
     2, "finite"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state "
                                                                  "absent.json",
     2, "absent.json: cannot be opened"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state "
                                                                  "broken.json",
     2, "broken.json: not valid JSON: "},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state "
                                                                  "words.json",
     2, "words.json: value 2 is not a number"},
    {"run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --prompt x --state "
                                                                  "object.json",
     2, "object.json: expected an array of numbers, or an object with such an array under \"state\""},
    {"run --synthetic tiny --robot droid --image base='" TESTS_DIR
     "/pictures/rgb.png' --image left_wrist='" TESTS_DIR "/pictures/rgb.png' --prompt x --state 1,2,3",
     2, "state"},
    {"run --synthetic tiny --robot droid --request text", 2, "openpi run: text: request: the message starts with "},
    {"run --synthetic tiny --adapter x", 2,
     "--adapter and --synthetic contradict each other: an adapter changes a checkpoint"},
    {"run absent --adapter text " PICTURE " --robot none", 2,
     "--adapter is \"text\", expected a folder with adapter_config.json"},
    {"inspect . --adapter absent", 2, "--adapter is \"absent\", expected a folder with adapter_config.json"},
    {"verify . --adapter x", 2, "--adapter has no effect without --checkpoint"},
    {"verify . --without-lora", 2, "--without-lora has no effect without --checkpoint"},
    {"inspect", 2, "openpi inspect: no model"},
    {"inspect absent", 2, "absent"},
    {"inspect text", 2, "text"},
    /* a variable of the shell that is not set: no sentence is about a file without a name */
    {"run '' " PICTURE " --robot none", 2, "openpi run: the checkpoint's path is empty, expected a folder or "},
    {"serve '' --robot none --port 0", 2, "openpi serve: the checkpoint's path is empty, expected a folder or "},
    {"inspect ''", 2, "openpi inspect: the checkpoint's path is empty, expected a folder or "},
    {SMALL " --tokenizer ''", 2, "openpi run: --tokenizer is empty, expected a path"},
    {SMALL " --table ''", 2, "openpi run: --table is empty, expected a path"},
    {SMALL " --noise ''", 2, "openpi run: --noise is empty, expected a path"},
    {SMALL " --previous '' --rtc guided", 2, "openpi run: --previous is empty, expected a path"},
    {"run open --robot droid --norm-stats '' " PICTURE, 2, "openpi run: --norm-stats is empty, expected a path"},
    {"run open --robot droid --request ''", 2, "openpi run: --request is empty, expected a path"},
    {"bench --best ''", 2, "openpi bench: --best is empty, expected a path"},
    {"report '' --out page", 2, "openpi report: the path of a file to read is empty"},
    {"verify ''", 2, "openpi verify: the path is empty, expected a golden"},
    {"ladder --list open", 2, "CHECKPOINT and --list contradict each other: --list names the optimisations"},
    {"serve open --new-token arm", 2, "CHECKPOINT and --new-token contradict each other: a new token is of no"},
    {"serve --tokens text --new-token arm", 2, "append it to the file yourself: >> FILE"},
    {"serve --port 1 --new-token arm", 2, "--port has no effect with --new-token: nobody is served"},
    {"ladder --list --runs 3", 2, "--runs has no effect with --list: nothing is measured"},
    {"convert", 2, "openpi convert: CHECKPOINT and OUT are missing"},
    {"convert a", 2, "openpi convert: OUT is missing"},
    {"convert a b c", 2, "unexpected argument 'c' after CHECKPOINT OUT"},
    {"convert a b --dtype f64", 2, "--dtype is 'f64', expected one of bf16|f32|f16"},
    {"convert absent new", 2, "absent: "},
    {"convert - new", 2, "CHECKPOINT is '-', expected a path: weights are read in pieces"},
    {"synth", 2, "openpi synth: DIR is missing"},
    {"synth new", 2, "no sizes: give --preset full|tiny|odd or --dims JSON"},
    {"synth new --preset huge", 2, "--preset is 'huge', expected one of full|tiny|odd"},
    {"synth new --preset tiny --dims '{}'", 2,
     "--preset and --dims contradict each other: the sizes come by name or by number"},
    {"synth new --dims '{\"vision\": 3}'", 2, "vision"},
    {"synth new --preset tiny --variant pi1", 2, "--variant is 'pi1', expected one of pi0|pi05"},
    {"synth new --preset tiny --shard-bytes 2XB", 2,
     "--shard-bytes is '2XB', expected a size such as 500MB, 2GB or 1GiB"},
    {"synth new --preset tiny --shard-bytes 0", 2, "--shard-bytes is '0'"},
    {"synth new --preset tiny --shard-bytes 99999999999999999999", 2, "--shard-bytes is '9"},
    {"synth full-folder --preset tiny", 2, "full-folder"},
    {"verify", 2, "openpi verify: PATH is missing"},
    {"verify absent", 2, "absent"},
    {"verify --pin .", 2, "unknown or ambiguous option '--pin'"},
    {"devices now", 2, "openpi devices: unexpected argument 'now'"},
    /* what was probably meant; it is not done */
    {"bnech --synthetic tiny", 2, "openpi: there is no verb 'bnech'; did you mean 'bench'?"},
    {"helP", 2, "there is no verb 'helP'; did you mean 'help'?"},
    {"help profil", 2, "there is no verb 'profil'; did you mean 'profile'?"},
    {"help run now", 2, "unexpected argument 'now' after help VERB"},
    {TINY " --norm x.json", 2, "unknown or ambiguous option '--norm'; did you mean '--norm-stats'?"},
    {TINY " --horiz 0", 2, "--horizon is '0'"},
    {"serve --synthetic tiny --admin-", 2, "unknown or ambiguous option"},
    {TINY " --horzion 3", 2, "unknown or ambiguous option '--horzion'; did you mean '--horizon'?"},
    {TINY " --step=3 --dtpye=f32", 2, "unknown or ambiguous option '--dtpye=f32'; did you mean '--dtype'?"},
    {TINY " --dtype bf61", 2, "--dtype is 'bf61', expected one of bf16|f32; did you mean 'bf16'?"},
    {"synth new --preset tin", 2, "--preset is 'tin', expected one of full|tiny|odd; did you mean 'tiny'?"},
    {"run --synthetic tny " PICTURE, 2, "--synthetic is \"tny\", expected full, tiny or odd, then maybe "},
    {"run --synthetic tny " PICTURE, 2, "; did you mean \"tiny\"?"},
    {"run --synthetic tiny --robot libro " PICTURE, 2, "--robot \"libro\" is not known"},
    {"run --synthetic tiny --robot libro " PICTURE, 2, "; did you mean \"libero\"?"},
    {"run --synthetic tiny --config pi05_drod " PICTURE, 2, "--config \"pi05_drod\" is not known"},
    {"run --synthetic tiny --config pi05_drod " PICTURE, 2, "; did you mean \"pi05_droid\"?"},
    {TINY " --without fused-qk", 2, "; did you mean \"fused-qkv\"?"},
    {TINY " --isa avx51", 2, "--isa is \"avx51\", expected reference, avx2, "},
    {TINY " --isa avx51", 2, "; did you mean \"avx512\"?"},
    /* options as they are typed, not the library's fields */
    {TINY " --norm-stats text", 2, "openpi run: --norm-stats is \"text\", but robot \"none\" works in "},
    {"run open --robot droid " PICTURE, 2, "give --norm-stats, a norm_stats.json"},
    {"run open --robot droid --assets ur5 " PICTURE, 2, "openpi run: --assets is \"ur5\", but open/assets holds "},
    {"run open --robot droid --assets .. " PICTURE, 2, "--assets is \"..\", expected the name of a folder"},
    {"inspect open --assets a --norm-stats text", 2, "--norm-stats and --assets contradict each other"},
    {"serve --synthetic tiny --robot droid --assets ur5 --port 0", 2, "openpi serve: --assets is \"ur5\", but the "},
    {"verify open --assets a", 2, "--assets has no effect without --checkpoint"},
    {"run bare " PICTURE, 2, "give --robot (aloha, "},
    {"run bare " PICTURE, 2, " or --config (openpi's name"},
    {"run open --robot misspelt.json " PICTURE, 2, "misspelt.json: unknown key \"camera\", known are like, name, "},
    {"run open --robot misspelt.json " PICTURE, 2, ", normalization, prompt_state, prompt, assets, "},
    {"run open --robot lerobot " PICTURE, 2, "--robot is \"lerobot\", but open is no LeRobot checkpoint"},
};

static void test_bad_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status = run("%s", bad[i].args);
        if (status != bad[i].status || !strstr(err, bad[i].sentence))
            fail_msg("openpi %s: status %d, expected %d with \"%s\"; it said:\n%s", bad[i].args, status,
                     bad[i].status, bad[i].sentence, err);
        if (!*bad[i].args) continue;
        if (out_bytes) fail_msg("openpi %s: failed, and yet printed a result:\n%s", bad[i].args, out);
        int lines = 0;                                         /* one sentence, and a hint at most */
        for (const char *c = err; *c; c++) lines += *c == '\n';
        if (lines < 1 || lines > 2 || (lines == 2 && !strstr(err, "--help'.\n")))
            fail_msg("openpi %s: not one sentence:\n%s", bad[i].args, err);
    }
}

static void test_full_disk(void **state) {
    (void)state;
    assert_int_equal(run_full("devices"), 2);
    must_contain(err, "the result cannot be written: No space left on device");
    assert_int_equal(run_full("%s --format npy", SMALL), 2);
    assert_int_equal(run("%s --out /dev/full", SMALL), 2);
    must_contain(err, "/dev/full: cannot be written: No space left on device");
}

/* ---- help ----------------------------------------------------------------------------------------- */

enum { VERBS_MAX = 32 };
static char verb_names[VERBS_MAX][32];
static int verb_count;

/* The verbs as the command lists them; every source that declares one is among them. */
static void list_verbs(void) {
    char name[32], *keep = NULL;
    assert_int_equal(run("--verbs"), 0);
    verb_count = 0;
    for (char *line = strtok_r(out, "\n", &keep); line; line = strtok_r(NULL, "\n", &keep))
        snprintf(verb_names[verb_count++], sizeof *verb_names, "%.31s", line);
    glob_t sources = cli_sources();
    int found = 0;
    for (size_t i = 0; i < sources.gl_pathc; i++) {
        char *source = slurp(sources.gl_pathv[i], NULL), *record = strstr(source, "\nconst verb verb_");
        if (record && sscanf(record, "\nconst verb verb_%31[a-z] =", name) == 1) {
            int listed = 0;
            for (int v = 0; v < verb_count; v++) listed |= !strcmp(verb_names[v], name);
            if (!listed) fail_msg("openpi --verbs does not list %s", name);
            found++;
        }
        free(source);
    }
    globfree(&sources);
    assert_int_equal(found, verb_count);
}

/* Every option that a verb's source declares. */
static void each_option(const char *verb, void (*check)(const char *option)) {
    char path[512], option[64];
    cli_source(verb, path);
    char *source = slurp(path, NULL);
    int count = 0;
    for (const char *at = source; (at = strstr(at, "{OPTION_")) != NULL; at++) {
        if (!strncmp(at, "{OPTION_HEADING", 15)) continue;
        if (sscanf(at, "{OPTION_%*[A-Z0-9], \"%60[a-z-]\"", option) != 1)
            fail_msg("%s: a row without a name: %.60s", path, at);
        check(option);
        count++;
    }
    if (strstr(source, " MACHINE_OPTIONS"))
        for (int i = 0; i < 4; i++) check((const char *const[]){"device", "dtype", "threads", "isa"}[i]);
    if (strstr(source, " SYNTHETIC_OPTION")) check("synthetic");
    assert_true(count > 0);
    free(source);
}

static void in_help(const char *option) {
    char row[80];
    snprintf(row, sizeof row, "\n  --%s", option);
    must_contain(out, row);
}

static void in_man(const char *option) {
    char row[160] = "\n\\fB\\-\\-";
    for (const char *c = option; *c; c++) strcat(row, *c == '-' ? "\\-" : (const char[]){*c, 0});
    strcat(row, "\\fR");
    must_contain(out, row);
}

static void test_help(void **state) {
    (void)state;
    list_verbs();
    for (int v = 0; v < verb_count; v++) {
        char page[64];
        assert_int_equal(run("%s --help", verb_names[v]), 0);
        assert_string_equal(err, "");
        must_contain(out, "\nUsage:\n  openpi ");
        must_contain(out, "\nExamples:\n  # ");
        must_contain(out, "\nExit status:\n");
        for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 0 && line[strlen(line) - 1] == ' ')
                fail_msg("%s --help: a space ends: %s", verb_names[v], line);
        assert_int_equal(run("help %s", verb_names[v]), 0);
        char *first = out;
        out = NULL;
        assert_int_equal(run("%s --help", verb_names[v]), 0);
        assert_string_equal(out, first);
        free(first);
        each_option(verb_names[v], in_help);
        assert_int_equal(run("%s --man", verb_names[v]), 0);
        snprintf(page, sizeof page, ".TH openpi-%.31s 1 ", verb_names[v]);
        assert_memory_equal(out, page, strlen(page));
        each_option(verb_names[v], in_man);
        assert_int_equal(run("--help"), 0);
        must_contain(out, verb_names[v]);
        assert_int_equal(run("--man"), 0);
        must_contain(out, verb_names[v]);
    }
    /* Each says how it itself ends: serve takes the signals, and tune has a check too (docs/tune.md). */
    assert_int_equal(run("serve --help"), 0);
    must_contain(out, "\n  0 drained after SIGTERM or SIGINT");
    must_contain(out, "75 a device was lost");
    assert_null(strstr(out, "130"));
    assert_int_equal(run("tune --help"), 0);
    must_contain(out, "--server, ladder, tune)");
    /* A stranger with JAX's checkpoint learns that it is read. */
    assert_int_equal(run("run --help"), 0);
    must_contain(out, "openpi (JAX's or its PyTorch port)");
    assert_int_equal(run("help"), 0);
    must_contain(out, "JAX's and PyTorch's");
    must_contain(out, "\nMeasure:\n  bench ");
    must_contain(out, "130 interrupted (SIGINT, SIGTERM, SIGHUP)");
    assert_int_equal(run("--version"), 0);
    must_contain(out, openpi_version());
    static const char *const said[] = {"(revision ", "; kernels: CPU avx2 to amx, CUDA ", ", AMD "};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) must_contain(out, said[i]);
    assert_true(strstr(out, "gcc ") || strstr(out, "clang "));
    assert_true(strchr(out, '\n') == out + strlen(out) - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, open_examples, close_box);
}
