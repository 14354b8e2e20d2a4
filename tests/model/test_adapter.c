/* PEFT adapters on a checkpoint: weights of full-size layers against x·W + factor·(x·A)·B in double, any
 * range of elements and either type; every way to say rank and factor; whole tensors in place of the base's;
 * what a description tells; and adapters that are refused. Actions are in test_adapter_actions.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "adapter_write.h"
#include "base/notes.h"
#include "checkpoint/adapter/adapter.h"
#include "orbax_write.h"
#include "policy_golden.h"

#define EXPERT "paligemma_with_expert.gemma_expert.model.layers.1."
#define LANGUAGE "paligemma_with_expert.paligemma.model.language_model.layers.0."

static openpi_error error = OPENPI_ERROR_INIT;
static tensor_list base, change;

/* The base's tensors with the adapter on them: each of its targets must be there. */
static tensors *apply(const char *path, const char *folder) {
    tensors *list;
    adapter *adapter;
    WORKS(tensors_open(path, &list, &error));
    WORKS(adapter_open(folder, &adapter, &error));
    WORKS(adapter_give(adapter, list, &error));
    for (int i = 0; i < adapter_count(adapter); i++) {
        int place = tensors_index(list, adapter_target(adapter, i));
        assert_true(place >= 0);
        WORKS(adapter_apply(adapter, i, tensors_edit(list, place), &error));
    }
    WORKS(tensors_stage(list, 0, NULL, &error));
    return list;
}

/* ---- against double ---- */

/* Layers of the released sizes and a small one; `fields` of the config and the factor that they mean. */
static const struct layer {
    const char *module;
    int64_t out, in, rank;
    dtype base, type;
    const char *fields;
    double factor;
} layers[] = {
    {EXPERT "self_attn.q_proj", 2048, 1024, 16, DTYPE_BF16, DTYPE_F32, "\"r\": 16, \"lora_alpha\": 16", 1},
    {LANGUAGE "self_attn.v_proj", 256, 2048, 32, DTYPE_F32, DTYPE_F32, "\"r\": 32, \"lora_alpha\": 8", 0.25},
    {LANGUAGE "mlp.down_proj", 2048, 16384, 8, DTYPE_BF16, DTYPE_BF16, "\"r\": 8, \"lora_alpha\": 12.0", 1.5},
    {LANGUAGE "mlp.gate_proj", 16384, 2048, 4, DTYPE_BF16, DTYPE_F32,
     "\"r\": 4, \"lora_alpha\": 6, \"use_rslora\": true", 3},
    {"action_in_proj", 1024, 32, 64, DTYPE_F32, DTYPE_F32,
     "\"r\": 8, \"lora_alpha\": 16, \"rank_pattern\": {\"action_(in|out)_proj\": 64}", 0.25},
    {"state_proj", 1000, 77, 3, DTYPE_F32, DTYPE_BF16,
     "\"r\": 8, \"lora_alpha\": 16, \"rank_pattern\": {\"other\": 5, \"state_proj\": 3}, "
     "\"alpha_pattern\": {\"^model.state_proj\": 6}",
     2},
    {"state_proj", 5, 300, 9, DTYPE_BF16, DTYPE_F32,
     "\"r\": 9, \"lora_alpha\": 2, \"use_rslora\": true, \"alpha_pattern\": {\".*_proj\": 9}, \"use_dora\": "
     "false, "
     "\"modules_to_save\": null, \"target_parameters\": [], \"layer_replication\": null",
     3},
};

/* Sums over a row of the merged weight against both products apart, for an x of ones and fractions. */
static void check_rows(const struct layer *l, const float *merged, const float *w, pair_values pair) {
    for (int64_t o = 0; o < l->out; o += l->out / 5) {
        double got = 0, want = 0, size = 0;
        for (int64_t i = 0; i < l->in; i++) {
            double x = (double)((i * 37 + o) % 101) * 0.02 - 1;
            got += x * (double)merged[o * l->in + i];
            want += x * (double)w[o * l->in + i];
            size += fabs(x) * (1 + 0.0625 * (double)l->rank * l->factor);
        }
        for (int64_t k = 0; k < l->rank; k++) {
            double low = 0;
            for (int64_t i = 0; i < l->in; i++)
                low += ((double)((i * 37 + o) % 101) * 0.02 - 1) * (double)pair.a[k * l->in + i];
            want += l->factor * low * (double)pair.b[o * l->rank + k];
        }
        if (!(fabs(got - want) <= 2e-7 * size))
            fail_msg("%s, row %d: %.9g, expected %.9g", l->module, (int)o, got, want);
    }
}

