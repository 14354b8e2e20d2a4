/* Checkpoints as other people's tools leave them: run, with a note that says what was done, or refused by a
 * sentence that names the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actions.h"
#include "conversion.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors_build.h"

enum { DIMS = 8 };               /* of the narrow model */

/* ---- writing a changed copy ---- */

/* What a copy's file has in place of the original's. */
typedef struct change {
    int narrow, zero;            /* DIMS action dimensions; 32 of which those after DIMS are 0           */
    const char *prefix;          /* before every name                                                    */
    const char *without;         /* the name that has no prefix; NULL: none                              */
    const char *extra;           /* name of a tensor besides; NULL: none                                 */
} change;

/* 1: by columns, 0: by rows, -1: no action dimensions. */
static int action_axis(const char *name) {
    if (!strcmp(name, "action_in_proj.weight") || !strcmp(name, "state_proj.weight")) return 1;
    return !strncmp(name, "action_out_proj.", 16) ? 0 : -1;
}

/* The tensor's bytes as they are wanted; returns their number and sets the shape. */
static size_t change_tensor(const tensor *t, const change *c, int64_t shape[2], char *out) {
    const char *data = t->data;
    size_t size = dtype_bytes(t->type);
    int axis = c->narrow || c->zero ? action_axis(t->name) : -1;
    int64_t rows = t->shape[0], columns = t->count / rows, at = 0;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t place = axis == 1 ? i % columns : i / columns;
        int after = axis >= 0 && place >= DIMS;
        if (after && c->narrow) continue;
        if (after) memset(out + (size_t)at++ * size, 0, size);
        else memcpy(out + (size_t)at++ * size, data + (size_t)i * size, size);
    }
    shape[0] = axis == 0 && c->narrow ? DIMS : rows;
    shape[1] = at / shape[0];
    return (size_t)at * size;
}

