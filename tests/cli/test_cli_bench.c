/* labels: long command no_asan */
/* openpi bench and openpi roof as a user meets them: words, tables, files, and comparing with the best
 * known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"
#include "command.h"

#define QUICK "bench --synthetic tiny --steps 1 --horizon 2 --prompt 3 --cameras 100 --warmup 0"

/* ---- bad words ------------------------------------------------------------------------------------- */

static const struct {
    const char *args, *sentence;
} bad[] = {
    {"bench --batch 0", "--batch is '0', expected numbers from 1 to 64 such as 1,2,4"},
    {"bench --batch 1,,2", "--batch is '1,,2'"},
    {"bench --batch 1,", "--batch is '1,'"},
    {"bench --batch 2,1,2", "--batch is '2,1,2': 2 is there twice"},
    {"bench --batch 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "--batch lists more than 16 numbers"},
    {"bench --cameras 12", "--cameras is '12', expected three digits 0 or 1"},
    {"bench --runs 0", "--runs is '0', expected a whole number from 1 to 100000"},
    {"bench --warmup -1", "--warmup is '-1', expected a whole number from 0 to 100000"},
    {"bench --tolerance few", "--tolerance is 'few'"},
    {"bench --tolerance 5", "--tolerance has no effect without --against"},
    {"bench --synthetic tiny --published p.json", "--published has no effect without --svg"},
    {"bench --synthetic tiny --svg b.svg --published other.json", "other.json: its kind is 'roof', expected published"},
    {"roof --batch 4", "--batch has no effect without --model"},
    {"roof --steps 5", "--steps has no effect without --model"},
    {"bench --runner 5", "--runner is '5', expected a whole number from 10 to 10000"},
    {"bench --runner 100 --batch 2", "--batch and --runner contradict each other"},
    {"bench --parts 65", "--parts is '65', expected a whole number from 1 to 64"},
    {"bench --parts 8 --batch 2", "--batch and --parts contradict each other"},
    {"bench --delay 2", "--delay without --rtc: expected its mode"},
    {"bench --rtc guided --delay 10", "--delay is 10, expected less than the horizon, 10"},
    {"bench --rtc trained --delay 2", "--rtc trained with a synthetic π0: expected a π0.5"},
    {"bench --rtc guided --save b.json", "--rtc and --save contradict each other"},
    {"bench --changing-prompts --prompt 1", "--changing-prompts with --prompt 1: expected at least 2"},
    {"bench --synthetic tiny:pi0 --variant pi05", "--variant and --synthetic tiny:pi0 both name a variant"},
    {"bench --synthetic tiny --without speed", "there is no switch \"speed\", expected names such as fused-qkv"},
    {"bench --synthetic tiny --table absent.json", "absent.json"},
    {"bench --synthetic tiny --table words.json", "words.json"},
    {"bench --synthetic tiny --json absent/b.json", "absent/b.json: cannot be written: No such file or directory"},
    {"bench --synthetic tiny --svg absent/b.svg", "absent/b.svg: cannot be written: No such file or directory"},
    {"bench --synthetic tiny --save absent/b.json", "absent/b.json: cannot be written: No such file or directory"},
    {"bench --synthetic tiny --against absent.json", "absent.json: cannot be opened"},
    {"bench --synthetic tiny --against words.json", "words.json: its kind is missing, expected a file that openpi wrote"},
    {"bench --synthetic tiny --against text", "text: not valid JSON: "},
    {"bench --synthetic tiny --against other.json", "other.json: its kind is roof, expected best or bench"},
    {"bench --synthetic tiny --against newer.json", "newer.json: its format is 2, expected 1"},
    {"bench --synthetic tiny --against hollow.json", "hollow.json: no batches or no settings in it"},
    {"bench --best hollow.json", "hollow.json: no batches or no settings in it"},
    {"bench --best bare.json", "bare.json: configuration.checkpoint is missing or wrong, expected a text or null"},
    {"bench --best b.json --synthetic tiny", "--synthetic and --best contradict each other: the file contains the configuration"},
    {"bench --best b.json --threads 1", "--threads and --best contradict each other"},
    {"bench --best b.json --changing-prompts", "--changing-prompts and --best contradict each other"},
    {"bench folder --best b.json", "CHECKPOINT and --best contradict each other"},
    {"bench --best b.json --adapter x", "--adapter and --best contradict each other"},
    {"bench --synthetic tiny --adapter x", "--adapter and --synthetic contradict each other"},
    {"bench folder --synthetic tiny", "CHECKPOINT and --synthetic contradict each other"},
    {"bench absent", "absent"},
    {"roof now", "openpi roof: unexpected argument 'now'"},
    {"roof --threads 0", "--threads is '0'"},
    {"roof --isa sse9", "sse9"},
    {"roof --model mi300", "--model is 'mi300', expected one of h200, mi300x, mi350"},
    {"roof --model mi300x --device cpu", "a prediction needs no device"},
    {"roof --model mi300x --batch 0", "--batch is '0'"},
    {"profile --device hip:sim:mi9", "--device hip:sim:NAME is 'mi9', expected one of h200, mi300x, mi350"},
    {"profile --device hip:simple", "--device is 'hip:simple', expected hip:sim or hip:sim:NAME"},
    {"profile absent --device hip:sim", "absent"},
    {"profile x --adapter y --device hip:sim", "--adapter has no effect on a prediction, which reads no weights"},
    {"roof --json absent/r.json", "absent/r.json: cannot be written: No such file or directory"},
};

static void test_bad_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) must_refuse(bad[i].args, bad[i].sentence);
    assert_int_equal(run("bench --synthetic tiny --device tpu"), 3);
    must_contain(err, "tpu");
    assert_int_equal(run("roof --device cuda:77"), 3);
    must_contain(err, "cuda:77");
}

