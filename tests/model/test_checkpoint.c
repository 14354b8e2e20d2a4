/* Opening checkpoints: what is read off the tensors and the config, and what is said of those that are wrong.
 *
 * Files are made here with all their weights zero: names, shapes and types are what opening looks at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "model/checkpoint.h"
#include "structs.h"
#include "scratch.h"

#define P "paligemma_with_expert.paligemma."
#define G "paligemma_with_expert.gemma_expert."
#define V P "model.vision_tower.vision_model."
#define L P "model.language_model."

static openpi_error error = OPENPI_ERROR_INIT;

static void check(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s: %s", openpi_status_text(status), error.message);
}

static void check_fails(openpi_status status, openpi_status expected, const char *sentence) {
    if (status != expected || !strstr(error.message, sentence))
        fail_msg("%s: \"%s\", expected %s: \"%s\"", openpi_status_text(status), error.message,
                 openpi_status_text(expected), sentence);
}

/* ---- making files ---- */

static const openpi_dims small = DIMS_OF(72, 2, 1, 8, 16, 3, 2, 4, 8, 6, 10, 12);

/* A header as {"name": [dtype, [shape]]}. */
static void put(json_t *header, const char *name, const char *dtype, int rank, const int64_t *shape) {
    json_t *list = json_array();
    for (int i = 0; i < rank; i++) json_array_append_new(list, json_integer(shape[i]));
    assert_int_equal(json_object_set_new(header, name, json_pack("[s,o]", dtype, list)), 0);
}

static openpi_status put_tensor(void *user, const char *name, int rank, const int64_t *shape,
                                openpi_error *unused) {
    (void)unused;
    put(user, name, "BF16", rank, shape);
    return OPENPI_OK;
}

static json_t *make_header(const openpi_dims *dims, openpi_variant variant) {
    json_t *header = json_object();
    assert_int_equal(checkpoint_tensors(dims, variant, put_tensor, header, NULL), OPENPI_OK);
    return header;
}

/* metadata: NULL or an object of strings. Data are zeros. */
static void write_header(scratch *s, const char *file_name, const json_t *header, json_t *metadata) {
    json_t *root = json_object(), *value;
    const char *name;
    json_int_t at = 0;
    if (metadata) json_object_set(root, "__metadata__", metadata);
    json_object_foreach((json_t *)(uintptr_t)header, name, value) {
        const char *dtype = json_string_value(json_array_get(value, 0));
        json_t *shape = json_array_get(value, 1);
        json_int_t bytes = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "U8") ? 1 : 2;
        for (size_t i = 0; i < json_array_size(shape); i++)
            bytes *= json_integer_value(json_array_get(shape, i));
        json_object_set_new(
            root, name,
            json_pack("{s:s,s:O,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", at, at + bytes));
        at += bytes;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    size_t length = strlen(text);
    FILE *file = fopen(scratch_path(s, file_name), "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 0xff), file);
    fwrite(text, 1, length, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(s->path, (off_t)(8 + length + (size_t)at)), 0);
    free(text);
    json_decref(root);
}

static json_t *prefixed(const json_t *header) {
    json_t *out = json_object(), *value;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)header, name, value) {
        char longer[300];
        snprintf(longer, sizeof longer, "model.%s", name);
        json_object_set(out, longer, value);
    }
    return out;
}

static void write_text(scratch *s, const char *name, const char *text) {
    assert_int_equal(scratch_write(s, name, text, strlen(text)), 0);
}

/* ---- what is right ---- */

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

