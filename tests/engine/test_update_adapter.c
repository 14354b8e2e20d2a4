/* labels: threads isa no_asan */
/* Adapters for an engine that runs (engine_base.c): factors alone, of peft's names and of openpi's, give what
 * an engine opened with the merged weights computes, bit for bit; the second adapter replaces the first; the
 * checkpoint's own weights come back to the bit; a call beside a swap has one adapter or the other; and what
 * does not fit is refused and changes nothing.
 *
 * Factors are multiples of 1/64 and B·A is multiplied by a power of two, so the change is exact, and the
 * merged weights, made here in double from each layout's own formula, are rounded once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "adapter_write.h"
#include "calls_beside.h"
#include "checkpoint/open.h"
#include "openpi_internal.h"
#include "orbax_write.h"
#include "parts_of_calls.h"

enum { RANK = 2 };

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) { parts_must(status, &error); }

static void refuses(openpi_status status, openpi_status expected, const char *part) {
    if (!strstr(error.message, part)) fail_msg("\"%s\" says nothing of \"%s\"", error.message, part);
    assert_int_equal(status, expected);
}

/* ---- a base and what changes it --------------------------------------------------------------------- */

static struct {
    scratch place;
    char base[200], merged[200], peft[200], other[200], jax[200], path[400];
    openpi_synthetic model;
    tensors *weights;            /* the base's, in memory */
    mixed m;
} it;

/* An adapter: its tensors, and the merged weights. */
typedef struct adapted {
    tensor_list file;
    int count;
    struct {
        const tensor *weight;
        double *values;
    } merged[200];
} adapted;

static void set_up(const char *spec) {
    static const char small[] =
        "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, 24], \"vocab\": 512}";
    assert_int_equal(scratch_open(&it.place), 0);
    snprintf(it.base, sizeof it.base, "%s/base", it.place.folder);
    snprintf(it.merged, sizeof it.merged, "%s/merged", it.place.folder);
    snprintf(it.peft, sizeof it.peft, "%s/peft", it.place.folder);
    snprintf(it.other, sizeof it.other, "%s/other", it.place.folder);
    snprintf(it.jax, sizeof it.jax, "%s/jax", it.place.folder);
    it.model = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse(spec, &it.model, &error));
    must(openpi_dims_parse(small, &it.model.dims, &error));
    must(openpi_synthetic_write(&it.model, it.base, 0, 1, NULL, NULL, &error));
    must(tensors_open(it.base, &it.weights, &error));
    must(tensors_load(it.weights, &error));
    tensors_close_files(it.weights);
    assert_int_equal(mkdir(it.merged, 0777) | mkdir(it.peft, 0777) | mkdir(it.other, 0777), 0);
    mixed_make(&it.m, 0);
}

static void tear_down(void) {
    tensors_close(it.weights);
    scratch_close(&it.place);
}

static const char *in(const char *folder, const char *name) {
    snprintf(it.path, sizeof it.path, "%s/%s", folder, name);
    return it.path;
}

static void free_adapted(adapted *a) {
    list_free(&a->file);
    for (int i = 0; i < a->count; i++) free(a->merged[i].values);
    a->count = 0;
}

/* The weight's numbers so far, to be changed. NULL: the model has no such weight. */
static double *change_of(adapted *a, const char *name, const tensor **weight) {
    const tensor *t = tensors_find(it.weights, name);
    *weight = t;
    for (int i = 0; i < a->count; i++)
        if (a->merged[i].weight == t) return a->merged[i].values;
    if (!t) return NULL;
    double *values = malloc((size_t)t->count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < t->count; i++) {
        float value;
        tensor_read_f32(t, i, 1, &value);
        values[i] = (double)value;
    }
    a->merged[a->count].weight = t;
    a->merged[a->count++].values = values;
    return values;
}

static void quantise(tensor_list *l, int from) {
    for (int i = from; i < l->count; i++)
        for (int64_t e = 0; e < l->list[i].count; e++)
            l->values[i][e] = (float)((int)(l->values[i][e] * 64)) / 64;
}

