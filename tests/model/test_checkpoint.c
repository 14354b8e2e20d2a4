/* Opening checkpoints: what is read off the tensors and the config, and what is told of them. */
#include "zero_checkpoint.h"

#define P "paligemma_with_expert.paligemma."
#define G "paligemma_with_expert.gemma_expert."
#define L P "model.language_model."

static void test_sizes(void **state) {
    static const struct {
        const char *spec;
        uint64_t parameters;
        int tensors, max_prompt;
    } cases[] = {
        /* totals of the files (MODEL.md) less the expert's unused lm_head of 263 323 648 */
        {"full:pi0", 3501372176u - 263323648u, 776, 48},
        {"full:pi05", 3616757520u - 263323648u, 811, 200},
        {"tiny:pi0", 0, 106, 48},
        {"tiny:pi05", 0, 111, 200},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        checkpoint *c;
        check(openpi_synthetic_parse(cases[i].spec, &synthetic, &error));
        check(checkpoint_open(NULL, &synthetic, &c, &error));
        if (cases[i].parameters) assert_true(c->parameters == cases[i].parameters);
        assert_int_equal(tensors_count(c->tensors), cases[i].tensors);
        assert_int_equal(c->max_prompt, cases[i].max_prompt);
        assert_int_equal(c->action_dim, 32);
        assert_int_equal(c->horizon, 50);
        assert_int_equal(c->steps, 10);
        assert_string_equal(c->embedding->name, P "lm_head.weight");
        assert_true(tensor_is_generated(c->embedding));
        char name[64];
        snprintf(name, sizeof name, "synthetic %s:7", cases[i].spec);
        assert_string_equal(c->name, name);
        checkpoint_close(c);
    }
    checkpoint_close(NULL);
}

/* Every size is found again from the shapes, in either variant, with or without prefix, in any type. */
static void test_found(void **state) {
    static const openpi_dims dims[] = {
        DIMS_OF(72, 2, 1, 8, 16, 3, 2, 4, 8, 6, 10, 12),
        DIMS_OF(144, 1, 2, 5, 7, 1, 1, 2, 3, 4, 1, 1),
        DIMS_OF(216, 4, 3, 9, 5, 11, 3, 8, 2, 10, 7, 40),
    };
    (void)state;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int variant = 0; variant < 2; variant++)
            for (int prefix = 0; prefix < 2; prefix++) {
                scratch s;
                checkpoint *c;
                assert_int_equal(scratch_open(&s), 0);
                json_t *header = make_header(&dims[d], (openpi_variant)variant), *longer = prefixed(header);
                write_header(&s, "model.safetensors", prefix ? longer : header, NULL);
                check(checkpoint_open(s.folder, NULL, &c, &error));
                assert_memory_equal(&c->dims, &dims[d], sizeof c->dims);
                assert_int_equal(c->variant, variant);
                assert_int_equal(c->lerobot, 0);
                assert_string_equal(c->name, s.folder);
                checkpoint_close(c);
                check(checkpoint_open(scratch_path(&s, "model.safetensors"), NULL, &c,
                                      &error)); /* the file itself */
                assert_memory_equal(&c->dims, &dims[d], sizeof c->dims);
                assert_int_equal(c->variant, variant);
                checkpoint_close(c);
                json_decref(header);
                json_decref(longer);
                scratch_close(&s);
            }
}

static void test_config(void **state) {
    scratch s;
    checkpoint *c;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    json_t *header = make_header(&small, OPENPI_PI05);
    write_header(&s, "model.safetensors", header, NULL);
    write_text(&s, "config.json",
               "{\"action_dim\": 32, \"action_horizon\": 15, \"paligemma_variant\": \"gemma_2b\", "
               "\"precision\": \"bfloat16\"}");
    check(checkpoint_open(s.folder, NULL, &c, &error));
    assert_int_equal(c->horizon, 15);
    assert_int_equal(c->steps, 10);
    assert_int_equal(c->max_prompt, 200);
    assert_int_equal(c->lerobot, 0);
    checkpoint_close(c);
    check(
        checkpoint_open(scratch_path(&s, "model.safetensors"), NULL, &c, &error)); /* a file has no config */
    assert_int_equal(c->horizon, 50);
    checkpoint_close(c);
    write_text(&s, "config.json",
               "{\"type\": \"pi05\", \"chunk_size\": 7, \"num_inference_steps\": 4, "
               "\"tokenizer_max_length\": 96}");
    check(checkpoint_open(s.folder, NULL, &c, &error));
    assert_int_equal(c->horizon, 7);
    assert_int_equal(c->steps, 4);
    assert_int_equal(c->max_prompt, 96);
    assert_int_equal(c->lerobot, 1);
    checkpoint_close(c);
    json_decref(header);
    scratch_close(&s);
}

