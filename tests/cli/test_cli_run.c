/* labels: command */
/* openpi run as a user meets it: its results in every form, openpi's own answers, chunks, the plot. */
#include "checkpoint/open.h"
#include "tiny_command.h"

#include "policy_golden.h"

/* ---- results -------------------------------------------------------------------------------------- */


/* The bytes of numpy's format, read here by its own rules: shape from the text, doubles at the end. */
static const double *npy_doubles(const char *bytes, size_t count, int rows, int columns) {
    char shape[64];
    assert_memory_equal(bytes, "\x93NUMPY\x01\x00", 8);
    size_t head = (size_t)(unsigned char)bytes[8] | (size_t)(unsigned char)bytes[9] << 8;
    snprintf(shape, sizeof shape, "'shape': (%d, %d)", rows, columns);
    must_contain(bytes + 10, shape);
    must_contain(bytes + 10, "'descr': '<f8'");
    must_contain(bytes + 10, "'fortran_order': False");
    assert_int_equal((10 + head) % 64, 0);
    assert_int_equal(bytes[10 + head - 1], '\n');
    assert_int_equal(count, 10 + head + (size_t)rows * (size_t)columns * 8);
    return (const double *)(const void *)(bytes + 10 + head); /* aligned: 10 + head is a multiple of 64 */
}

enum { H = 4, D = 32 };

/* On a slow machine stderr shows the seconds of work that takes long, which is nobody's fault. */
static void must_lack_warnings(void) {
    if (strstr(err, "warning")) fail_msg("a warning where none was due: %s", err);
}

/* One computation in four forms: the same doubles in each. */
static void test_formats(void **state) {
    (void)state;
    double actions[H][D];
    assert_int_equal(run("%s --format npy --seed 5", SMALL), 0);
    memcpy(actions, npy_doubles(out, out_bytes, H, D), sizeof actions);

    assert_int_equal(run("%s --format json --seed 5", SMALL), 0);
    must_lack_warnings();
    json_t *root = parse(out, out_bytes), *timing = json_object_get(root, "timing"), *value;
    const char *key;
    has_head(root, "run");
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "model"), "source")), "synthe"
                                                                                                      "tic "
                                                                                                      "tiny");
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "machine"), "device")), "cp"
                                                                                                        "u");
    assert_true(*head_word(json_object_get(root, "machine"), "hardware"));
    assert_string_equal(json_string_value(json_object_get(root, "robot")), "none");
    assert_int_equal(json_integer_value(json_object_get(root, "seed")), 5);
    assert_int_equal(json_array_size(json_object_get(root, "action_names")), D);
    assert_true(json_is_null(json_array_get(json_object_get(root, "action_names"), 0)));
    assert_true(json_is_null(json_object_get(root, "rate_hz")));
    assert_int_equal(json_array_size(json_object_get(root, "actions")), H);
    for (int i = 0; i < H; i++) {
        json_t *row = json_array_get(json_object_get(root, "actions"), (size_t)i);
        assert_int_equal(json_array_size(row), D);
        for (int d = 0; d < D; d++)
            assert_true(json_number_value(json_array_get(row, (size_t)d)) == actions[i][d]);
    }
    assert_int_equal(json_object_size(timing), OPENPI_STAGES + 2);
    json_object_foreach(timing, key, value) {
        assert_true(strlen(key) > 3 && !strcmp(key + strlen(key) - 3, "_ms"));
        assert_true(json_number_value(value) >= 0);
    }
    assert_true(json_number_value(json_object_get(timing, "total_ms")) >=
                json_number_value(json_object_get(timing, "denoise_"
                                                          "ms")));
    json_decref(root);

    assert_int_equal(run("%s --format csv --seed 5", SMALL), 0);
    char *line = strtok(out, "\n");
    assert_memory_equal(line, "step,action_0,action_1,", 23);
    for (int i = 0; i < H; i++) {
        char *at = strtok(NULL, "\n");
        assert_non_null(at);
        assert_int_equal(strtol(at, &at, 10), i);
        for (int d = 0; d < D; d++) {
            assert_int_equal(*at, ',');
            assert_true(strtod(at + 1, &at) == actions[i][d]);
        }
        assert_int_equal(*at, 0);
    }

    char first[64];
    assert_int_equal(run("%s --seed 5", SMALL), 0);
    snprintf(first, sizeof first, "%.5f", actions[0][0]);
    must_contain(out, first);
    for (int s = 0; s < OPENPI_STAGES; s++) must_contain(out, openpi_stage_name((openpi_stage)s));

    assert_int_equal(run("%s --format csv --seed 5 --out o.csv", SMALL), 0);
    assert_int_equal(out_bytes, 0);
    char *file = slurp(scratch_path(&box, "o.csv"), NULL);
    must_contain(file, "step,action_0,");
    free(file);

    assert_int_equal(run("%s --format npy --seed 6", SMALL), 0);   /* another seed, other actions */
    assert_true(memcmp(actions, npy_doubles(out, out_bytes, H, D), sizeof actions) != 0);
}