static void put_header(FILE *to, const tensor *t, const char *prefix, const int64_t shape[2], size_t begin,
                       size_t end) {
    int64_t own[TENSOR_RANK];
    char text[128];
    memcpy(own, t->shape, sizeof own);
    own[0] = shape[0];
    if (t->rank == 2) own[1] = shape[1];
    fprintf(to, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", begin ? "," : "{",
            prefix, t->name, dtype_name(t->type), tensor_shape_text(t->rank, own, text, sizeof text), begin,
            end);
}

/* A copy of the folder `from` of the box, with this change. */
static void write_copy(const char *from, const char *name, const change *c) {
    char path[600];
    tensors *list = open_in(from);
    char *header = NULL, *data = NULL;
    size_t header_bytes = 0, data_bytes = 0, at = 0;
    FILE *head = open_memstream(&header, &header_bytes), *body = open_memstream(&data, &data_bytes);
    for (int i = 0; i < tensors_count(list); i++) {
        const tensor *t = tensors_at(list, i);
        int64_t shape[2];
        int bare = c->without && !strcmp(c->without, t->name);
        char *bytes = malloc((size_t)t->count * dtype_bytes(t->type));
        size_t count = change_tensor(t, c, shape, bytes);
        fwrite(bytes, 1, count, body);
        free(bytes);
        put_header(head, t, c->prefix && !bare ? c->prefix : "", shape, at, at + count);
        at += count;
    }
    if (c->extra)
        fprintf(head, ",\"%s\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[%zu,%zu]}", c->extra, at,
                at + 2);
    if (c->extra) fwrite("ab", 1, 2, body);
    const char *sizes = tensors_metadata(list, "openpi_dims");
    if (sizes) {
        fprintf(head, ",\"__metadata__\":{\"openpi_dims\":\"");
        for (; *sizes; sizes++) fprintf(head, *sizes == '"' ? "\\%c" : "%c", *sizes);
        fprintf(head, "\"}");
    }
    fputs("}", head);
    fclose(head);
    fclose(body);
    tensors_close(list);
    assert_int_equal(mkdir(scratch_path(&box, name), 0777), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", scratch_path(&box, name));
    FILE *file = fopen(path, "wb");
    uint64_t length = header_bytes;
    assert_non_null(file);
    fwrite(&length, 1, 8, file);
    fwrite(header, 1, header_bytes, file);
    fwrite(data, 1, data_bytes, file);
    assert_int_equal(fclose(file), 0);
    free(header);
    free(data);
}

static void put_text(const char *name, const char *text) {
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
}

/* Opens a checkpoint's model and expects a note with this piece at this level; NULL: none at all. */
static void notes_of(const char *name, int warning, const char *piece) {
    checkpoint *c = NULL;
    int level = -1;
    const char *text = NULL;
    WORKS(checkpoint_open(scratch_path(&box, name), NULL, &c, &error));
    for (int i = 0; (text = notes_get(&c->notes, i, &level)); i++)
        if (!piece || (strstr(text, piece) && level == warning)) break;
    if (!text != !piece)
        fail_msg("%s: note \"%s\", expected \"%s\"", name, text ? text : "", piece ? piece : "");
    checkpoint_close(c);
}

/* ---- action dimensions ---- */

/* The reference is the same model with 32, whose weights after DIMS are 0. */
static void action_dims(void **state) {
    static const char *const models[] = {"odd:pi0:5", "odd:pi05:5"};
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    for (size_t m = 0; m < 2; m++) {
        float wide[ACTIONS], narrow[ACTIONS], converted[ACTIONS];
        make("base", models[m], ORBAX_AS_TORCH);
        write_copy("base", "wide", &(change){.zero = 1});
        write_copy("base", "narrow", &(change){.narrow = 1});
        actions_of(scratch_path(&box, "wide"), OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL, wide);
        actions_of(scratch_path(&box, "narrow"), OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL, narrow);
        for (int i = 0; i < ACTIONS; i++)
            if (narrow[i] != (i % OPENPI_ACTION_DIM < DIMS ? wide[i] : 0))
                fail_msg("%s: action %d", models[m], i);
        notes_of("narrow", 0, "a model of 8 action dimensions");
        put_text("narrow/config.json", "{\"action_dim\": 32}");
        notes_of("narrow", 1, "\"action_dim\" is 32, but the tensors have 8, which count");
        WORKS(convert_to("narrow", "out", OPENPI_FILE_F32, 0, 1));
        tensors *list = open_in("out");
        assert_int_equal(tensors_find(list, "action_in_proj.weight")->shape[1], DIMS);
        assert_int_equal(tensors_find(list, "action_out_proj.bias")->count, DIMS);
        tensors_close(list);
        actions_of(scratch_path(&box, "out"), OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL, converted);
        assert_memory_equal(converted, narrow, sizeof narrow);
        put_text("narrow/config.json", "{\"action_dim\": 7}");
        checkpoint *c;
        REFUSES(checkpoint_open(scratch_path(&box, "narrow"), NULL, &c, &error), OPENPI_BAD_FILE,
                "\"action_dim\" is 7, but the tensors have 8");
        drop("base"), drop("wide"), drop("narrow"), drop("out");
    }
    scratch_close(&box);
}

/* A robot may not have more actions, or numbers of state that the model reads, than the model. */
static void narrow_robots(void **state) {
    static const struct { const char *robot, *piece; int dims; } rows[] = {
        {"none", NULL, DIMS},
        {"libero", NULL, 7},
        {"aloha", "robot \"aloha\" has 14 actions, but ", 0},
    };
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    make("base", "odd:pi0:5", ORBAX_AS_TORCH);
    write_copy("base", "narrow", &(change){.narrow = 1});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy *policy = NULL;
        char stats[600], tokenizer[600];
        snprintf(stats, sizeof stats, "%s/base/assets/synthetic", box.folder);
        snprintf(tokenizer, sizeof tokenizer, "%s/base", box.folder);
        options.robot = rows[i].robot;
        options.norm_stats = strcmp(rows[i].robot, "none") ? stats : NULL;
        options.tokenizer = tokenizer;
        openpi_status status = openpi_policy_open(scratch_path(&box, "narrow"), &options, &policy, &error);
        if (rows[i].piece) {
            assert_int_equal(status, OPENPI_BAD_ARGUMENT);
            if (!strstr(error.message, rows[i].piece)) fail_msg("%s", error.message);
        } else {
            WORKS(status);
            WORKS(openpi_policy_get_info(policy, &info, &error));
            assert_int_equal(info.action_dim, rows[i].dims);
            int level = -1;
            const char *note = openpi_policy_note(policy, 0, &level);
            if (!note || !strstr(note, "says no horizon, and robot \""))
                fail_msg("note: %s", note ? note : "none");
            assert_int_equal(level, !strcmp(rows[i].robot, "libero"));       /* pi05_libero has 10 */
            openpi_policy_close(policy);
            options.horizon = 5;
            WORKS(openpi_policy_open(scratch_path(&box, "narrow"), &options, &policy, &error));
            for (int n = 0; (note = openpi_policy_note(policy, n, &level)); n++)
                if (strstr(note, "horizon")) fail_msg("with a horizon: %s", note);
        }
        openpi_policy_close(policy);
    }
    scratch_close(&box);
}

/* A message's noise has 32 columns, or the model's, which become 32 with zeros. */
static void narrow_noise(void **state) {
    enum { H = 3 };
    static const struct { const char *name; int columns; const char *piece; } rows[] = {
        {"narrow", OPENPI_ACTION_DIM, NULL},
        {"narrow", DIMS, NULL},
        {"narrow", DIMS - 1, "[3,7], expected float32 [horizon,32] or [horizon,8] with a horizon of 1 to "},
        {"base", DIMS, "[3,8], expected float32 [horizon,32] with a horizon of 1 to "},
    };
    static const uint8_t dark[3];
    const double numbers[DIMS] = {0};
    float noise[H * OPENPI_ACTION_DIM];
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    make("base", "odd:pi0:5", ORBAX_AS_TORCH);
    write_copy("base", "narrow", &(change){.narrow = 1});
    openpi_noise(3, 0, noise, H * OPENPI_ACTION_DIM);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_extras extras = OPENPI_EXTRAS_INIT;
        openpi_policy *policy;
        openpi_request *request;
        char tokenizer[600];
        snprintf(tokenizer, sizeof tokenizer, "%s/base", box.folder);
        options.robot = "none";
        options.tokenizer = tokenizer;
        const openpi_field fields[] = {
            {.size = sizeof *fields, .name = "base", .data = dark, .rank = 3, .shape = {1, 1, 3}},
            {.size = sizeof *fields, .name = "state", .data = numbers, .element = OPENPI_FLOAT64, .rank = 1,
             .shape = {DIMS}},
            {.size = sizeof *fields, .name = "prompt", .text = "go", .text_length = 2},
            {.size = sizeof *fields, .name = "openpi/noise", .data = noise, .element = OPENPI_FLOAT32,
             .rank = 2, .shape = {H, rows[i].columns}}};
        WORKS(openpi_policy_open(scratch_path(&box, rows[i].name), &options, &policy, &error));
        WORKS(openpi_request_create(policy, &request, &error));
        openpi_status status = openpi_request_prepare_fields(request, fields, 4, NULL, &error);
        if (rows[i].piece) {
            assert_int_equal(status, OPENPI_BAD_INPUT);
            if (!strstr(error.message, rows[i].piece)) fail_msg("%s", error.message);
        } else {
            WORKS(status);
            WORKS(openpi_request_extras(request, &extras, &error));
            assert_int_equal(extras.noise_rows, H);
            for (int k = 0; k < H * OPENPI_ACTION_DIM; k++) {
                int row = k / OPENPI_ACTION_DIM, column = k % OPENPI_ACTION_DIM;
                float given = column < rows[i].columns ? noise[row * rows[i].columns + column] : 0;
                assert_true(extras.noise[k] == given);
            }
        }
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
    scratch_close(&box);
}

/* ---- names ---- */

static void prefixes(void **state) {
    static const char *const names[] = {"module.", "_orig_mod.", "policy.", "_orig_mod.module.",
                                        "policy.model."};
    float plain[ACTIONS], other[ACTIONS];
    checkpoint *c;
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    make("base", "odd:pi05:5", ORBAX_AS_TORCH);
    notes_of("base", 0, NULL);
    actions_of(scratch_path(&box, "base"), OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL, plain);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char piece[80];
        write_copy("base", "copy", &(change){.prefix = names[i]});
        int length = (int)strlen(names[i]) - (strstr(names[i], "model.") ? 6 : 0);
        snprintf(piece, sizeof piece, "begin with \"%.*s\"", length, names[i]);
        notes_of("copy", 0, piece);
        actions_of(scratch_path(&box, "copy"), OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL, other);
        assert_memory_equal(other, plain, sizeof plain);
        drop("copy");
    }
    write_copy("base", "copy", &(change){.prefix = "model."});
    notes_of("copy", 0, NULL);
    drop("copy");
    write_copy("base", "copy", &(change){.prefix = "ema.", .without = "time_mlp_in.bias"});
    REFUSES(checkpoint_open(scratch_path(&box, "copy"), NULL, &c, &error), OPENPI_BAD_FILE,
            "tensor \"ema.action_in_proj.weight\" has a prefix that not all tensors have");
    scratch_close(&box);
}

