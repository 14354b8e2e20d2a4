/* Opening checkpoints that are wrong: each gets the sentence that says what is. */
#include "zero_checkpoint.h"

#define P "paligemma_with_expert.paligemma."
#define G "paligemma_with_expert.gemma_expert."
#define V P "model.vision_tower.vision_model."
#define L P "model.language_model."

typedef enum edit { NOTHING, DROP, RESHAPE, RETYPE, ADD, RENAME, DROP_ALL } edit;

/* One change to a right file (or two, where `and` is set), and the sentence that it must cause. */
static const struct {
    openpi_variant variant;
    edit edit;
    const char *name, *to;       /* to: new name or dtype */
    int rank;
    int64_t shape[4];
    const char *config;          /* NULL: no config.json */
    openpi_status status;        /* OPENPI_OK: it opens */
    const char *sentence;
} wrong[] = {
    /* variants */
    {OPENPI_PI0, DROP, .name = "state_proj.weight", .status = OPENPI_BAD_FILE,
     .sentence = "neither \"state_proj.weight\" of π0 nor an adaptive norm of π0.5 is among its"},
    {OPENPI_PI0, DROP_ALL, .status = OPENPI_BAD_FILE, .sentence = "among its 0 tensors"},
    {OPENPI_PI05, ADD, .name = "state_proj.weight", .to = "BF16", .rank = 2, .shape = {6, 32},
     .status = OPENPI_BAD_FILE,
     .sentence = "both \"state_proj.weight\" of π0 and \"" G
         "model.layers.0.input_layernorm.dense.weight\" of π0.5"},
    {OPENPI_PI0, ADD, .name = "model.state_proj.weight", .to = "BF16", .rank = 2, .shape = {6, 32},
     .status = OPENPI_BAD_FILE,
     .sentence = "tensors \"state_proj.weight\" and \"model.state_proj.weight\" are both there"},
    {OPENPI_PI0, ADD, .name = "model.model.state_proj.weight", .to = "BF16", .rank = 2, .shape = {6, 32},
     .status = OPENPI_BAD_FILE,
     .sentence = "1 tensor that a π0 checkpoint does not have, the first is \"model.state_proj.weight\""},
    /* missing */
    {OPENPI_PI0, DROP, .name = "state_proj.bias", .status = OPENPI_BAD_FILE,
     .sentence = "1 of a π0 checkpoint's 106 tensors missing: state_proj.bias"},
    {OPENPI_PI0, DROP, .name = "action_in_proj.weight", .status = OPENPI_BAD_FILE,
     .sentence = "1 of a π0 checkpoint's 106 tensors missing: action_in_proj.weight"},
    {OPENPI_PI0, DROP, .name = V "embeddings.patch_embedding.weight", .status = OPENPI_BAD_FILE,
     .sentence = "1 of a π0 checkpoint's 106 tensors missing: " V "embeddings.patch_embedding.weight"},
    {OPENPI_PI0, DROP, .name = P "lm_head.weight", .status = OPENPI_BAD_FILE,
     .sentence = "tensors missing: " P "lm_head.weight"},
    {OPENPI_PI0, DROP, .name = L "layers.0.self_attn.k_proj.weight", .status = OPENPI_BAD_FILE,
     .sentence = "tensors missing: " L "layers.0.self_attn.k_proj.weight"},
    {OPENPI_PI05, DROP, .name = G "model.layers.0.input_layernorm.dense.weight",
     .status = OPENPI_BAD_FILE,
     .sentence = "1 of a π0.5 checkpoint's 111 tensors missing: " G
         "model.layers.0.input_layernorm.dense.weight"},
    {OPENPI_PI05, DROP, .name = G "model.layers.1.mlp.up_proj.weight", .status = OPENPI_BAD_FILE,
     .sentence = "tensors missing: " G "model.layers.1.mlp.up_proj.weight"},
    {OPENPI_PI0, ADD, .name = L "layers.3.mlp.up_proj.weight", .to = "BF16", .rank = 2, .shape = {8, 16},
     .status = OPENPI_BAD_FILE,
     .sentence = "17 of a π0 checkpoint's 124 tensors missing: " L "layers.3.self_attn.q_proj.weight, "
         L "layers.3.self_attn.k_proj.weight, " L "layers.3.self_attn.v_proj.weight, …"},
    /* unknown */
    {OPENPI_PI0, ADD, .name = "extra", .to = "BF16", .rank = 1, .shape = {1}, .status = OPENPI_BAD_FILE,
     .sentence = "/model.safetensors: 1 tensor that a π0 checkpoint does not have, the first is "
         "\"extra\""},
    {OPENPI_PI0, ADD, .name = "time_mlp_in.weight", .to = "BF16", .rank = 2, .shape = {6, 6},
     .status = OPENPI_BAD_FILE, .sentence = "the first is \"time_mlp_in.weight\""},
    {OPENPI_PI0, ADD, .name = L "layers.9999999999.mlp.up_proj.weight", .to = "BF16", .rank = 2,
     .shape = {8, 16}, .status = OPENPI_BAD_FILE, .sentence = "the first is \"" L "layers.9999999999"},
    {OPENPI_PI0, ADD, .name = G "model.layers.3.mlp.up_proj.weight", .to = "BF16", .rank = 2,
     .shape = {10, 6}, .status = OPENPI_BAD_FILE,
     .sentence = "the first is \"" G "model.layers.3.mlp.up_proj.weight\""},
    {OPENPI_PI0, RENAME, .name = "state_proj.bias", .to = "State_proj.bias", .status = OPENPI_BAD_FILE,
     .sentence = "tensors missing: state_proj.bias"},
    /* allowed besides */
    {OPENPI_PI0, ADD, .name = G "lm_head.weight", .to = "F32", .rank = 2, .shape = {12, 6},
     .status = OPENPI_OK},
    {OPENPI_PI0, ADD, .name = L "embed_tokens.weight", .to = "F16", .rank = 2, .shape = {12, 16},
     .status = OPENPI_OK},
    {OPENPI_PI0, RENAME, .name = P "lm_head.weight", .to = L "embed_tokens.weight", .status = OPENPI_OK},
    {OPENPI_PI05, ADD, .name = "proprio_history_proj.weight", .to = "F32", .rank = 2, .shape = {16, 32},
     .status = OPENPI_OK},
    {OPENPI_PI05, ADD, .name = L "rotary_emb.inv_freq", .to = "F32", .rank = 1, .shape = {128},
     .status = OPENPI_OK},
    {OPENPI_PI05, ADD, .name = V "embeddings.position_ids", .to = "U8", .rank = 2, .shape = {1, 256},
     .status = OPENPI_OK},
    {OPENPI_PI05, RETYPE, .name = "action_in_proj.weight", .to = "F32", .status = OPENPI_OK},
    {OPENPI_PI05, RETYPE, .name = G "model.norm.dense.bias", .to = "F16", .status = OPENPI_OK},
    /* shapes and types */
    {OPENPI_PI0, RESHAPE, .name = "state_proj.weight", .rank = 2, .shape = {6, 31},
     .status = OPENPI_BAD_FILE,
     .sentence = "/model.safetensors: tensor \"state_proj.weight\" has shape [6, 31], expected [6, 32]"},
    {OPENPI_PI0, RESHAPE, .name = "state_proj.weight", .rank = 1, .shape = {192},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [192], expected [6, 32]"},
    {OPENPI_PI0, RESHAPE, .name = "action_in_proj.weight", .rank = 1, .shape = {192},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [192], expected 2 positive dimensions"},
    {OPENPI_PI0, RESHAPE, .name = "action_in_proj.weight", .rank = 2, .shape = {0, 32},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [0, 32], expected 2 positive dimensions"},
    {OPENPI_PI0, RESHAPE, .name = "action_in_proj.weight", .rank = 2, .shape = {6, 8},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [32, 6], expected [8, 6]"},
    {OPENPI_PI0, RESHAPE, .name = "action_in_proj.weight", .rank = 2, .shape = {6, 40},
     .status = OPENPI_UNSUPPORTED,
     .sentence = "action_in_proj.weight takes 40 action dimensions, expected at most 32"},
    {OPENPI_PI0, RESHAPE, .name = "action_in_proj.weight", .rank = 2, .shape = {7, 32},
     .status = OPENPI_BAD_FILE, .sentence = "expert width is 7, expected an even number"},
    {OPENPI_PI0, RESHAPE, .name = V "embeddings.position_embedding.weight", .rank = 2, .shape = {257, 72},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [257, 72], expected [256, 72]"},
    {OPENPI_PI0, RESHAPE, .name = V "embeddings.patch_embedding.weight", .rank = 4,
     .shape = {72, 3, 16, 16}, .status = OPENPI_BAD_FILE,
     .sentence = "has shape [72, 3, 16, 16], expected [72, 3, 14, 14]"},
    {OPENPI_PI0, RESHAPE, .name = V "embeddings.patch_embedding.weight", .rank = 4,
     .shape = {80, 3, 14, 14}, .status = OPENPI_BAD_FILE,
     .sentence = "vision width is 80, expected a multiple of 72"},
    {OPENPI_PI0, RESHAPE, .name = L "layers.0.self_attn.k_proj.weight", .rank = 2, .shape = {6, 16},
     .status = OPENPI_BAD_FILE,
     .sentence = "layers.0.self_attn.q_proj.weight\" has shape [8, 16], expected [6, 16]"},
    {OPENPI_PI0, RESHAPE, .name = L "layers.2.self_attn.k_proj.weight", .rank = 2, .shape = {2, 16},
     .status = OPENPI_BAD_FILE,
     .sentence = "layers.2.self_attn.k_proj.weight\" has shape [2, 16], expected [4, 16]"},
    {OPENPI_PI05, RESHAPE, .name = G "model.norm.dense.weight", .rank = 2, .shape = {12, 6},
     .status = OPENPI_BAD_FILE, .sentence = "has shape [12, 6], expected [18, 6]"},
    {OPENPI_PI05, RETYPE, .name = "time_mlp_in.bias", .to = "U8", .status = OPENPI_BAD_FILE,
     .sentence = "tensor \"time_mlp_in.bias\" is of U8, expected F32, BF16 or F16"},
    {OPENPI_PI05, ADD, .name = L "embed_tokens.weight", .to = "F32", .rank = 2, .shape = {12, 15},
     .status = OPENPI_BAD_FILE,
     .sentence = "embed_tokens.weight\" has shape [12, 15], expected [12, 16]"},
    /* openpi's config */
    {OPENPI_PI0, NOTHING, .config = "{", .status = OPENPI_BAD_FILE,
     .sentence = "/config.json: not valid JSON"},
    {OPENPI_PI0, NOTHING, .config = "[]", .status = OPENPI_BAD_FILE,
     .sentence = "/config.json: is an array, expected an object"},
    {OPENPI_PI0, NOTHING, .config = "{\"action_dim\": 8}", .status = OPENPI_BAD_FILE,
     .sentence = "/config.json: \"action_dim\" is 8, but the tensors have 32"},
    {OPENPI_PI0, NOTHING, .config = "{\"action_dim\": \"32\"}", .status = OPENPI_BAD_FILE,
     .sentence = "\"action_dim\" is a string"},
    {OPENPI_PI0, NOTHING, .config = "{\"action_horizon\": 65}", .status = OPENPI_BAD_FILE,
     .sentence = "\"action_horizon\" is 65, expected an integer from 1 to 64"},
    {OPENPI_PI0, NOTHING, .config = "{\"action_horizon\": 0}", .status = OPENPI_BAD_FILE,
     .sentence = "\"action_horizon\" is 0"},
    /* LeRobot's config */
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi05\"}", .status = OPENPI_BAD_FILE,
     .sentence = "\"type\" is \"pi05\", but the tensors are those of π0: \"state_proj.weight\" is there"},
    {OPENPI_PI05, NOTHING, .config = "{\"type\": \"pi0\"}", .status = OPENPI_BAD_FILE,
     .sentence = "\"type\" is \"pi0\", but the tensors are those of π0.5: \"" G
         "model.layers.0.input_layernorm.dense.weight\""},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0_fast\"}", .status = OPENPI_UNSUPPORTED,
     .sentence = "\"type\" is \"pi0_fast\""},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"act\"}", .status = OPENPI_UNSUPPORTED,
     .sentence = "\"type\" is \"act\", expected \"pi0\" or \"pi05\""},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": 5}", .status = OPENPI_BAD_FILE,
     .sentence = "\"type\" is an integer, expected a string"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"min_period\": 0.04}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"min_period\" is 0.04, expected 0.004"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"max_period\": null}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"max_period\" is null, expected 4"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"max_state_dim\": 64}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"max_state_dim\" is 64, expected 32"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"max_action_dim\": 14}",
     .status = OPENPI_BAD_FILE, .sentence = "\"max_action_dim\" is 14, but the tensors have 32"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"image_resolution\": [224, 256]}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"image_resolution\" is [224, 256], expected [224, 224]"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"image_resolution\": [224]}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"image_resolution\" is [224], expected [224, 224]"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"image_resolution\": [224, 224, 3]}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"image_resolution\" is [224, 224, 3], expected [224, 224]"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"chunk_size\": 100}", .status = OPENPI_BAD_FILE,
     .sentence = "\"chunk_size\" is 100, expected an integer from 1 to 64"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"num_inference_steps\": 0}",
     .status = OPENPI_BAD_FILE, .sentence = "\"num_inference_steps\" is 0"},
    {OPENPI_PI0, NOTHING, .config = "{\"type\": \"pi0\", \"tokenizer_max_length\": 4097}",
     .status = OPENPI_BAD_FILE, .sentence = "\"tokenizer_max_length\" is 4097"},
    {OPENPI_PI05, NOTHING, .config = "{\"type\": \"pi05\", \"use_visual_memory\": true}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"use_visual_memory\" is true, expected one of false, null"},
    {OPENPI_PI05, NOTHING, .config = "{\"type\": \"pi05\", \"use_proprioceptive_memory\": true}",
     .status = OPENPI_UNSUPPORTED, .sentence = "\"use_proprioceptive_memory\" is true"},
};

static void apply(json_t *header, size_t i) {
    json_t *value = wrong[i].name ? json_object_get(header, wrong[i].name) : NULL;
    if (wrong[i].edit != NOTHING && wrong[i].edit != ADD && wrong[i].edit != DROP_ALL && !value)
        fail_msg("case %zu: no %s", i, wrong[i].name);
    switch (wrong[i].edit) {
    case NOTHING: break;
    case DROP: json_object_del(header, wrong[i].name); break;
    case DROP_ALL: json_object_clear(header); break;
    case RESHAPE: put(header, wrong[i].name, "BF16", wrong[i].rank, wrong[i].shape); break;
    case RETYPE: json_array_set_new(value, 0, json_string(wrong[i].to)); break;
    case ADD:
        assert_null(value);
        put(header, wrong[i].name, wrong[i].to, wrong[i].rank, wrong[i].shape);
        break;
    case RENAME: rename_key(header, wrong[i].name, wrong[i].to); break;
    }
}

static void test_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scratch s;
        checkpoint *c = NULL;
        assert_int_equal(scratch_open(&s), 0);
        json_t *header = make_header(&small, wrong[i].variant);
        apply(header, i);
        write_header(&s, "model.safetensors", header, NULL);
        if (wrong[i].config) write_text(&s, "config.json", wrong[i].config);
        openpi_status status = checkpoint_open(s.folder, NULL, &c, &error);
        if (wrong[i].status == OPENPI_OK) {
            check(status);
        } else {
            check_fails(status, wrong[i].status, wrong[i].sentence);
            assert_non_null(strstr(error.message, s.folder));
            assert_int_equal(error.status, status);
            assert_null(c);
        }
        checkpoint_close(c);
        json_decref(header);
        scratch_close(&s);
    }
}