/* What limits of the robot changed: in the JSON, in a column of the CSV, and in a line. */
static void test_limits(void **state) {
    (void)state;
    static const char arm[] = "{\"like\": \"none\", \"name\": \"arm\", \"actions\": 2, \"limits\": {%s}}",
                      *const chunk = "run --synthetic tiny --robot arm.json --image base='" TESTS_DIR
                                     "/pictures/rgb.png' --state 0.1,0.2 --prompt x --steps 2 --horizon 4";
    char record[256];
    snprintf(record, sizeof record, arm, "\"max_step\": [1e-3, null]");
    assert_int_equal(scratch_write(&box, "arm.json", record, strlen(record)), 0);
    assert_int_equal(run("%s --format json", chunk), 0);
    must_contain(err, "warning: the robot's limits changed 3 numbers of the chunk, the first in step 1: ");
    json_t *root = parse(out, out_bytes), *limited = json_object_get(root, "limited");
    assert_int_equal(json_integer_value(json_object_get(limited, "changed")), 3);
    assert_int_equal(json_integer_value(json_object_get(limited, "beyond_step")), 3);
    assert_int_equal(json_array_size(json_object_get(limited, "steps")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(limited, "steps"), 0)), 1);
    json_decref(root);
    assert_int_equal(run("%s --format csv", chunk), 0);
    must_contain(out, "step,action_0,action_1,limited\n");
    char *line = strchr(out, '\n') + 1;
    for (int i = 0; i < H; i++, line = strchr(line, '\n') + 1)
        assert_int_equal(strchr(line, '\n')[-1], i ? '1' : '0');
    snprintf(record, sizeof record, arm, "\"max_step\": [1e-3, null], \"on_violation\": \"stop\"");
    assert_int_equal(scratch_write(&box, "arm.json", record, strlen(record)), 0);
    assert_int_equal(run("%s", chunk), 1);
    must_contain(err, "robot \"arm\" is sent nothing: action 0 of step 1 is ");
    assert_int_equal(run("%s --format json", SMALL), 0);
    assert_null(strstr(out, "\"limited\""));
}

static int columns_of(const char *line) {
    int n = 0;
    for (; *line; line++) n += ((unsigned char)*line & 0xc0) != 0x80;
    return n;
}

/* A table fits 80 columns, an action a line, whatever the horizon. */
static void test_table(void **state) {
    (void)state;
    static const char *const robots[] = {"none", "droid", "aloha"};
    for (size_t i = 0; i < sizeof robots / sizeof *robots; i++) {
        int numbers = i == 0 ? 2 : i == 1 ? 8 : 14;
        char numerals[64] = "0";
        for (int n = 1; n < numbers; n++) strcat(numerals, ",0");
        const char *camera = i == 0 ? "base" : i == 1 ? "base" : "cam_high";
        assert_int_equal(run("run --synthetic tiny --robot %s --steps 1 --horizon 50 --image "
                             "%s='%s/pictures/rgb.png' --prompt x --state %s%s", robots[i], camera,
                             TESTS_DIR, numerals,
                             i == 1 ? " --image left_wrist='" TESTS_DIR "/pictures/rgb.png'" : ""), 0);
        must_contain(out, "█");
        must_contain(out, "▁");
        must_contain(out, "--out with a name that ends in .json, .csv or .npy");
        if (i) must_contain(out, i == 1 ? "joint_velocity_7" : "right_forearm_roll");
        int rows = 0;
        for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"), rows++)
            if (rows > 1 && columns_of(line) > 80) fail_msg("%d columns: %s", columns_of(line), line);
        assert_true(rows > (i == 0 ? 32 : numbers) + 3);
    }
}

