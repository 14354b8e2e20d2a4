/* Bad models, sizes and calls at the library's surface (openpi.h): every row of the tables below is one thing
 * that a caller or a file can get wrong, with the status and the words that must come back (refusals.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "refusals.h"

/* The names that this machine's architecture knows. */
#if defined(__x86_64__)
#define LEVELS "reference, avx2, avx512, avx512_vnni, avx512_bf16 or amx"
#else
#define LEVELS "reference, neon, neon_dot or neon_bf16"
#endif

/* ---- specs and dims ------------------------------------------------------------------------------- */

static void specs(void **state) {
    static const struct { const char *spec, *part; } rows[] = {
        {"huge", "synthetic model is \"huge\", expected full, tiny or odd"},
        {"tiny:pi9", "is \"tiny:pi9\", expected full, tiny or odd, then maybe :pi0 or :pi05"},
        {"tiny:pi0:x", "is \"tiny:pi0:x\""},
        {"tiny:pi0:", "is \"tiny:pi0:\""},
        {"tiny:pi0:-1", "then maybe :SEED"},
        {"tiny:pi0:18446744073709551616", "18446744073709551616"},
        {"tiny:", "is \"tiny:\""},
        {":pi0", "is \":pi0\""},
        {"tiny:pi0:7:7", "is \"tiny:pi0:7:7\""},
        {" tiny", "is \" tiny\""},
        {"tiny\n:pi0", "synthetic model is"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        openpi_synthetic s, before;
        memset(&s, 0x5a, sizeof s);
        s.size = sizeof s;
        before = s;
        REFUSED(rows[i].spec, openpi_synthetic_parse(rows[i].spec, &s, to), OPENPI_BAD_ARGUMENT, rows[i].part);
        assert_memory_equal(&s, &before, sizeof s);
    }
    REFUSED("nowhere", openpi_synthetic_parse("tiny", NULL, to), OPENPI_BAD_ARGUMENT, "synthetic is NULL");
}

#define DIMENSIONS(vision, vlm, expert, vocab) \
    "{\"vision\":" vision ",\"vlm\":" vlm ",\"expert\":" expert ",\"vocab\":" vocab "}"

static void dims(void **state) {
    static const struct {
        const char *json;
        openpi_status status;
        const char *part;
    } rows[] = {
        {"", OPENPI_BAD_ARGUMENT, "dims are \"\", expected a JSON object or full, tiny or odd"},
        {"huge", OPENPI_BAD_ARGUMENT, "dims are \"huge\", expected a JSON object"},
        {"[1,2]", OPENPI_BAD_ARGUMENT, "expected a JSON object"},
        {"{", OPENPI_BAD_ARGUMENT, "dims: not valid JSON"},
        {"{}", OPENPI_BAD_ARGUMENT, "dims have 0 members, expected vision, vlm, expert and vocab"},
        {"{\"vision\":[72,1,1,8]}", OPENPI_BAD_ARGUMENT, "dims have 1 members"},
        {DIMENSIONS("[72,1,1]", "[16,1,2,4,8]", "[6,10]", "12"), OPENPI_BAD_ARGUMENT,
         "\"vision\" is of another length, expected 4 integers"},
        {DIMENSIONS("[72,1,1,8]", "7", "[6,10]", "12"), OPENPI_BAD_ARGUMENT, "\"vlm\" is an integer, expected 5 integers"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,4,8]", "[6,\"x\"]", "12"), OPENPI_BAD_ARGUMENT, "\"expert\"[1] is a string"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,4,8]", "[6,0]", "12"), OPENPI_BAD_ARGUMENT, "\"expert\"[1] is out of range"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,4,8]", "[6,10]", "-3"), OPENPI_BAD_ARGUMENT, "\"vocab\" is -3"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,4,8]", "[6,10]", "1.5"), OPENPI_BAD_ARGUMENT, "\"vocab\" is a"},
        {DIMENSIONS("[72,1,5,8]", "[16,1,2,4,8]", "[6,10]", "12"), OPENPI_BAD_ARGUMENT,
         "vision width is 72, expected a multiple of its 5 heads"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,5,8]", "[6,10]", "12"), OPENPI_BAD_ARGUMENT, "is 5, expected an even number"},
        {DIMENSIONS("[72,1,1,8]", "[16,1,2,4,8]", "[6,99999999999999999999]", "12"), OPENPI_BAD_ARGUMENT, "dims"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        openpi_dims d, before;
        memset(&d, 0x5a, sizeof d);
        d.size = sizeof d;
        before = d;
        REFUSED(rows[i].json, openpi_dims_parse(rows[i].json, &d, to), rows[i].status, rows[i].part);
        assert_memory_equal(&d, &before, sizeof d);
    }
    openpi_dims d = OPENPI_DIMS_INIT;
    REFUSED("no text", openpi_dims_parse(NULL, &d, to), OPENPI_BAD_ARGUMENT, "dims are NULL, expected a JSON object");
    REFUSED("nowhere", openpi_dims_parse("tiny", NULL, to), OPENPI_BAD_ARGUMENT, "NULL");
}

