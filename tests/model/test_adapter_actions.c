/* labels: cost */
/* A base with a PEFT adapter gives the actions of a checkpoint that holds the merged weights, bit for bit:
 * both variants, both types, any number of threads, bases in openpi's layout (in shards), LeRobot's and
 * JAX's, with LoRA there too. Which folder is the base, what is told of an adapter, and adapters that do not
 * fit the base.
 *
 * The factors are multiples of 1/64 and the factor a power of two, so that factor·B·A is exact and the merged
 * checkpoint, which this test computes in double, has one rounding to fp32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "adapter_write.h"
#include "base/json.h"
#include "held.h"
#include "checkpoint/checkpoint.h"
#include "orbax_write.h"
#include "policy_golden.h"

enum {
    DIM = OPENPI_ACTION_DIM,
    PICTURE = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
    H = 3,
    N = 2,
    L = 9,
    RANK = 4
};

typedef enum layout { SHARDS, LEROBOT, ORBAX, ORBAX_LORA } layout;

static openpi_error error = OPENPI_ERROR_INIT;
static tensor_list change, whole;

/* ---- a base and its adapter ---- */

static struct {
    scratch place;
    char base[100], torch[100], adapter[100], merged[100];
    openpi_synthetic model;
    tensors *weights;            /* the base's, in memory */
} it;

static void copy_file(const char *from, const char *to, const char *name) {
    char *source = file_join(from, name);
    size_t bytes;
    char *text = golden_read(source, &bytes);
    text_write(to, name, text);
    free(text);
    free(source);
}

/* Weights of modules_to_save. The first shares a product with others that a JAX checkpoint decodes. */
static const char *const replaced[] = {
    "paligemma_with_expert.gemma_expert.model.layers.1.self_attn.k_proj.weight", "action_out_proj.bias"};
#define SAVED "\"modules_to_save\": [\"gemma_expert.model.layers.1.self_attn.k_proj\", \"action_out_proj\"]"

/* Modules that LeRobot targets by default, and some of every other kind. */
static void make_pairs(void) {
    static const struct {
        const char *name;
        int layers;              /* 1: "%d" is one */
    } modules[] = {
        {"paligemma_with_expert.gemma_expert.model.layers.%d.self_attn.q_proj", 1},
        {"paligemma_with_expert.gemma_expert.model.layers.%d.self_attn.v_proj", 1},
        {"paligemma_with_expert.gemma_expert.model.layers.%d.mlp.gate_proj", 1},
        {"paligemma_with_expert.paligemma.model.language_model.layers.%d.mlp.down_proj", 1},
        {"paligemma_with_expert.paligemma.model.language_model.layers.%d.self_attn.k_proj", 1},
        {"paligemma_with_expert.paligemma.model.language_model.layers.%d.self_attn.o_proj", 1},
        {"paligemma_with_expert.paligemma.model.vision_tower.vision_model.encoder.layers.%d.mlp.fc1", 1},
        {"paligemma_with_expert.paligemma.model.multi_modal_projector.linear", 0},
        {"action_in_proj", 0},
        {"action_out_proj", 0},
        {"state_proj", 0},
        {"action_time_mlp_in", 0},
        {"action_time_mlp_out", 0},
        {"time_mlp_in", 0},
        {"paligemma_with_expert.gemma_expert.model.layers.%d.input_layernorm.dense", 1},
    };
    char head[] = "model.paligemma_with_expert.paligemma.lm_head";
    for (size_t m = 0; m < sizeof modules / sizeof *modules; m++)
        for (int layer = 0; layer < (modules[m].layers ? 2 : 1); layer++) {
            char module[200], name[220], peft[220];
            snprintf(module, sizeof module, modules[m].name, layer);
            snprintf(name, sizeof name, "%s.weight", module);
            const tensor *t = tensors_find(it.weights, name);
            if (!t) continue;
            snprintf(peft, sizeof peft, "model.%s", module);
            pair_add(&change, peft, m % 2 ? DTYPE_BF16 : DTYPE_F32, RANK, t->shape[1], t->shape[0], 0.5f);
        }
    /* of the text head, which is the embedding's other name here: it changes nothing */
    pair_add(&change, head, DTYPE_F32, RANK, 7, 5, 0.5f);
    for (int i = 0; i < change.count; i++)
        for (int64_t e = 0; e < change.list[i].count; e++)
            change.values[i][e] = (float)((int)(change.values[i][e] * 64)) / 64;
    for (int i = 0; i < 2; i++) {
        char name[200];
        const tensor *t = tensors_find(it.weights, replaced[i]);
        snprintf(name, sizeof name, "base_model.model.model.%s", replaced[i]);
        list_random(&change, name, DTYPE_BF16, t->shape[0], t->rank == 2 ? t->shape[1] : 0, 0.1f);
    }
}

