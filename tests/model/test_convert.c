/* openpi_convert: the tensors that generate.py expects of orbax-checkpoint's own files; actions of the result
 * bit for bit those of the source; every type, shards, LeRobot's layout, adapters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "actions.h"
#include "adapter_write.h"
#include "base/json.h"
#include "conversion.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors_build.h"

#define ORBAX TESTS_DIR "/orbax/"
#define EMBED_TOKENS "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
#define EXPERT_HEAD "paligemma_with_expert.gemma_expert.lm_head.weight"

/* ---- tensors ---- */

/* orbax-checkpoint's own files. In pi0_lora the attention's outputs are left out (tests/orbax/README.md). */
static void expected_tensors(void **state) {
    static const struct {
        const char *from, *expected;
        int left_out;
    } cases[] = {{"pi05_train", "pi05_train", 0},
                 {"pi05_train/100/params", "pi05_train", 0},
                 {"pi0_released", "pi0_released", 0},
                 {"pi0_lora", "pi0_lora", 4}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char from[300], path[300];
        tensors *expected;
        int left_out = 0;
        snprintf(from, sizeof from, ORBAX "%s", cases[c].from);
        snprintf(path, sizeof path, ORBAX "%s/expected.safetensors", cases[c].expected);
        WORKS(convert_to(from, "out", OPENPI_FILE_BF16, 0, 2));
        WORKS(tensors_open(path, &expected, &error));
        WORKS(tensors_load(expected, &error));
        tensors *got = open_in("out");
        assert_int_equal(tensors_count(got), tensors_count(expected) + 1);
        for (int i = 0; i < tensors_count(expected); i++) {
            const tensor *want = tensors_at(expected, i), *t = tensors_find(got, want->name);
            if (!t) fail_msg("%s: %s is not there", from, want->name);
            assert_int_equal(t->type, DTYPE_BF16);
            assert_int_equal(t->rank, want->rank);
            assert_memory_equal(t->shape, want->shape, sizeof t->shape);
            if (cases[c].left_out && strstr(t->name, "o_proj")) left_out++;
            else if (memcmp(t->data, want->data, (size_t)t->count * sizeof(bf16)))
                fail_msg("%s: %s has other values", from, want->name);
        }
        assert_int_equal(left_out, cases[c].left_out);
        const tensor *head = tensors_find(got, EXPERT_HEAD);
        assert_non_null(head);
        for (int64_t i = 0; i < head->count; i++) assert_int_equal(((const bf16 *)head->data)[i], 0);
        assert_string_equal(tensors_metadata(got, EMBED_TOKENS), LM_HEAD);
        assert_null(tensors_find(got, EMBED_TOKENS));
        assert_true(file_exists(scratch_path(&box, "out/assets/trossen/norm_stats.json")));
        tensors_close(got);
        tensors_close(expected);
        checkpoint *read;        /* two vision heads, which no shape tells */
        WORKS(checkpoint_open(scratch_path(&box, "out"), NULL, &read, &error));
        assert_int_equal(read->dims.vision_heads, 2);
        checkpoint_close(read);
        drop("out");
    }
}

/* The nearest number of a type, the even one of two: by its two neighbours. */
static void check_nearest(openpi_file_dtype dtype, float value, uint16_t got) {
    double mine = dtype == OPENPI_FILE_F16 ? f16_to_float(got) : bf16_to_float(got),
           away = fabs(mine - value);
    for (int step = -1; step < 2; step += 2) {
        uint16_t next = (uint16_t)(got + step);
        if (!(got & 0x7fff) && step < 0) next = got ^ 0x8001; /* beside zero: the other sign */
        double other = dtype == OPENPI_FILE_F16 ? f16_to_float(next) : bf16_to_float(next);
        if (!isfinite(other)) continue;
        double further = fabs(other - value);
        if (further < away || (further == away && other != mine && got & 1))
            fail_msg("%.9g became %.9g, but %.9g is nearer", (double)value, mine, other);
    }
}