/* Any range gives the elements of the whole, and bf16 is the whole rounded once. */
static void check_ranges(const tensor *t, const float *merged) {
    const int64_t in = t->shape[1], firsts[] = {0, 1, in - 1, in / 2, t->count - 3 * in / 2, t->count - 1};
    const int64_t counts[] = {1, in, in + 1, 3 * in - 5, 5000};
    float *some = malloc((size_t)(5000 + 3 * in) * sizeof *some);
    bf16 *narrow = malloc((size_t)(5000 + 3 * in) * sizeof *narrow);
    assert_true(some && narrow);
    for (int f = 0; f < 6; f++)
        for (int c = 0; c < 5; c++) {
            int64_t first = firsts[f], n = counts[c];
            if (first + n > t->count) n = t->count - first;
            tensor_read_f32(t, first, n, some);
            tensor_read_bf16(t, first, n, narrow);
            assert_memory_equal(some, merged + first, (size_t)n * sizeof *some);
            for (int64_t i = 0; i < n; i++) assert_int_equal(narrow[i], float_to_bf16(merged[first + i]));
        }
    free(some);
    free(narrow);
}

static void merged_wide(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const struct layer *l = &layers[i];
        scratch place;
        char name[300], module[300];
        assert_int_equal(scratch_open(&place), 0);
        snprintf(name, sizeof name, "%s.weight", l->module);
        snprintf(module, sizeof module, "%s%s", i % 2 ? "model." : "", l->module);      /* LeRobot's names */
        const float *w = list_random(&base, name, l->base, l->out, l->in, 1);
        pair_values pair = pair_add(&change, module, l->type, l->rank, l->in, l->out, 0.25f);
        list_write(&base, place.folder, "model.safetensors");
        adapter_write(&change, place.folder, l->fields);
        tensors *list = apply(scratch_path(&place, "model.safetensors"), place.folder);
        const tensor *t = tensors_find(list, name);
        float *merged = malloc((size_t)t->count * sizeof *merged);
        assert_non_null(merged);
        assert_int_equal(t->type, DTYPE_F32);
        tensor_read_f32(t, 0, t->count, merged);
        check_rows(l, merged, w, pair);
        check_ranges(t, merged);
        WORKS(tensors_check(list, &error));
        free(merged);
        tensors_close(list);
        list_free(&base);
        list_free(&change);
        scratch_close(&place);
    }
}

/* A weight and a bias of modules_to_save, as peft names them now and as it did. */
static void replaced(void **state) {
    static const char *const names[][2] = {{"state_proj.weight", "state_proj.bias"},
                                           {"state_proj.modules_to_save.weight",
                                            "state_proj.modules_to_save.bias"},
                                           {"state_proj.modules_to_save.default.weight",
                                            "state_proj.modules_to_save.default.bias"}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        scratch place;
        char name[300];
        float read[77 * 12];
        assert_int_equal(scratch_open(&place), 0);
        list_random(&base, "model.state_proj.weight", DTYPE_BF16, 12, 77, 1);
        const float *kept = list_random(&base, "model.other.weight", DTYPE_BF16, 4, 5, 1);
        list_random(&base, "model.state_proj.bias", DTYPE_BF16, 12, 0, 1);
        snprintf(name, sizeof name, "base_model.model.model.%s", names[i][0]);
        const float *weight = list_random(&change, name, DTYPE_F32, 12, 77, 1);
        snprintf(name, sizeof name, "base_model.model.model.%s", names[i][1]);
        const float *bias = list_random(&change, name, DTYPE_F32, 12, 0, 1);
        list_write(&base, place.folder, "model.safetensors");
        adapter_write(&change, place.folder,
                      "\"r\": 1, \"lora_alpha\": 1, \"modules_to_save\": [\"state_proj\"]");
        tensors *list;
        adapter *adapter;
        WORKS(tensors_open(place.folder, &list, &error));
        tensors_strip_prefix(list);
        WORKS(tensors_finish(list, &error));
        WORKS(adapter_open(place.folder, &adapter, &error));
        WORKS(adapter_give(adapter, list, &error));
        assert_int_equal(adapter_count(adapter), 2);
        for (int c = 0; c < 2; c++)
            WORKS(adapter_apply(adapter, c, tensors_edit(list, tensors_index(list, adapter_target(adapter, c))),
                                &error));
        WORKS(tensors_stage(list, 0, NULL, &error));
        tensor_read_f32(tensors_find(list, "state_proj.weight"), 0, 77 * 12, read);
        assert_memory_equal(read, weight, sizeof read);
        tensor_read_f32(tensors_find(list, "state_proj.bias"), 0, 12, read);
        assert_memory_equal(read, bias, 12 * sizeof *read);
        tensor_read_f32(tensors_find(list, "other.weight"), 0, 20, read);
        assert_memory_equal(read, kept, 20 * sizeof *read);
        assert_non_null(strstr(tensors_find(list, "state_proj.bias")->file, "adapter_model.safetensors"));
        WORKS(tensors_check(list, &error));
        tensors_close(list);
        list_free(&base);
        list_free(&change);
        scratch_close(&place);
    }
}