/* W + B·A/2 of the pair of a tensor, in double; 0: it has none. */
static int merge(const tensor *t, float *values) {
    char name[300];
    int length = (int)strlen(t->name) - (int)strlen(".weight");
    for (int i = 0; i < change.count; i++) {
        const float *a = change.values[i], *b = change.values[i + 1 < change.count ? i + 1 : i];
        snprintf(name, sizeof name, "base_model.model.model.%.*s.lora_A.weight", length > 0 ? length : 0,
                 t->name);
        if (strcmp(change.list[i].name, name) || strstr(name, "lm_head")) continue;
        for (int64_t o = 0; o < t->shape[0]; o++)
            for (int64_t c = 0; c < t->shape[1]; c++) {
                double sum = 0;
                for (int k = 0; k < RANK; k++)
                    sum += (double)a[k * t->shape[1] + c] * (double)b[o * RANK + k];
                values[o * t->shape[1] + c] = (float)((double)values[o * t->shape[1] + c] + sum / 2);
            }
        return 1;
    }
    return 0;
}

/* The merged checkpoint: changed weights in `type`, all others as the base's. */
static void write_merged(dtype type) {
    for (int i = 0; i < tensors_count(it.weights); i++) {
        const tensor *t = tensors_at(it.weights, i);
        float *values = list_add(&whole, t->name, DTYPE_BF16, t->shape[0], 0);
        tensor *put = &whole.list[whole.count - 1];
        values = realloc(values, (size_t)t->count * sizeof *values);
        assert_non_null(values);
        whole.values[whole.count - 1] = values;
        put->rank = t->rank;
        put->count = t->count;
        memcpy(put->shape, t->shape, sizeof put->shape);
        tensor_read_f32(t, 0, t->count, values);
        if (merge(t, values)) put->type = type;
        for (int r = 0; r < 2; r++)
            if (!strcmp(t->name, replaced[r]))
                memcpy(values, change.values[change.count - 2 + r], (size_t)t->count * sizeof *values);
    }
    list_write(&whole, it.merged, "model.safetensors");
    list_free(&whole);
}

static void set_up(const char *model, layout layout) {
    char file[200];
    list_free(&change);
    assert_int_equal(scratch_open(&it.place), 0);
    snprintf(it.base, sizeof it.base, "%s/base", it.place.folder);
    snprintf(it.torch, sizeof it.torch, "%s/torch", it.place.folder);
    snprintf(it.adapter, sizeof it.adapter, "%s/adapter", it.place.folder);
    snprintf(it.merged, sizeof it.merged, "%s/merged", it.place.folder);
    it.model = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
    WORKS(openpi_synthetic_parse(model, &it.model, &error));
    WORKS(openpi_synthetic_write(&it.model, it.torch, 0, 1, NULL, NULL, &error));
    snprintf(file, sizeof file, "%s/model.safetensors", it.torch);
    WORKS(tensors_open(file, &it.weights, &error));
    WORKS(tensors_load(it.weights, &error));
    tensors_close_files(it.weights);
    it.model.lerobot = layout == LEROBOT;
    assert_int_equal(mkdir(it.base, 0777) | mkdir(it.adapter, 0777) | mkdir(it.merged, 0777), 0);
    if (layout == ORBAX || layout == ORBAX_LORA)
        orbax_write(it.base, it.weights, &it.model.dims, it.model.variant == OPENPI_PI05,
                    layout == ORBAX_LORA ? ORBAX_WITH_LORA : 0);
    else
        WORKS(openpi_synthetic_write(&it.model, it.base, layout == SHARDS ? 300000 : 0, 1, NULL, NULL, &error));
    if (layout == LEROBOT) copy_file(it.base, it.merged, "config.json");
    make_pairs();
    adapter_write(&change, it.adapter,
                  "\"r\": 4, \"lora_alpha\": 2, \"base_model_name_or_path\": \"../base\", " SAVED);
}