/* Elements of a JAX checkpoint's arrays in F32 that are no bf16 values; LoRA merged too. */
static void every_type(void **state) {
    static const openpi_file_dtype dtypes[] = {OPENPI_FILE_BF16, OPENPI_FILE_F32, OPENPI_FILE_F16};
    static const dtype types[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16};
    (void)state;
    make("jax", "odd:pi05:4", ORBAX_LOW_BITS | ORBAX_WITH_LORA);
    WORKS(convert_to("jax", "whole", OPENPI_FILE_F32, 0, 2));
    tensors *whole = open_in("whole");
    for (int d = 0; d < 3; d++) {
        WORKS(convert_to("jax", "out", dtypes[d], 0, 2));
        tensors *got = open_in("out");
        int64_t rounded = 0;
        assert_int_equal(tensors_count(got), tensors_count(whole));
        for (int i = 0; i < tensors_count(got); i++) {
            const tensor *t = tensors_at(got, i), *from = tensors_at(whole, i);
            assert_string_equal(t->name, from->name);
            assert_int_equal(t->type, types[d]);
            assert_int_equal(t->count, from->count);
            for (int64_t e = 0; e < t->count; e++) {
                float value = ((const float *)from->data)[e];
                if (types[d] == DTYPE_F32) continue;
                uint16_t bits = ((const uint16_t *)t->data)[e];
                check_nearest(dtypes[d], value, bits);
                rounded += (types[d] == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits)) != value;
            }
        }
        assert_true(d == 1 || rounded > 100000);
        tensors_close(got);
        drop("out");
    }
    /* F32 is what the arrays hold, to the last bit. */
    const tensor *t = tensors_find(whole, "action_in_proj.bias");
    size_t bytes;
    char *stored = read_whole("jax", "params/params.action_in_proj.bias.value/0", &bytes);
    assert_memory_equal(t->data, stored, bytes);
    free(stored);
    tensors_close(whole);
    drop("whole");
    drop("jax");
}

/* ---- actions ---- */

static void must_act_alike(const char *model, openpi_file_dtype stored, openpi_dtype computed,
                           openpi_weights weights) {
    float want[ACTIONS], got[ACTIONS];
    WORKS(convert_to("source", "out", stored, 0, 2));
    actions_of(scratch_path(&box, "source"), computed, weights, NULL, want);
    actions_of(scratch_path(&box, "out"), computed, weights, NULL, got);
    if (memcmp(want, got, sizeof want))
        fail_msg("%s: stored in %d, computed in %d, other actions", model, (int)stored, (int)computed);
    drop("out");
}

/* In bf16 from bf16, in fp32 from F32, whatever the arrays hold. `same`: what they hold, where it is one
 * type (F16: none); then the kernels that an engine chooses by the file are the same too. */
static void same_actions(void **state) {
    static const struct {
        const char *model;
        int form;
        openpi_file_dtype same;
    } cases[] = {{"tiny:pi0:5", 0, OPENPI_FILE_BF16},
                 {"odd:pi05:6", 0, OPENPI_FILE_BF16},
                 {"tiny:pi05:7", ORBAX_LOW_BITS, OPENPI_FILE_F32},
                 {"odd:pi0:8", ORBAX_LOW_BITS, OPENPI_FILE_F32},
                 {"tiny:pi0:9", ORBAX_WITH_LORA, OPENPI_FILE_F16},
                 {"odd:pi05:10", ORBAX_WITH_LORA | ORBAX_LOW_BITS, OPENPI_FILE_F32},
                 {"odd:pi0:11", ORBAX_AS_TORCH, OPENPI_FILE_BF16},
                 {"odd:pi05:12", LEROBOT, OPENPI_FILE_BF16}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        make("source", cases[c].model, cases[c].form);
        must_act_alike(cases[c].model, OPENPI_FILE_BF16, OPENPI_BF16, OPENPI_WEIGHTS_AUTO);
        must_act_alike(cases[c].model, OPENPI_FILE_F32, OPENPI_F32, OPENPI_WEIGHTS_F32);
        if (cases[c].same != OPENPI_FILE_F16)
            must_act_alike(cases[c].model, cases[c].same, OPENPI_F32, OPENPI_WEIGHTS_AUTO);
        drop("source");
    }
}

/* ---- adapters ---- */

static tensor_list change;