/* ---- figures --------------------------------------------------------------------------------------- */

static int ends(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* Every real number says its unit. */
static void check_units(const json_t *value, const char *path) {
    static const char *const units[] = {
        "_ms",    "_s",  "_ratio", "_j",    "_w",     "_mhz",          "_tflops",       "_gbs",
        "_us",    "mb",  "gflop",
        "tflops", "gbs", "hz",     "flops", "_bytes", "samples_per_s", "samples_per_j", "hz_per_w"};
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_object(value))
        json_object_foreach((json_t *)(uintptr_t)value, key, inner) check_units(inner, key);
    json_array_foreach(value, i, inner) check_units(inner, path);
    int fine = !json_is_real(value);
    for (i = 0; i < sizeof units / sizeof *units; i++) fine |= ends(path, units[i]);
    if (!fine) fail_msg("\"%s\" is a number without a unit", path);
}

static void check_boundary(const json_t *figures, int batch) {
    double p50 = number(figures, "p50_ms");
    assert_true(p50 > 0 && number(figures, "min_ms") <= p50 && p50 <= number(figures, "p95_ms"));
    assert_true(number(figures, "p95_ms") <= number(figures, "p99_ms") &&
                number(figures, "p99_ms") <= number(figures, "max_ms"));
    must_be_ratio(figures, "hz", 1e3, p50);
    must_be_ratio(figures, "samples_per_s", batch * 1e3, p50);
    must_be_ratio(figures, "p99_p50_ratio", number(figures, "p99_ms"), p50);
}

static void check_batch(const json_t *root, int batch, int runs) {
    const json_t *stages = json_object_get(root, "stages"), *memory = json_object_get(root, "memory"), *bin;
    const json_t *host = json_object_get(root, "host"), *counts = json_object_get(root, "histogram");
    size_t i;
    int seen = 0, sum = 0;
    double total = 0, floors = 0;
    assert_int_equal(number(root, "batch"), batch);
    check_boundary(host, batch);
    assert_true(json_equal(host, json_object_get(root, "device")));          /* one memory: one boundary */
    counts = json_object_get(json_object_get(counts, "device"), "counts");
    json_array_foreach(counts, i, bin) sum += (int)json_integer_value(bin);
    assert_int_equal(sum, runs);
    for (i = 0; i < json_array_size(stages); i++) {
        const json_t *stage = json_array_get(stages, i);
        total += number(stage, "p50_ms");
        if (number(stage, "flops") <= 0) continue;
        floors += number(stage, "floor_ms");
        assert_true(number(stage, "tflops") > 0 && number(stage, "gbs") > 0);
        must_be_ratio(stage, "roof_ratio", number(stage, "floor_ms"), number(stage, "p50_ms"));
        seen++;
    }
    assert_true(seen >= 3);
    double part = total / number(host, "p50_ms");
    assert_true(part > 0.01 && part < 100);        /* in one unit, whatever else the machine computes     */
    must_be_ratio(host, "roof_ratio", floors, number(host, "p50_ms"));
    assert_true(number(memory, "asked_bytes") == number(memory, "weight_bytes") + number(memory, "session_"
                                                                                                 "bytes"));
    assert_true(number(memory, "session_bytes") > 0 && json_is_null(json_object_get(memory, "device_used_"
                                                                                            "bytes")));
}