/* In a JAX checkpoint that is rounded on load, down_proj of layer 1 is W + factor·B·A rounded once; its other
 * layer, and what the adapter does not change, are W rounded. */
static void rounded_once(void **state) {
    static const int64_t shape[] = {2, 300, 40}, head[] = {2, 2};
    enum { IN = 300, OUT = 40 };
    scratch place;
    bf16 got[2][IN * OUT];
    float rounded[IN * OUT];
    int twice = 0;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    const float *w = list_random(&base, "w", DTYPE_F32, 2, IN * OUT, 1);
    orbax_write_whole(place.folder, "PaliGemma.img.head.kernel", "<f4", 2, head, w, 4 * sizeof *w);
    orbax_write_whole(place.folder, "PaliGemma.llm.layers.mlp.linear", "<f4", 3, shape, w,
                      2 * IN * OUT * sizeof *w);
    pair_values pair =
        pair_add(&change, "paligemma_with_expert.paligemma.model.language_model.layers.1.mlp.down_proj",
                 DTYPE_F32, 2, IN, OUT, 0.25f);
    adapter_write(&change, place.folder, "\"r\": 2, \"lora_alpha\": 1");
    tensors *list = apply(place.folder, place.folder);
    tensors_round(list, 1);
    for (int layer = 0; layer < 2; layer++) {
        char name[200];
        snprintf(name, sizeof name,
                 "paligemma_with_expert.paligemma.model.language_model.layers.%d.mlp.down_proj.weight",
                 layer);
        const tensor *t = tensors_find(list, name);
        assert_true(tensor_is_bf16(t) && t->rounded);
        WORKS(tensors_stage(list, tensor_stage(t), NULL, &error));
        tensor_read_bf16(t, 0, t->count, got[layer]);
        tensor_read_f32(t, 0, t->count, rounded);
        for (int i = 0; i < IN * OUT; i++) assert_true(bf16_to_float(got[layer][i]) - rounded[i] == 0);
    }
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++) {
            const float *both = w + i * OUT + o;
            float delta = 0.5f * (pair.b[2 * o] * pair.a[i] + pair.b[2 * o + 1] * pair.a[IN + i]);
            float first = bf16_to_float(float_to_bf16(both[IN * OUT]));
            assert_int_equal(got[0][o * IN + i], float_to_bf16(both[0]));
            assert_int_equal(got[1][o * IN + i], float_to_bf16(both[IN * OUT] + delta));
            twice += float_to_bf16(first + delta) != got[1][o * IN + i];
        }
    assert_true(twice > 100);
    WORKS(tensors_check(list, &error));
    tensors_close(list);
    list_free(&base);
    list_free(&change);
    scratch_close(&place);
}

/* ---- what is refused ---- */