/* peft: W [out][in] + factor·B·A. */
static void add_pair(adapted *a, const char *module, double factor) {
    char name[300];
    const tensor *w;
    snprintf(name, sizeof name, "%s.weight", module);
    double *values = change_of(a, name, &w);
    if (!values) return;
    snprintf(name, sizeof name, "model.%s", module);
    pair_values p = pair_add(&a->file, name, DTYPE_F32, RANK, w->shape[1], w->shape[0], 0.5f);
    quantise(&a->file, a->file.count - 2);
    for (int64_t o = 0; o < w->shape[0]; o++)
        for (int64_t i = 0; i < w->shape[1]; i++)
            for (int r = 0; r < RANK; r++)
                values[o * w->shape[1] + i] +=
                    factor * (double)p.a[r * w->shape[1] + i] * (double)p.b[o * RANK + r];
}

/* A whole model with the adapter's weights, in the base's type. */
static void write_merged(const adapted *a) {
    static tensor_list whole;
    for (int i = 0; i < tensors_count(it.weights); i++) {
        const tensor *t = tensors_at(it.weights, i);
        float *values = list_add(&whole, t->name, DTYPE_BF16, t->count, 0);
        tensor *put = &whole.list[whole.count - 1];
        put->rank = t->rank;
        memcpy(put->shape, t->shape, sizeof put->shape);
        tensor_read_f32(t, 0, t->count, values);
        for (int k = 0; k < a->count; k++)
            for (int64_t e = 0; a->merged[k].weight == t && e < t->count; e++)
                values[e] = (float)a->merged[k].values[e];
    }
    list_write(&whole, it.merged, "model.safetensors");
    list_free(&whole);
}

/* Modules that LeRobot targets, which π0 merges with each other, and one of the language model. */
static void make_first(adapted *a, double factor) {
    static const char *const heads[] = {"action_in_proj", "action_out_proj", "state_proj", "time_mlp_in",
                                        "action_time_mlp_in", "action_time_mlp_out"};
    char name[200];
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) add_pair(a, heads[i], factor);
    for (int layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof name, "%slayers.%d.self_attn.q_proj", ORBAX_EXPERT, layer);
        add_pair(a, name, factor);
        snprintf(name, sizeof name, "%slayers.%d.mlp.down_proj", ORBAX_LANGUAGE, layer);
        add_pair(a, name, factor);
    }
}

/* One of the first's modules, and others, among them half of what is packed as one. */
static void make_second(adapted *a, double factor) {
    a->file.seed = 77;
    add_pair(a, ORBAX_EXPERT "layers.1.self_attn.q_proj", factor);
    add_pair(a, ORBAX_EXPERT "layers.0.self_attn.v_proj", factor);
    add_pair(a, ORBAX_EXPERT "layers.1.mlp.up_proj", factor);
    add_pair(a, ORBAX_LANGUAGE "layers.0.self_attn.o_proj", factor);
}

/* ---- openpi's factors ------------------------------------------------------------------------------- */

static float *add_array(adapted *a, const char *name, int rank, const int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= shape[i];
    float *values = (float *)(uintptr_t)list_random(&a->file, name, DTYPE_F32, count, 0, 0.5f);
    tensor *t = &a->file.list[a->file.count - 1];
    t->rank = rank;
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    quantise(&a->file, a->file.count - 1);
    return values;
}

/* a [L][groups][rows][RANK] and b [L][groups][RANK][columns]. */
typedef struct stacked {
    const float *a, *b;
    int64_t groups, rows, columns;
} stacked;

/* The change of one number of a group. */
static double product(const stacked *s, int64_t group_a, int64_t group_b, int64_t row, int64_t column) {
    double sum = 0;
    for (int r = 0; r < RANK; r++)
        sum += (double)s->a[(group_a * s->rows + row) * RANK + r] *
               (double)s->b[(group_b * RANK + r) * s->columns + column];
    return sum;
}