/* A file holds what its name says. */
static void test_names_of_results(void **state) {
    (void)state;
    static const struct {
        const char *words, *file, *begins;
    } good[] = {
        {"--out a.npy", "a.npy", "\x93NUMPY"},      {"--out a.json", "a.json", "{"},
        {"--out a.csv", "a.csv", "step,action_0,"}, {"--out a.txt", "a.txt", "π0, "},
        {"--out plain", "plain", "π0, "},           {"--out a.pkl --format csv", "a.pkl", "step,"},
        {"--json --out b", "b", "{"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(run("%s %s", SMALL, good[i].words), 0);
        assert_int_equal(out_bytes, 0);
        char *file = slurp(scratch_path(&box, good[i].file), NULL);
        if (strncmp(file, good[i].begins, strlen(good[i].begins))) fail_msg("%s: %.40s", good[i].words, file);
        free(file);
    }
    static const struct {
        const char *words, *sentence;
    } bad[] = {
        {"--out c.pkl", "--out is 'c.pkl', which ends in .pkl: expected .json, .csv, .npy or .txt, or"},
        {"--out c.NPY", "which ends in .NPY"},
        {"--out c.npy --format csv", "whose name ends in .npy, and --format says another form"},
        {"--out c.csv --json", "and --json says another form"},
        {"--json --format json", "both name the form of the result"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(run("%s %s", SMALL, bad[i].words), 2);
        must_contain(err, bad[i].sentence);
    }
    assert_int_equal(run("%s --json -", SMALL), 0);
    assert_int_equal(*out, '{');
}

static void test_state_file(void **state) {
    (void)state;
    static const char *const words[] = {"--state ' 0.1, 0.2 '", "--state array.json", "--state state.json"};
    char *first = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(run("run --synthetic tiny --robot none --steps 1 --horizon 2 --image "
                             "base_0_rgb='%s/pictures/rgb.png' "
                             "--prompt x --format npy %s",
                             TESTS_DIR, words[i]),
                         0);
        if (!first) {
            bytes = out_bytes;
            first = out;
            out = NULL;
            continue;
        }
        assert_int_equal(out_bytes, bytes);
        assert_memory_equal(out, first, bytes);
    }
    free(first);
}

static void test_long_prompt(void **state) {
    (void)state;
    char prompt[1200] = "";
    for (int i = 0; i < 200; i++) strcat(prompt, "fold ");
    assert_int_equal(run("run --synthetic tiny --robot none --steps 1 --horizon 2 --image "
                         "base='%s/pictures/rgb.png' --state 0 "
                         "--prompt '%s'",
                         TESTS_DIR, prompt),
                     0);
    must_contain(err, "openpi run: warning: the prompt is longer than the 48 tokens");
    assert_int_equal(run("%s", SMALL), 0);
    must_lack_warnings();
}

/* ---- against openpi's own answers ----------------------------------------------------------------- */

static void write_npy(const char *name, const float *data, int rows) {
    unsigned char head[128] = "\x93NUMPY\x01\x00\x76\x00";
    memset(head + 10, ' ', 118);
    int length =
        sprintf((char *)head + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 32), }", rows);
    head[10 + length] = ' ';
    head[127] = '\n';
    FILE *file = fopen(scratch_path(&box, name), "wb");
    assert_non_null(file);
    fwrite(head, 1, sizeof head, file);
    fwrite(data, sizeof *data, (size_t)rows * 32, file);
    fclose(file);
}

static const struct {
    const char *name, *model, *words;
} policies[] = {
    {"droid_pi0", "tiny:pi0:7", "--robot droid"},
    {"aloha_pi05", "tiny:pi05:8", "--robot aloha"},
    {"libero_pi05", "tiny:pi05:8", "--config pi05_libero"},
};