static void test_sweep(void **state) {
    (void)state;
    assert_int_equal(run(QUICK " --runs 4 --batch 2,1 --no-energy --histogram --json b.json --svg b.svg"), 0);
    must_contain(out, "0 warm-up and 4 measured runs\n");
    must_contain(out, "\nbatch 2\n");
    must_contain(out, "\nscaling: ");
    must_contain(out, "host, ms from\n");
    must_contain(out, "memory: asked ");
    assert_null(strstr(out, "energy: "));
    json_t *root = load("b.json"), *batches = json_object_get(root, "batches"),
           *settings = json_object_get(root, "settings");
    check_units(root, "");
    check_batch(root, 2, 4);
    assert_int_equal(json_array_size(batches), 2);
    check_batch(json_array_get(batches, 0), 2, 4);
    check_batch(json_array_get(batches, 1), 1, 4);
    assert_string_equal(word(root, "kind"), "bench");
    assert_true(number(json_object_get(root, "roofs"), "bf16_tflops") > 0);
    assert_true(number(json_object_get(root, "roofs"), "read_gbs") > 0);
    assert_true(strlen(word(root, "revision")) > 0);
    assert_string_equal(word(settings, "device"), "cpu");
    assert_true(json_object_size(json_object_get(settings, "switches")) >= 15);
    assert_true(json_is_true(json_object_get(json_object_get(settings, "switches"), "fused-qkv")));
    json_decref(root);
    char *svg = slurp(scratch_path(&box, "b.svg"), NULL);
    must_contain(svg, "Latency of a call");
    must_contain(svg, "Samples a second");
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "published"));
    assert_non_null(strstr(svg, "</g>\n</svg>\n"));
    free(svg);
}