/* A tensor that nobody reads may be of any type; weights may not. */
static void unread_types(void **state) {
    static const struct { const char *extra; const char *piece; } rows[] = {
        {"proprio_history_proj.weight", NULL},
        {"paligemma_with_expert.gemma_expert.model.rotary_emb.inv_freq", NULL},
        {"paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_weight_qdata", "quantised with torchao"},
        {"other.weight", "quantised with packed integers"},
    };
    checkpoint *c;
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    make("base", "odd:pi05:5", ORBAX_AS_TORCH);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_copy("base", "copy", &(change){.extra = rows[i].extra});
        openpi_status status = checkpoint_open(scratch_path(&box, "copy"), NULL, &c, &error);
        if (rows[i].piece) {
            assert_int_equal(status, OPENPI_UNSUPPORTED);
            if (!strstr(error.message, rows[i].piece)) fail_msg("%s", error.message);
        } else {
            WORKS(status);
            checkpoint_close(c);
        }
        drop("copy");
    }
    scratch_close(&box);
}

/* ---- files ---- */

enum { LINK, PIPE, SOCKET, FOLDER };

static void make_odd(const char *path, int kind) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unlink(path);
    if (kind == LINK) assert_int_equal(symlink("../blobs/gone", path), 0);
    if (kind == PIPE) assert_int_equal(mkfifo(path, 0600), 0);
    if (kind == FOLDER) assert_int_equal(mkdir(path, 0777), 0);
    if (kind != SOCKET) return;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(fd >= 0 && strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

/* Every file that a load opens: none blocks, and each is named. */
static void odd_files(void **state) {
    static const char *const pieces[] = {
        "a link that leads nowhere: ../blobs/gone is not there", "not a regular file but a pipe (FIFO)",
        "not a regular file but a socket", "not a regular file but a folder"};
    static const char *const files[] = {"model.safetensors", "config.json", "tokenizer.model",
                                        "assets/synthetic/norm_stats.json"};
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (int kind = LINK; kind <= FOLDER; kind++) {
            openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
            openpi_policy *policy = NULL;
            checkpoint *c = NULL;
            char path[600];
            make("base", "odd:pi05:5", ORBAX_AS_TORCH);
            snprintf(path, sizeof path, "%s/base/%s", box.folder, files[f]);
            make_odd(path, kind);
            options.robot = f == 3 ? "libero" : "none";
            const char *base = scratch_path(&box, "base");
            openpi_status status = f < 2 ? checkpoint_open(base, NULL, &c, &error)
                                         : openpi_policy_open(base, &options, &policy, &error);
            if (status == OPENPI_OK || !strstr(error.message, pieces[kind]) ||
                !strstr(error.message, files[f]))
                fail_msg("%s, %d: %s", files[f], kind, error.message);
            drop("base");
        }
    scratch_close(&box);
}

static void odd_texts(void **state) {
    checkpoint *c;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    put_text("passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n");
    REFUSES(checkpoint_open(scratch_path(&box, "passwd"), NULL, &c, &error), OPENPI_BAD_FILE,
            "passwd: a text file, expected weights: give a checkpoint's folder");
    make("base", "odd:pi05:5", ORBAX_AS_TORCH);
    char path[600];
    static const char *const texts[] = {"NaN", "-Infinity", "Infinity", "nan"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"norm_stats\": {\"state\": {\"mean\": [%s]}}}", texts[i]);
        put_text("norm_stats.json", text);
        snprintf(path, sizeof path, "%s/norm_stats.json", box.folder);
        options.robot = "libero";
        options.norm_stats = path;
        REFUSES(openpi_policy_open(scratch_path(&box, "base"), &options, &policy, &error), OPENPI_BAD_FILE,
                "norm_stats.json: not valid JSON: NaN or Infinity, expected a finite number (line 1, column");
        unlink(path);
    }
    scratch_close(&box);
}