static void test_golden_requests(void **state) {
    (void)state;
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        char folder[512], path[600];
        tensors *golden;
        openpi_error error = OPENPI_ERROR_INIT;
        snprintf(folder, sizeof folder, "%s/policy/%s", GOLDEN, policies[p].name);
        snprintf(path, sizeof path, "%s/expected.safetensors", folder);
        assert_int_equal(tensors_open(path, &golden, &error), OPENPI_OK);
        assert_int_equal(tensors_load(golden, &error), OPENPI_OK);
        const tensor *noise = tensors_find(golden, "noise"), *actions = tensors_find(golden, "actions");
        int horizon = (int)actions->shape[0], dims = (int)actions->shape[1];
        float *start = malloc((size_t)noise->count * sizeof *start);
        assert_non_null(start);
        tensor_read_f32(noise, 0, noise->count, start);
        write_npy("noise.npy", start, horizon);
        free(start);

        snprintf(path, sizeof path, "%s/norm_stats.json", folder);
        char *stats_text = slurp(path, NULL);
        json_t *stats = parse(stats_text, strlen(stats_text));
        const json_t *std =
            json_object_get(json_object_get(json_object_get(stats, "norm_stats"), "actions"), "std");
        int status = run("run --synthetic %s %s --request '%s/request.msgpack' --norm-stats '%s' --tokenizer "
                         "'%s/tokenizer.model' "
                         "--horizon %d --noise noise.npy --dtype f32 --format npy",
                         policies[p].model, policies[p].words, folder, path, GOLDEN, horizon);
        if (status) fail_msg("%s: %s", policies[p].name, err);
        const double *got = npy_doubles(out, out_bytes, horizon, dims);
        for (int k = 0; k < horizon * dims; k++) {
            double expected, unit = json_number_value(json_array_get(std, (size_t)(k % dims)));
            memcpy(&expected, (const char *)actions->data + (size_t)k * 8, 8);
            if (!(fabs(got[k] - expected) <= 1e-3 * unit))
                fail_msg("%s: action %d of step %d is %.9g, openpi says %.9g", policies[p].name, k % dims,
                         k / dims, got[k], expected);
        }
        json_decref(stats);
        free(stats_text);
        tensors_close(golden);
    }
}

/* A request may bring its own noise, as to the server: it counts like the same numbers in a file. */
static void test_noise_of_a_request(void **state) {
    enum { ROWS = 4 };
    (void)state;
    float noise[ROWS * 32];
    const int shape[2] = {ROWS, 32};
    size_t count;
    msgpack_sbuffer message;
    msgpack_packer packer;
    openpi_noise(99, 0, noise, ROWS * 32);
    write_npy("own.npy", noise, ROWS);
    char *bytes = slurp(GOLDEN "/policy/droid_pi0/request.msgpack", &count);
    msgpack_sbuffer_init(&message);
    msgpack_packer_init(&packer, &message, msgpack_sbuffer_write);
    msgpack_sbuffer_write(&message, bytes, count);
    message.data[0]++;                                               /* one entry more in its map */
    pack_text(&packer, "openpi/noise");
    pack_array(&packer, "<f4", shape, 2, noise, sizeof noise);
    assert_int_equal(scratch_write(&box, "plain", bytes, count), 0);
    assert_int_equal(scratch_write(&box, "noisy", message.data, message.size), 0);
    msgpack_sbuffer_destroy(&message);
    free(bytes);

    static const char words[] = "run --synthetic tiny --robot droid --steps 2 --horizon 4 --format";
    assert_int_equal(run("%s csv --request plain --noise own.npy", words), 0);
    char *expected = out;
    out = NULL;
    assert_int_equal(run("%s csv --request plain", words), 0);
    assert_string_not_equal(out, expected);
    assert_int_equal(run("%s csv --request noisy", words), 0);
    assert_string_equal(out, expected);
    free(expected);

    assert_int_equal(run("%s json --request noisy", words), 0);
    json_t *root = parse(out, out_bytes);
    assert_string_equal(json_string_value(json_object_get(root, "noise")), "openpi/noise of the request");
    assert_true(json_is_null(json_object_get(root, "seed")));
    json_decref(root);
    assert_int_equal(run("run --synthetic tiny --robot droid --steps 2 --horizon 5 --request noisy"), 2);
    must_contain(err, "openpi/noise of the request: shape is [4, 32], but the horizon is 5, expected [5, ");
}