/* An adapter of the expert's queries, whose base is the folder "base" beside it; LeRobot's has a config. */
static void make_adapter(const char *folder, int lerobot) {
    char module[200], *config;
    size_t bytes;
    list_free(&change);
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int layer = 0; layer < 3; layer++) {
        snprintf(module, sizeof module,
                 "model.paligemma_with_expert.gemma_expert.model.layers.%d.self_attn.q_proj", layer);
        pair_add(&change, module, DTYPE_F32, 4, 64, 2048, 0.1f);
    }
    adapter_write(&change, folder,
                  "\"r\": 4, \"lora_alpha\": 8, \"base_model_name_or_path\": \"../base\", "
                  "\"target_modules\": [\"q_proj\"]");
    if (!lerobot) return;
    config = read_whole("base", "config.json", &bytes);
    config = realloc(config, bytes + 100);
    assert_non_null(config);
    strcpy(strrchr(config, '}'), ", \"use_peft\": true}");
    text_write(folder, "config.json", config);
    free(config);
}

static void merges_adapters(void **state) {
    static const int forms[] = {0, LEROBOT};
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
        float base[ACTIONS], want[ACTIONS], got[ACTIONS];
        char from[400], adapter[400], to[400], line[900];
        snprintf(from, sizeof from, "%s/base", box.folder);
        snprintf(adapter, sizeof adapter, "%s/adapter", box.folder);
        snprintf(to, sizeof to, "%s/same", box.folder);
        make("base", "tiny:pi05:3", forms[f]);
        make_adapter(adapter, forms[f] == LEROBOT);
        for (int wide = 1; wide >= 0; wide--) {
            openpi_dtype computed = wide ? OPENPI_F32 : OPENPI_BF16;
            openpi_weights weights = wide ? OPENPI_WEIGHTS_F32 : OPENPI_WEIGHTS_AUTO;
            drop("out");
            WORKS(convert_to("adapter", "out", wide ? OPENPI_FILE_F32 : OPENPI_FILE_BF16, 0, 2));
            actions_of(from, computed, weights, NULL, base);
            actions_of(adapter, computed, weights, NULL, want);
            actions_of(scratch_path(&box, "out"), computed, weights, NULL, got);
            assert_memory_equal(got, want, sizeof got);
            assert_memory_not_equal(got, base, sizeof got);
        }
        options.adapter = adapter;
        WORKS(openpi_convert(from, to, &options, &error));
        assert_false(file_exists(scratch_path(&box, "out/adapter_config.json")));
        drop("same.base");
        options.without_lora = 1;
        snprintf(to, sizeof to, "%s/base.alone", box.folder);
        WORKS(openpi_convert(from, to, &options, &error));
        WORKS(convert_to("base", "same.base", OPENPI_FILE_BF16, 0, 1));
        snprintf(line, sizeof line,
                 "cd '%s' && diff -r out same && "
                 "cmp base.alone/model.safetensors same.base/model.safetensors && "
                 "! cmp -s out/model.safetensors same.base/model.safetensors && "
                 "{ ! test -e adapter/config.json || grep -q '\"use_peft\": false' out/config.json; }",
                 box.folder);
        assert_int_equal(system(line), 0);
        static const char *const made[] = {"base", "adapter", "out", "same", "same.base", "base.alone"};
        for (size_t i = 0; i < sizeof made / sizeof *made; i++) drop(made[i]);
    }
    list_free(&change);
}

/* ---- files ---- */