static void tear_down(void) {
    tensors_close(it.weights);
    list_free(&change);
    scratch_close(&it.place);
}

/* ---- actions ---- */

typedef struct case_options {
    const char *path, *adapter;
    int without_lora, threads;
    openpi_dtype dtype;
    openpi_weights weights;
} case_options;

static void run(case_options c, float actions[H * DIM]) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options plan = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    openpi_session *session = NULL;
    static uint8_t picture[PICTURE];
    float state[DIM], noise[H * DIM];
    int32_t tokens[L];
    for (int i = 0; i < PICTURE; i++) picture[i] = (uint8_t)(i * 7 + i / 600);
    for (int i = 0; i < DIM; i++) state[i] = 0.1f * (float)(i % 7) - 0.3f;
    for (int i = 0; i < L; i++) tokens[i] = 31 + 167 * i % 1000;
    openpi_noise(3, 0, noise, H * DIM);
    options.dtype = c.dtype;
    options.weights = c.weights;
    options.threads = c.threads ? c.threads : 2;
    options.adapter = c.adapter;
    options.without_lora = c.without_lora;
    plan.horizon = H, plan.steps = N, plan.max_prompt = L;
    WORKS(openpi_engine_open(c.path, &options, &engine, &error));
    nothing_is_held(&it.place);
    WORKS(openpi_session_create(engine, &plan, &session, &error));
    openpi_sample sample = {.size = sizeof sample,
                            .images = {picture, picture, NULL},
                            .image_mask = {1, 1, 0},
                            .tokens = tokens,
                            .token_count = L,
                            .state = state};
    WORKS(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error));
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void same(case_options c, const float want[H * DIM]) {
    float got[H * DIM];
    run(c, got);
    assert_memory_equal(got, want, sizeof got);
}

/* In bf16 a JAX checkpoint has every parameter rounded, so its merged heads are too. */
static void compare(const char *model, layout layout) {
    set_up(model, layout);
    int jax = layout >= ORBAX;
    for (int i = 0; i < 2; i++) {
        float want[H * DIM], plain[H * DIM];
        openpi_dtype dtype = i ? OPENPI_F32 : OPENPI_BF16;
        write_merged(jax && !i ? DTYPE_BF16 : DTYPE_F32);
        run((case_options){.path = it.merged, .dtype = dtype}, want);
        run((case_options){.path = it.base, .dtype = dtype}, plain);
        assert_memory_not_equal(want, plain, sizeof want);
        same((case_options){.path = it.base, .adapter = it.adapter, .dtype = dtype}, want);
        same((case_options){.path = it.base, .adapter = it.adapter, .dtype = dtype, .threads = 1}, want);
        same((case_options){.path = it.adapter, .dtype = dtype, .threads = 5}, want);
        if (layout == ORBAX_LORA) continue;              /* its base is another model */
        same((case_options){it.base, it.adapter, .without_lora = 1, .dtype = dtype}, plain);
        same((case_options){it.adapter, NULL, .without_lora = 1, .dtype = dtype}, plain);
    }
    tear_down();
}

static void shards(void **state) {
    (void)state;
    compare("tiny:pi0:5", SHARDS);
    compare("odd:pi05:6", SHARDS);
}

static void lerobot(void **state) {
    (void)state;
    compare("odd:pi0:7", LEROBOT);
    compare("tiny:pi05:8", LEROBOT);
}

static void jax(void **state) {
    (void)state;
    compare("tiny:pi0:9", ORBAX);
    compare("odd:pi05:10", ORBAX);
}

static void jax_lora(void **state) {
    (void)state;
    compare("odd:pi0:11", ORBAX_LORA);
    compare("tiny:pi05:12", ORBAX_LORA);
}