static stacked add_stacked(adapted *a, const char *array, char between, int rank, const int64_t *w) {
    char name[300];
    int64_t shape[5];
    stacked s = {.groups = 1, .rows = w[rank - 2], .columns = w[rank - 1]};
    for (int i = 1; i < rank - 2; i++) s.groups *= w[i];
    memcpy(shape, w, (size_t)rank * sizeof *w);
    shape[rank - 1] = RANK;
    snprintf(name, sizeof name, "PaliGemma.llm.layers.%s%clora_a", array, between);
    s.a = add_array(a, name, rank, shape);
    memcpy(shape, w, (size_t)rank * sizeof *w);
    shape[rank - 2] = RANK;
    snprintf(name, sizeof name, "PaliGemma.llm.layers.%s%clora_b", array, between);
    s.b = add_array(a, name, rank, shape);
    return s;
}

/* Each group is `columns` outputs, one after the other, of the tensor that `tensors` names: a tensor a group
 * where there are two names. */
static void change_outputs(adapted *a, const stacked *s, const char *stack, const char *const *tensors) {
    char name[300];
    for (int64_t g = 0; g < 2 * s->groups; g++) {
        const tensor *w;
        int64_t in_layer = g % s->groups, first = tensors[1] ? 0 : in_layer * s->columns;
        snprintf(name, sizeof name, "%slayers.%d.%s.weight", stack, (int)(g / s->groups),
                 tensors[tensors[1] ? in_layer : 0]);
        double *values = change_of(a, name, &w);
        for (int64_t o = 0; o < s->columns; o++)
            for (int64_t i = 0; i < s->rows; i++) values[(first + o) * s->rows + i] += product(s, g, g, i, o);
    }
}

/* attn_vec_einsum: inputs of head h change by a_h·Σb. */
static void change_summed(adapted *a, const stacked *s, const char *stack) {
    char name[300];
    for (int64_t g = 0; g < 2 * s->groups; g++) {
        const tensor *w;
        int64_t layer = g / s->groups, head = g % s->groups;
        snprintf(name, sizeof name, "%slayers.%d.self_attn.o_proj.weight", stack, (int)layer);
        double *values = change_of(a, name, &w);
        for (int64_t o = 0; o < s->columns; o++)
            for (int64_t i = 0; i < s->rows; i++)
                for (int64_t other = 0; other < s->groups; other++)
                    values[o * w->shape[1] + head * s->rows + i] +=
                        product(s, g, layer * s->groups + other, i, o);
    }
}

/* Pairs of every kind, of both stacks, and a weight that is trained beside them. */
static void make_gemma(adapted *a) {
    static const char *const q[] = {"self_attn.q_proj", NULL};
    static const char *const kv[] = {"self_attn.k_proj", "self_attn.v_proj"};
    static const char *const gated[] = {"mlp.gate_proj", "mlp.up_proj"};
    static const char *const down[] = {"mlp.down_proj", NULL};
    const openpi_dims *d = &it.model.dims;
    const int64_t L = d->depth, heads = d->heads, size = d->head_dim;
    const tensor *bias;
    char name[100];
    for (int expert = 0; expert < 2; expert++) {
        const char *one = expert ? "_1" : "", *stack = expert ? ORBAX_EXPERT : ORBAX_LANGUAGE;
        int64_t width = expert ? d->expert_width : d->width, mlp = expert ? d->expert_mlp : d->mlp;
        snprintf(name, sizeof name, "attn.q_einsum%s", one);
        stacked s = add_stacked(a, name, '.', 4, (int64_t[]){L, heads, width, size});
        change_outputs(a, &s, stack, q);
        snprintf(name, sizeof name, "attn.kv_einsum%s", one);
        s = add_stacked(a, name, '.', 5, (int64_t[]){L, 2, 1, width, size});
        change_outputs(a, &s, stack, kv);
        snprintf(name, sizeof name, "attn.attn_vec_einsum%s", one);
        s = add_stacked(a, name, '.', 4, (int64_t[]){L, heads, size, width});
        change_summed(a, &s, stack);
        snprintf(name, sizeof name, "mlp%s.gating_einsum", one);
        s = add_stacked(a, name, '_', 4, (int64_t[]){L, 2, width, mlp});
        change_outputs(a, &s, stack, gated);
        snprintf(name, sizeof name, "mlp%s.linear", one);
        s = add_stacked(a, name, '_', 3, (int64_t[]){L, mlp, width});
        change_outputs(a, &s, stack, down);
    }
    double *values = change_of(a, "action_out_proj.bias", &bias);
    const float *other = list_random(&a->file, "action_out_proj.bias", DTYPE_BF16, bias->count, 0, 0.5f);
    for (int64_t i = 0; i < bias->count; i++) values[i] = (double)other[i];
}