/* ---- a run's folder, a config's LoRA ---- */

/* openpi_note is the list of both, without a sentence that comes twice. */
static void notes_of_both(void) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    openpi_engine *engine = NULL;
    char run[600], stats[600], tokenizer[600];
    const char *text;
    int engines = 0, policies = 0, both = 0, level;
    snprintf(run, sizeof run, "%s/run", box.folder);
    snprintf(stats, sizeof stats, "%s/base/assets/synthetic", box.folder);
    snprintf(tokenizer, sizeof tokenizer, "%s/base", box.folder);
    options.robot = "libero";
    options.norm_stats = stats;
    options.tokenizer = tokenizer;
    WORKS(openpi_policy_open(run, &options, &policy, &error));
    WORKS(openpi_engine_open(run, NULL, &engine, &error));
    while (openpi_engine_note(engine, engines, NULL)) engines++;
    while (openpi_policy_note(policy, policies, NULL)) policies++;
    assert_true(engines && policies);
    for (; (text = openpi_note(engine, policy, both, &level)); both++) {
        int own = -1, at = both < engines ? both : both - engines;
        const char *of = both < engines ? openpi_engine_note(engine, at, &own)
                                        : openpi_policy_note(policy, at, &own);
        assert_string_equal(text, of);
        assert_int_equal(level, own);
        for (int i = 0; i < both; i++) assert_string_not_equal(text, openpi_note(engine, policy, i, NULL));
    }
    assert_int_equal(both, engines + policies);
    assert_string_equal(openpi_note(NULL, policy, 0, NULL), openpi_policy_note(policy, 0, NULL));
    assert_null(openpi_note(engine, NULL, engines, NULL));
    assert_null(openpi_note(engine, policy, -1, NULL));
    assert_null(openpi_note(NULL, NULL, 0, NULL));
    openpi_engine_close(engine);
    openpi_policy_close(policy);
}