/* Beside a pair of rank 2 on "state_proj" [6, 5]: fields of the config, and the sentence. */
static void bad_configs(void **state) {
    static const struct {
        const char *fields;
        openpi_status status;
        const char *piece;
    } rows[] = {
        {"\"lora_alpha\": 2", OPENPI_BAD_FILE, "adapter_config.json: \"r\" is absent"},
        {"\"r\": 0, \"lora_alpha\": 2", OPENPI_BAD_FILE, "\"r\" is 0, expected an integer from 1"},
        {"\"r\": \"2\", \"lora_alpha\": 2", OPENPI_BAD_FILE, "\"r\" is a string"},
        {"\"r\": 2", OPENPI_BAD_FILE, "\"lora_alpha\" is absent, expected a number"},
        {"\"r\": 2, \"lora_alpha\": null", OPENPI_BAD_FILE, "\"lora_alpha\" is null"},
        {"\"r\": 3, \"lora_alpha\": 2", OPENPI_BAD_FILE,
         "lora_A.weight\" is of rank 2, expected 3, \"r\" of"},
        {"\"r\": 2, \"lora_alpha\": 2, \"rank_pattern\": {\"state.*\": 7}", OPENPI_BAD_FILE,
         "is of rank 2, expected 7, \"state.*\" of"},
        {"\"r\": 2, \"lora_alpha\": 2, \"rank_pattern\": 7", OPENPI_BAD_FILE, "\"rank_pattern\" is an integer"},
        {"\"r\": 2, \"lora_alpha\": 2, \"rank_pattern\": {\"x\": 0}", OPENPI_BAD_FILE,
         "\"rank_pattern\" of \"x\" is an integer, expected an integer from 1 to 65536"},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"x\": \"y\"}", OPENPI_BAD_FILE,
         "\"alpha_pattern\" of \"x\" is a string, expected a number"},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"(x\": 1}", OPENPI_UNSUPPORTED,
         "\"alpha_pattern\" has the pattern \"(x\""},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"x(?!y)\": 1}", OPENPI_UNSUPPORTED, "\"x(?!y)\""},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"x\\\\b\": 1}", OPENPI_UNSUPPORTED, "has the pattern"},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"x{3}\": 1}", OPENPI_UNSUPPORTED, "\"x{3}\""},
        {"\"r\": 2, \"lora_alpha\": 2, \"alpha_pattern\": {\"x[y\": 1}", OPENPI_UNSUPPORTED, "\"x[y\""},
        {"\"r\": 2, \"lora_alpha\": 2, \"use_rslora\": 1", OPENPI_BAD_FILE, "\"use_rslora\" is an integer"},
        {"\"r\": 2, \"lora_alpha\": 2, \"use_dora\": true", OPENPI_UNSUPPORTED, "\"use_dora\" is true, expected one of false, null, [], {}: DoRA"},
        {"\"r\": 2, \"lora_alpha\": 2, \"fan_in_fan_out\": true", OPENPI_UNSUPPORTED, "\"fan_in_fan_out\" is true"},
        {"\"r\": 2, \"lora_alpha\": 2, \"lora_bias\": true", OPENPI_UNSUPPORTED, "\"lora_bias\" is true"},
        {"\"r\": 2, \"lora_alpha\": 2, \"use_qalora\": true", OPENPI_UNSUPPORTED, "\"use_qalora\" is true"},
        {"\"r\": 2, \"lora_alpha\": 2, \"target_parameters\": [\"w\"]", OPENPI_UNSUPPORTED,
         "\"target_parameters\" is [\"w\"], expected"},
        {"\"r\": 2, \"lora_alpha\": 2, \"layer_replication\": [[0, 1]]", OPENPI_UNSUPPORTED, "\"layer_replication\""},
        {"\"r\": 2, \"lora_alpha\": 2, \"trainable_token_indices\": {\"a\": [1]}", OPENPI_UNSUPPORTED,
         "\"trainable_token_indices\" is {\"a\": [1]}, expected"},
        {"\"r\": 2, \"lora_alpha\": 2, \"init_lora_weights\": \"pissa_niter_4\"", OPENPI_UNSUPPORTED,
         "\"init_lora_weights\" is \"pissa_niter_4\", which changed the base"},
        {"\"r\": 2, \"lora_alpha\": 2, \"init_lora_weights\": 3", OPENPI_BAD_FILE,
         "\"init_lora_weights\" is an integer, expected true, false or a string"},
        {"\"r\": 2, \"lora_alpha\": 2, \"init_lora_weights\": \"magic\"", OPENPI_UNSUPPORTED,
         "\"init_lora_weights\" is \"magic\", which is not known"},
        {"\"r\": 2, \"lora_alpha\": 2, \"lora_bias\": 0", OPENPI_UNSUPPORTED, "\"lora_bias\" is 0, expected"},
        {"\"r\": 2, \"lora_alpha\": 2, \"use_turbo\": false", OPENPI_UNSUPPORTED,
         "has a setting \"use_turbo\" that is not known"},
        {"\"r\": 2, \"lora_alpha\": 2, \"modules_to_save\": \"x\"", OPENPI_BAD_FILE,
         "\"modules_to_save\" is a string, expected an array"},
        {"\"r\": 2, \"lora_alpha\": 2, \"modules_to_save\": [1]", OPENPI_BAD_FILE, "\"modules_to_save\"[0] is an integer"},
    };
    scratch place;
    adapter *adapter;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    pair_add(&change, "state_proj", DTYPE_F32, 2, 5, 6, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        adapter_write(&change, place.folder, rows[i].fields);
        REFUSES(adapter_open(place.folder, &adapter, &error), rows[i].status, rows[i].piece);
    }
    text_write(place.folder, "adapter_config.json", "{\"peft_type\": \"LOHA\", \"r\": 2, \"lora_alpha\": 1}");
    REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_UNSUPPORTED, "\"peft_type\" is \"LOHA\", expected");
    text_write(place.folder, "adapter_config.json", "[1]");
    REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_BAD_FILE, "is an array, expected an object");
    text_write(place.folder, "adapter_config.json", "{\"peft_type\": \"LO");
    REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_BAD_FILE, "adapter_config.json");
    list_free(&change);
    scratch_close(&place);
}