/* A checkpoint cut at every byte of its header and at many places of its data is refused; a header with one
 * byte changed is refused or still a checkpoint, never a crash. */
static void test_cut_and_mutated(void **state) {
    static const uint8_t masks[] = {0x01, 0x20, 0x80};
    scratch s;
    checkpoint *c;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    json_t *header = make_header(&(openpi_dims)DIMS_OF(72, 1, 1, 8, 16, 1, 2, 4, 8, 6, 10, 12), OPENPI_PI0);
    write_header(&s, "model.safetensors", header, NULL);
    char path[400];
    strcpy(path, s.path);
    check(checkpoint_open(path, NULL, &c, &error));
    checkpoint_close(c);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    long length = fgetc(file);
    length += (long)fgetc(file) << 8;
    for (long at = 0; at < 8 + length; at++) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ masks[at % 3], file);
        fflush(file);
        c = NULL;
        openpi_status status = checkpoint_open(path, NULL, &c, &error);
        if (status != OPENPI_OK) assert_non_null(strstr(error.message, s.folder));
        checkpoint_close(c);
        fseek(file, at, SEEK_SET);
        fputc(byte, file);
        fflush(file);
    }
    check(checkpoint_open(path, NULL, &c, &error));
    checkpoint_close(c);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    fclose(file);
    int cuts = 0;
    for (long cut = bytes - 1; cut >= 0;
         cut -= cut > 8 + length ? (cut - 8 - length + 99) / 100 : 1, cuts++) {
        assert_int_equal(truncate(path, cut), 0);
        check_fails(checkpoint_open(path, NULL, &c, &error), OPENPI_BAD_FILE, "/model.safetensors: ");
    }
    assert_true(cuts > length + 100);
    json_decref(header);
    scratch_close(&s);
}