static void writing(void **state) {
    const openpi_synthetic third = {.size = sizeof(openpi_synthetic), .dims = small[0].dims,
                                    .variant = (openpi_variant)2}, none = OPENPI_SYNTHETIC_INIT;
    const struct {
        const char *what;
        const openpi_synthetic *synthetic;
        const char *folder;                            /* in the place; NULL: NULL, "": an empty path  */
        int threads;
        openpi_status status;
        const char *part;
    } rows[] = {
        {"no model", NULL, "new", 1, OPENPI_BAD_ARGUMENT, "the synthetic model is NULL"},
        {"no folder", &small[0], NULL, 1, OPENPI_BAD_ARGUMENT, "path is"},
        {"empty path", &small[0], "", 1, OPENPI_BAD_ARGUMENT, "the folder's path is empty"},
        {"a full folder", &small[0], "good", 1, OPENPI_BAD_ARGUMENT, "expected a new or empty folder"},
        {"a file", &small[0], "good/config.json", 1, OPENPI_BAD_ARGUMENT,
         "good/config.json: is a file, expected a new or empty folder"},
        {"below a file", &small[0], "good/config.json/x", 1, OPENPI_SYSTEM, "the folder cannot be made"},
        {"a third variant", &third, "new", 1, OPENPI_BAD_ARGUMENT, "variant is 2, expected OPENPI_PI0 or OPENPI_PI05"},
        {"no dims", &none, "new", 1, OPENPI_BAD_ARGUMENT, "the synthetic model: vision"},
        {"threads", &small[0], "new", -1, OPENPI_BAD_ARGUMENT, "threads is -1"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const char *path =
            rows[i].folder && *rows[i].folder ? scratch_path(&place, rows[i].folder) : rows[i].folder;
        REFUSED(rows[i].what,
                openpi_synthetic_write(rows[i].synthetic, path, 0, rows[i].threads, NULL, NULL, to),
                rows[i].status, rows[i].part);
        scratch_remove(scratch_path(&place, "new"));
    }
}

/* ---- engines -------------------------------------------------------------------------------------- */

static int is_usable(const char *name) {
    openpi_device devices[32] = {OPENPI_DEVICE_INIT};
    int count;
    WORKS(openpi_devices(devices, 32, &count, &error));
    for (int i = 0; i < count && i < 32; i++)
        if (!strcmp(devices[i].name, name) && devices[i].usable) return 1;
    return 0;
}

static const openpi_synthetic without_dims = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                                              .seed = 7};