/* The configs that LeRobot itself saved. */
static void test_lerobot_config(void **state) {
    static const struct {
        const char *name;
        openpi_variant variant;
        int horizon, max_prompt;
    } cases[] = {{"pi0", OPENPI_PI0, 10, 48}, {"pi05", OPENPI_PI05, 15, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        checkpoint *c;
        char path[600];
        char text[1 << 14];
        assert_int_equal(scratch_open(&s), 0);
        snprintf(path, sizeof path, GOLDEN "/lerobot/%s/checkpoint/config.json", cases[i].name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        write_text(&s, "config.json", text);
        json_t *header = make_header(&small, cases[i].variant), *longer = prefixed(header);
        /* as LeRobot saves it: both names of the embedding, the expert's unused head */
        const int64_t vocab[] = {small.vocab, small.width}, head[] = {small.vocab, small.expert_width};
        put(longer, "model." L "embed_tokens.weight", "F32", 2, vocab);
        put(longer, "model." G "lm_head.weight", "F32", 2, head);
        write_header(&s, "model.safetensors", longer, NULL);
        check(checkpoint_open(s.folder, NULL, &c, &error));
        assert_int_equal(c->lerobot, 1);
        assert_int_equal(c->variant, cases[i].variant);
        assert_int_equal(c->horizon, cases[i].horizon);
        assert_int_equal(c->max_prompt, cases[i].max_prompt);
        assert_string_equal(c->embedding->name, L "embed_tokens.weight");
        assert_int_equal(c->embedding->type, DTYPE_F32);
        openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = small,
                                      .variant = cases[i].variant};
        checkpoint *plain;
        check(checkpoint_open(NULL, &synthetic, &plain, &error));
        assert_true(plain->parameters == c->parameters);         /* the embedding counts once, heads do not */
        checkpoint_close(plain);
        checkpoint_close(c);
        json_decref(header);
        json_decref(longer);
        scratch_close(&s);
    }
}


/* LeRobot's loader renames the time MLP and drops state_proj, in names without "model." only. */
static void test_lerobot_renames(void **state) {
    static const char *const tails[] = {"in.weight", "in.bias", "out.weight", "out.bias"};
    (void)state;
    for (int variant = 0; variant < 2; variant++)
        for (int prefix = 0; prefix < 2; prefix++) {
            scratch s;
            checkpoint *c;
            char from[64], to[64];
            assert_int_equal(scratch_open(&s), 0);
            json_t *header = make_header(&small, (openpi_variant)variant);
            for (int i = 0; i < 4; i++) {
                snprintf(from, sizeof from, "%stime_mlp_%s", variant ? "" : "action_", tails[i]);
                snprintf(to, sizeof to, "%stime_mlp_%s", variant ? "action_" : "", tails[i]);
                rename_key(header, from, to);
            }
            const int64_t shape[] = {small.expert_width, 32};
            if (variant) put(header, "state_proj.weight", "BF16", 2, shape);
            if (variant) put(header, "state_proj.bias", "BF16", 1, shape);
            json_t *longer = prefixed(header);
            write_header(&s, "model.safetensors", prefix ? longer : header, NULL);
            write_text(&s, "config.json", variant ? "{\"type\": \"pi05\"}" : "{\"type\": \"pi0\"}");
            if (!prefix) {
                check(checkpoint_open(s.folder, NULL, &c, &error));
                assert_int_equal(c->variant, variant);
                assert_non_null(
                    tensors_find(c->tensors, variant ? "time_mlp_in.weight" : "action_time_mlp_in.weight"));
                assert_null(tensors_find(c->tensors, variant ? "state_proj.bias" : "time_mlp_in.bias"));
                checkpoint_close(c);
                unlink(scratch_path(&s, "config.json")); /* openpi's loader does not */
                check_fails(checkpoint_open(s.folder, NULL, &c, &error), OPENPI_BAD_FILE,
                            variant ? "both \"state_proj.weight\"" : "4 of a π0 checkpoint's");
            } else {
                check_fails(checkpoint_open(s.folder, NULL, &c, &error), OPENPI_BAD_FILE,
                            variant ? "both \"state_proj.weight\"" : "4 of a π0 checkpoint's");
            }
            json_decref(header);
            json_decref(longer);
            scratch_close(&s);
        }
}

/* Vision heads other than width / 72 come from the metadata that synthetic files carry, which must agree. */
static void test_metadata(void **state) {
    static const struct {
        const char *dims, *sentence;
        int heads;
    } cases[] = {
        {"{\"vision\":[72,2,4,8],\"vlm\":[16,3,2,4,8],\"expert\":[6,10],\"vocab\":12}", NULL, 4},
        {"{\"vision\":[72,2,4,8],\"vlm\":[16,3,2,4,9],\"expert\":[6,10],\"vocab\":12}",
         "its metadata openpi_dims say other sizes than its tensors have", 0},
        {"nonsense", "its metadata openpi_dims are \"nonsense\", expected sizes", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        checkpoint *c;
        assert_int_equal(scratch_open(&s), 0);
        json_t *header = make_header(&small, OPENPI_PI0),
               *metadata = json_pack("{s:s}", "openpi_dims", cases[i].dims);
        write_header(&s, "model.safetensors", header, metadata);
        openpi_status status = checkpoint_open(s.folder, NULL, &c, &error);
        if (cases[i].sentence) {
            check_fails(status, OPENPI_BAD_FILE, cases[i].sentence);
        } else {
            check(status);
            assert_int_equal(c->dims.vision_heads, cases[i].heads);
            checkpoint_close(c);
        }
        json_decref(header);
        json_decref(metadata);
        scratch_close(&s);
    }
}

static void test_arguments(void **state) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    checkpoint *c = NULL;
    (void)state;
    check(openpi_synthetic_parse("tiny", &synthetic, &error));
    check_fails(checkpoint_open(NULL, NULL, &c, &error), OPENPI_BAD_ARGUMENT,
                "neither a path nor a synthetic model is given");
    check_fails(checkpoint_open("x", &synthetic, &c, &error), OPENPI_BAD_ARGUMENT,
                "a path and a synthetic model are given");
    check_fails(checkpoint_open("/nowhere/at/all", NULL, &c, &error), OPENPI_NOT_FOUND,
                "/nowhere/at/all: cannot be opened");
    synthetic.dims.vocab = -1;
    check_fails(checkpoint_open(NULL, &synthetic, &c, &error), OPENPI_BAD_ARGUMENT, "vocabulary is -1");
    check(openpi_synthetic_parse("tiny", &synthetic, &error));
    synthetic.variant = (openpi_variant)7;
    check_fails(checkpoint_open(NULL, &synthetic, &c, &error), OPENPI_BAD_ARGUMENT, "variant is 7");
    assert_null(c);
    assert_int_equal(checkpoint_open("/nowhere/at/all", NULL, &c, NULL), OPENPI_NOT_FOUND);
}

static void test_describe(void **state) {
    scratch s;
    checkpoint *c;
    json_t *about;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    json_t *header = make_header(&small, OPENPI_PI05);
    json_array_set_new(json_object_get(header, "action_in_proj.weight"), 0, json_string("F32"));
    const int64_t head[] = {small.vocab, small.expert_width};      /* the expert's own, which nothing uses */
    put(header, G "lm_head.weight", "BF16", 2, head);
    write_header(&s, "model.safetensors", header, NULL);
    write_text(&s, "config.json", "{\"type\": \"pi05\", \"chunk_size\": 7, \"rtc_training_max_delay\": 6, "
               "\"rtc_config\": {\"mode\": \"trained\", \"prefix_attention_schedule\": \"EXP\"}}");
    check(checkpoint_open(s.folder, NULL, &c, &error));
    check(checkpoint_describe(c, &about, &error));
    assert_string_equal(json_string_value(json_object_get(about, "layout")), "lerobot");
    assert_string_equal(json_string_value(json_object_get(about, "variant")), "pi05");
    json_t *dims = dims_json(&small);
    assert_true(json_equal(json_object_get(about, "dims"), dims));
    json_decref(dims);
    assert_true((uint64_t)json_integer_value(json_object_get(about, "parameters")) == c->parameters);
    assert_int_equal(json_integer_value(json_object_get(about, "unused_parameters")),
                     small.vocab * small.expert_width);
    assert_int_equal(json_integer_value(json_object_get(about, "tensors")), 112);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(about, "dtypes"), "F32")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(about, "dtypes"), "BF16")), 111);
    assert_string_equal(json_string_value(json_array_get(json_object_get(about, "files"), 0)),
                        scratch_path(&s, "model.safetensors"));
    struct stat st;
    assert_int_equal(stat(s.path, &st), 0);
    assert_int_equal(json_integer_value(json_object_get(about, "bytes")), st.st_size);
    assert_int_equal(json_integer_value(json_object_get(about, "horizon")), 7);
    assert_int_equal(json_integer_value(json_object_get(about, "steps")), 10);
    assert_int_equal(json_integer_value(json_object_get(about, "max_prompt")), 200);
    json_t *rtc = json_pack("{s:s,s:s,s:i,s:f,s:i}", "mode", "trained", "schedule", "exp", "horizon", 10,
                            "max_weight", 10.0, "trained_delay", 6);
    assert_true(json_equal(json_object_get(about, "rtc"), rtc));
    json_decref(rtc);
    json_decref(about);
    checkpoint_close(c);
    json_decref(header);
    scratch_close(&s);

    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    check(openpi_synthetic_parse("odd", &synthetic, &error));
    check(checkpoint_open(NULL, &synthetic, &c, &error));
    check(checkpoint_describe(c, &about, &error));
    assert_string_equal(json_string_value(json_object_get(about, "layout")), "synthetic");
    assert_true(json_is_null(json_object_get(json_object_get(about, "rtc"), "mode")));
    assert_int_equal(json_array_size(json_object_get(about, "files")), 0);
    json_decref(about);
    checkpoint_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_lerobot_config),
        cmocka_unit_test(test_lerobot_renames),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
