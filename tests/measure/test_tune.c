/* labels: no_asan */
/* Tuning: the table there and back, the sentence for every bad field, choices that are really taken and
 * change no result, and a run that is stopped and continues. Nothing here depends on how fast this machine
 * is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "lab/tune/tune.h"
#include "lab/tune/tune_parts.h"
#include "lab/measure/workload.h"
#include "openpi_internal.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- a model on one thread -------------------------------------------------------------------------- */

static openpi_status try_open(const char *spec, const char *table, const char *without,
                              openpi_engine **engine) {
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.isa = "avx2";
    options.threads = 1;
    options.table = table;
    options.without = without;
    return openpi_engine_open(NULL, &options, engine, &error);
}

static openpi_engine *open_odd(const char *table, const char *without) {
    openpi_engine *engine = NULL;
    must(try_open("odd:pi0", table, without, &engine));
    return engine;
}

static openpi_session *open_session(openpi_engine *engine) {
    openpi_session *session = NULL;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = 3;
    options.steps = 1;
    options.max_prompt = 5;
    must(openpi_session_create(engine, &options, &session, &error));
    return session;
}

static void act(openpi_session *session, int cameras, float actions[3 * OPENPI_ACTION_DIM]) {
    workload_inputs inputs;
    workload call = {.batch = 1, .prompt = 4, .seed = 3};
    for (int i = 0; i < cameras; i++) call.cameras[i] = 1;
    must(workload_make(session, &call, &inputs, &error));
    must(workload_run(session, &inputs, NULL, &error));
    memcpy(actions, inputs.actions, 3 * OPENPI_ACTION_DIM * sizeof *actions);
    workload_free(&inputs);
}

/* ---- tables ----------------------------------------------------------------------------------------- */

static tuning_machine here(void) {
    openpi_engine *engine = open_odd(NULL, NULL);
    tuning_machine machine = tuning_machine_of(engine->device, 1);
    openpi_engine_close(engine);
    return machine;
}

static void write_text(scratch *s, const char *name, const char *text) {
    assert_int_equal(scratch_write(s, name, text, strlen(text)), 0);
}

/* Kernels whose sources are known by their names' first letter and length. */
static uint64_t fake_hash(const device *device, const char *name) {
    (void)device;
    return strcmp(name, "gone")
               ? UINT64_C(0xabcd00000000) + (uint64_t)(unsigned char)name[0] * 256 + strlen(name)
               : 0;
}
static const backend fake_backend = {.name = "fake", .kernel_hash = fake_hash};
static const device fake_device = {.backend = &fake_backend};

static void write_table(scratch *s, const char *name, const tuning *table, const device *device) {
    json_t *root = tuning_json(table, device);
    char *text = json_text(root, JSON_INDENT(1));
    assert_non_null(text);
    write_text(s, name, text);
    free(text);
    json_decref(root);
}

static void table_goes_there_and_back(void **state) {
    (void)state;
    scratch s;
    tuning_machine machine = here();
    tuning table = {.machine = machine}, *read = NULL;
    tuning_entry one = {.key = {.op = OP_NORM_LINEAR,
                                .form = MATRIX_GATED,
                                .norm = NORM_RMS,
                                .type = DTYPE_BF16,
                                .weights = WEIGHT_F32,
                                .m = 788,
                                .n = 32768,
                                .k = 2048,
                                .cameras = 2},
                        .choice = "cut 256",
                        .heuristic = "usual",
                        .runner_up = "panels 2",
                        .time_us = 1.25,
                        .heuristic_us = 2.5,
                        .runner_up_us = 2,
                        .confirmed = 1};
    tuning_entry two = {.key = {.op = OP_CACHE_ATTENTION,
                                .type = DTYPE_F32,
                                .weights = WEIGHT_F32,
                                .m = 11,
                                .heads = 8,
                                .head_dim = 256,
                                .capacity = 800},
                        .choice = "units 16"};
    assert_int_equal(scratch_open(&s), 0);
    must(tuning_add(&table, &one, &error));
    must(tuning_add(&table, &two, &error));
    write_table(&s, "t.json", &table, &fake_device);
    must(tuning_read(scratch_path(&s, "t.json"), &machine, &fake_device, &read, &error));
    assert_int_equal(read->count, 2);
    assert_string_equal(read->ignored, "");
    assert_true(tuning_same(&read->entries[0].key, &one.key) && tuning_same(&read->entries[1].key, &two.key));
    assert_string_equal(read->entries[0].choice, "cut 256");
    assert_string_equal(read->entries[0].heuristic, "usual");
    assert_string_equal(read->entries[0].runner_up, "panels 2");
    assert_true(read->entries[0].time_us == 1.25 && read->entries[0].heuristic_us == 2.5 &&
                read->entries[0].runner_up_us == 2 && read->entries[0].confirmed);
    assert_string_equal(read->entries[1].choice, "units 16");
    tuning_close(read);
    free(table.entries);
    scratch_close(&s);
}