/* The adapter's tensors as a caller has them, and "lora_alpha" where it is not 0. Returns their number. */
static int fields_of(const adapted *a, const float *alpha, openpi_field fields[200]) {
    int count = 0;
    for (; count < a->file.count; count++) {
        const tensor *t = &a->file.list[count];
        fields[count] = (openpi_field){.size = sizeof *fields, .name = t->name, .data = a->file.values[count],
                                       .element = OPENPI_FLOAT32, .rank = t->rank};
        for (int k = 0; k < t->rank; k++) fields[count].shape[k] = t->shape[k];
    }
    if (*alpha != 0)
        fields[count++] = (openpi_field){.size = sizeof *fields, .name = "lora_alpha", .data = alpha,
                                         .element = OPENPI_FLOAT32};
    return count;
}

/* ---- engines ---------------------------------------------------------------------------------------- */

static openpi_engine *open_engine(const char *path, const char *adapter, int without_lora,
                                  openpi_dtype dtype) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    options.dtype = dtype;
    options.adapter = adapter;
    options.without_lora = without_lora;
    options.device = getenv("OPENPI_TEST_DEVICE");
    options.threads = 2;
    must(openpi_engine_open(path, &options, &engine, &error));
    return engine;
}

static void run(openpi_session *session, float *actions) {
    must(openpi_session_run(session, it.m.samples + 1, 1, it.m.noise, actions, NULL, &error));
}

static void run_opened(const char *path, const char *adapter, int without_lora, openpi_dtype dtype,
                       float *actions) {
    openpi_engine *engine = open_engine(path, adapter, without_lora, dtype);
    openpi_session *session = parts_session(engine, 1, 0);
    run(session, actions);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void run_merged(const adapted *a, openpi_dtype dtype, float *actions) {
    write_merged(a);
    run_opened(it.merged, NULL, 0, dtype, actions);
}

static void computes(openpi_session *session, const char *what, const float *want) {
    float got[MIXED_ONE];
    run(session, got);
    mixed_same(what, 0, got, want);
}

static const char *hash_of(const openpi_engine *engine, openpi_engine_info *info) {
    *info = (openpi_engine_info)OPENPI_ENGINE_INFO_INIT;
    must(openpi_engine_get_info(engine, info, &error));
    return info->checkpoint_hash;
}

static void update(openpi_engine *engine, const char *path) {
    must(openpi_engine_update_file(&engine, 1, path, NULL, &error));
}

static void restore(openpi_engine *engine) { must(openpi_engine_restore(&engine, 1, NULL, &error)); }

static const char config[] = "\"r\": 2, \"lora_alpha\": 1";

/* ---- tests ------------------------------------------------------------------------------------------ */

static void swap_on(openpi_engine *engine, openpi_dtype dtype, adapted list[3]) {
    openpi_session *session = parts_session(engine, 1, 0);
    float old[MIXED_ONE], want[3][MIXED_ONE];
    openpi_field fields[200];
    openpi_engine_info opened, now, again;
    const float alpha = 1, none = 0;
    int tensors = 0;
    hash_of(engine, &opened);
    run(session, old);
    for (int i = 0; i < 3; i++) run_merged(&list[i], dtype, want[i]);
    update(engine, it.peft);
    computes(session, "the first adapter, a folder", want[0]);
    hash_of(engine, &now);
    update(engine, in(it.other, "step_2.safetensors"));
    computes(session, "the second one, a file beside its config", want[1]);
    assert_string_not_equal(hash_of(engine, &again), now.checkpoint_hash);
    update(engine, it.peft);
    computes(session, "the first one again", want[0]);
    assert_string_equal(hash_of(engine, &again), now.checkpoint_hash);
    must(openpi_engine_update(engine, fields, fields_of(&list[2], &none, fields), &error));
    computes(session, "openpi's factors", want[2]);
    must(openpi_engine_update(engine, fields, fields_of(&list[1], &alpha, fields), &error));
    computes(session, "peft's with lora_alpha", want[1]);
    must(openpi_engine_restore(&engine, 1, &tensors, &error));
    assert_int_equal(tensors, list[1].count);
    computes(session, "none", old);
    assert_string_equal(hash_of(engine, &again), opened.checkpoint_hash);
    restore(engine);
    computes(session, "still none", old);
    openpi_session_close(session);
}

static adapted three[3];

static void make_three(void) {
    make_first(&three[0], 0.5);
    make_second(&three[1], 0.5);
    make_gemma(&three[2]);
    adapter_write(&three[0].file, it.peft, config);
    adapter_write(&three[1].file, it.other, config);
    list_write(&three[1].file, it.other, "step_2.safetensors");
}

static void free_three(void) {
    for (int i = 0; i < 3; i++) free_adapted(&three[i]);
    tear_down();
}

static void swaps(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        openpi_dtype dtype = i % 2 ? OPENPI_F32 : OPENPI_BF16;
        set_up(i / 2 ? "odd:pi05:6" : "odd:pi0:5");
        make_three();
        openpi_engine *engine = open_engine(it.base, NULL, 0, dtype);
        swap_on(engine, dtype, three);
        openpi_engine_close(engine);
        free_three();
    }
}