static void unfinished_step(void **state) {
    static const struct { const char *newer, *piece; } rows[] = {
        {"20000", "step 20000 is not finished, so step 1000 runs: give "},
        {"20000.orbax-checkpoint-tmp-3",
         "step 20000.orbax-checkpoint-tmp-3 is not finished, so step 1000 runs"},
        {"900", NULL},
        {"logs", NULL},
    };
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    assert_int_equal(mkdir(scratch_path(&box, "run"), 0777), 0);
    make("run/1000", "odd:pi05:5", 0);
    make("base", "odd:pi05:5", ORBAX_AS_TORCH);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[100], params[120];
        snprintf(name, sizeof name, "run/%s", rows[i].newer);
        snprintf(params, sizeof params, "%s/params", name);
        assert_int_equal(mkdir(scratch_path(&box, name), 0777), 0);
        assert_int_equal(mkdir(scratch_path(&box, params), 0777), 0);
        notes_of("run", 1, rows[i].piece);
        notes_of("run/1000", 0, NULL);
        if (!i) notes_of_both();
        drop(name);
    }
    scratch_close(&box);
}

/* What a policy tells that is opened with this config or robot; NULL: nothing of LoRA. */
static void lora_note(const char *name, const char *config, const char *stats, int warning,
                      const char *piece) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    int level = -1;
    const char *text;
    options.config = config;
    char folder[600], tokenizer[600];
    snprintf(folder, sizeof folder, "%s/%s/assets/synthetic", box.folder, stats);
    snprintf(tokenizer, sizeof tokenizer, "%s/%s", box.folder, stats);
    options.norm_stats = folder;
    options.tokenizer = tokenizer;
    WORKS(openpi_policy_open(scratch_path(&box, name), &options, &policy, &error));
    for (int i = 0; (text = openpi_policy_note(policy, i, &level)); i++)
        if (strstr(text, "LoRA")) break;
    if (!text != !piece || (piece && (!strstr(text, piece) || level != warning)))
        fail_msg("%s: %d \"%s\", expected \"%s\"", name, level, text ? text : "", piece ? piece : "");
    openpi_policy_close(policy);
}

static void lora_config(void **state) {
    (void)state;
    assert_int_equal(scratch_open(&box), 0);
    make("torch", "odd:pi0:5", ORBAX_AS_TORCH);
    make("jax", "odd:pi0:5", 0);
    lora_note("jax", "pi0_libero_low_mem_finetune", "torch", 1,
              "\"pi0_libero_low_mem_finetune\" has LoRA of rank 16 in the language model (0: none), but ");
    lora_note("torch", "pi0_libero_low_mem_finetune", "torch", 0, "it must be merged into the weights");
    lora_note("jax", "pi0_libero", "torch", 0, NULL);
    scratch_close(&box);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(action_dims), cmocka_unit_test(narrow_robots),
        cmocka_unit_test(narrow_noise),   cmocka_unit_test(prefixes),
        cmocka_unit_test(unread_types), cmocka_unit_test(odd_files),      cmocka_unit_test(odd_texts),
        cmocka_unit_test(unfinished_step), cmocka_unit_test(lora_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