/* Tensors of an adapter of rank 2 for "state_proj" [6, 5] and its bias [6]. */
static void bad_tensors(void **state) {
    static const struct {
        struct {
            const char *name;
            dtype type;
            int64_t rows, columns;
        } tensors[3];
        const char *fields;
        openpi_status status;
        const char *piece;
    } rows[] = {
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 5}},
         "",
         OPENPI_BAD_FILE,
         "\"base_model.model.state_proj.lora_A.weight\" is half of a LoRA pair, its lora_B is missing"},
        {{{"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 2}},
         "",
         OPENPI_BAD_FILE,
         "state_proj.lora_B.weight\" is half of a LoRA pair, its lora_A is missing"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 5},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 3}},
         "",
         OPENPI_BAD_FILE,
         "lora_B.weight\" is of rank 3, expected 2 as"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 6},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 2}},
         "",
         OPENPI_BAD_FILE,
         "lora_A.weight\" has shape [2, 6], expected [2, 5] for \"state_proj.weight\" [6, 5]"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 5},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 5, 2}},
         "",
         OPENPI_BAD_FILE,
         "lora_B.weight\" has shape [5, 2], expected [6, 2] for \"state_proj.weight\" [6, 5]"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 10, 0},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 2}},
         "",
         OPENPI_BAD_FILE,
         "lora_A.weight\" has shape [10], expected two positive dimensions"},
        {{{"base_model.model.bias_of.lora_A.weight", DTYPE_F32, 2, 5},
          {"base_model.model.bias_of.lora_B.weight", DTYPE_F32, 6, 2}},
         "",
         OPENPI_BAD_FILE,
         "lora_A.weight\" has shape [2, 5], expected a matrix for \"bias_of.weight\" [6]"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 5},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 2},
          {"base_model.model.state_proj.lora_magnitude_vector", DTYPE_F32, 6, 0}},
         "",
         OPENPI_UNSUPPORTED,
         "lora_magnitude_vector\" is neither lora_A.weight nor lora_B.weight"},
        {{{"base_model.model.embed.lora_embedding_A", DTYPE_F32, 2, 5}},
         "",
         OPENPI_UNSUPPORTED,
         "lora_embedding_A\" is neither lora_A.weight nor"},
        {{{"base_model.model.state_proj.bias", DTYPE_F32, 6, 0}},
         ", \"bias\": \"none\"",
         OPENPI_UNSUPPORTED,
         "state_proj.bias\" is neither lora_A.weight nor lora_B.weight of a module, nor of one in "
         "\"modules_to_save\""},
        {{{"base_model.model.state_proj.bias", DTYPE_F32, 6, 0}},
         ", \"bias\": \"lora_only\"",
         OPENPI_UNSUPPORTED,
         "\"bias\" is not \"none\" and tensor \"base_model.model.state_proj.bias\" is there"},
        {{{"base_model.model.state_proj.bias", DTYPE_F32, 5, 0}},
         ", \"modules_to_save\": [\"state_proj\"]",
         OPENPI_BAD_FILE,
         "state_proj.bias\" has shape [5], expected [6] for \"state_proj.bias\" [6]"},
        {{{"state_proj.lora_A.weight", DTYPE_F32, 2, 5}}, "", OPENPI_BAD_FILE, "is no name of peft's"},
        {{{"base_model.model..lora_A.weight", DTYPE_F32, 2, 5}}, "", OPENPI_BAD_FILE, "half of a LoRA pair"},
        {{{"base_model.model.state_proj.lora_A.weight", DTYPE_F32, 2, 5},
          {"base_model.model.state_proj.lora_B.weight", DTYPE_F32, 6, 2},
          {"base_model.model.state_proj.weight", DTYPE_F32, 6, 5}},
         ", \"modules_to_save\": [\"state_proj\"]",
         OPENPI_BAD_FILE,
         "both change \"state_proj.weight\""},
    };
    scratch place;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    list_random(&base, "state_proj.weight", DTYPE_BF16, 6, 5, 1);
    list_random(&base, "state_proj.bias", DTYPE_BF16, 6, 0, 1);
    list_random(&base, "bias_of.weight", DTYPE_BF16, 6, 0, 1);
    list_write(&base, place.folder, "model.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char config[400];
        adapter *adapter;
        tensors *list;
        for (int t = 0; t < 3 && rows[i].tensors[t].name; t++)
            list_random(&change, rows[i].tensors[t].name, rows[i].tensors[t].type, rows[i].tensors[t].rows,
                        rows[i].tensors[t].columns, 1);
        list_write(&change, place.folder, "adapter_model.safetensors");
        snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 2%s}",
                 rows[i].fields);
        text_write(place.folder, "adapter_config.json", config);
        WORKS(tensors_open(place.folder, &list, &error));
        openpi_status status = adapter_open(place.folder, &adapter, &error);
        if (status == OPENPI_OK) status = adapter_give(adapter, list, &error);
        for (int c = 0; status == OPENPI_OK && c < adapter_count(adapter); c++)
            status = adapter_apply(
                adapter, c, tensors_edit(list, tensors_index(list, adapter_target(adapter, c))), &error);
        if (status != rows[i].status || !strstr(error.message, rows[i].piece))
            fail_msg("row %d: %s, \"%s\", expected \"%s\"", (int)i, openpi_status_text(status), error.message,
                     rows[i].piece);
        tensors_close(list);
        list_free(&change);
    }
    list_free(&base);
    scratch_close(&place);
}