/* Weights that are stored nowhere. */
static void synthetic(void **state) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    (void)state;
    set_up("odd:pi05:6");
    make_three();
    options.synthetic = &it.model;
    options.device = getenv("OPENPI_TEST_DEVICE");
    options.threads = 2;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    swap_on(engine, OPENPI_BF16, three);
    openpi_engine_close(engine);
    free_three();
}

/* An engine that was opened with an adapter: that one is replaced, too. In fp32 its matrices stay fp32. */
static void opened_with(openpi_dtype dtype) {
    float base[MIXED_ONE], want[MIXED_ONE], opened[MIXED_ONE];
    set_up("odd:pi05:6");
    make_three();
    run_opened(it.base, NULL, 0, dtype, base);
    run_opened(it.base, it.other, 0, dtype, opened);
    run_merged(&three[0], dtype, want);
    openpi_engine *engine = open_engine(it.base, it.other, 0, dtype);
    openpi_session *session = parts_session(engine, 1, 0);
    computes(session, "as it was opened", opened);
    update(engine, it.peft);
    if (dtype == OPENPI_BF16) computes(session, "another adapter", want);
    restore(engine);
    computes(session, "none", base);
    update(engine, it.other);
    computes(session, "the one that it was opened with", opened);
    openpi_session_close(session);
    openpi_engine_close(engine);
    free_three();
}

static void opened_with_one(void **state) {
    (void)state;
    opened_with(OPENPI_BF16);
    opened_with(OPENPI_F32);
}

/* A JAX checkpoint, with LoRA of its own and without. */
static void jax(void **state) {
    float base[MIXED_ONE], want[MIXED_ONE];
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        set_up("odd:pi05:6");
        make_three();
        assert_int_equal(mkdir(it.jax, 0777), 0);
        orbax_write(it.jax, it.weights, &it.model.dims, 1, lora ? ORBAX_WITH_LORA : 0);
        openpi_engine *engine = open_engine(it.jax, NULL, 0, OPENPI_BF16);
        openpi_session *session = parts_session(engine, 1, 0);
        run_opened(it.jax, NULL, 1, OPENPI_BF16, base);
        if (!lora) {
            run_opened(it.jax, it.other, 0, OPENPI_BF16, want);
            update(engine, it.other);
            computes(session, "an adapter on a JAX checkpoint", want);
        }
        restore(engine);
        computes(session, "a JAX checkpoint without LoRA", base);
        openpi_session_close(session);
        openpi_engine_close(engine);
        free_three();
    }
}

/* ---- refused ---------------------------------------------------------------------------------------- */