/* Series of --published stand in the picture where the run is of their workload. */
static void test_published(void **state) {
    (void)state;
    static const struct {
        const char *file, *workload, *rates, *shown;
    } rows[] = {
        {"same.json", "\"100\",\"prompt\":3,\"horizon\":2,\"steps\":1,\"least_parameters\":9", "[7,9.5]", "theirs, of another card"},
        {"steps.json", "\"100\",\"prompt\":3,\"horizon\":2,\"steps\":2,\"least_parameters\":9", "[7,9.5]", "Not the published workload"},
        {"masks.json", "\"111\",\"prompt\":3,\"horizon\":2,\"steps\":1,\"least_parameters\":9", "[7,9.5]", "Not the published workload"},
        {"size.json", "\"100\",\"prompt\":3,\"horizon\":2,\"steps\":1,\"least_parameters\":3000000000", "[7,9.5]", "Not the published workload"},
        {"short.json", "\"100\"", "[7]", "short.json: /scaling/series/0 has no name, or not a number above 0 for each of 2 batches"},
        {"zero.json", "\"100\"", "[7,0]", "zero.json: /scaling/series/0 has no name, or not a number above 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int good = rows[i].shown[0] == 't' || rows[i].shown[0] == 'N';
        char text[500], words[300];
        snprintf(text, sizeof text,
                 "{\"kind\":\"published\",\"format\":1,\"workload\":{\"cameras\":%s},\"scaling\":"
                 "{\"variant\":\"pi0\",\"batches\":[1,2],\"series\":[{\"name\":\"theirs, of another card\","
                 "\"samples_per_s\":%s}]}}", rows[i].workload, rows[i].rates);
        assert_int_equal(scratch_write(&box, rows[i].file, text, strlen(text)), 0);
        snprintf(words, sizeof words,
                 QUICK " --dtype bf16 --runs 1 --no-energy --svg p.svg --published %s", rows[i].file);
        assert_int_equal(run("%s", words), good ? 0 : 2);
        char *svg = good ? slurp(scratch_path(&box, "p.svg"), NULL) : NULL;
        must_contain(svg ? svg : err, rows[i].shown);
        if (svg) assert_int_equal(!strstr(svg, "theirs"), rows[i].shown[0] != 't');
        free(svg);
    }
}

/* The model of a synthetic π0.5 takes the delay. */
static void test_chunking(void **state) {
    (void)state;
    assert_int_equal(run("bench --synthetic tiny:pi05 --horizon 3 --steps 1 --warmup 0 --runs 1 --no-energy "
                         "--rtc trained --delay 2"), 0);
    must_contain(out, "real-time chunking: trained, delay 2");
    assert_int_equal(run(QUICK " --runs 1 --no-energy --rtc guided"), 0);
    must_contain(out, "real-time chunking: guided, delay 0");
}

static void test_energy(void **state) {
    (void)state;
    assert_int_equal(run(QUICK " --runs 1 --changing-prompts --json e.json"), 0);
    must_contain(out, "each with another prompt of 1 to 3 tokens");
    json_t *root = load("e.json"), *energy = json_object_get(root, "energy");
    assert_true(json_is_true(json_object_get(json_object_get(root, "workload"), "changing_prompts")));
    if (json_is_null(energy)) {                                    /* most machines */
        must_contain(out, "energy: not readable here: ");
        assert_true(strlen(word(root, "no_energy")) > 0);
    } else {
        must_contain(out, " J an inference, ");
        assert_true(number(energy, "window_s") >= 3 && number(energy, "inference_j") > 0);
        assert_true(fabs(number(energy, "inference_j") / number(energy, "action_j") - 2) < 1e-4);
    }
    json_decref(root);
}

/* A prediction says so in every line of numbers' head and in the file; its stages add up to the call. */
static void test_roof_model(void **state) {
    (void)state;
    double sum = 0;
    assert_int_equal(run("roof --model mi300x --json p.json"), 0);
    must_contain(out, "PREDICTED by a static model, not measured: AMD Instinct MI300X");
    must_contain(out, "PREDICTED ms");
    must_contain(out, "26.1");
    must_contain(out, "prefix.gate_up");
    json_t *root = load("p.json"), *said = json_object_get(root, "prediction");
    check_units(root, "");
    assert_string_equal(word(root, "method"), "PREDICTED");
    assert_non_null(strstr(word(json_object_get(root, "machine"), "hardware"), "PREDICTED"));
    const json_t *stages = json_object_get(said, "stages");
    static const double published[] = {4.1, 10.7, 11.2};
    assert_int_equal(json_array_size(stages), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *stage = json_array_get(stages, i);
        sum += number(stage, "predicted_ms");
        assert_true(number(stage, "published_ms") == published[i]);
    }
    assert_true(fabs(sum / number(said, "predicted_ms") - 1) < 1e-5);
    assert_true(number(said, "published_ms") == 26.1);
    json_decref(root);
    assert_int_equal(run("roof --model mi350 --batch 64"), 0);
    must_contain(out, "PREDICTED ");
    must_contain(out, "published, with wrong masks: 182.4");
    assert_int_equal(run("roof --model mi350 --batch 2 --json p.json"), 0);        /* nobody published that */
    root = load("p.json");
    assert_true(json_is_null(json_object_get(json_object_get(root, "prediction"), "published_ms")));
    json_decref(root);
    assert_int_equal(run("profile --device hip:sim:mi350 --by kind --json p.json"), 0);
    must_contain(out, "PREDICTED: AMD Instinct MI350X");
    must_contain(out, "PREDICTED µs");
    must_contain(out, "nothing ran");
    root = load("p.json");
    assert_string_equal(word(root, "method"), "PREDICTED");
    assert_int_equal(json_array_size(json_object_get(root, "ops")), 1145);
    json_decref(root);
}

static void test_roof(void **state) {
    (void)state;
    static const char *const keys[] = {"bf16_tflops", "f32_tflops", "read_gbs", "copy_gbs"};
    assert_int_equal(run("roof --json r.json"), 0);
    must_contain(out, "multiply, bf16");
    must_contain(out, "GB/s, reading and writing counted");
    json_t *root = load("r.json"), *roofs = json_object_get(root, "roofs");
    check_units(root, "");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) assert_true(number(roofs, keys[i]) > 0);
    assert_string_equal(word(root, "kind"), "roof");
    assert_null(json_object_get(root, "workload"));
    json_decref(root);
    assert_int_equal(run("roof --isa reference"), 0);
    must_contain(out, "plain definitions, which have no ceiling");
}