static void rename_key(json_t *header, const char *from, const char *to) {
    json_t *value = json_object_get(header, from);
    assert_non_null(value);
    json_object_set(header, to, value);
    json_object_del(header, from);
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

/* ---- what is wrong ---- */

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
    {OPENPI_PI0,
     DROP,
     "state_proj.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "neither \"state_proj.weight\" of π0 nor an adaptive norm of π0.5 is among its"},
    {OPENPI_PI0, DROP_ALL, 0, 0, 0, {0}, 0, OPENPI_BAD_FILE, "among its 0 tensors"},
    {OPENPI_PI05,
     ADD,
     "state_proj.weight",
     "BF16",
     2,
     {6, 32},
     0,
     OPENPI_BAD_FILE,
     "both \"state_proj.weight\" of π0 and \"" G "model.layers.0.input_layernorm.dense.weight\" of π0.5"},
    {OPENPI_PI0,
     ADD,
     "model.state_proj.weight",
     "BF16",
     2,
     {6, 32},
     0,
     OPENPI_BAD_FILE,
     "tensors \"state_proj.weight\" and \"model.state_proj.weight\" are both there"},
    {OPENPI_PI0,
     ADD,
     "model.model.state_proj.weight",
     "BF16",
     2,
     {6, 32},
     0,
     OPENPI_BAD_FILE,
     "1 tensor that a π0 checkpoint does not have, the first is \"model.state_proj.weight\""},
    /* missing */
    {OPENPI_PI0,
     DROP,
     "state_proj.bias",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "1 of a π0 checkpoint's 106 tensors missing: state_proj.bias"},
    {OPENPI_PI0,
     DROP,
     "action_in_proj.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "1 of a π0 checkpoint's 106 tensors missing: action_in_proj.weight"},
    {OPENPI_PI0,
     DROP,
     V "embeddings.patch_embedding.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "1 of a π0 checkpoint's 106 tensors missing: " V "embeddings.patch_embedding.weight"},
    {OPENPI_PI0,
     DROP,
     P "lm_head.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "tensors missing: " P "lm_head.weight"},
    {OPENPI_PI0,
     DROP,
     L "layers.0.self_attn.k_proj.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "tensors missing: " L "layers.0.self_attn.k_proj.weight"},
    {OPENPI_PI05,
     DROP,
     G "model.layers.0.input_layernorm.dense.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "1 of a π0.5 checkpoint's 111 tensors missing: " G "model.layers.0.input_layernorm.dense.weight"},
    {OPENPI_PI05,
     DROP,
     G "model.layers.1.mlp.up_proj.weight",
     0,
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "tensors missing: " G "model.layers.1.mlp.up_proj.weight"},
    {OPENPI_PI0,
     ADD,
     L "layers.3.mlp.up_proj.weight",
     "BF16",
     2,
     {8, 16},
     0,
     OPENPI_BAD_FILE,
     "17 of a π0 checkpoint's 124 tensors missing: " L "layers.3.self_attn.q_proj.weight, " L
     "layers.3.self_attn.k_proj.weight, " L "layers.3.self_attn.v_proj.weight, …"},
    /* unknown */
    {OPENPI_PI0,
     ADD,
     "extra",
     "BF16",
     1,
     {1},
     0,
     OPENPI_BAD_FILE,
     "/model.safetensors: 1 tensor that a π0 checkpoint does not have, the first is \"extra\""},
    {OPENPI_PI0,
     ADD,
     "time_mlp_in.weight",
     "BF16",
     2,
     {6, 6},
     0,
     OPENPI_BAD_FILE,
     "the first is \"time_mlp_in.weight\""},
    {OPENPI_PI0,
     ADD,
     L "layers.9999999999.mlp.up_proj.weight",
     "BF16",
     2,
     {8, 16},
     0,
     OPENPI_BAD_FILE,
     "the first is \"" L "layers.9999999999"},
    {OPENPI_PI0,
     ADD,
     G "model.layers.3.mlp.up_proj.weight",
     "BF16",
     2,
     {10, 6},
     0,
     OPENPI_BAD_FILE,
     "the first is \"" G "model.layers.3.mlp.up_proj.weight\""},
    {OPENPI_PI0,
     RENAME,
     "state_proj.bias",
     "State_proj.bias",
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "tensors missing: state_proj.bias"},
    /* allowed besides */
    {OPENPI_PI0, ADD, G "lm_head.weight", "F32", 2, {12, 6}, 0, OPENPI_OK, 0},
    {OPENPI_PI0, ADD, L "embed_tokens.weight", "F16", 2, {12, 16}, 0, OPENPI_OK, 0},
    {OPENPI_PI0, RENAME, P "lm_head.weight", L "embed_tokens.weight", 0, {0}, 0, OPENPI_OK, 0},
    {OPENPI_PI05, ADD, "proprio_history_proj.weight", "F32", 2, {16, 32}, 0, OPENPI_OK, 0},
    {OPENPI_PI05, ADD, L "rotary_emb.inv_freq", "F32", 1, {128}, 0, OPENPI_OK, 0},
    {OPENPI_PI05, ADD, V "embeddings.position_ids", "U8", 2, {1, 256}, 0, OPENPI_OK, 0},
    {OPENPI_PI05, RETYPE, "action_in_proj.weight", "F32", 0, {0}, 0, OPENPI_OK, 0},
    {OPENPI_PI05, RETYPE, G "model.norm.dense.bias", "F16", 0, {0}, 0, OPENPI_OK, 0},
    /* shapes and types */
    {OPENPI_PI0,
     RESHAPE,
     "state_proj.weight",
     0,
     2,
     {6, 31},
     0,
     OPENPI_BAD_FILE,
     "/model.safetensors: tensor \"state_proj.weight\" has shape [6, 31], expected [6, 32]"},
    {OPENPI_PI0,
     RESHAPE,
     "state_proj.weight",
     0,
     1,
     {192},
     0,
     OPENPI_BAD_FILE,
     "has shape [192], expected [6, 32]"},
    {OPENPI_PI0,
     RESHAPE,
     "action_in_proj.weight",
     0,
     1,
     {192},
     0,
     OPENPI_BAD_FILE,
     "has shape [192], expected 2 positive dimensions"},
    {OPENPI_PI0,
     RESHAPE,
     "action_in_proj.weight",
     0,
     2,
     {0, 32},
     0,
     OPENPI_BAD_FILE,
     "has shape [0, 32], expected 2 positive dimensions"},
    {OPENPI_PI0,
     RESHAPE,
     "action_in_proj.weight",
     0,
     2,
     {6, 8},
     0,
     OPENPI_UNSUPPORTED,
     "action_in_proj.weight takes 8 action dimensions, expected 32"},
    {OPENPI_PI0,
     RESHAPE,
     "action_in_proj.weight",
     0,
     2,
     {7, 32},
     0,
     OPENPI_BAD_FILE,
     "expert width is 7, expected an even number"},
    {OPENPI_PI0,
     RESHAPE,
     V "embeddings.position_embedding.weight",
     0,
     2,
     {257, 72},
     0,
     OPENPI_BAD_FILE,
     "has shape [257, 72], expected [256, 72]"},
    {OPENPI_PI0,
     RESHAPE,
     V "embeddings.patch_embedding.weight",
     0,
     4,
     {72, 3, 16, 16},
     0,
     OPENPI_BAD_FILE,
     "has shape [72, 3, 16, 16], expected [72, 3, 14, 14]"},
    {OPENPI_PI0,
     RESHAPE,
     V "embeddings.patch_embedding.weight",
     0,
     4,
     {80, 3, 14, 14},
     0,
     OPENPI_BAD_FILE,
     "vision width is 80, expected a multiple of 72"},
    {OPENPI_PI0,
     RESHAPE,
     L "layers.0.self_attn.k_proj.weight",
     0,
     2,
     {6, 16},
     0,
     OPENPI_BAD_FILE,
     "layers.0.self_attn.q_proj.weight\" has shape [8, 16], expected [6, 16]"},
    {OPENPI_PI0,
     RESHAPE,
     L "layers.2.self_attn.k_proj.weight",
     0,
     2,
     {2, 16},
     0,
     OPENPI_BAD_FILE,
     "layers.2.self_attn.k_proj.weight\" has shape [2, 16], expected [4, 16]"},
    {OPENPI_PI05,
     RESHAPE,
     G "model.norm.dense.weight",
     0,
     2,
     {12, 6},
     0,
     OPENPI_BAD_FILE,
     "has shape [12, 6], expected [18, 6]"},
    {OPENPI_PI05,
     RETYPE,
     "time_mlp_in.bias",
     "U8",
     0,
     {0},
     0,
     OPENPI_BAD_FILE,
     "tensor \"time_mlp_in.bias\" is of U8, expected F32, BF16 or F16"},
    {OPENPI_PI05,
     ADD,
     L "embed_tokens.weight",
     "F32",
     2,
     {12, 15},
     0,
     OPENPI_BAD_FILE,
     "embed_tokens.weight\" has shape [12, 15], expected [12, 16]"},
    /* openpi's config */
    {OPENPI_PI0, NOTHING, 0, 0, 0, {0}, "{", OPENPI_BAD_FILE, "/config.json: not valid JSON"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "[]",
     OPENPI_BAD_FILE,
     "/config.json: is an array, expected an object"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"action_dim\": 8}",
     OPENPI_BAD_FILE,
     "/config.json: \"action_dim\" is 8, but the tensors have 32"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"action_dim\": \"32\"}",
     OPENPI_BAD_FILE,
     "\"action_dim\" is a string"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"action_horizon\": 65}",
     OPENPI_BAD_FILE,
     "\"action_horizon\" is 65, expected an integer from 1 to 64"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"action_horizon\": 0}",
     OPENPI_BAD_FILE,
     "\"action_horizon\" is 0"},
    /* LeRobot's config */
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi05\"}",
     OPENPI_BAD_FILE,
     "\"type\" is \"pi05\", but the tensors are those of π0: \"state_proj.weight\" is there"},
    {OPENPI_PI05,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\"}",
     OPENPI_BAD_FILE,
     "\"type\" is \"pi0\", but the tensors are those of π0.5: \"" G "model.layers.0.input_layernorm.dense."
                                                                    "weight\""},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0_fast\"}",
     OPENPI_UNSUPPORTED,
     "\"type\" is \"pi0_fast\""},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"act\"}",
     OPENPI_UNSUPPORTED,
     "\"type\" is \"act\", expected \"pi0\" or \"pi05\""},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": 5}",
     OPENPI_BAD_FILE,
     "\"type\" is an integer, expected a string"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"min_period\": 0.04}",
     OPENPI_UNSUPPORTED,
     "\"min_period\" is 0.04, expected 0.004"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"max_period\": null}",
     OPENPI_BAD_FILE,
     "\"max_period\" is null, expected 4"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"max_state_dim\": 64}",
     OPENPI_UNSUPPORTED,
     "\"max_state_dim\" is 64, expected 32"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"max_action_dim\": 14}",
     OPENPI_BAD_FILE,
     "\"max_action_dim\" is 14, but the tensors have 32"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"image_resolution\": [224, 256]}",
     OPENPI_UNSUPPORTED,
     "\"image_resolution\" is [224, 256], expected [224, 224]"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"image_resolution\": [224]}",
     OPENPI_UNSUPPORTED,
     "\"image_resolution\" is [224], expected [224, 224]"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"image_resolution\": [224, 224, 3]}",
     OPENPI_BAD_FILE,
     "\"image_resolution\" has 3 numbers"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"chunk_size\": 100}",
     OPENPI_BAD_FILE,
     "\"chunk_size\" is 100, expected an integer from 1 to 64"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"num_inference_steps\": 0}",
     OPENPI_BAD_FILE,
     "\"num_inference_steps\" is 0"},
    {OPENPI_PI0,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi0\", \"tokenizer_max_length\": 4097}",
     OPENPI_BAD_FILE,
     "\"tokenizer_max_length\" is 4097"},
    {OPENPI_PI05,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi05\", \"use_visual_memory\": true}",
     OPENPI_UNSUPPORTED,
     "\"use_visual_memory\" is true, expected false"},
    {OPENPI_PI05,
     NOTHING,
     0,
     0,
     0,
     {0},
     "{\"type\": \"pi05\", \"use_proprioceptive_memory\": true}",
     OPENPI_UNSUPPORTED,
     "\"use_proprioceptive_memory\" is true"},
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
    write_text(&s, "config.json", "{\"type\": \"pi05\", \"chunk_size\": 7}");
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
    json_decref(about);
    checkpoint_close(c);
    json_decref(header);
    scratch_close(&s);

    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    check(openpi_synthetic_parse("odd", &synthetic, &error));
    check(checkpoint_open(NULL, &synthetic, &c, &error));
    check(checkpoint_describe(c, &about, &error));
    assert_string_equal(json_string_value(json_object_get(about, "layout")), "synthetic");
    assert_int_equal(json_array_size(json_object_get(about, "files")), 0);
    json_decref(about);
    checkpoint_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),           cmocka_unit_test(test_found),
        cmocka_unit_test(test_config),          cmocka_unit_test(test_lerobot_config),
        cmocka_unit_test(test_lerobot_renames), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_metadata),        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_cut_and_mutated), cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