/* The tables in openpi can be read by the openpi that contains them. */
static void shipped_tables_are_whole(void **state) {
    (void)state;
    for (const tuning_text *t = tuning_texts; t->text; t++) {
        json_t *root = NULL;
        tuning *table = NULL;
        must(json_parse(t->text, (size_t)(t->end - t->text), "shipped", &root, &error));
        must(tuning_parse(root, "shipped", NULL, &fake_device, &table, &error));
        assert_true(table->count + (table->ignored[0] != 0) > 0 && table->machine.device[0]);
        tuning_close(table);
        json_decref(root);
    }
}

/* The one for the H200 serves that card, with the kernels it is for, and nobody else. */
static void shipped_table_finds_its_device(void **state) {
    (void)state;
    tuning *table = NULL;
    tuning_machine card = {"NVIDIA H200", "hopper", 0}, other = {"NVIDIA H200", "portable", 0};
    must(tuning_shipped(&card, NULL, &table, &error));
    assert_non_null(table);
    assert_string_equal(table->source, "built in");
    /* What two cameras' prefix of the published workload needs most. */
    op down = {.kind = OP_LINEAR_RESIDUAL, .type = DTYPE_BF16};
    down.linear_residual.rows.capacity = 788;
    down.linear_residual.weight = (matrix){.n = 2048, .k = 16384, .type = WEIGHT_BF16, .form = MATRIX_PLAIN};
    tuning_key shape = tuning_key_of(&down);
    const tuning_entry *entry = tuning_find(table, &shape, 2);
    assert_non_null(entry);
    assert_int_equal(entry->key.cameras, 2);
    assert_true(entry->time_us > 0 && entry->choice[0]);
    shape.m = 789;
    assert_null(tuning_find(table, &shape, 2));
    tuning_close(table);
    must(tuning_shipped(&other, NULL, &table, &error));
    assert_null(table);
}