static void test_noise_files(void **state) {
    (void)state;
    static const struct {
        const char *head, *sentence;
    } cases[] = {
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (4, 32), }", "dtype is '<f8', expected '<f4' "
                                                                         "(float32)"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (4, 32), }", "dtype is '>f4', expected '<f4' "
                                                                         "(float32)"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4, 32), }", "its elements are in Fortran order, "
                                                                        "expected C order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (128,), }", "shape is (128,), expected two "
                                                                        "dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 32), }", "shape is (1, 4, 32), expected "
                                                                            "two dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 32), }", "shape is (-4, 32), expected two "
                                                                          "dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 32), }", "512 bytes of elements, expected "
                                                                         "640 for [5, 32] "
                                                                         "float32"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (8, 16), }", "shape is [8, 16], expected [4, 32]"},
        {"{'fortran_order': False, 'shape': (4, 32), }", "its header lacks one of descr, fortran_order and "
                                                         "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 32), }", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[128 + 512] = "\x93NUMPY\x01\x00\x76\x00";
        memset(bytes + 10, ' ', 118);
        memcpy(bytes + 10, cases[i].head, strlen(cases[i].head));
        bytes[127] = '\n';
        assert_int_equal(scratch_write(&box, "n.npy", bytes, sizeof bytes), 0);
        int status = run("%s --noise n.npy --format csv", SMALL);
        if (status != (cases[i].sentence ? 2 : 0)) fail_msg("%s: status %d: %s", cases[i].head, status, err);
        if (cases[i].sentence) must_contain(err, cases[i].sentence);
        if (cases[i].sentence) continue;
        assert_int_equal(run("%s --noise n.npy --horizon 5", "run --synthetic tiny --robot none --image "
                                                             "base='" TESTS_DIR "/pictures/rgb.png' --state "
                                                                                "0 --prompt x --steps 1"),
                         2);
        must_contain(err, "shape is [4, 32], but the horizon is 5, expected [5, 32]");
        for (size_t cut = 0; cut < sizeof bytes;
             cut += cut < 140 ? 7 : 100) { /* truncated anywhere: an error */
            assert_int_equal(scratch_write(&box, "n.npy", bytes, cut), 0);
            assert_int_equal(run("%s --noise n.npy", SMALL), 2);
            must_contain(err, "n.npy: ");
        }
    }
}

/* ---- real-time chunking --------------------------------------------------------------------------- */

enum { KEPT_H = 4, KEPT_DIMS = 32, KEPT = KEPT_H * KEPT_DIMS };

static void chunk_of(double *actions, const char *words) {
    if (run("%s --dtype f32 --format npy %s", SMALL, words)) fail_msg("%s: %s", words, err);
    memcpy(actions, npy_doubles(out, out_bytes, KEPT_H, KEPT_DIMS), KEPT * sizeof *actions);
}

/* A float32 .npy file. */
static void write_floats(const char *name, const float *data, int rows, int columns) {
    unsigned char bytes[128 + KEPT * sizeof(float)] = "\x93NUMPY\x01\x00\x76\x00";
    char head[118];
    size_t count = (size_t)(rows * columns) * sizeof *data;
    int length = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
                          rows, columns);
    memset(bytes + 10, ' ', 117);
    memcpy(bytes + 10, head, (size_t)length);
    bytes[127] = '\n';
    memcpy(bytes + 128, data, count);
    assert_int_equal(scratch_write(&box, name, bytes, 128 + count), 0);
}

/* With the whole overlap at full weight the new chunk lands on the previous one, from the step on that comes
 * after the executed ones; a file of model numbers does the same; without --rtc it goes its own way. */