static void write_other(const char *fields) { adapter_write(&three[1].file, it.other, fields); }

static openpi_status give(openpi_engine *engine, const openpi_field *fields, int count) {
    return openpi_engine_update(engine, fields, count, &error);
}

static void bad_factors(openpi_engine *engine, const float *alpha) {
    openpi_field fields[200];
    int count = fields_of(&three[1], alpha, fields);
    openpi_field kept = fields[0];
    refuses(give(engine, fields + 1, count - 1), OPENPI_BAD_FILE,
            "half of a LoRA pair, its lora_A is missing");
    refuses(give(engine, fields, count - 1), OPENPI_BAD_FILE, "nothing says alpha");
    fields[0].shape[0] = 1;
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "is of rank 2, expected 1");
    fields[0] = kept;
    fields[0].shape[1]--;
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "has shape [2, 15], expected [2, 16]");
    fields[0] = kept;
    float *numbers = (float *)(uintptr_t)kept.data, number = numbers[3];
    numbers[3] = NAN;
    refuses(give(engine, fields, count), OPENPI_BAD_INPUT, "has a NaN or an infinity");
    numbers[3] = number;
    fields[0].name = "base_model.model.model.unknown.lora_A.weight";
    fields[1].name = "base_model.model.model.unknown.lora_B.weight";
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "is of an unknown target");
    fields[0].name = "model.unknown.lora_A.weight";
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "is no name of peft's");
}

static void bad_stacked(openpi_engine *engine, const float *alpha) {
    openpi_field fields[200];
    int count = fields_of(&three[2], alpha, fields) - 1;
    openpi_field kept = fields[1];
    refuses(give(engine, fields, count + 1), OPENPI_BAD_FILE, "have no alpha");
    fields[1] = fields[count - 1];
    refuses(give(engine, fields, count - 1), OPENPI_BAD_FILE, "half of a LoRA pair, its lora_b is missing");
    fields[1] = kept;
    fields[1].shape[2] = 1;
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "is of rank 1, expected 2");
    fields[1] = kept;
    fields[1].shape[0] = 1;
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "has shape [1, 2, 2, 32], expected [2, 2, 2, 32]");
    fields[1] = kept;
    fields[count - 1].name = "action_out.bias";
    refuses(give(engine, fields, count), OPENPI_BAD_FILE, "unknown target");
}

/* Numbers of an update cannot be read again, so nothing is added to them. */
static void after_tensors(openpi_engine *engine, openpi_session *session, const float *old) {
    const char *names[] = {ORBAX_EXPERT "layers.1.self_attn.q_proj.weight",
                           ORBAX_EXPERT "layers.1.self_attn.k_proj.weight",
                           ORBAX_EXPERT "layers.1.self_attn.v_proj.weight"};
    float kept[MIXED_ONE], numbers[3][2000] = {{0}};
    openpi_field fields[3];
    for (int i = 0; i < 3; i++) {
        const tensor *t = tensors_find(it.weights, names[i]);
        assert_true(t->count <= 2000);
        fields[i] = (openpi_field){.size = sizeof *fields, .name = t->name, .data = numbers[i],
                                   .element = OPENPI_FLOAT32, .rank = 2, .shape = {t->shape[0], t->shape[1]}};
    }
    must(openpi_engine_update(engine, fields, 3, &error));
    run(session, kept);
    assert_memory_not_equal(kept, old, sizeof kept);
    refuses(openpi_engine_update_file(&engine, 1, it.other, NULL, &error), OPENPI_BAD_ARGUMENT,
            "which an earlier update has replaced");
    computes(session, "refused after an update", kept);
    restore(engine);
    computes(session, "back", old);
}