/* What has to differ; all else that openpi_inspect tells is equal. */
static void same_description(void **state) {
    static const char *const differ[] = {"files",   "bytes",             "orbax",  "dtypes",
                                         "tensors", "unused_parameters", "memory", "lora"};
    static const int forms[] = {ORBAX_WITH_LORA, ORBAX_LOW_BITS, ORBAX_AS_TORCH, LEROBOT};
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        json_t *told[2];
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        make("source", "odd:pi05:3", forms[f]);
        WORKS(convert_to("source", "out", OPENPI_FILE_BF16, 0, 1));
        for (int after = 0; after < 2; after++) {
            char *text;
            WORKS(openpi_inspect(scratch_path(&box, after ? "out" : "source"), &options, &text, &error));
            for (char *at = text; (at = strstr(at, after ? "/out" : "/source"));)
                memmove(at, at + strlen(after ? "/out" : "/source"), strlen(at) - (after ? 4 : 7) + 1);
            WORKS(json_parse(text, strlen(text), "inspect", &told[after], &error));
            openpi_free(text);
            for (size_t i = 0; i < sizeof differ / sizeof *differ; i++)
                json_object_del(told[after], differ[i]);
            assert_true(json_object_size(told[after]) >= 6);
        }
        if (!json_equal(told[0], told[1])) {
            json_dumpf(told[0], stderr, JSON_INDENT(2));
            json_dumpf(told[1], stderr, JSON_INDENT(2));
            fail_msg("form %d: inspect differs", forms[f]);
        }
        json_decref(told[0]);
        json_decref(told[1]);
        drop("source");
        drop("out");
    }
}

/* Files of the layout that openpi's converter writes, its keys and one more: that nobody said the horizon. */
static void config_file(void **state) {
    size_t bytes;
    json_t *root;
    (void)state;
    WORKS(convert_to(ORBAX "pi0_released", "out", OPENPI_FILE_F32, 0, 1));
    char *text = read_whole("out", "config.json", &bytes);
    WORKS(json_parse(text, bytes, "config.json", &root, &error));
    assert_int_equal(json_object_size(root), 4); /* openpi has no name for these sizes */
    assert_string_equal(json_string_value(json_object_get(root, "action_horizon_from")), "openpi's default");
    assert_int_equal(json_integer_value(json_object_get(root, "action_dim")), 32);
    assert_int_equal(json_integer_value(json_object_get(root, "action_horizon")), 50);
    assert_string_equal(json_string_value(json_object_get(root, "precision")), "float32");
    json_decref(root);
    free(text);
    drop("out");
}

/* The same bytes on every run, with any number of threads. */
static void same_bytes(void **state) {
    (void)state;
    make("jax", "odd:pi0:2", ORBAX_WITH_LORA | ORBAX_LOW_BITS);
    for (int shards = 0; shards < 2; shards++) {
        static const int threads[] = {1, 2, 5, 2};
        char line[600];
        for (int i = 0; i < 4; i++) {
            WORKS(convert_to("jax", i ? "again" : "first", OPENPI_FILE_BF16, shards ? 300000 : 0, threads[i]));
            if (!i) continue;
            snprintf(line, sizeof line, "cd '%s' && diff -r first again", box.folder);
            assert_int_equal(system(line), 0);
            drop("again");
        }
        drop("first");
    }
    drop("jax");
}

/* No shard is larger than asked for but one of a single tensor; together they are the one file. */
static void in_shards(void **state) {
    enum { MOST = 200000 };
    (void)state;
    make("jax", "tiny:pi05:2", 0);
    WORKS(convert_to("jax", "one", OPENPI_FILE_BF16, 0, 2));
    WORKS(convert_to("jax", "many", OPENPI_FILE_BF16, MOST, 2));
    tensors *one = open_in("one"), *many = open_in("many");
    uint64_t total = 0, bytes;
    assert_int_equal(tensors_count(one), tensors_count(many));
    assert_int_equal(tensors_files(one), 1);
    assert_true(tensors_files(many) > 5);
    for (int i = 0; i < tensors_count(one); i++) {
        const tensor *a = tensors_at(one, i), *b = tensors_find(many, a->name);
        assert_non_null(b);
        assert_int_equal(a->count, b->count);
        assert_memory_equal(a->data, b->data, (size_t)a->count * sizeof(bf16));
    }
    for (int f = 0; f < tensors_files(many); f++) {
        const char *path = tensors_file(many, f, &bytes);
        uint64_t held = 0;
        int count = 0;
        for (int i = 0; i < tensors_count(many); i++) {
            const tensor *t = tensors_at(many, i);
            if (strcmp(t->file, path)) continue;
            held += (uint64_t)t->count * sizeof(bf16);
            count++;
        }
        assert_true(count && (held <= MOST || count == 1));
        total += held;
    }
    size_t length;
    char *text = read_whole("many", "model.safetensors.index.json", &length);
    json_t *root;
    WORKS(json_parse(text, length, "index", &root, &error));
    json_t *size = json_object_get(json_object_get(root, "metadata"), "total_size");
    assert_int_equal(json_integer_value(size), total);
    assert_string_equal(tensors_metadata(many, EMBED_TOKENS), LM_HEAD);
    json_decref(root);
    free(text);
    tensors_close(one);
    tensors_close(many);
    drop("jax");
    drop("one");
    drop("many");
}