static void test_real_time_chunking(void **state) {
    double first[KEPT], plain[KEPT], next[KEPT], again[KEPT];
    float model[KEPT], worst = 0, apart = 0;
    (void)state;
    chunk_of(first, "--seed 1 --keep chunk.npy");
    chunk_of(plain, "--seed 2");
    chunk_of(next, "--seed 2 --previous chunk.npy --rtc guided --executed 1 --schedule ones");
    for (int k = 0; k < (KEPT_H - 1) * KEPT_DIMS; k++) {
        worst = fmaxf(worst, (float)fabs(next[k] - first[KEPT_DIMS + k]));
        apart = fmaxf(apart, (float)fabs(next[k] - first[k]));
    }
    assert_true(worst < 0.2f && apart > 1);
    assert_memory_not_equal(next, plain, sizeof next);
    for (int k = 0; k < KEPT; k++) model[k] = (float)first[k];
    write_floats("model.npy", model, KEPT_H, KEPT_DIMS);
    chunk_of(again, "--seed 2 --previous model.npy --rtc guided --executed 1 --schedule ones");
    assert_memory_equal(again, next, sizeof next);
    assert_int_equal(run("%s --previous chunk.npy --rtc guided --executed 4", SMALL), 2);
    must_contain(err, "--executed is 4, but chunk.npy has 4 steps: nothing is left to follow on from");
    assert_int_equal(run("%s --previous chunk.npy --rtc trained --delay 1", SMALL), 2);
    must_contain(err, "was not trained for it");
    assert_int_equal(run("%s --previous chunk.npy --rtc guided --delay 4", SMALL), 2);
    must_contain(err, "rtc delay is 4, expected 0 to 3");
    assert_int_equal(run("%s --previous chunk.npy --rtc guided --overlap 0", SMALL), 2);
    assert_int_equal(run("%s --previous chunk.npy --rtc guided --max-weight 1e9", SMALL), 0);
    must_contain(err, "note: the weight of the pull, 1e+09, is cut to ");
    assert_int_equal(run("%s --previous chunk.npy --rtc guided --overlap 5", SMALL), 2);
    must_contain(err, "rtc horizon is 5, expected 0 to 4");
    model[KEPT_DIMS + 2] = NAN;
    write_floats("nan.npy", model, KEPT_H, KEPT_DIMS);
    assert_int_equal(run("%s --previous nan.npy --rtc guided", SMALL), 2);
    must_contain(err, "rtc previous, row 1, dimension 2 is nan");
    assert_int_equal(run("%s --seed 2 --previous chunk.npy --rtc guided --delay 1 --format json", SMALL), 0);
    json_t *root = parse(out, out_bytes), *rtc = json_object_get(root, "rtc");
    assert_string_equal(json_string_value(json_object_get(rtc, "mode")), "guided");
    assert_int_equal(json_integer_value(json_object_get(rtc, "delay")), 1);
    json_decref(root);
}

/* ---- the plot ------------------------------------------------------------------------------------- */

/* Tags nest and close, attributes are quoted, no bare < or &. */
static int well_formed(const char *text, int *polylines) {
    const char *stack[32];
    size_t lengths[32];
    int depth = 0;
    *polylines = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '&' && strncmp(at, "&amp;", 5) && strncmp(at, "&lt;", 4) && strncmp(at, "&gt;", 4) &&
            strncmp(at, "&quot;", 6))
            return 0;
        if ((unsigned char)*at < 0x20 && *at != '\n') return 0;
        if (*at == '>') return 0;
        if (*at != '<') continue;
        const char *name = at + 1, *end = at;
        int quoted = 0;
        for (; *end && (quoted || *end != '>'); end++) {
            if (*end == '"') quoted = !quoted;
            if (*end == '<' && end != at) return 0;
        }
        if (!*end) return 0;
        if (!strncmp(name, "polyline ", 9)) ++*polylines;
        if (*name == '/') {
            name++;
            if (!depth || lengths[depth - 1] != (size_t)(end - name) ||
                memcmp(stack[depth - 1], name, lengths[depth - 1]))
                return 0;
            depth--;
        } else if (*name != '?' && end[-1] != '/') {
            if (depth == 32) return 0;
            stack[depth] = name;
            lengths[depth++] = strcspn(name, " >");
        }
        at = end;
    }
    return depth == 0;
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) count++;
    return count;
}

/* The angle of a closed gripper: openpi's _gripper_to_angular(0) is -1.07986555 (test_robots.c). */
static const double closed = (-1.07986555 * (1.6296 - 0.5476) + 0.5476 + 0.6213) / (1.4910 + 0.6213);

/* The dot of the first panel is at the first step, as high as its line has 0. */
static void must_be_at_zero(const char *svg, const json_t *actions) {
    const char *line = strstr(svg, "points=\"") + 8, *dot = strstr(svg, "<circle class=\"c1 b\"");
    double x[2], y[2], cx, cy, value[2];
    assert_int_equal(sscanf(line, "%lf,%lf %lf,%lf", &x[0], &y[0], &x[1], &y[1]), 4);
    assert_int_equal(sscanf(dot, "<circle class=\"c1 b\" cx=\"%lf\" cy=\"%lf\"", &cx, &cy), 2);
    for (size_t i = 0; i < 2; i++)
        value[i] = json_number_value(json_array_get(json_array_get(actions, i), 0));
    assert_true(value[0] != value[1]);
    assert_true(cx == x[0]);
    assert_true(fabs(cy - (y[0] - value[0] * (y[1] - y[0]) / (value[1] - value[0]))) < 0.5);
}