/* Under without_lora the pairs of a JAX checkpoint are not even looked at: one may be broken. */
static void jax_without_lora(void **state) {
    float plain[H * DIM], base[H * DIM];
    checkpoint *c;
    json_t *told;
    (void)state;
    set_up("tiny:pi0:5", ORBAX_LORA);
    run((case_options){.path = it.base}, plain);
    run((case_options){.path = it.base, .without_lora = 1}, base);
    assert_memory_not_equal(plain, base, sizeof base);
    char *broken = file_join(it.base, "params/params.PaliGemma.llm.layers.mlp.linear_lora_a.value/.zarray");
    assert_int_equal(unlink(broken), 0);
    free(broken);
    REFUSES(checkpoint_open(it.base, NULL, &c, &error), OPENPI_BAD_FILE, "half of a LoRA pair");
    same((case_options){.path = it.base, .without_lora = 1}, base);
    const checkpoint_source source = {.path = it.base, .without_lora = 1};
    WORKS(checkpoint_open_source(&source, &c, &error));
    WORKS(checkpoint_describe(c, &told, &error));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(told, "lora"), "ignored")), 19);
    json_decref(told);
    checkpoint_close(c);
    tear_down();
}

/* ---- converted ---- */

/* The weights that openpi_convert writes are those of the merged checkpoint, each rounded once. */
static void same_weights(const char *path, const char *adapter, openpi_file_dtype dtype) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    char out[200], file[240];
    tensors *got, *want;
    int compared = 0;
    options.dtype = dtype;
    options.adapter = adapter;
    options.threads = 3;
    options.shard_bytes = dtype == OPENPI_FILE_F32 ? 400000 : 0;
    snprintf(out, sizeof out, "%s/out", it.place.folder);
    snprintf(file, sizeof file, "%s/model.safetensors", it.merged);
    WORKS(openpi_convert(path, out, &options, &error));
    WORKS(tensors_open(out, &got, &error));
    tensors_strip_prefix(got);
    WORKS(tensors_finish(got, &error));
    WORKS(tensors_open(file, &want, &error));
    for (int i = 0; i < tensors_count(want); i++) {
        const tensor *w = tensors_at(want, i), *t = tensors_find(got, w->name);
        if (!t) fail_msg("%s is not there", w->name);
        size_t count = (size_t)w->count;
        float *expected = malloc(count * sizeof *expected), *values = malloc(count * sizeof *values);
        assert_true(expected && values && t->count == w->count);
        tensor_read_f32(w, 0, w->count, expected);
        tensor_read_f32(t, 0, t->count, values);
        for (size_t e = 0; dtype == OPENPI_FILE_BF16 && e < count; e++)
            expected[e] = bf16_to_float(float_to_bf16(expected[e]));
        if (memcmp(expected, values, count * sizeof *values)) fail_msg("%s has other values", w->name);
        compared += t->type == (dtype == OPENPI_FILE_F32 ? DTYPE_F32 : DTYPE_BF16);
        free(expected), free(values);
    }
    assert_int_equal(compared, tensors_count(want));
    tensors_close(got);
    tensors_close(want);
    scratch_remove(out);
}

static void converted(void **state) {
    static const struct {
        const char *model;
        layout layout;
    } rows[] = {
        {"tiny:pi0:5", SHARDS}, {"odd:pi05:8", LEROBOT}, {"odd:pi0:9", ORBAX}, {"tiny:pi05:12", ORBAX_LORA}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_up(rows[i].model, rows[i].layout);
        write_merged(DTYPE_F32);
        same_weights(it.base, it.adapter, OPENPI_FILE_F32);
        same_weights(it.adapter, NULL, OPENPI_FILE_BF16);
        tear_down();
    }
}

/* LeRobot's adapter becomes LeRobot's checkpoint, with the adapter's processors and the base's tokenizer, and
 * without a trace of peft: it runs, to the same actions. */