/* Where adapter_model.safetensors ends early, at every length, and where it is not there. */
static void cut_files(void **state) {
    scratch place;
    adapter *adapter;
    char *bytes;
    size_t count;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    pair_add(&change, "state_proj", DTYPE_F32, 2, 5, 6, 1);
    adapter_write(&change, place.folder, "\"r\": 2, \"lora_alpha\": 2");
    WORKS(file_read(scratch_path(&place, "adapter_model.safetensors"), 1 << 20, &bytes, &count, &error));
    for (size_t n = 0; n < count; n++) {
        assert_int_equal(scratch_write(&place, "adapter_model.safetensors", bytes, n), 0);
        REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_BAD_FILE, "adapter_model.safetensors");
    }
    free(bytes);
    unlink(scratch_path(&place, "adapter_model.safetensors"));
    REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_NOT_FOUND,
            "adapter_config.json without adapter_model.safetensors");
    text_write(place.folder, "adapter_model.bin", "x");
    REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_NOT_FOUND, "adapter_model.bin, a Python pickle");
    WORKS(file_read(scratch_path(&place, "adapter_config.json"), 1 << 20, &bytes, &count, &error));
    for (size_t n = 0; n < count; n++) {
        assert_int_equal(scratch_write(&place, "adapter_config.json", bytes, n), 0);
        REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_BAD_FILE, "adapter_config.json");
    }
    free(bytes);
    list_free(&change);
    scratch_close(&place);
}