static void test_plot(void **state) {
    (void)state;
    static const char *const prompts[] = {"pick up the fork",
                                          "<b>&\"\\x01\\xff\\xc0\\xaf\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80",
                                          "ramasse l\\xe2\\x80\\x99\\xc3\\xa9ponge"};
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        int polylines;
        assert_int_equal(run("run --synthetic tiny --robot none --steps 1 --horizon 3 --image "
                             "base='%s/pictures/rgb.png' --state "
                             "0 "
                             "--plot p.svg --prompt \"$(printf '%s')\"",
                             TESTS_DIR, prompts[i]),
                         0);
        size_t bytes;
        char *svg = slurp(scratch_path(&box, "p.svg"), &bytes);
        assert_int_equal(strlen(svg), bytes);
        if (!well_formed(svg, &polylines)) fail_msg("not well-formed: %s", svg);
        assert_int_equal(polylines, 32);
        assert_null(strstr(svg, "the state"));               /* the model's own space says nothing of it    */
        assert_null(strstr(svg, "script"));
        assert_null(strstr(svg, "nan"));
        free(svg);
    }
    assert_int_equal(run("run --synthetic tiny --robot aloha --steps 1 --horizon 11 --image "
                         "cam_high='%s/pictures/rgb.png' "
                         "--state 0,0,0,0,0,0,0,0,0,0,0,0,0,0 --prompt x --plot p.svg --format json",
                         TESTS_DIR),
                     0);
    size_t bytes;
    char *svg = slurp(scratch_path(&box, "p.svg"), &bytes);
    must_contain(svg, ">left_waist<");
    must_contain(svg, ">rad<");
    assert_null(strstr(svg, "…"));             /* no title is cut */
    must_contain(svg, ">right_gripper<");
    must_contain(svg, ">normalized<");
    must_contain(svg, ">seconds<");
    must_contain(svg, ">0.20<");                           /* ten steps at 50 Hz */
    /* One scale a unit: every number beside an axis stands at the 12 panels of "rad", at the 2 of
     * "normalized", or at all. */
    static const char beside[] = "class=\"k e\">";
    int numbers = 0;
    for (const char *at = svg; (at = strstr(at, beside)); at++) {
        char label[64];
        int times = 0;
        snprintf(label, sizeof label, "%.*s<",
                 (int)(sizeof beside - 1 + strcspn(at + sizeof beside - 1, "<")), at);
        for (const char *same = svg; (same = strstr(same, label)); same++) times++;
        if (times != 12 && times != 2 && times != 14) fail_msg("%s stands beside %d panels", label, times);
        numbers++;
    }
    assert_true(numbers >= 14 * 2);
    /* A dot in every panel and one in the key. A gripper's state is an opening, its action an angle. */
    assert_int_equal(occurrences(svg, "<circle class=\"c1 b\""), 15);
    assert_int_equal(occurrences(svg, "<title>the state: 0</title>"), 12);
    assert_int_equal(occurrences(svg, "<title>the state: 0.0002"), 2);
    json_t *root = parse(out, out_bytes), *names = json_object_get(root, "action_names");
    assert_string_equal(json_string_value(json_array_get(names, 6)), "left_gripper");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "units"), 6)), "normalized");
    assert_true(json_number_value(json_object_get(root, "rate_hz")) == 50);
    json_t *starts = json_object_get(root, "starts");
    assert_int_equal(json_array_size(starts), 14);
    assert_true(json_number_value(json_array_get(starts, 7)) == 0);
    assert_true(fabs(json_number_value(json_array_get(starts, 6)) - closed) < 1e-7);
    must_be_at_zero(svg, json_object_get(root, "actions"));
    free(svg);
    json_decref(root);
    int polylines;
    assert_true(well_formed("<a x=\"1\"><b/>&lt;</a>", &polylines));
    assert_false(well_formed("<a><b></a>", &polylines));
    assert_false(well_formed("<a>&</a>", &polylines));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_names_of_results),
        cmocka_unit_test(test_state_file),
        cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_golden_requests),
        cmocka_unit_test(test_noise_of_a_request),
        cmocka_unit_test(test_noise_files),
        cmocka_unit_test(test_real_time_chunking),
        cmocka_unit_test(test_plot),
    };
    return cmocka_run_group_tests(tests, open_examples, close_box);
}