/* LeRobot's names with their prefix, and its files. */
static void lerobot_stays(void **state) {
    static const char *const files[] = {
        "config.json", "policy_preprocessor.json", "policy_postprocessor.json", "tokenizer.model",
        "policy_preprocessor_step_3_normalizer_processor.safetensors",
        "policy_postprocessor_step_0_unnormalizer_processor.safetensors"};
    (void)state;
    make("hub", "tiny:pi05:3", LEROBOT);
    WORKS(convert_to("hub", "out", OPENPI_FILE_F16, 0, 2));
    tensors *got = open_in("out");
    for (int i = 0; i < tensors_count(got); i++)
        assert_int_equal(strncmp(tensors_stored_name(got, i), "model.", 6), 0);
    assert_string_equal(tensors_metadata(got, "model." EMBED_TOKENS), "model." LM_HEAD);
    tensors_close(got);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t a, b;
        char *before = read_whole("hub", files[i], &a), *after = read_whole("out", files[i], &b);
        assert_int_equal(a, b);
        assert_memory_equal(before, after, a);
        free(before);
        free(after);
    }
    drop("hub");
    drop("out");
}

/* Progress counts bytes and ends at all of them. */
typedef struct seen {
    uint64_t done, total;
    int calls;
} seen;

static void watch(void *user, const char *what, uint64_t done, uint64_t total) {
    seen *s = user;
    assert_string_equal(what, "writing weights");
    assert_true(done >= s->done && done <= total);
    *s = (seen){done, total, s->calls + 1};
}

static void tells_progress(void **state) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    seen s = {0};
    char to[400];
    (void)state;
    openpi_dims d = make("jax", "tiny:pi0:5", 0);
    snprintf(to, sizeof to, "%s", scratch_path(&box, "out"));
    options.threads = 1;
    options.progress = watch;
    options.progress_user = &s;
    WORKS(openpi_convert(scratch_path(&box, "jax"), to, &options, &error));
    tensors *got = open_in("out");
    uint64_t bytes = 0;
    for (int i = 0; i < tensors_count(got); i++) bytes += 2 * (uint64_t)tensors_at(got, i)->count;
    assert_int_equal(s.total, bytes - 2 * (uint64_t)d.vocab * (uint64_t)d.expert_width);
    assert_int_equal(s.done, s.total);
    assert_true(s.calls > 5);
    tensors_close(got);
    drop("out");
    drop("jax");
}

/* Work stops after the report at which the caller says so, and leaves nothing. */
static int stop_at_second(void *user) { return ++((seen *)user)->calls > 4; }

static void stops_when_cancelled(void **state) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    seen s = {0};
    char to[400];
    (void)state;
    make("jax", "tiny:pi0:5", 0);
    snprintf(to, sizeof to, "%s", scratch_path(&box, "out"));
    options.threads = 1;
    options.progress = watch;
    options.cancel = stop_at_second;
    options.progress_user = &s;
    REFUSES(openpi_convert(scratch_path(&box, "jax"), to, &options, &error), OPENPI_CANCELLED,
            "writing the weights was cancelled");
    assert_true(s.done && s.done < s.total);
    assert_false(file_exists(to));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_BOX(expected_tensors),
        IN_A_BOX(every_type),
        IN_A_BOX(same_actions),
        IN_A_BOX(merges_adapters),
        IN_A_BOX(same_description),
        IN_A_BOX(config_file),
        IN_A_BOX(same_bytes),
        IN_A_BOX(in_shards),
        IN_A_BOX(lerobot_stays),
        IN_A_BOX(tells_progress),
        IN_A_BOX(stops_when_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