static void engines(void **state) {
    static const struct {
        const char *what, *checkpoint;
        openpi_engine_options options;
        openpi_status status;
        const char *part;
    } rows[] = {
        {"size 0", NULL, {.synthetic = small}, OPENPI_BAD_ARGUMENT,
         "openpi_engine_options: its size is 0, expected"},
        {"size of no library", NULL, {.size = 1 << 20, .synthetic = small}, OPENPI_BAD_ARGUMENT,
         "size is 1048576, expected"},
        {"nothing", NULL, ENGINE(.threads = 1), OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic model given"},
        {"both", "good", ENGINE(.synthetic = small), OPENPI_BAD_ARGUMENT, "both a checkpoint and a synthetic model given"},
        {"unknown device", NULL, ENGINE(.synthetic = small, .device = "tpu"), OPENPI_NO_DEVICE, "\"tpu\""},
        {"no device", NULL, ENGINE(.synthetic = small, .device = ""), OPENPI_NO_DEVICE, "device \"\""},
        {"second cpu", NULL, ENGINE(.synthetic = small, .device = "cpu:1"), OPENPI_NO_DEVICE, "\"cpu:1\", expected \"cpu\""},
        {"capitals", NULL, ENGINE(.synthetic = small, .device = "CPU"), OPENPI_NO_DEVICE, "\"CPU\""},
        {"no GPU", NULL, ENGINE(.synthetic = small, .device = "cuda:0"), OPENPI_NO_DEVICE, "cuda:0"},
        {"no such GPU", NULL, ENGINE(.synthetic = small, .device = "cuda:77"), OPENPI_NO_DEVICE, "cuda:77"},
        {"unknown isa", NULL, ENGINE(.synthetic = small, .isa = "sse2"), OPENPI_BAD_ARGUMENT,
         "isa is \"sse2\", expected " LEVELS},
        {"empty isa", NULL, ENGINE(.synthetic = small, .isa = ""), OPENPI_BAD_ARGUMENT, "isa is \"\", expected reference"},
        {"dtype 7", NULL, ENGINE(.synthetic = small, .dtype = (openpi_dtype)7), OPENPI_BAD_ARGUMENT,
         "dtype is 7, expected OPENPI_BF16 or OPENPI_F32"},
        {"weights 3", NULL, ENGINE(.synthetic = small, .weights = (openpi_weights)3), OPENPI_BAD_ARGUMENT,
         "weights is 3, expected OPENPI_WEIGHTS_AUTO, OPENPI_WEIGHTS_BF16 or OPENPI_WEIGHTS_F32"},
        {"without_lora 2", NULL, ENGINE(.synthetic = small, .without_lora = 2), OPENPI_BAD_ARGUMENT,
         "without_lora is 2, expected 0 or 1"},
        {"an adapter on a synthetic model", NULL, ENGINE(.synthetic = small, .adapter = "lora"),
         OPENPI_BAD_ARGUMENT, "adapter is \"lora\", but the model is synthetic"},
        {"threads -1", NULL, ENGINE(.synthetic = small, .threads = -1), OPENPI_BAD_ARGUMENT, "threads is -1, expected 1 to"},
        {"a million threads", NULL, ENGINE(.synthetic = small, .threads = 1000000), OPENPI_BAD_ARGUMENT, "threads is 1000000"},
        {"no dims", NULL, ENGINE(.synthetic = &without_dims, .threads = 1), OPENPI_BAD_ARGUMENT, "vision"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        openpi_engine *engine = UNTOUCHED;
        if (rows[i].options.device && is_usable(rows[i].options.device)) continue;
        const char *path = rows[i].checkpoint ? scratch_path(&place, rows[i].checkpoint) : NULL;
        REFUSED(rows[i].what, openpi_engine_open(path, &rows[i].options, &engine, to), rows[i].status, rows[i].part);
        assert_ptr_equal(engine, UNTOUCHED);
    }
    openpi_engine_options options = ENGINE(.synthetic = small, .threads = 1);
    openpi_engine *engine = UNTOUCHED;
    REFUSED("nowhere", openpi_engine_open(NULL, &options, NULL, to), OPENPI_BAD_ARGUMENT, "the address for the engine is NULL");
    REFUSED("nothing at all", openpi_engine_open(NULL, NULL, &engine, to), OPENPI_BAD_ARGUMENT, "neither a checkpoint");
    assert_ptr_equal(engine, UNTOUCHED);
    openpi_engine_close(NULL);
}

/* ---- checkpoints ---------------------------------------------------------------------------------- */

typedef struct broken {
    const char *what;
    int variant;
    const char *from, *to;       /* this of the header becomes that                                    */
    const char *text;            /* all of the file, `keep` bytes; NULL: the good one's                */
    long keep;                   /* bytes of it that stay; negative: that many go; 0: all              */
    const char *file;            /* its name; NULL: model.safetensors, "": none                        */
    const char *config, *index;  /* config.json and model.safetensors.index.json; NULL: none           */
    openpi_status status;
    const char *part;
} broken;

#define EDIT(old, new) .from = (old), .to = (new)
#define RAW(bytes) .text = (bytes), .keep = sizeof(bytes) - 1
#define CONFIG(json) .config = (json)
#define SHARDS(name, json) .file = (name), .index = (json)

static const broken checkpoints[] = {
    {"an empty folder", .file = "", .status = OPENPI_NOT_FOUND,
     .part = "/case: an empty folder, expected model.safetensors or model.safetensors.index.json"},
    {"an empty file", RAW(""), .status = SAYS("model.safetensors: an empty file, expected weights")},
    {"text", RAW("this is not a safetensors file"),
     .status = SAYS("a text file, expected weights: give a checkpoint's folder")},
    {"short text", RAW("no"), .status = SAYS("2 bytes, expected a safetensors file, which has at least 8")},
    {"a Git LFS pointer",
     RAW("version https://git-lfs.github.com/spec/v1\noid sha256:"
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 14467292744\n"),
     .status = SAYS("model.safetensors: a Git LFS pointer, which only names a file of 14467292744 bytes that "
                    "is not here")},
    {"PyTorch's zip", RAW("PK\3\4\0\0\10\10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\25\0archive/data.pkl"),
     .status = SAYS("a PyTorch pickle (torch.save), expected a safetensors file: load it in Python")},
    {"another zip", RAW("PK\3\4\0\0\10\10\0\0weights.txt"),
     .status = SAYS("a zip archive, expected a safetensors file: unpack")},
    {"a pickle", RAW("\200\2\212\nl\374\234F\371 j\250P\31."),
     .status = SAYS("a Python pickle, expected a safetensors file")},
    {"a web page", RAW("\n<!DOCTYPE HTML>\n<html lang=\"en\"><title>404</title></html>"),
     .status = SAYS("a web page, expected a safetensors file: download the file itself")},
    {"a server's refusal", RAW("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"),
     .status = SAYS("an XML answer of a server, expected a safetensors file")},
    {"JSON", RAW("{\"error\": \"Repository not found\"}"),
     .status = SAYS("a JSON text, expected a safetensors file")},
    {"an HDF5 file", RAW("\211HDF\r\n\032\n\0\0\0\0\0\0"),
     .status = SAYS("an HDF5 file, expected a safetensors file")},
    {"a header of an array", RAW("\2\0\0\0\0\0\0\0[]"),
     .status = SAYS("header is an array, expected an object")},
    {"a header without end", RAW("\2\0\0\0\0\0\0\0{\""),
     .status = SAYS("model.safetensors: header: not valid JSON")},
    {"no tensor", RAW("\2\0\0\0\0\0\0\0{}"), .status = SAYS("is among its 0 tensors")},
    {"a header of 2^63 bytes", RAW("\0\0\0\0\0\0\0\200{}"),
     .status = SAYS("be a header of 9223372036854775808 bytes")},
    {"cut in the length", .keep = 7,
     .status = SAYS("7 bytes, expected a safetensors file, which has at least 8")},
    {"cut in the header", .keep = 400,
     .status = SAYS("cut short: the file has 400 bytes, its header alone needs ")},
    {"cut in the data", .keep = -1, .status = SAYS("cut short: 1 bytes are missing of the ")},
    {"cut in the middle of the data", .keep = -90000,
     .status = SAYS("cut short: 90000 bytes are missing of the ")},
    {"a tensor missing", EDIT("\"state_proj.bias\"", "\"model.lost\""),
     .status = SAYS("1 of a π0 checkpoint's 54 tensors missing: state_proj.bias")},
    {"the variant's tensor missing", EDIT("\"state_proj.weight\"", "\"state.weight\""),
     .status = SAYS("neither \"state_proj.weight\" of π0 nor an adaptive norm of π0.5")},
    {"a misshapen tensor", EDIT("[72,72]", "[36,144]"),
     .status = SAYS("q_proj.weight\" has shape [36, 144], expected [72, 72]")},
    {"other action dimensions", EDIT("[6,32]", "[32,6]"),
     .status = SAYS("its metadata openpi_dims say other sizes than its tensors have")},
    {"an unknown tensor",
     EDIT("\"__metadata__\"", "\"extra\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"__"
                              "metadata__\""),
     .status = SAYS("1 tensor that a π0 checkpoint does not have, the first is \"extra\"")},
    {"a dtype of 8 bits", EDIT("\"BF16\"", "\"F8_E4M3\""),
     .status = UNSUPPORTED("its weights are quantised with 8-bit floats")},
    {"an integer dtype", EDIT("\"BF16\"", "7"), .status = SAYS("dtype is an integer, expected a string")},
    {"a shape of strings", EDIT("[72,3,14,14]", "[72,3,14,\"14\"]"),
     .status = SAYS("shape[3] is a string, expected an integer")},
    {"a negative shape", EDIT("[72,3,14,14]", "[-72,3,14,-14]"),
     .status = SAYS("shape[0] is negative, expected an integer")},
    {"a shape that overflows", EDIT("[72,3,14,14]", "[4294967296,4294967296,14,14]"),
     .status = SAYS("its shape has too many elements")},
    {"nine dimensions", EDIT("[72,3,14,14]", "[72,3,14,14,1,1,1,1,1]"),
     .status = SAYS("shape has 9 dimensions, expected at most")},
    {"a shape of other bytes", EDIT("[72,3,14,14]", "[72,3,14,15]"),
     .status = SAYS("data_offsets hold 84672 bytes, expected 90720")},
    {"offsets backwards", EDIT("[0,84672]", "[84672,0]"),
     .status = SAYS("data_offsets are [84672, 0], expected ascending")},
    {"offsets past the end", EDIT("[0,84672]", "[9007199254740992,9007199254825664]"),
     .status = SAYS("data_offsets are [9007199254740992,")},
    {"offsets of one", EDIT("[0,84672]", "[0]"), .status = SAYS("expected two integers")},
    {"no offsets", EDIT("\"data_offsets\":[0,84672]", "\"offsets\":1"), .status = SAYS("data_offsets")},
    {"a tensor that is a list", EDIT("\"state_proj.bias\":", "\"x\":[],\"state_proj.bias\":"),
     .status = SAYS("tensor \"x\" is an array, expected an object")},
    {"overlapping", EDIT("[84672,84816]", "[84670,84814]"),
     .status = SAYS("begins at byte 84670 of the data, inside of")},
    {"metadata of numbers", EDIT("\"pt\"", "3"),
     .status = SAYS("__metadata__ \"format\" is an integer, expected a string")},
    {"dims that contradict", EDIT("[16,1,2,4,8]", "[16,1,2,4,9]"),
     .status = SAYS("openpi_dims say other sizes than its tensors have")},
    {"config of nothing", CONFIG(""), .status = SAYS("config.json: not valid JSON")},
    {"config cut", CONFIG("{\"type\": \"pi0\""), .status = SAYS("config.json: not valid JSON")},
    {"config of a list", CONFIG("[]"), .status = SAYS("config.json: is an array, expected an object")},
    {"π0-FAST", CONFIG("{\"type\": \"pi0_fast\"}"),
     .status = UNSUPPORTED("\"type\" is \"pi0_fast\", a model that writes its actions as tokens")},
    {"another model", CONFIG("{\"type\": \"smolvla\"}"),
     .status = UNSUPPORTED("\"type\" is \"smolvla\", expected \"pi0\" or \"pi05\"")},
    {"config of the other variant", CONFIG("{\"type\": \"pi05\"}"),
     .status = SAYS("\"type\" is \"pi05\", but the tensors are those of π0")},
    {"and the reverse", .variant = 1, CONFIG("{\"type\": \"pi0\"}"),
     .status = SAYS("\"type\" is \"pi0\", but the tensors are those of π0.5")},
    {"config of 7 dimensions", CONFIG("{\"action_dim\": 7}"),
     .status = SAYS("\"action_dim\" is 7, but the tensors have 32")},
    {"horizon as text", CONFIG("{\"action_horizon\": \"50\"}"),
     .status = SAYS("\"action_horizon\" is a string, expected an integer from 1 to 64")},
    {"horizon 65", CONFIG("{\"action_horizon\": 65}"),
     .status = SAYS("\"action_horizon\" is 65, expected an integer from 1 to 64")},
    {"chunk of 100", CONFIG("{\"type\": \"pi0\", \"chunk_size\": 100}"),
     .status = SAYS("\"chunk_size\" is 100, expected an integer from 1 to 64")},
    {"no step", CONFIG("{\"type\": \"pi0\", \"num_inference_steps\": 0}"),
     .status = SAYS("\"num_inference_steps\" is 0, expected")},
    {"the folder as a shard", SHARDS("", "{\"weight_map\": {\"state_proj.bias\": \".\"}}"),
     .status = SAYS("is \".\", expected the name of a file in the same folder")},
    {"no index", SHARDS("", ""), .status = SAYS("model.safetensors.index.json: not valid JSON")},
    {"index without map", SHARDS("", "{\"metadata\": {}}"),
     .status = SAYS("weight_map is absent, expected an object")},
    {"index of a list", SHARDS("", "{\"weight_map\": []}"),
     .status = SAYS("weight_map is an array, expected an object")},
    {"a shard that is missing", SHARDS("a.safetensors", "{\"weight_map\": {\"x\": \"b.safetensors\"}}"),
     .status = OPENPI_NOT_FOUND, .part = "/case/b.safetensors: cannot be opened"},
    {"path traversal", SHARDS("a.safetensors", "{\"weight_map\": {\"x\": \"../good/model.safetensors\"}}"),
     .status = SAYS("weight_map \"x\" is \"../good/model.safetensors\", expected the name of a file in the "
                    "same folder")},
    {"an absolute path", SHARDS("a.safetensors", "{\"weight_map\": {\"x\": \"/etc/passwd\"}}"),
     .status = SAYS("weight_map \"x\" is \"/etc/passwd\"")},
    {"a shard's name that is a number", SHARDS("a.safetensors", "{\"weight_map\": {\"x\": 5}}"),
     .status = SAYS("weight_map \"x\" is an integer, expected a file's name")},
    {"a shard with more than the index",
     SHARDS("a.safetensors", "{\"weight_map\": {\"state_proj.bias\": \"a.safetensors\"}}"),
     .status = SAYS("is in a.safetensors, expected in no file")},
};

/* The file of a row: a header of another length needs no more than another number before it. */
static void write_model(const broken *row, const char *name) {
    const char *data = row->text ? row->text : model[row->variant];
    size_t bytes = row->text ? (size_t)row->keep : model_bytes[row->variant];
    if (row->keep && !row->text) bytes = row->keep > 0 ? (size_t)row->keep : bytes - (size_t)-row->keep;
    if (!row->from) {
        assert_int_equal(scratch_write(&place, name, data, bytes), 0);
        return;
    }
    size_t header = (uint8_t)data[0] + ((size_t)(uint8_t)data[1] << 8) + ((size_t)(uint8_t)data[2] << 16);
    size_t old = strlen(row->from), new = strlen(row->to), at = 8;
    while (at + old <= 8 + header && memcmp(data + at, row->from, old)) at++;
    if (at + old > 8 + header) fail_msg("%s: nothing to change", row->what);
    char *edited = malloc(bytes + new);
    assert_non_null(edited);
    memcpy(edited, data, at);
    memcpy(edited + at, row->to, new);
    memcpy(edited + at + new, data + at + old, bytes - at - old);
    header += new - old;
    for (int i = 0; i < 8; i++) edited[i] = (char)(header >> 8 * i & 0xff);
    assert_int_equal(scratch_write(&place, name, edited, bytes + new - old), 0);
    free(edited);
}

static void refuse_checkpoint(const char *what, const char *path, openpi_status status, const char *part) {
    openpi_engine_options options = ENGINE(.threads = 1);
    openpi_engine *engine = UNTOUCHED;
    char *json = UNTOUCHED;
    REFUSED(what, openpi_engine_open(path, &options, &engine, to), status, part);
    assert_ptr_equal(engine, UNTOUCHED);
    REFUSED(what, openpi_inspect(path, NULL, &json, to), status, part);
    assert_ptr_equal(json, UNTOUCHED);
    refused--;                                         /* one row                                      */
}

static void broken_checkpoints(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(checkpoints); i++) {
        const broken *row = &checkpoints[i];
        char name[64];
        assert_int_equal(mkdir(scratch_path(&place, "case"), 0700), 0);
        snprintf(name, sizeof name, "case/%s", row->file ? row->file : "model.safetensors");
        if (!row->file || *row->file) write_model(row, name);
        if (row->config)
            assert_int_equal(scratch_write(&place, "case/config.json", row->config, strlen(row->config)), 0);
        if (row->index)
            assert_int_equal(
                scratch_write(&place, "case/model.safetensors.index.json", row->index, strlen(row->index)),
                0);
        refuse_checkpoint(row->what, scratch_path(&place, "case"), row->status, row->part);
        if (!strstr(error.message, place.folder))
            fail_msg("%s: \"%s\" does not say where", row->what, error.message);
        scratch_remove(scratch_path(&place, "case"));
    }
    refuse_checkpoint("nowhere", "/nowhere/at/all", OPENPI_NOT_FOUND, "/nowhere/at/all: cannot be opened");
    refuse_checkpoint("no name", "", OPENPI_BAD_ARGUMENT,
                      "the checkpoint's path is empty, expected a folder or a .safetensors file");
    refuse_checkpoint("a device", "/dev/null", OPENPI_BAD_FILE, "/dev/null: not a regular file");
    refuse_checkpoint("a config", scratch_path(&place, "good/config.json"), OPENPI_BAD_FILE,
                      "config.json: a JSON text, expected a safetensors file: give the folder that holds "
                      "model.safetensors");
    REFUSED("nowhere to write", openpi_inspect(scratch_path(&place, "good"), NULL, NULL, to),
            OPENPI_BAD_ARGUMENT, "json is NULL");
    assert_int_equal(mkdir(scratch_path(&place, "jax"), 0700), 0);
    assert_int_equal(mkdir(scratch_path(&place, "jax/params"), 0700), 0);
    refuse_checkpoint("JAX", scratch_path(&place, "jax"), OPENPI_BAD_FILE,
                      "/jax: a JAX checkpoint (params/) without its manifest.ocdbt");
    assert_int_equal(scratch_write(&place, "jax/params/manifest.ocdbt", "x", 1), 0);
    refuse_checkpoint("JAX's params", scratch_path(&place, "jax/params"), OPENPI_BAD_FILE,
                      "/jax/params/manifest.ocdbt: the manifest lies at bytes 0 to 1");
}

/* Folders that hold something else than a checkpoint, or hold one further down. */
static void other_folders(void **state) {
    static const struct {
        const char *what, *files[4], *part;
    } rows[] = {
        {"one level too high", {"last/model.safetensors", "last/config.json", "log.txt"},
         "/case: no model.safetensors is here, but one is in "},
        {"one level too high, named", {"last/model.safetensors"}, "/case/last: give that folder"},
        {"two levels too high", {"000100/pretrained_model/model.safetensors.index.json"},
         "/case/000100/pretrained_model: give that folder"},
        {"several below", {"b/model.safetensors", "a/model.safetensors", "c/model.safetensors.index.json"},
         "but 3 folders below hold one, the first is "},
        {"the first of several", {"b/model.safetensors", "a/model.safetensors"}, "/case/a: give one of them"},
        {"shards without an index", {"model-00002-of-2.safetensors", "model-00001-of-2.safetensors"},
         "but model-00001-of-2.safetensors is: rename or index it"},
        {"a pickle", {"pytorch_model.bin", "config.json"}, "/case: pytorch_model.bin is there, a Python pickle"},
        {"a folder of texts", {"README.md", "docs/README.md"},
         "neither model.safetensors nor model.safetensors.index.json is there, nor in a folder below"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        assert_int_equal(mkdir(scratch_path(&place, "case"), 0700), 0);
        for (int f = 0; f < 4 && rows[i].files[f]; f++) {
            char name[128];
            snprintf(name, sizeof name, "case/%s", rows[i].files[f]);
            for (char *slash = strchr(name + 5, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = 0;
                mkdir(scratch_path(&place, name), 0700);
                *slash = '/';
            }
            assert_int_equal(scratch_write(&place, name, "x", 1), 0);
        }
        refuse_checkpoint(rows[i].what, scratch_path(&place, "case"), OPENPI_NOT_FOUND, rows[i].part);
        scratch_remove(scratch_path(&place, "case"));
    }
}

/* ---- sessions ------------------------------------------------------------------------------------- */

#define SESSION(...) {.size = sizeof(openpi_session_options), __VA_ARGS__}

static void sessions(void **state) {
    static const struct {
        const char *what;
        openpi_session_options options;
        const char *part;
    } rows[] = {
        {"size 0", {.batch = 1}, "openpi_session_options: its size is 0, expected"},
        {"size of no library", {.size = 8}, "openpi_session_options: its size is 8, expected"},
        {"horizon 65", SESSION(.horizon = 65), "horizon is 65, expected 1 to 64"},
        {"horizon -1", SESSION(.horizon = -1), "horizon is -1, expected 1 to 64"},
        {"steps 101", SESSION(.steps = 101), "steps is 101, expected 1 to 100"},
        {"steps -5", SESSION(.steps = -5), "steps is -5, expected 1 to 100"},
        {"batch 65", SESSION(.batch = 65), "batch is 65, expected 1 to 64"},
        {"batch -1", SESSION(.batch = -1), "batch is -1, expected 1 to 64"},
        {"max_prompt -1", SESSION(.max_prompt = -1), "max_prompt is -1, expected 1 to"},
        {"max_prompt of a book", SESSION(.max_prompt = 2000000000), "max_prompt is 2000000000, expected 1 to"},
    };
    (void)state;
    openpi_engine *engine = open_engine(0);
    openpi_session *session = UNTOUCHED;
    uint64_t bytes = 77;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        REFUSED(rows[i].what, openpi_session_bytes(engine, &rows[i].options, &bytes, to), OPENPI_BAD_ARGUMENT, rows[i].part);
        REFUSED(rows[i].what, openpi_session_create(engine, &rows[i].options, &session, to), OPENPI_BAD_ARGUMENT, rows[i].part);
        refused--;
    }
    REFUSED("no engine", openpi_session_create(NULL, NULL, &session, to), OPENPI_BAD_ARGUMENT, "the engine is NULL");
    REFUSED("no engine", openpi_session_bytes(NULL, NULL, &bytes, to), OPENPI_BAD_ARGUMENT, "the engine is NULL");
    REFUSED("nowhere", openpi_session_create(engine, NULL, NULL, to), OPENPI_BAD_ARGUMENT, "the address for the session is NULL");
    REFUSED("nowhere", openpi_session_bytes(engine, NULL, NULL, to), OPENPI_BAD_ARGUMENT, "the address for the bytes is NULL");
    assert_ptr_equal(session, UNTOUCHED);
    assert_true(bytes == 77);
    openpi_session_close(NULL);
    openpi_engine_close(engine);
}

/* A call that works, until one thing in it is broken. */
typedef struct call {
    openpi_session *session;
    openpi_sample samples[BATCH];
    const openpi_sample *given;
    int batch;
    float state[BATCH][DIMS], noise[BATCH * HORIZON * DIMS];
    int32_t tokens[BATCH][PROMPT + 1];
    float *out;
} call;

static void make_call(call *c, openpi_session *session, float *out) {
    memset(c, 0, sizeof *c);
    c->session = session;
    c->given = c->samples;
    c->batch = BATCH;
    c->out = out;
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i <= PROMPT; i++) c->tokens[b][i] = (i + b) % VOCAB;
        c->samples[b].size = sizeof c->samples[b];
        c->samples[b].images[0] = grey;
        c->samples[b].image_mask[0] = 1;
        c->samples[b].tokens = c->tokens[b];
        c->samples[b].token_count = 3 + b;
        c->samples[b].state = c->state[b];
    }
}

#define BREAK(name, change) \
    static void name(call *c) { change; }

BREAK(no_session, c->session = NULL)
BREAK(no_samples, c->given = NULL)
BREAK(no_actions, c->out = NULL)
BREAK(batch_0, c->batch = 0)
BREAK(batch_negative, c->batch = -1)
BREAK(batch_large, c->batch = BATCH + 1)
BREAK(token_large, c->tokens[0][2] = VOCAB)
BREAK(token_huge, c->tokens[1][1] = INT32_MAX)
BREAK(token_negative, c->tokens[0][0] = -1)
BREAK(tokens_null, c->samples[1].tokens = NULL)
BREAK(count_negative, c->samples[0].token_count = -1)
BREAK(count_large, c->samples[1].token_count = PROMPT + 1)
BREAK(mask_2, c->samples[0].image_mask[1] = 2)
BREAK(image_null, c->samples[1].image_mask[2] = 1)
BREAK(state_null, c->samples[1].state = NULL)
BREAK(state_nan, c->state[0][31] = NAN)
BREAK(state_infinite, c->state[1][3] = -INFINITY)
BREAK(noise_nan, c->noise[5] = NAN)
BREAK(noise_infinite, c->noise[HORIZON * DIMS + 7] = INFINITY)
BREAK(nothing_seen, c->samples[0].image_mask[0] = 0; c->samples[0].token_count = 0)
BREAK(pixels_mixed, c->samples[1].pixels = OPENPI_PIXELS_F32)
BREAK(pixels_unknown, c->samples[0].pixels = (openpi_pixels)9)

static void runs(void **state) {
    static const struct {
        const char *what;
        void (*change)(call *);
        openpi_status status;
        const char *part;
    } rows[] = {
        {"no session", no_session, OPENPI_BAD_ARGUMENT, "session run: the session is NULL"},
        {"no samples", no_samples, OPENPI_BAD_ARGUMENT, "session run: samples is NULL"},
        {"no actions", no_actions, OPENPI_BAD_ARGUMENT, "session run: actions is NULL"},
        {"batch 0", batch_0, OPENPI_BAD_ARGUMENT, "batch is 0, expected 1 to 2 (the session's)"},
        {"batch -1", batch_negative, OPENPI_BAD_ARGUMENT, "batch is -1, expected 1 to 2"},
        {"batch 3", batch_large, OPENPI_BAD_ARGUMENT, "batch is 3, expected 1 to 2"},
        {"a token past the vocabulary", token_large, OPENPI_BAD_INPUT, "sample 0: tokens[2] is 12, expected 0 to 11"},
        {"a huge token", token_huge, OPENPI_BAD_INPUT, "sample 1: tokens[1] is 2147483647, expected 0 to 11"},
        {"a negative token", token_negative, OPENPI_BAD_INPUT, "sample 0: tokens[0] is -1, expected 0 to 11"},
        {"no tokens", tokens_null, OPENPI_BAD_INPUT, "sample 1: tokens is NULL, expected 4 ids"},
        {"a negative count", count_negative, OPENPI_BAD_INPUT, "sample 0: token_count is -1, expected 0 to 8 (max_prompt)"},
        {"a prompt over the limit", count_large, OPENPI_BAD_INPUT, "sample 1: token_count is 9, expected 0 to 8 (max_prompt)"},
        {"mask 2", mask_2, OPENPI_BAD_INPUT, "sample 0: image_mask[1] is 2, expected 0 or 1"},
        {"no image where the mask has one", image_null, OPENPI_BAD_INPUT, "sample 1: image_mask[2] is 1 but images[2] is NULL"},
        {"no state", state_null, OPENPI_BAD_INPUT, "sample 1: state is NULL, expected 32 numbers"},
        {"NaN state", state_nan, OPENPI_BAD_INPUT, "sample 0: state[31] is nan, expected a finite number"},
        {"infinite state", state_infinite, OPENPI_BAD_INPUT, "sample 1: state[3] is -inf, expected a finite number"},
        {"NaN noise", noise_nan, OPENPI_BAD_INPUT, "sample 0: noise[5] is nan, expected a finite number"},
        {"infinite noise", noise_infinite, OPENPI_BAD_INPUT, "sample 1: noise[7] is inf, expected a finite number"},
        {"neither camera nor prompt", nothing_seen, OPENPI_BAD_INPUT,
         "sample 0: no camera and no prompt token, expected at least one"},
        {"pixels of two types", pixels_mixed, OPENPI_BAD_INPUT, "sample 1: its pixels differ in type from sample 0's"},
        {"pixels of no type", pixels_unknown, OPENPI_BAD_INPUT, "sample 0: pixels is 9, expected OPENPI_PIXELS_U8"},
    };
    static float first[BATCH * HORIZON * DIMS], actions[BATCH * HORIZON * DIMS],
        before[BATCH * HORIZON * DIMS];
    (void)state;
    openpi_engine *engine = open_engine(0);
    openpi_session *session = open_session(engine);
    call c;
    make_call(&c, session, first);
    WORKS(openpi_session_run(session, c.given, c.batch, c.noise, c.out, NULL, &error));
    for (size_t i = 0; i < LENGTH(rows); i++) {
        openpi_timing timing = OPENPI_TIMING_INIT, timing_before = OPENPI_TIMING_INIT;
        openpi_session_info info = OPENPI_SESSION_INFO_INIT;
        memset(&timing, 0x5a, sizeof timing);
        timing.size = sizeof timing;
        timing_before = timing;
        memset(actions, 0x5a, sizeof actions);
        memcpy(before, actions, sizeof before);
        make_call(&c, session, actions);
        rows[i].change(&c);
        REFUSED(rows[i].what, openpi_session_run(c.session, c.given, c.batch, c.noise, c.out, &timing, to),
                rows[i].status, rows[i].part);
        assert_memory_equal(actions, before, sizeof actions);
        assert_memory_equal(&timing, &timing_before, sizeof timing);
        openpi_session_get_info(session, &info, NULL);
        assert_true(info.runs == 1);
    }
    make_call(&c, session, actions);
    WORKS(openpi_session_run(session, c.given, c.batch, c.noise, c.out, NULL, &error));
    assert_memory_equal(actions, first, sizeof actions);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static void there_were_enough(void **state) {
    (void)state;
    were_enough(160);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),    cmocka_unit_test(dims),               cmocka_unit_test(writing),
        cmocka_unit_test(engines),  cmocka_unit_test(broken_checkpoints), cmocka_unit_test(other_folders),
        cmocka_unit_test(sessions), cmocka_unit_test(runs),               cmocka_unit_test(there_were_enough),
    };
    return cmocka_run_group_tests_name("bad models and calls", tests, make_place, remove_place);
}