/* ---- the best known -------------------------------------------------------------------------------- */

static void save_as(json_t *root, const char *name) {
    assert_int_equal(json_dump_file(root, scratch_path(&box, name), 0), 0);
}

/* Every p50 and ratio of a file, in every place, becomes these; a ratio of 0 leaves them. */
static void set_figures(json_t *value, double ms, double ratio) {
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_object(value) && json_object_get(value, "p50_ms")) {
        json_object_set_new(value, "p50_ms", json_real(ms));
        if (ratio > 0 && json_is_real(json_object_get(value, "roof_ratio")))
            json_object_set_new(value, "roof_ratio", json_real(ratio));
    }
    if (json_is_object(value))
        json_object_foreach(value, key, inner) set_figures(inner, ms, ratio);
    json_array_foreach(value, i, inner) set_figures(inner, ms, ratio);
}

static void drop_ratios(json_t *value) {
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_object(value) && json_object_get(value, "roof_ratio"))
        json_object_set_new(value, "roof_ratio", json_null());
    if (json_is_object(value))
        json_object_foreach(value, key, inner) drop_ratios(inner);
    json_array_foreach(value, i, inner) drop_ratios(inner);
}

#define RUN QUICK " --runs 2 --no-energy"

static void test_best(void **state) {
    (void)state;
    assert_int_equal(run(RUN " --batch 1,2 --without fused-qkv --threads 1 --save best.json"), 0);
    must_contain(out, "best.json: saved as the best known");
    json_t *root = load("best.json"), *now, *settings = json_object_get(root, "settings");
    assert_string_equal(word(root, "kind"), "best");
    check_units(root, "");

    /* The file's configuration runs again, whole. */
    assert_int_equal(run("bench --best best.json --no-energy --json again.json"), 0);
    now = load("again.json");
    static const char *const kept[] = {"configuration", "workload", "model", "warmup", "runs"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!json_equal(json_object_get(root, kept[i]), json_object_get(now, kept[i])))
            fail_msg("%s is not the saved one", kept[i]);
    assert_string_equal(word(json_object_get(now, "machine"), "without"), "fused-qkv");
    assert_int_equal(number(json_object_get(now, "settings"), "threads"), 1);
    assert_int_equal(json_array_size(json_object_get(now, "batches")), 2);
    json_decref(now);

    /* Against a far better past: every figure is worse, in ms and as part of the roof, and the settings come
     * first. */
    json_object_set_new(settings, "kernels", json_string("quicker"));
    set_figures(root, 1e-6, 10);
    save_as(root, "better.json");
    assert_int_equal(run(RUN " --batch 2 --threads 1 --against better.json --json a.json"), 1);
    must_contain(out, "settings: these differ from the best known\n");
    must_contain(out, "best known quicker");
    must_contain(out, "switch fused-qkv");
    must_contain(out, "now on");
    must_contain(out, "best known off");
    assert_true(strstr(out, "best known quicker") < strstr(out, "of roof now"));
    must_contain(out, "WORSE\n");
    must_contain(out, "are worse by more than 3 %\n");
    now = load("a.json");
    const json_t *against = json_object_get(now, "against"), *figures = json_object_get(against, "figures");
    check_units(now, "");
    assert_true(number(against, "worse") >= 5);
    assert_true(json_array_size(json_object_get(against, "settings_that_differ")) >= 2);
    for (size_t i = 0; i < json_array_size(figures); i++) {
        const json_t *f = json_array_get(figures, i);
        if (!json_is_true(json_object_get(f, "judged"))) continue;
        assert_string_equal(word(f, "compared_by"), "roof");
        double slower = number(f, "slower_ratio"), expected = 10 / number(f, "now_roof_ratio") - 1;
        assert_true(fabs(slower - expected) < 1e-3 * (1 + slower));
    }
    json_decref(now);
    assert_int_equal(run(RUN " --batch 2 --against better.json --tolerance 1000000"), 0);
    must_contain(out, "ok: nothing is worse by more than 1000000 %\n");

    /* Against a far worse one: fine. */
    set_figures(root, 1e6, 1e-6);
    save_as(root, "worse.json");
    assert_int_equal(run(RUN " --batch 1,2 --against worse.json"), 0);
    must_contain(out, "ok: nothing is worse by more than 3 %\n");

    /* Without a roof, by time. */
    drop_ratios(root);
    json_object_set_new(root, "roofs", json_null());
    save_as(root, "roofless.json");
    assert_int_equal(run(RUN " --batch 1 --against roofless.json"), 0);
    must_contain(out, "no roof is known of the best known run: compared by time alone\n");
    set_figures(root, 1e-6, 0);
    save_as(root, "roofless.json");
    assert_int_equal(run(RUN " --batch 1 --against roofless.json"), 1);

    /* What is not the same work. */
    must_refuse(RUN " --batch 3 --against best.json", "best.json: holds no batch of 3");
    must_refuse("bench --synthetic tiny --steps 2 --horizon 2 --prompt 3 --cameras 100 --against best.json",
                "best.json: its workload.steps is not this run's, expected the same workload");
    must_refuse("bench --synthetic odd --steps 1 --horizon 2 --prompt 3 --cameras 100 --against best.json",
                "best.json: its model.parameters is not this run's");
    must_refuse(RUN " --changing-prompts --against best.json", "best.json: its prompts did not change");
    json_decref(root);
}