static void refused(void **state) {
    float old[MIXED_ONE];
    const float alpha = 1;
    (void)state;
    set_up("odd:pi05:6");
    make_three();
    openpi_engine *engine = open_engine(it.base, NULL, 0, OPENPI_BF16);
    openpi_session *session = parts_session(engine, 1, 0);
    run(session, old);
    bad_factors(engine, &alpha);
    bad_stacked(engine, &alpha);
    write_other("\"r\": 4, \"lora_alpha\": 1");
    refuses(openpi_engine_update_file(&engine, 1, it.other, NULL, &error), OPENPI_BAD_FILE,
            "is of rank 2, expected 4");
    refuses(openpi_engine_update_file(&engine, 1, it.merged, NULL, &error), OPENPI_BAD_FILE,
            "a folder without adapter_config.json");
    computes(session, "refused", old);
    write_other(config);
    after_tensors(engine, session, old);
    computes(session, "restored", old);
    list_write(&three[0].file, it.base, "model.safetensors");
    refuses(openpi_engine_update_file(&engine, 1, it.other, NULL, &error), OPENPI_BAD_FILE, it.base);
    computes(session, "another checkpoint's files", old);
    openpi_session_close(session);
    openpi_engine_close(engine);
    free_three();
}

/* Files of the same names and shapes, written after the engine was opened. */
static void other_files(void **state) {
    float old[MIXED_ONE];
    (void)state;
    set_up("odd:pi05:6");
    make_three();
    write_merged(&three[0]);
    openpi_engine *engine = open_engine(it.merged, NULL, 0, OPENPI_BF16);
    openpi_session *session = parts_session(engine, 1, 0);
    run(session, old);
    write_merged(&three[2]);
    refuses(openpi_engine_update_file(&engine, 1, it.other, NULL, &error), OPENPI_BAD_FILE,
            "has changed since the engine was opened");
    refuses(openpi_engine_restore(&engine, 1, NULL, &error), OPENPI_BAD_FILE,
            "has changed since the engine was opened");
    computes(session, "other files", old);
    openpi_session_close(session);
    openpi_engine_close(engine);
    free_three();
}

/* Two engines, whose first one must not change where the second one cannot. */
static void all_or_none(void **state) {
    float old[MIXED_ONE];
    (void)state;
    set_up("odd:pi05:6");
    make_three();
    openpi_engine *engine = open_engine(it.base, NULL, 0, OPENPI_BF16);
    openpi_engine *apart = mixed_engine("odd:pi0:7", NULL, OPENPI_BF16, 0);
    openpi_session *session = parts_session(engine, 1, 0);
    openpi_engine *pairs[][2] = {{engine, apart}, {apart, engine}};
    run(session, old);
    for (int i = 0; i < 2; i++)
        refuses(openpi_engine_update_file(pairs[i], 2, it.peft, NULL, &error), OPENPI_BAD_FILE,
                "is for a π0.5");
    computes(session, "refused by another engine", old);
    openpi_session_close(session);
    openpi_engine_close(engine);
    openpi_engine_close(apart);
    free_three();
}

/* ---- calls beside swaps ----------------------------------------------------------------------------- */

static void no_call_sees_half_a_swap(void **state) {
    static float want[2][MIXED_ONE];
    pthread_t thread;
    (void)state;
    set_up("odd:pi0:5");
    make_three();
    for (int i = 0; i < 2; i++) run_merged(&three[i], OPENPI_BF16, want[i]);
    openpi_engine *engine = open_engine(it.base, NULL, 0, OPENPI_BF16);
    beside b = {.session = parts_session(engine, 1, 0), .m = &it.m, .want = {want[0], want[1]}};
    update(engine, it.peft);
    assert_int_equal(pthread_create(&thread, NULL, call_again, &b), 0);
    for (int i = 1; i <= 8; i++) {
        int now = atomic_load(&b.seen[i % 2]);
        update(engine, i % 2 ? it.other : it.peft);
        while (atomic_load(&b.seen[i % 2]) == now && !atomic_load(&b.wrong)) sched_yield();
    }
    atomic_store(&b.over, 1);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&b.wrong), 0);
    openpi_session_close(b.session);
    openpi_engine_close(engine);
    free_three();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swaps),       cmocka_unit_test(synthetic),   cmocka_unit_test(opened_with_one),
        cmocka_unit_test(jax),         cmocka_unit_test(refused),     cmocka_unit_test(other_files),
        cmocka_unit_test(all_or_none), cmocka_unit_test(no_call_sees_half_a_swap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