/* A folder too high, of PyTorch's and of JAX's files: the sentence names the folder to give. Each row adds to
 * what is there. */
static void test_too_high(void **state) {
    static const struct {
        const char *make, *file, *sentence;
    } rows[] = {
        {"mkdir -p run/pi05_x/params", "run/pi05_x/params/manifest.ocdbt",
         "neither model.safetensors nor params/ is here, but one is in %s/pi05_x: give that folder"},
        {"rm -r run && mkdir -p run/900 run/1000 run/tmp", "run/900/model.safetensors",
         "no model.safetensors is here, but one is in %s/900: give that folder"},
        {"true", "run/1000/model.safetensors", "2 folders below hold one, the last step is %s/1000: give one"},
        {"ln -s 900 run/last", "run/tmp/model.safetensors",
         "4 folders below hold one, the last step is %s/last: give one of them"},
    };
    scratch s;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        checkpoint *c = NULL;
        char line[1000], run[400];
        snprintf(line, sizeof line, "cd '%s' && %s", s.folder, rows[i].make);
        assert_int_equal(system(line), 0);
        assert_int_equal(scratch_write(&s, rows[i].file, "", 0), 0);
        snprintf(run, sizeof run, "%s", scratch_path(&s, "run"));
        snprintf(line, sizeof line, rows[i].sentence, run);
        check_fails(checkpoint_open(run, NULL, &c, &error), OPENPI_NOT_FOUND, line);
    }
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_cut_and_mutated),
        cmocka_unit_test(test_too_high),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