/* The sentence for one changed word of a good table. */
static void refuse(scratch *s, const char *from, const char *to, const char *sentence) {
    tuning_machine machine = {"Chip", "avx2", 1};
    static const char good[] = "{\"kind\": \"tuning\", \"format\": 2, \"openpi\": \"0.0.9\", \"device\": "
                               "\"Chip\", \"path\": \"avx2\", "
                               "\"threads\": 1,\n \"kernels\": {\"cut 256\": \"0000abcd00006307\"},\n"
                               " \"entries\": [{\"op\": \"norm_qkv\", \"form\": \"qkv\", \"norm\": \"rms\", "
                               "\"dtype\": \"bf16\", \"m\": 788,\n"
                               "  \"n\": 2560, \"k\": 2048, \"choice\": \"cut 256\", \"time_us\": 1.5, "
                               "\"heuristic\": \"usual\", \"confirmed\": true}]}";
    char text[2048] = "";
    tuning *read = NULL;
    const char *at = strstr(good, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    write_text(s, "bad.json", text);
    openpi_status status = tuning_read(scratch_path(s, "bad.json"), &machine, &fake_device, &read, &error);
    if (!sentence) {
        must(status);
        assert_int_equal(read->count, 1);
        assert_string_equal(read->ignored, "");
        tuning_close(read);
        return;
    }
    if (status != OPENPI_BAD_FILE) fail_msg("%s for %s is taken", to, from);
    if (!strstr(error.message, sentence) || !strstr(error.message, "bad.json"))
        fail_msg("\"%s\" lacks \"%s\"", error.message, sentence);
}

static void bad_fields_are_named(void **state) {
    (void)state;
    scratch s;
    assert_int_equal(scratch_open(&s), 0);
    refuse(&s, "cut 256", "cut 256", NULL);
    refuse(&s, "\"tuning\"", "\"bench\"", "\"kind\" is bench, expected \"tuning\"");
    refuse(&s, "\"format\": 2", "\"format\": 3", "\"format\" is 3, expected 2");
    refuse(&s, "\"format\": 2", "\"format\": 1",
           "\"format\" is 1, which does not tell the kernels that were timed");
    refuse(&s, "\"format\": 2", "\"format\": 1", "openpi tune --out");
    refuse(&s, "\"openpi\": \"0.0.9\"", "\"openpi\": \"9.1\"", NULL); /* the version decides nothing */
    refuse(&s, "\"cut 256\": ", "\"usual\": ", NULL); /* a choice without a hash */
    refuse(&s, "\"kernels\": {\"cut 256\": \"0000abcd00006307\"},", "",
           "\"kernels\" is absent, expected an object");
    refuse(&s, "{\"cut 256\": \"0000abcd00006307\"}", "[]", "\"kernels\" is an array, expected an object");
    refuse(&s, "\"0000abcd00006307\"", "7",
           "\"kernels\": \"cut 256\" is an integer, expected 16 hexadecimal digits");
    refuse(&s, "\"0000abcd00006307\"", "\"abcd00006307\"",
           "\"cut 256\" is \"abcd00006307\", expected 16 hexadecimal");
    refuse(&s, "\"0000abcd00006307\"", "\"0000ABCD00006307\"",
           "\"cut 256\" is \"0000ABCD00006307\", expected 16");
    refuse(&s, "\"Chip\"", "\"Other\"", "\"device\" is \"Other\", expected \"Chip\"");
    refuse(&s, "\"device\": \"Chip\",", "", "\"device\" is absent");
    refuse(&s, "\"path\": \"avx2\"", "\"path\": \"amx\"", "\"path\" is \"amx\", expected \"avx2\"");
    refuse(&s, "\"threads\": 1", "\"threads\": 16", "\"threads\" is 16, expected 1");
    refuse(&s, "\"threads\": 1", "\"threads\": \"1\"", "\"threads\" is a string");
    refuse(&s, "\"norm_qkv\"", "\"conv\"", "entries[0]: \"op\" is \"conv\"");
    refuse(&s, "\"op\": \"norm_qkv\", ", "", "\"op\" is absent");
    refuse(&s, "\"form\": \"qkv\"", "\"form\": 3", "\"form\" is an integer");
    refuse(&s, "\"rms\"", "\"batch\"", "\"norm\" is \"batch\"");
    refuse(&s, "\"bf16\"", "\"f16\"", "\"dtype\" is \"f16\"");
    refuse(&s, "\"m\": 788", "\"m\": 0", "\"m\" is 0, expected an integer from 1");
    refuse(&s, "\"m\": 788,", "", "\"m\" is absent");
    refuse(&s, "\"n\": 2560", "\"n\": -1", "\"n\" is -1");
    refuse(&s, "\"k\": 2048", "\"k\": 2048.5", "\"k\" is a real number");
    refuse(&s, "\"n\": 2560", "\"n\": 2560, \"cameras\": 4",
           "\"cameras\" is 4, expected an integer from 0 to 3");
    refuse(&s, "\"choice\": \"cut 256\"", "\"choice\": \"\"", "\"choice\" is empty");
    refuse(&s, "\"choice\": \"cut 256\",", "", "\"choice\" is absent");
    refuse(&s, "\"choice\": \"cut 256\"",
           "\"choice\": \"0123456789012345678901234567890123456789012345678901234567890\"",
           "\"choice\" is too long");
    refuse(&s, "\"time_us\": 1.5", "\"time_us\": -1", "\"time_us\" is -1");
    refuse(&s, "\"time_us\": 1.5", "\"time_us\": \"fast\"", "\"time_us\" is a string");
    refuse(&s, "\"confirmed\": true", "\"confirmed\": 1", "\"confirmed\" is an integer");
    refuse(&s, "}]}",
           "}, {\"op\": \"norm_qkv\", \"form\": \"qkv\", \"norm\": \"rms\", \"dtype\": \"bf16\", \"m\": 788, "
           "\"n\": 2560, \"k\": "
           "2048, \"choice\": \"usual\"}]}",
           "entries[1] has the shape of entries[0]");
    refuse(&s, "[{", "[7, {", "entries[0] is an integer, expected an object");
    refuse(&s, "\"entries\": [", "\"entries\": 7, \"x\": [", "\"entries\" is an integer, expected an array");
    refuse(&s, "}]}", "}]", "bad.json");
    scratch_close(&s);
}

/* ---- kernels that change ---------------------------------------------------------------------------- */

static json_t *parse(const char *text) {
    json_t *root = NULL;
    must(json_parse(text, strlen(text), "a table", &root, &error));
    return root;
}

/* Entries of changed kernels are left out and reported; the others stay, whatever version wrote the table. */
static void changed_kernels_are_left_out(void **state) {
    (void)state;
    static const struct {
        const char *wide, *slim, *ignored;
        int left;
    } cases[] = {
        {"0000abcd00007704", "0000abcd00007304", "", 4},
        {"0000abcd00007705", "0000abcd00007304",
         "2 of 4 entries ignored: wide changed since the table was made", 2},
        {"0000abcd00007704", "1000abcd00007304",
         "1 of 4 entries ignored: slim changed since the table was made", 3},
        {"0000000000000001", "0000000000000001",
         "3 of 4 entries ignored: wide and others changed since the table was made", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char form[] =
            "{\"kind\": \"tuning\", \"format\": 2, \"openpi\": \"9.9\", \"device\": \"Chip\", \"path\": "
            "\"avx2\",\n"
            " \"kernels\": {\"wide\": \"%s\", \"slim\": \"%s\"}, \"entries\": [\n"
            "  {\"op\": \"velocity\", \"dtype\": \"f32\", \"m\": 1, \"choice\": \"wide\"},\n"
            "  {\"op\": \"velocity\", \"dtype\": \"f32\", \"m\": 2, \"choice\": \"slim\"},\n"
            "  {\"op\": \"velocity\", \"dtype\": \"f32\", \"m\": 3, \"choice\": \"wide\"},\n"
            "  {\"op\": \"velocity\", \"dtype\": \"f32\", \"m\": 4, \"choice\": \"by hand\"}]}";
        char text[1024];
        tuning *table = NULL;
        snprintf(text, sizeof text, form, cases[i].wide, cases[i].slim);
        json_t *root = parse(text);
        must(tuning_parse(root, "a table", NULL, &fake_device, &table, &error));
        assert_int_equal(table->count, cases[i].left);
        assert_int_equal(table->entries[table->count - 1].key.m, 4);
        assert_string_equal(table->ignored, cases[i].ignored);
        tuning_close(table);
        must(tuning_parse(root, "a table", NULL, NULL, &table, &error));
        assert_int_equal(table->count, 4);
        tuning_close(table);
        json_decref(root);
    }
}

/* The CPU's blockings have one hash, which is not 0, and other names have none. */
static void processor_kernels_have_a_hash(void **state) {
    (void)state;
    openpi_engine *engine = open_odd(NULL, NULL);
    const device *device = engine->device;
    const op *ops;
    openpi_session *session = open_session(engine);
    uint64_t hash = device->backend->kernel_hash(device, "usual");
    assert_true(hash != 0);
    assert_true(device->backend->kernel_hash(device, "unusual") == 0);
    ops = session->plan->ops;
    for (int i = 0; i < session->plan->count; i++) {
        candidate list[64];
        int count = device->backend->candidates(device, &ops[i], list, 64);
        for (int c = 0; c < count; c++)
            assert_true(device->backend->kernel_hash(device, list[c].name) == hash);
    }
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static const char *ignored_of(const openpi_engine *engine) {
    static openpi_engine_info info;
    info.size = sizeof info;
    must(openpi_engine_get_info(engine, &info, &error));
    return info.table_ignored;
}

/* A table of an older format or of other kernels is written again with this build's; what this build has not
 * is dropped. */
static void rekeyed_tables_are_taken(void **state) {
    (void)state;
    scratch s;
    char text[2048];
    const char *path;
    tuning_machine machine = here();
    int kept, dropped, known, unknown;
    assert_int_equal(scratch_open(&s), 0);
    for (int format = 1; format <= 2; format++) {
        snprintf(text, sizeof text,
                 "{\"kind\": \"tuning\", \"format\": %d, \"openpi\": \"0.0.9\", \"device\": \"%s\", "
                 "\"path\": \"%s\", "
                 "\"threads\": 1, %s \"entries\": [\n"
                 "  {\"op\": \"embed_text\", \"dtype\": \"bf16\", \"m\": 5, \"n\": 96, \"choice\": \"rows "
                 "4\"},\n"
                 "  {\"op\": \"velocity\", \"dtype\": \"f32\", \"m\": 1, \"choice\": \"no such kernel\"}]}",
                 format, machine.device, machine.path,
                 format == 1 ? "" : "\"kernels\": {\"rows 4\": \"0000000000000001\"},");
        write_text(&s, "old.json", text);
        openpi_engine *engine = NULL;
        path = scratch_path(&s, "old.json");
        openpi_status status = try_open("odd:pi0", path, NULL, &engine);
        assert_int_equal(status, format == 1 ? OPENPI_BAD_FILE : OPENPI_OK);
        if (format == 2) {
            openpi_session *session = open_session(engine);
            tune_coverage(session, &known, &unknown);
            assert_int_equal(known, 0);
            assert_string_equal(ignored_of(engine),
                                "1 of 2 entries ignored: rows 4 changed since the table was made");
            openpi_session_close(session);
            openpi_engine_close(engine);
        }
        engine = open_odd(NULL, NULL);
        FILE *file = fopen(scratch_path(&s, "new.json"), "w");
        assert_non_null(file);
        must(tune_rekey(engine, scratch_path(&s, "old.json"), file, &kept, &dropped, &error));
        assert_int_equal(fclose(file), 0);
        assert_int_equal(kept, 1);
        assert_int_equal(dropped, 1);
        openpi_engine_close(engine);
        must(try_open("odd:pi0", scratch_path(&s, "new.json"), NULL, &engine));
        openpi_session *session = open_session(engine);
        tune_coverage(session, &known, &unknown);
        assert_int_equal(known, 1);
        assert_string_equal(ignored_of(engine), "");
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
    scratch_close(&s);
}

/* ---- choices that are taken ---------------------------------------------------------------------------- */

/* A table with the last choice for every shape of the session's plan, but for one op. */
static void table_of(const openpi_session *session, const char *but, int cameras, tuning *table) {
    const device *device = session->engine->device;
    table->machine = tuning_machine_of(session->engine->device, 1);
    for (int i = 0; i < session->plan->count; i++) {
        const op *op = &session->plan->ops[i];
        candidate list[64];
        tuning_entry entry = {.key = tuning_key_of(op)};
        int choices = device->backend->candidates(device, op, list, 64), known = 0;
        entry.key.cameras = cameras;
        for (int j = 0; j < table->count; j++) known |= tuning_same(&table->entries[j].key, &entry.key);
        if (choices < 2 || known || (but && !strcmp(op->name, but))) continue;
        snprintf(entry.choice, sizeof entry.choice, "%s", list[choices - 1].name);
        must(tuning_add(table, &entry, &error));
    }
}

static void ways_are_taken(void **state) {
    (void)state;
    scratch s;
    float plain[3 * OPENPI_ACTION_DIM], tuned[3 * OPENPI_ACTION_DIM];
    tuning table = {0};
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    assert_int_equal(scratch_open(&s), 0);
    openpi_engine *engine = open_odd(NULL, NULL);
    openpi_session *session = open_session(engine);
    assert_null(session->kinds.choices);
    act(session, 3, plain);
    table_of(session, "prefix.gate_up", 0, &table);
    write_table(&s, "t.json", &table, engine->device);
    openpi_session_close(session);
    openpi_engine_close(engine);

    engine = open_odd(scratch_path(&s, "t.json"), NULL);
    openpi_engine_get_info(engine, &info, NULL);
    assert_non_null(strstr(info.table, "t.json"));
    session = open_session(engine);
    int tuned_ops = 0, unknown = 0;
    for (int i = 0; i < session->plan->count; i++) {
        const op *op = &session->plan->ops[i];
        int choices = engine->device->backend->candidates(engine->device, op, NULL, 0);
        tuned_ops += op->choice > 0;
        if (choices > 1 && !strcmp(op->name, "prefix.gate_up")) unknown++, assert_int_equal(op->choice, 0);
        else if (choices > 1) assert_int_equal(op->choice, choices);
    }
    assert_true(tuned_ops > 20);
    assert_int_equal(session->kinds.tuned, tuned_ops);
    assert_int_equal(session->kinds.unknown, unknown);
    act(session, 3, tuned);
    assert_memory_equal(plain, tuned, sizeof plain);       /* blockings of a CPU change no bit */
    openpi_session_close(session);
    openpi_engine_close(engine);

    engine = open_odd(scratch_path(&s, "t.json"), "tuned-tiles");
    openpi_engine_get_info(engine, &info, NULL);
    assert_string_equal(info.table, "");
    session = open_session(engine);
    for (int i = 0; i < session->plan->count; i++) assert_int_equal(session->plan->ops[i].choice, 0);
    openpi_session_close(session);
    openpi_engine_close(engine);
    free(table.entries);
    scratch_close(&s);
}

/* Entries for one camera hold for calls with one camera, and only for them. */
static void cameras_choose(void **state) {
    (void)state;
    scratch s;
    float actions[3 * OPENPI_ACTION_DIM];
    tuning table = {0};
    assert_int_equal(scratch_open(&s), 0);
    openpi_engine *engine = open_odd(NULL, NULL);
    openpi_session *session = open_session(engine);
    table_of(session, NULL, 1, &table);
    write_table(&s, "t.json", &table, engine->device);
    openpi_session_close(session);
    openpi_engine_close(engine);
    engine = open_odd(scratch_path(&s, "t.json"), NULL);
    session = open_session(engine);
    for (int cameras = 1; cameras <= 3; cameras++) {
        int chosen = 0;
        act(session, cameras, actions);
        for (int i = 0; i < session->plan->count; i++) chosen += session->plan->ops[i].choice > 0;
        assert_true(cameras == 1 ? chosen > 20 : chosen == 0);
    }
    openpi_session_close(session);
    openpi_engine_close(engine);
    free(table.entries);
    scratch_close(&s);
}

/* A name that the device does not offer is an unknown shape; a table of another device is refused when the
 * engine opens. */
static void foreign_tables(void **state) {
    (void)state;
    scratch s;
    tuning table = {.machine = here()};
    assert_int_equal(scratch_open(&s), 0);
    openpi_engine *engine = open_odd(NULL, NULL);
    openpi_session *session = open_session(engine);
    table_of(session, NULL, 0, &table);
    for (int i = 0; i < table.count; i++) strcpy(table.entries[i].choice, "hopper_160x128");
    write_table(&s, "t.json", &table, engine->device);
    openpi_session_close(session);
    openpi_engine_close(engine);
    engine = open_odd(scratch_path(&s, "t.json"), NULL);
    session = open_session(engine);
    assert_int_equal(session->kinds.tuned, 0);
    assert_true(session->kinds.unknown > 20);
    openpi_session_close(session);
    openpi_engine_close(engine);

    strcpy(table.machine.device, "Another chip");
    write_table(&s, "t.json", &table, &fake_device);
    engine = NULL;
    assert_int_equal(try_open("odd:pi0", scratch_path(&s, "t.json"), NULL, &engine), OPENPI_BAD_FILE);
    assert_non_null(strstr(error.message, "Another chip"));
    assert_int_equal(try_open("odd:pi0", scratch_path(&s, "none.json"), NULL, &engine), OPENPI_NOT_FOUND);
    assert_null(engine);
    free(table.entries);
    scratch_close(&s);
}

/* ---- tuning ----------------------------------------------------------------------------------------- */

static const tune_plan_shape small = {
    .batch = 1, .horizon = 3, .max_prompt = 5, .cameras = {1, 0, 0}, .prompt = 4};

/* What the progress said: no step is said twice or left out, and the total is never less than the steps
 * begun. */
static struct {
    uint64_t steps, total;
    int roofs, warm_ups, in_place, checks;
} said;

static void count_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    assert_int_equal(done, said.steps++);
    assert_true(done < total && total >= said.total);
    said.total = total;
    said.roofs += strstr(what, "ceilings") != NULL;
    said.warm_ups += strstr(what, "warm-up") != NULL;
    said.in_place += strstr(what, "in place") != NULL;
    said.checks += strstr(what, "with and without") != NULL;
}

static void tune_small(openpi_engine *engine, const char *journal, int fresh, int known, tune *t) {
    tune_options options = {.rounds = 1,
                            .confirm_rounds = 1,
                            .steps = 1,
                            .journal = journal,
                            .fresh = fresh,
                            .progress = count_progress};
    memset(&said, 0, sizeof said);
    must(tune_open(engine, &options, t, &error));
    assert_int_equal(t->resumed, known);
    must(tune_expect(t, engine, &small, 1, &error));
    int shapes = t->expected - 2;                          /* beside a warm-up and a check of the plan */
    must(tune_measure_roofs(t, engine, &error));
    must(tune_plan(t, engine, &small, &error));
    assert_int_equal(t->count, known + shapes);
    assert_true(said.roofs == 1 && said.warm_ups == 1 && said.checks == 1);
    assert_int_equal(said.steps, 3 + shapes + said.in_place);
    assert_int_equal(t->done, said.steps);
    assert_int_equal(t->expected, t->done);
}

/* With ceilings so low that every op is a heavy one. *shares: what the measured shapes take of a call. */
static int tune_heavy(openpi_engine *engine, double least_share, double *shares) {
    tune_options options = {
        .rounds = 2, .confirm_rounds = 1, .steps = 1, .least_share = least_share, .progress = count_progress};
    tune t;
    memset(&said, 0, sizeof said);
    must(tune_open(engine, &options, &t, &error));
    t.roofs = (device_roofs){.bf16_tflops = 1e-7, .f32_tflops = 1e-7, .read_gbs = 1e-4};
    must(tune_expect(&t, engine, &small, 1, &error));
    must(tune_plan(&t, engine, &small, &error));
    assert_int_equal(t.done, said.steps);
    assert_int_equal(t.expected, t.done);
    assert_true(said.warm_ups == 1 && said.checks == 1 && t.pair_count == 1);
    double us = 0;
    for (int i = 0; i < t.count; i++) {
        const tune_row *row = &t.rows[i];
        assert_true(row->winner_us > 0 && row->entry.heuristic_us > 0 && row->outcome != TUNE_PENDING);
        us += row->calls * tune_roof_ratio(&t, row, 1);
    }
    *shares = us;
    int count = t.count;
    tune_close(&t);
    return count;
}

static void heavy_shapes_and_small_ones(void **state) {
    (void)state;
    double all, some, none;
    openpi_engine *engine = open_odd(NULL, "tuned-tiles");
    int shapes = tune_heavy(engine, 0, &all), large = tune_heavy(engine, 0.05, &some);
    assert_true(shapes > 10 && large > 0 && large < shapes);
    assert_true(some > 0.05 * large * all);
    assert_int_equal(tune_heavy(engine, 1, &none), 0);
    openpi_engine_close(engine);
}

/* A gain is one where it exceeds the spread of the pairs. */
static void noise_is_noise(void **state) {
    (void)state;
    static const struct {
        double base[7], trial[7];
        int rounds, gains, slower;
    } cases[] = {
        {{10, 11, 12, 10, 11, 12, 10}, {9, 10, 11, 9, 10, 11, 9}, 7, 1, 0},   /* the machine's slow moments meet both */
        {{10, 10, 10, 10, 10, 10, 10}, {9, 12, 8, 11, 9.5, 12, 9}, 7, 0, 3}, /* a median that won by chance          */
        {{10, 10, 10, 10, 10, 10, 40}, {9.9, 9.8, 9.9, 9.9, 9.8, 9.9, 9.9}, 7, 1, 0}, /* one outlier               */
        {{10, 10, 10, 10, 10, 10, 10}, {11, 11.1, 11, 11.1, 11, 11, 11}, 7, 0, 7},
        {{10, 10, 10}, {10, 10, 10}, 3, 0, 0},
        {{10, 10}, {9, 9}, 2, 0, 0},                                          /* too few                             */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        paired p = tune_paired(cases[i].base, cases[i].trial, cases[i].rounds);
        assert_int_equal(tune_gains(&p), cases[i].gains);
        assert_int_equal(p.slower, cases[i].slower);
    }
}

static void rounds_fit_their_time(void **state) {
    (void)state;
    assert_int_equal(tune_rounds_within(1000, 10, 11), 11);
    assert_int_equal(tune_rounds_within(1000, 200, 11), 5);
    assert_int_equal(tune_rounds_within(1000, 900, 11), 3);
    assert_int_equal(tune_rounds_within(1000, 900, 2), 2);
    assert_int_equal(tune_rounds_within(1000, 0, 7), 7);
}

static void runs_and_goes_on(void **state) {
    (void)state;
    scratch s;
    char journal[400], table[400], *text = NULL;
    size_t bytes = 0;
    tune t;
    tuning *read = NULL;
    assert_int_equal(scratch_open(&s), 0);
    strcpy(journal, scratch_path(&s, "t.json.part"));
    strcpy(table, scratch_path(&s, "t.json"));
    openpi_engine *engine = open_odd(NULL, "tuned-tiles");
    tune_small(engine, journal, 0, 0, &t);
    int shapes = t.count;
    assert_true(shapes > 10 && t.pair_count == 1);
    for (int i = 0; i < t.count; i++) {
        const tune_row *row = &t.rows[i];
        assert_true(row->candidates > 1 && row->winner_us > 0 && row->entry.heuristic_us > 0 &&
                    row->outcome != TUNE_PENDING);
        assert_true(row->flops > 0 && row->bytes > 0 && row->calls > 0 && row->rows > 0);
        assert_string_equal(row->entry.choice,
                            row->outcome == TUNE_CONFIRMED ? row->winner : row->entry.heuristic);
        assert_true(tune_roof_ratio(&t, row, row->winner_us) >= 0);
    }
    tune_close(&t);

    /* Stopped in the middle of a line: the shapes of the whole lines are known. */
    must(file_read(journal, 1 << 20, &text, &bytes, &error));
    size_t cut = 0, lines = 0;
    while (lines < 5) lines += text[cut++] == '\n';
    assert_int_equal(scratch_write(&s, "t.json.part", text, cut + 20), 0);
    free(text);
    tune_small(engine, journal, 0, 4, &t);
    assert_int_equal(t.count, shapes);
    tune_close(&t);
    tune_small(engine, journal, 0, shapes, &t);
    tune_close(&t);

    /* Rows that were measured with other kernels are measured again. */
    must(file_read(journal, 1 << 20, &text, &bytes, &error));
    for (char *at = text; (at = strstr(at, "\"kernels\":{\"")) && (at = strstr(at, "\":\"")); at += 4)
        at[3] = at[3] == '0' ? '1' : '0', at[4] = at[4] == '0' ? '1' : '0';
    assert_int_equal(scratch_write(&s, "t.json.part", text, bytes), 0);
    free(text);
    tune_small(engine, journal, 0, 0, &t);
    assert_int_equal(t.count, shapes);
    tune_close(&t);
    tune_small(engine, journal, 1, 0, &t);

    /* A table that the last check found slower is refused, and nothing is lost. */
    static const struct {
        double before, after;
        int rounds, slower, placed, refused;
        double spread;
    } checks[] = {
        {10, 11, 7, 4, 3, 1, 0.3}, /* slower by more than the spread, in 4 of 7 rounds */
        {10, 11, 7, 4, 3, 0, 1.3},
        {10, 12.9, 15, 15, 3, 1, 5}, /* slower every time                              */
        {10, 12.9, 15, 13, 3, 1, 5}, /* 121 cases of 32768: less than one of a hundred */
        {10, 12.9, 15, 12, 3, 0, 5}, /* 576 of 32768: chance                           */
        {10, 12.9, 15, 15, 0, 0, 5}, /* the same plan twice: the machine's noise       */
        {10, 9.9, 15, 14, 3, 0, 5}, /* the median won                                 */
        {10, 10.1, 1, 1, 3, 0, 5}, /* one round says nothing                        */
        {10, 10.1, 7, 7, 3, 1, 5},
    };
    static const char before[] = "what was there";
    tune_pair kept = t.pairs[0];
    assert_true(kept.rounds == 1 && kept.before_ms > 0 && kept.after_ms > 0);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        t.pairs[0] = (tune_pair){.batch = 1,
                                 .horizon = 3,
                                 .max_prompt = 5,
                                 .cameras = 1,
                                 .before_ms = checks[i].before,
                                 .after_ms = checks[i].after,
                                 .rounds = checks[i].rounds,
                                 .slower = checks[i].slower,
                                 .spread_ms = checks[i].spread,
                                 .placed = checks[i].placed};
        assert_int_equal(tune_slowed(&t) != NULL, checks[i].refused);
        if (!checks[i].refused) continue;
        write_text(&s, "t.json", before);
        FILE *file = fopen(table, "r+");
        assert_non_null(file);
        assert_int_equal(tune_write(&t, engine, "t.json", file, &error), OPENPI_BAD_INPUT);
        assert_int_equal(fclose(file), 0);
        assert_non_null(strstr(
            error.message, "t.json: not written: with this table a call of π0, batch 1, horizon 3, prompt 5, "
                           "1 camera takes "));
        assert_true(file_exists(journal));
        must(file_read(table, 100, &text, &bytes, &error));
        assert_string_equal(text, before);
        free(text);
    }
    t.pairs[0] = kept;
    FILE *file = fopen(table, "w");
    assert_non_null(file);
    must(tune_write(&t, engine, "t.json", file, &error));
    assert_int_equal(fclose(file), 0);
    assert_true(file_exists(journal));
    tune_forget_journal(&t);
    assert_false(file_exists(journal));
    must(tuning_read(table, &t.machine, engine->device, &read, &error));
    assert_int_equal(read->count, shapes);
    tuning_close(read);
    tune_close(&t);
    openpi_engine_close(engine);

    /* A session that uses it knows every shape. */
    engine = open_odd(table, NULL);
    openpi_session *session = open_session(engine);
    call_kinds_choose(&session->kinds, 0);
    assert_int_equal(session->kinds.unknown, 0);
    openpi_session_close(session);
    openpi_engine_close(engine);
    scratch_close(&s);
}

static void bad_journals(void **state) {
    (void)state;
    scratch s;
    tune t;
    tune_options options = {.journal = NULL};
    char journal[400];
    assert_int_equal(scratch_open(&s), 0);
    strcpy(journal, scratch_path(&s, "j"));
    openpi_engine *engine = open_odd(NULL, "tuned-tiles");
    options.journal = journal;
    write_text(&s, "j", "what is this\n");
    assert_int_equal(tune_open(engine, &options, &t, &error), OPENPI_BAD_FILE);
    assert_non_null(strstr(error.message, "line 1"));
    tune_close(&t);
    tuning other = {.machine = {"Another chip", "avx2", 1}};
    json_t *head = tuning_json(&other, engine->device);
    char *text = json_text(head, JSON_COMPACT), line[600];
    snprintf(line, sizeof line, "%s\n", text);
    free(text);
    json_decref(head);
    write_text(&s, "j", line);
    assert_int_equal(tune_open(engine, &options, &t, &error), OPENPI_BAD_FILE);
    assert_non_null(strstr(error.message, "Another chip"));
    tune_close(&t);
    options.journal = "/nowhere/at/all";
    assert_int_equal(tune_open(engine, &options, &t, &error), OPENPI_SYSTEM);
    assert_non_null(strstr(error.message, "/nowhere/at/all"));
    tune_close(&t);
    options = (tune_options){.rounds = 65};
    assert_int_equal(tune_open(engine, &options, &t, &error), OPENPI_BAD_ARGUMENT);
    tune_close(&t);
    openpi_engine_close(engine);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_table_finds_its_device),
        cmocka_unit_test(table_goes_there_and_back),
        cmocka_unit_test(shipped_tables_are_whole),
        cmocka_unit_test(bad_fields_are_named),
        cmocka_unit_test(changed_kernels_are_left_out),
        cmocka_unit_test(processor_kernels_have_a_hash),
        cmocka_unit_test(rekeyed_tables_are_taken),
        cmocka_unit_test(ways_are_taken),
        cmocka_unit_test(cameras_choose),
        cmocka_unit_test(foreign_tables),
        cmocka_unit_test(heavy_shapes_and_small_ones),
        cmocka_unit_test(noise_is_noise),
        cmocka_unit_test(rounds_fit_their_time),
        cmocka_unit_test(runs_and_goes_on),
        cmocka_unit_test(bad_journals),
    };
    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
