/* labels: long command cost no_asan */
/* --adapter and --without-lora as a user gives them: every verb that takes a checkpoint takes them, an
 * adapter's folder stands for its base with the adapter, and inspect tells ranks and factors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "adapter_write.h"
#include "openpi.h"
#include "scratch.h"

#include "command.h"

#define LOOK                                                                                                 \
    "--robot none --image base='" TESTS_DIR "/pictures/rgb.png' --state 0.3 --prompt x --steps 1 --horizon " \
                                            "2"
#define Q "paligemma_with_expert.gemma_expert.model.layers.%d.self_attn.q_proj"

/* The actions that `run` gives for a model. */
static char *actions(const char *model) {
    if (run("run %s " LOOK " --format csv", model)) fail_msg("run %s: %s", model, err);
    return strdup(out);
}

static void test_run(void **state) {
    char *base = actions("base"), *both = actions("base --adapter lora"), *own = actions("lora"),
         *without = actions("lora --without-lora"), *ignored = actions("base --adapter lora --without-lora");
    (void)state;
    assert_string_not_equal(base, both);
    assert_string_equal(both, own);
    assert_string_equal(base, without);
    assert_string_equal(base, ignored);
    free(base), free(both), free(own), free(without), free(ignored);
    assert_int_equal(run("run base --adapter lora " LOOK " --format json"), 0);
    must_contain(out, "\"source\": \"base with adapter lora\"");
    assert_int_equal(run("run lora --without-lora " LOOK " --format json"), 0);
    must_contain(out, "\"source\": \"lora without LoRA\"");
}

static void test_inspect(void **state) {
    (void)state;
    assert_int_equal(run("inspect base --adapter lora --robot none"), 0);
    must_contain(out, "\nadapter\n  folder    lora\n  modules\n");
    must_contain(out, "    layers  0-2\n    rank    2\n    factor  3.5\n");
    must_contain(out, "    layers  -\n    rank    2\n    factor  3.5\n");
    must_contain(out, "\n  unused    0\n");
    assert_int_equal(run("inspect lora --without-lora --robot none"), 0);
    must_contain(out, "\nadapter\n  ignored  lora\n");
    assert_int_equal(run("inspect lora --json --robot none"), 0);
    must_contain(out, "\"factor\": 3.5");
    assert_int_equal(run("inspect base --robot none"), 0);
    if (strstr(out, "adapter")) fail_msg("no adapter was given, but: %s", out);
}

/* The instruments open the same model: each names it, and a wrong adapter is their sentence too. */
static void test_instruments(void **state) {
    static const char *const verbs[] = {"bench", "profile", "trace t.json", "ladder", "tune"};
    static const char *const options[] = {"--no-energy --warmup 0 --runs 1", "", "", "--warmup 0 --runs 1",
                                          "--out t.json"};
    (void)state;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char args[300];
        snprintf(args, sizeof args, "%s base --adapter text %s", verbs[i], options[i]);
        must_refuse(args, "--adapter is \"text\", expected a folder with adapter_config.json");
        if (i == 4) continue;    /* a tuner takes minutes */
        if (run("%s base --adapter lora --prompt 3 --horizon 2 --steps 1 %s", verbs[i], options[i]))
            fail_msg("%s: %s", verbs[i], err);
        if (i != 2) must_contain(out, "base with adapter lora: π0");
    }
    assert_int_equal(run("bench lora --without-lora --prompt 3 --horizon 2 --steps 1 --no-energy --warmup 0 "
                         "--runs 1 --save b.json"), 0);
    must_contain(out, "lora without LoRA: π0");
    json_t *saved = load("b.json"), *configuration = json_object_get(saved, "configuration");
    assert_true(json_is_true(json_object_get(configuration, "without_lora")));
    assert_null(json_object_get(configuration, "adapter"));
    json_decref(saved);
    assert_int_equal(run("bench --best b.json --no-energy"), 0);
    must_contain(out, "lora without LoRA: π0");
}

static void test_sentences(void **state) {
    (void)state;
    must_refuse("run hub " LOOK,
                "hub/adapter_config.json: \"base_model_name_or_path\" is \"lerobot/pi0_base\", which is "
                "no folder here: download it, then give --adapter, this folder, and the base as "
                "the checkpoint");
    must_refuse("inspect lora --adapter hub", "lora: an adapter itself, which adapter hub cannot change");
    must_refuse("inspect other --adapter lora",
                "is for a π0 model, which has \"state_proj.weight\", but other is a π0.5");
}

/* The converted checkpoint runs without its adapter, and --force spares what is read. */
static void test_convert(void **state) {
    (void)state;
    assert_int_equal(run("convert base merged --adapter lora --dtype f32"), 0);
    assert_int_equal(run("convert lora own --dtype f32"), 0);
    assert_int_equal(run("convert lora plain --without-lora --dtype f32"), 0);
    char *merged = actions("merged --dtype f32 --weights f32"),
         *own = actions("own --dtype f32 --weights f32"), *plain = actions("plain --dtype f32 --weights f32"),
         *base = actions("base --dtype f32 --weights f32"),
         *both = actions("base --adapter lora --dtype f32 --weights f32");
    assert_string_equal(merged, both);
    assert_string_equal(own, both);
    assert_string_equal(plain, base);
    assert_string_not_equal(base, both);
    free(merged), free(own), free(plain), free(base), free(both);
    must_refuse("convert lora base --force", "base: holds the base of lora, which --force would remove");
    must_refuse("convert base . --adapter lora --force",
                ".: holds the checkpoint base, which --force would remove");
    must_refuse("convert base x --adapter text",
                "--adapter is \"text\", expected a folder with adapter_config.json");
}

static int setup(void **state) {
    static tensor_list list;
    char module[200];
    if (open_box(state) || scratch_write(&box, "text", "x", 1)) return -1;
    if (run("synth base --preset tiny --variant pi0") || run("synth other --preset tiny --variant pi05"))
        return -1;
    if (mkdir(scratch_path(&box, "lora"), 0777) || mkdir(scratch_path(&box, "hub"), 0777)) return -1;
    openpi_dims dims = OPENPI_DIMS_INIT;
    if (openpi_dims_parse("tiny", &dims, NULL) != OPENPI_OK) return -1;
    for (int layer = 0; layer < dims.depth; layer++) {
        snprintf(module, sizeof module, "model." Q, layer);
        pair_add(&list, module, DTYPE_F32, 2, dims.expert_width, dims.heads * dims.head_dim, 0.1f);
    }
    pair_add(&list, "model.state_proj", DTYPE_F32, 2, OPENPI_ACTION_DIM, dims.expert_width, 0.1f);
    adapter_write(&list, scratch_path(&box, "lora"),
                  "\"r\": 2, \"lora_alpha\": 7, \"base_model_name_or_path\": \"../base\"");
    adapter_write(&list, scratch_path(&box, "hub"),
                  "\"r\": 2, \"lora_alpha\": 7, \"base_model_name_or_path\": \"lerobot/pi0_base\"");
    list_free(&list);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run), cmocka_unit_test(test_inspect),
                                       cmocka_unit_test(test_instruments), cmocka_unit_test(test_sentences),
                                       cmocka_unit_test(test_convert)};
    return cmocka_run_group_tests(tests, setup, close_box);
}