static void converted_lerobot(void **state) {
    static const char *const files[] = {"config.json", "policy_preprocessor.json",
                                        "policy_postprocessor.json"};
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    float want[H * DIM], plain[H * DIM];
    char out[200], *path;
    json_t *config;
    (void)state;
    set_up("tiny:pi0:5", LEROBOT);
    for (int f = 0; f < 3; f++) copy_file(it.base, it.adapter, files[f]);
    path = file_join(it.adapter, "config.json");
    WORKS(json_read(path, &config, &error));
    json_object_set_new(config, "use_peft", json_true());
    json_object_set_new(config, "chunk_size", json_integer(7));
    char *text = json_text(config, 0);
    text_write(it.adapter, "config.json", text);
    json_decref(config), free(text), free(path);
    options.dtype = OPENPI_FILE_F32;
    snprintf(out, sizeof out, "%s/out", it.place.folder);
    WORKS(openpi_convert(it.adapter, out, &options, &error));
    path = file_join(out, "config.json");
    WORKS(json_read(path, &config, &error));
    assert_true(json_is_false(json_object_get(config, "use_peft")));
    assert_int_equal(json_integer_value(json_object_get(config, "chunk_size")), 7);
    json_decref(config), free(path);
    for (int there = 0; there < 2; there++) {
        path = file_join(out, there ? "tokenizer.model" : "adapter_config.json");
        assert_int_equal(file_exists(path), there);
        free(path);
    }
    run((case_options){.path = it.adapter, .dtype = OPENPI_F32, .weights = OPENPI_WEIGHTS_F32}, want);
    same((case_options){.path = out, .dtype = OPENPI_F32, .weights = OPENPI_WEIGHTS_F32}, want);
    scratch_remove(out);
    options.without_lora = 1;
    WORKS(openpi_convert(it.adapter, out, &options, &error));
    run((case_options){.path = it.base, .dtype = OPENPI_F32, .weights = OPENPI_WEIGHTS_F32}, plain);
    same((case_options){.path = out, .dtype = OPENPI_F32, .weights = OPENPI_WEIGHTS_F32}, plain);
    scratch_remove(out);
    snprintf(out, sizeof out, "%s/inside", it.adapter);
    REFUSES(openpi_convert(it.adapter, out, &options, &error), OPENPI_BAD_ARGUMENT, "is inside of the checkpoint");
    snprintf(out, sizeof out, "%s/inside", it.base);
    REFUSES(openpi_convert(it.adapter, out, &options, &error), OPENPI_BAD_ARGUMENT, "is inside of the checkpoint");
    options.without_lora = 2;
    REFUSES(openpi_convert(it.adapter, out, &options, &error), OPENPI_BAD_ARGUMENT, "convert: without_lora is 2");
    tear_down();
}

/* ---- what is told ---- */

static const json_t *find_module(const json_t *adapter, const char *name) {
    const json_t *list = json_object_get(adapter, "modules");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(list, i), "module")), name))
            return json_array_get(list, i);
    return NULL;
}

static json_t *inspect(const char *path, const char *adapter, int without_lora) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char *text;
    options.adapter = adapter;
    options.without_lora = without_lora;
    WORKS(openpi_inspect(path, &options, &text, &error));
    json_t *root = json_loads(text, 0, NULL);
    openpi_free(text);
    assert_non_null(root);
    return root;
}

static void tells(void **state) {
    (void)state;
    set_up("tiny:pi0:5", LEROBOT);
    for (int own = 0; own < 2; own++) {
        json_t *root = own ? inspect(it.adapter, NULL, 0) : inspect(it.base, it.adapter, 0);
        const json_t *told = json_object_get(root, "adapter");
        const json_t *q =
            find_module(told, "paligemma_with_expert.gemma_expert.model.layers.*.self_attn.q_proj");
        assert_string_equal(json_string_value(json_object_get(told, "folder")), it.adapter);
        assert_int_equal(json_array_size(json_object_get(told, "modules")), 13);
        assert_int_equal(json_integer_value(json_object_get(told, "unused")), 1);
        assert_string_equal(json_string_value(json_object_get(q, "layers")), "0-1");
        assert_int_equal(json_integer_value(json_object_get(q, "rank")), RANK);
        assert_true(json_real_value(json_object_get(q, "factor")) - 0.5 == 0);
        assert_true(json_is_null(json_object_get(find_module(told, "state_proj"), "layers")));
        for (int r = 0; r < 2; r++)
            assert_string_equal(
                json_string_value(json_array_get(json_object_get(told, "replaced"), (size_t)r)), replaced[r]);
        json_decref(root);
        root = inspect(own ? it.adapter : it.base, own ? NULL : it.adapter, 1);
        told = json_object_get(root, "adapter");
        assert_string_equal(json_string_value(json_object_get(told, "ignored")), it.adapter);
        assert_int_equal(json_object_size(told), 1);
        json_decref(root);
    }
    json_t *root = inspect(it.base, NULL, 0);
    assert_null(json_object_get(root, "adapter"));
    json_decref(root);
    tear_down();
}