/* A best file that a person has spoilt. */
static void test_spoilt(void **state) {
    (void)state;
    static const struct {
        const char *key, *json, *sentence;
    } cases[] = {
        {"threads", "2.5", "configuration.threads is missing or wrong, expected a whole number from 0 to 1024"},
        {"steps", "0", "configuration.steps is missing or wrong, expected a whole number from 1 to 100"},
        {"device", "7", "configuration.device is missing or wrong, expected a text or null"},
        {"pin", "0", "configuration.pin is missing or wrong, expected true or false"},
        {"seed", "\"x\"", "configuration.seed is missing or wrong, expected a whole number"},
        {"dtype", "\"f16\"", "configuration.dtype is missing or wrong, expected bf16 or f32"},
        {"checkpoint", "\"c\"", "configuration has both models, expected a checkpoint or a synthetic model"},
        {"synthetic", "null", "configuration has no model"},
        {"synthetic", "\"huge\"", "huge"},
        {"batch", "\"1,\"", "--batch is '1,'"},
        {"cameras", "\"9\"", "--cameras is '9'"},
        {"without", "\"speed\"", "there is no switch \"speed\""},
    };
    assert_int_equal(run(RUN " --save good.json"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load("good.json");
        json_object_set_new(json_object_get(root, "configuration"), cases[i].key,
                            json_loads(cases[i].json, JSON_DECODE_ANY, NULL));
        save_as(root, "spoilt.json");
        json_decref(root);
        must_refuse("bench --best spoilt.json", cases[i].sentence);
    }
    json_t *root = load("good.json");
    json_object_clear(json_object_get(json_array_get(json_object_get(root, "batches"), 0), "host"));
    save_as(root, "spoilt.json");
    json_decref(root);
    must_refuse(RUN " --against spoilt.json", "spoilt.json: batch 1 has no host.p50_ms and device.p50_ms "
                                              "above 0");
}

/* The project's own best file of a CPU: another machine's times, so its form alone is looked at. */
static void test_shipped(void **state) {
    (void)state;
    assert_int_equal(run("bench --best '%s/../best/cpu.json' --no-energy --against '%s/../best/cpu.json' "
                         "--tolerance 1000000",
                         TESTS_DIR, TESTS_DIR),
                     0);
    must_contain(out, "\nsettings: ");
    must_contain(out, "roofs now and then: ");
    must_contain(out, "  device");
    must_contain(out, "ok: nothing is worse by more than 1000000 %\n");
}

/* Each says what was measured, when, of which sources and where. */
static void test_shipped_heads(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "nvidia-h200"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/../best/%s.json", TESTS_DIR, names[i]);
        json_t *root = json_load_file(path, 0, NULL);
        const char *date = json_string_value(json_object_get(root, "date"));
        const char *revision = json_string_value(json_object_get(root, "revision"));
        const char *hardware = json_string_value(json_object_get(json_object_get(root, "machine"), "hardwar"
                                                                                                   "e"));
        if (!date || strlen(date) != 20 || date[10] != 'T' || !revision || !*revision || !hardware ||
            !*hardware)
            fail_msg("%s: date %s, revision %s, hardware %s", path, date, revision, hardware);
        json_decref(root);
    }
}