/* Patterns against modules' names, as Python's re.match(r"(.*\.)?(KEY)$") takes them: the rank is 2 where the
 * pattern matches, else 9. */
static void patterns(void **state) {
    static const struct {
        const char *key, *module;
        int matches;
    } rows[] = {
        {"q_proj", "layers.0.self_attn.q_proj", 1},
        {"q_proj", "layers.0.self_attn.xq_proj", 0},
        {"self_attn.q_proj", "layers.0.self_attn.q_proj", 1},
        {"attn.q_proj", "layers.0.self_attn.q_proj", 0},
        {"q_pro", "layers.0.self_attn.q_proj", 0},
        {"^q_proj", "layers.0.self_attn.q_proj", 0},
        {"^layers.0.self_attn.q_proj$", "layers.0.self_attn.q_proj", 1},
        {"layers\\\\.\\\\d+\\\\..*q_proj", "model.layers.12.self_attn.q_proj", 1},
        {"layers\\\\.\\\\d\\\\..*q_proj", "model.layers.12.self_attn.q_proj", 0},
        {"layers.[0-3].self_attn.(q|v)_proj", "layers.2.self_attn.v_proj", 1},
        {"layers.[^0-3].self_attn.(?:q|v)_proj", "layers.2.self_attn.v_proj", 0},
        {"layers.[\\\\d].*?v_proj", "layers.2.self_attn.v_proj", 1},
        {"\\\\w+_proj", "layers.2.self_attn.v_proj", 1},
        {"a\\\\+?b", "x.ab", 1},
        {"a\\\\+?b", "x.a+b", 1},
        {"q_proj|v_proj", "layers.2.self_attn.v_proj", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scratch place;
        char fields[300];
        adapter *adapter;
        assert_int_equal(scratch_open(&place), 0);
        pair_add(&change, rows[i].module, DTYPE_F32, rows[i].matches ? 2 : 9, 5, 6, 1);
        snprintf(fields, sizeof fields, "\"r\": 9, \"lora_alpha\": 2, \"rank_pattern\": {\"%s\": 2}",
                 rows[i].key);
        adapter_write(&change, place.folder, fields);
        if (adapter_open(place.folder, &adapter, &error) != OPENPI_OK)
            fail_msg("\"%s\" on \"%s\": %s", rows[i].key, rows[i].module, error.message);
        adapter_close(adapter);
        list_free(&change);
        scratch_close(&place);
    }
}

/* A pair on a module that the config's other keys leave out, as peft takes them: no pair is skipped. */
static void modules_left_out(void **state) {
    static const struct {
        const char *fields, *left_out_by;
    } rows[] = {
        {"\"target_modules\": [\"v_proj\", \"q_proj\"]", NULL},
        {"\"target_modules\": [\"self_attn.q_proj\"]", NULL},
        {"\"target_modules\": [\"model.layers.2.self_attn.q_proj\"]", NULL},
        {"\"target_modules\": [\"v_proj\"]", "target_modules"},
        {"\"target_modules\": [\"proj\"]", "target_modules"},
        {"\"target_modules\": []", "target_modules"},
        {"\"target_modules\": \"all-linear\"", NULL},
        {"\"target_modules\": null", NULL},
        {"\"target_modules\": \".*\\\\.(q|v)_proj\"", NULL},
        {"\"target_modules\": \"q_proj\"", "target_modules"},
        {"\"target_modules\": \".*(?!v)_proj\"", NULL},
        {"\"exclude_modules\": [\"v_proj\"]", NULL},
        {"\"exclude_modules\": [\"q_proj\"]", "exclude_modules"},
        {"\"exclude_modules\": \".*q_proj\"", "exclude_modules"},
        {"\"layers_to_transform\": [0, 2]", NULL},
        {"\"layers_to_transform\": 2", NULL},
        {"\"layers_to_transform\": []", NULL},
        {"\"layers_to_transform\": [0, 1]", "layers_to_transform"},
        {"\"layers_to_transform\": 1", "layers_to_transform"},
        {"\"layers_to_transform\": [1], \"layers_pattern\": \"blocks\"", NULL},
    };
    scratch place;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    pair_add(&change, "model.layers.2.self_attn.q_proj", DTYPE_F32, 2, 5, 6, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char fields[300], piece[300];
        adapter *adapter = NULL;
        snprintf(fields, sizeof fields, "\"r\": 2, \"lora_alpha\": 2, %s", rows[i].fields);
        adapter_write(&change, place.folder, fields);
        snprintf(piece, sizeof piece, "q_proj.lora_A.weight\" is there, but \"%s\" of ",
                 rows[i].left_out_by ? rows[i].left_out_by : "");
        if (rows[i].left_out_by)
            REFUSES(adapter_open(place.folder, &adapter, &error), OPENPI_BAD_FILE, piece);
        else WORKS(adapter_open(place.folder, &adapter, &error));
        adapter_close(adapter);
    }
    list_free(&change);
    scratch_close(&place);
}

/* A base of three layers, an adapter with q_proj in the layers of `layers`: what is told, once. */
static void what_lacks_is_told(void **state) {
    static const struct {
        const char *layers, *fields, *piece;
    } rows[] = {
        {"012", "\"lora_alpha\": 2", NULL},
        {"012", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\"]", NULL},
        {"012", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\", \"k_proj\"]",
         "\"target_modules\" has \"k_proj\", but adapter_model.safetensors has no tensor of it: the base's"},
        {"012", "\"lora_alpha\": 2, \"modules_to_save\": [\"state_proj\"]",
         "\"modules_to_save\" has \"state_proj\", but adapter_model.safetensors has no tensor of it"},
        {"012", "\"lora_alpha\": 2, \"modules_to_save\": [\"self_attn\"]", NULL},
        {"02", "\"lora_alpha\": 2", NULL},
        {"02", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\"]",
         "\"target_modules\" has \"model.gemma.layers.1.self_attn.q_proj\", but"},
        {"01", "\"lora_alpha\": 2, \"target_modules\": \".*q_proj\"",
         "\"target_modules\" has \"model.gemma.layers.2.self_attn.q_proj\", but"},
        {"12", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\"]",
         "\"model.gemma.layers.0.self_attn.q_proj\", but"},
        {"1", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\"]",
         "\"model.gemma.layers.0.self_attn.q_proj\" and others, but"},
        {"12", "\"lora_alpha\": 2, \"target_modules\": \".*[12].*q_proj\"", NULL},
        {"0", "\"lora_alpha\": 2, \"target_modules\": [\"q_proj\"], \"layers_to_transform\": [0]", NULL},
        {"012", "\"lora_alpha\": 0", "\"lora_alpha\" is 0: its pairs change nothing"},
        {"012", "\"lora_alpha\": -1",
         "\"lora_alpha\" is -1: its pairs change the weights the other way round"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scratch place;
        char name[128], fields[300];
        notes told = {0};
        int warning = 0;
        assert_int_equal(scratch_open(&place), 0);
        for (int layer = 0; layer < 3; layer++) {
            snprintf(name, sizeof name, "gemma.layers.%d.self_attn.q_proj.weight", layer);
            list_random(&base, name, DTYPE_F32, 6, 5, 1);
            snprintf(name, sizeof name, "model.gemma.layers.%d.self_attn.q_proj", layer);
            if (strchr(rows[i].layers, '0' + layer)) pair_add(&change, name, DTYPE_F32, 2, 5, 6, 1);
        }
        snprintf(fields, sizeof fields, "\"r\": 2, %s", rows[i].fields);
        list_write(&base, place.folder, "model.safetensors");
        adapter_write(&change, place.folder, fields);
        tensors *list = apply(scratch_path(&place, "model.safetensors"), place.folder);
        adapter_tell(adapter_of(list), list, &told);
        const char *text = notes_get(&told, 0, &warning);
        if (!text != !rows[i].piece || (text && (!strstr(text, rows[i].piece) || !warning)))
            fail_msg("row %zu: \"%s\"", i, text ? text : "nothing is told");
        assert_null(notes_get(&told, 1, NULL));
        tensors_close(list);
        list_free(&base);
        list_free(&change);
        scratch_close(&place);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_wide), cmocka_unit_test(replaced),    cmocka_unit_test(rounded_once),
        cmocka_unit_test(bad_configs), cmocka_unit_test(bad_tensors), cmocka_unit_test(cut_files),
        cmocka_unit_test(patterns),    cmocka_unit_test(modules_left_out),
        cmocka_unit_test(what_lacks_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