/* LeRobot saves its processors beside the adapter: those count, and its config too. Without any the base's
 * do. */
static void processors(void **state) {
    static const char *const files[] = {"config.json", "policy_preprocessor.json",
                                        "policy_postprocessor.json"};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy *policy;
    (void)state;
    set_up("tiny:pi05:5", LEROBOT);
    for (int own = 0; own < 2; own++) {
        checkpoint *c;
        const checkpoint_source source = {.path = it.adapter};
        for (int f = 0; own && f < 3; f++) copy_file(it.base, it.adapter, files[f]);
        if (own) {               /* another chunk, and the base's config is not asked */
            char *path = file_join(it.adapter, "config.json");
            json_t *root;
            WORKS(json_read(path, &root, &error));
            json_object_set_new(root, "chunk_size", json_integer(7));
            char *text = json_text(root, 0);
            text_write(it.adapter, "config.json", text);
            text_write(it.base, "config.json", "{\"type\": \"act\"}");
            free(text), free(path);
            json_decref(root);
            DIR *list = opendir(it.base);
            const struct dirent *entry;
            while ((entry = readdir(list)))
                if (strstr(entry->d_name, "processor.safetensors")) {
                    char from[400], to[400];
                    snprintf(from, sizeof from, "%s/%.255s", it.base, entry->d_name);
                    snprintf(to, sizeof to, "%s/%.255s", it.adapter, entry->d_name);
                    assert_int_equal(rename(from, to), 0);
                }
            closedir(list);
        }
        WORKS(checkpoint_open_source(&source, &c, &error));
        assert_int_equal(c->lerobot, 1);
        assert_int_equal(c->horizon, own ? 7 : 50);
        checkpoint_close(c);
        WORKS(openpi_policy_open(it.adapter, &options, &policy, &error));
        WORKS(openpi_policy_get_info(policy, &info, &error));
        assert_int_equal(info.lerobot, 1);
        assert_int_equal(info.horizon, own ? 7 : 50);
        assert_non_null(strstr(info.tokenizer, "/base/tokenizer.model"));
        openpi_policy_close(policy);
    }
    tear_down();
}

/* ---- which folder is the base ---- */

static void set_base(const char *name) {
    char fields[400];
    snprintf(fields, sizeof fields, "\"r\": 4, \"lora_alpha\": 2%s%s%s, " SAVED,
             name ? ", \"base_model_name_or_path\": \"" : "", name ? name : "", name ? "\"" : "");
    adapter_write(&change, it.adapter, fields);
}

static openpi_status open_source(const char *path, const char *adapter) {
    checkpoint *c;
    const checkpoint_source source = {.path = path, .adapter = adapter};
    openpi_status status = checkpoint_open_source(&source, &c, &error);
    if (status == OPENPI_OK) checkpoint_close(c);
    return status;
}