static int setup(void **state) {
    static const struct {
        const char *name, *text;
    } files[] = {{"text", "just words\n"},
                 {"words.json", "[1, \"two\"]"},
                 {"other.json", "{\"kind\": \"roof\", \"format\": 1}"},
                 {"newer.json", "{\"kind\": \"best\", \"format\": 2}"},
                 {"hollow.json", "{\"kind\": \"best\", \"format\": 1, \"batches\": []}"},
                 {"bare.json", "{\"kind\": \"best\", \"format\": 1, \"batches\": [{\"batch\": 1}], "
                               "\"settings\": {}}"}};
    if (open_box(state)) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (scratch_write(&box, files[i].name, files[i].text, strlen(files[i].text))) return -1;
    return 0;
}

/* The control thread's call of a runner beside the model: figures are there, and in their order. */
static void test_runner(void **state) {
    (void)state;
    double p50, p99, p999, most;
    assert_int_equal(run("bench --synthetic tiny --steps 1 --horizon 2 --prompt 3 --cameras 100 --runner 200 "
                         "--seconds 1 --json runner.json"), 0);
    must_contain(out, "openpi_runner_next at 200 Hz beside ");
    const char *figures = strstr(out, "\n       200 ");
    assert_non_null(figures);
    assert_int_equal(sscanf(figures, " 200 %lf us %lf us %lf us %lf us", &p50, &p99, &p999, &most), 4);
    assert_true(0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= most);
    char *text = slurp(scratch_path(&box, "runner.json"), NULL);
    must_contain(text, "\"kind\": \"bench-runner\"");
    free(text);
}

/* Every part has a row with its times, and one in the file. */
static void test_parts(void **state) {
    static const char *const rows[] = {"\none call ", "\n3 chunks ", "\nprefix ", "\ndenoise alone ",
                                       "\none step "};
    (void)state;
    assert_int_equal(run("bench --synthetic tiny --steps 2 --horizon 2 --prompt 3 --cameras 100 --parts 3 "
                         "--runs 3 --json parts.json"), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double p50, p95, p99, stage, calls;
        const char *row = strstr(out, rows[i]);
        assert_non_null(row);
        assert_int_equal(sscanf(row + strlen(rows[i]), "%lf %lf %lf %lf %lf", &p50, &p95, &p99, &stage,
                                &calls), 5);
        assert_true(0 < p50 && p50 <= p95 && p95 <= p99 && 0 < calls);
        assert_int_equal(stage > 0, i != 2);
    }
    char *text = slurp(scratch_path(&box, "parts.json"), NULL);
    must_contain(text, "\"kind\": \"bench-parts\"");
    must_contain(text, "\"one_step\"");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_words), cmocka_unit_test(test_sweep), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_energy),
        cmocka_unit_test(test_roof),      cmocka_unit_test(test_best),  cmocka_unit_test(test_spoilt),
        cmocka_unit_test(test_roof_model), cmocka_unit_test(test_runner),
        cmocka_unit_test(test_shipped), cmocka_unit_test(test_shipped_heads),
    };
    return cmocka_run_group_tests(tests, setup, close_box);
}