static void places(void **state) {
    openpi_engine *engine = NULL;
    openpi_policy *policy = NULL;
    char here[1024];
    (void)state;
    set_up("tiny:pi0:5", SHARDS);
    set_base(it.base);
    WORKS(open_source(it.adapter, NULL));
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(it.place.folder), 0);
    set_base("base");            /* from where the process is, as peft takes it */
    WORKS(open_source(it.adapter, NULL));
    assert_int_equal(chdir(here), 0);
    REFUSES(
        open_source(it.adapter, NULL), OPENPI_NOT_FOUND,
        "adapter_config.json: \"base_model_name_or_path\" is \"base\", which is no folder here: download it, "
        "then give adapter");
    set_base("lerobot/pi0_base");
    REFUSES(openpi_engine_open(it.adapter, NULL, &engine, &error), OPENPI_NOT_FOUND, "\"lerobot/pi0_base\", which");
    REFUSES(openpi_policy_open(it.adapter, NULL, &policy, &error), OPENPI_NOT_FOUND, "\"lerobot/pi0_base\", which");
    set_base(NULL);
    REFUSES(open_source(it.adapter, NULL), OPENPI_NOT_FOUND, "\"base_model_name_or_path\" is null: give adapter");
    WORKS(open_source(it.base, it.adapter));
    set_base("");
    REFUSES(open_source(it.adapter, NULL), OPENPI_NOT_FOUND, "\"base_model_name_or_path\" is empty");
    set_base(".");
    REFUSES(open_source(it.adapter, NULL), OPENPI_UNSUPPORTED,
            "\"base_model_name_or_path\" is \".\", an adapter itself, expected a whole model");
    REFUSES(open_source(it.adapter, it.adapter), OPENPI_UNSUPPORTED, "an adapter itself, which adapter");
    REFUSES(open_source(it.base, it.merged), OPENPI_NOT_FOUND, "expected a folder with adapter_config.json");
    REFUSES(open_source(it.base, "/nowhere"), OPENPI_NOT_FOUND, "adapter is \"/nowhere\", expected a folder");
    REFUSES(open_source("/nowhere", it.adapter), OPENPI_NOT_FOUND, "/nowhere");
    /* both in one folder */
    adapter_write(&change, it.torch, "\"r\": 4, \"lora_alpha\": 2, " SAVED);
    REFUSES(open_source(it.torch, NULL), OPENPI_BAD_FILE, "both a whole model and adapter_config.json are there");
    WORKS(open_source(it.torch, it.torch));
    tear_down();
}

/* ---- what does not fit the base ---- */

static void bad_targets(void **state) {
    static const struct {
        const char *model, *module, *piece;
    } rows[] = {
        {"tiny:pi05:5", "state_proj", "is for a π0 model, which has \"state_proj.weight\", but"},
        {"tiny:pi0:5", "time_mlp_in", "is for a π0.5 model, which has \"time_mlp_in.weight\", but"},
        {"tiny:pi0:5", "model.lm.q_proj", "is of an unknown target: "},
        {"tiny:pi0:5", "model.paligemma_with_expert.gemma_expert.model.layers.9.self_attn.q_proj",
         "a π0 model, has no \"paligemma_with_expert.gemma_expert.model.layers.9.self_attn.q_proj.weight\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_up(rows[i].model, SHARDS);
        pair_add(&change, rows[i].module, DTYPE_F32, RANK, 5, 6, 1);
        set_base("../base");
        REFUSES(open_source(it.adapter, NULL), OPENPI_BAD_FILE, rows[i].piece);
        if (!strstr(error.message, "adapter_model.safetensors: tensor \"base_model.model."))
            fail_msg("\"%s\" does not name the tensor", error.message);
        tear_down();
    }
    set_up("tiny:pi0:5", SHARDS);
    text_write(it.adapter, "config.json", "{\"type\": \"pi05\"}");
    REFUSES(open_source(it.adapter, NULL), OPENPI_BAD_FILE, "\"type\" is \"pi05\", but the tensors are those of π0");
    tear_down();
}

static void not_finite(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const char *const pieces[] = {
            "q_proj.lora_A.weight\" has 1 element that is not finite, the first is element 3, which is nan",
            "q_proj.lora_B.weight\" has 2 elements that are not finite, the first is element 2, which is inf",
            "tensor \"action_out_proj.bias\" has 1 element that is no finite bf16, the first is element 3"};
        openpi_engine *engine = NULL;
        set_up("tiny:pi0:5", SHARDS);
        float *values = change.values[i == 2 ? change.count - 1 : i];
        values[3] = i == 1 ? -INFINITY : NAN;
        if (i == 1) values[2] = INFINITY;
        set_base("../base");
        REFUSES(openpi_engine_open(it.adapter, NULL, &engine, &error), OPENPI_BAD_FILE, pieces[i]);
        assert_non_null(strstr(error.message, "adapter_model.safetensors: "));
        tear_down();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards),    cmocka_unit_test(lerobot), cmocka_unit_test(jax),
        cmocka_unit_test(jax_lora),  cmocka_unit_test(jax_without_lora),
        cmocka_unit_test(converted), cmocka_unit_test(converted_lerobot),
        cmocka_unit_test(tells),     cmocka_unit_test(processors),
        cmocka_unit_test(places),    cmocka_unit_test(bad_targets),
        cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
