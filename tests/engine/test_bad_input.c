/* Bad input at the library's surface (openpi.h): every row of the tables below is one thing that a caller, a
 * file or a client can get wrong, with the status and the words that must come back.
 *
 * Of each row is asked: the status, in the return value and in the error; one sentence with the row's part in
 * it; the same status without an error to write into; outputs as they were; and that the handles still work
 * afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/utf8.h"
#include "policy_golden.h"
#include "scratch.h"
#include "structs.h"

#define LENGTH(table) (sizeof(table) / sizeof *(table))
#define DIMS OPENPI_ACTION_DIM

enum { HORIZON = 4, STEPS = 2, BATCH = 2, PROMPT = 8, VOCAB = 12 };

static openpi_error error = OPENPI_ERROR_INIT;
static scratch place; /* holds good (π0), good5 (π0.5), bare (π0, the tensors alone)    */
static openpi_synthetic small[2];
static char *model[2];                                 /* the bytes of good's and good5's model.safetensors */
static size_t model_bytes[2];
static int refused;                                    /* rows that went through                       */

/* ---- what is asked of a refusal ------------------------------------------------------------------------ */

static void is_sentence(const char *what) {
    const char *text = error.message;
    size_t length = strnlen(text, sizeof error.message);
    if (length < 12 || length >= sizeof error.message) fail_msg("%s: a sentence of %zu bytes", what, length);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20) fail_msg("%s: a control character in \"%s\"", what, text);
    if (utf8_valid_prefix(text, length) != length) fail_msg("%s: \"%s\" is not UTF-8", what, text);
    if (*text == ' ' || strchr(" :,;=", text[length - 1]) || strstr(text, "(null)") || strstr(text, "%"))
        fail_msg("%s: \"%s\" is no sentence", what, text);
}

static void is_refused(const char *what, openpi_status found, openpi_status expected, const char *part) {
    if (found != expected || error.status != expected || !strstr(error.message, part))
        fail_msg("%s: %s, \"%s\", expected %s with \"%s\"", what, openpi_status_text(found), error.message,
                 openpi_status_text(expected), part);
    is_sentence(what);
}

/* The call is made twice, the second time with nowhere to write the sentence. */
#define REFUSED(what, call, expected, part)                                                 \
    do {                                                                                    \
        openpi_error *to = &error;                                                          \
        error = (openpi_error)OPENPI_ERROR_INIT;                                            \
        is_refused(what, (call), expected, part);                                           \
        to = NULL;                                                                          \
        if ((call) != (expected)) fail_msg("%s: another status without an error", what);    \
        refused++;                                                                          \
    } while (0)

static char untouched; /* its address is what handles hold before a call that fails     */

#define UNTOUCHED ((void *)&untouched)

/* ---- what is right -------------------------------------------------------------------------------- */

static int make_place(void **state) {
    static const char *const folders[] = {"good", "good5"};
    (void)state;
    if (scratch_open(&place)) return -1;
    for (int v = 0; v < 2; v++) {
        small[v] = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
        small[v].variant = (openpi_variant)v;
        small[v].seed = 7;
        WORKS(openpi_dims_parse("{\"vision\":[72,1,1,8],\"vlm\":[16,1,2,4,8],\"expert\":[6,10],\"vocab\":12}",
                                &small[v].dims, &error));
        WORKS(openpi_synthetic_write(&small[v], scratch_path(&place, folders[v]), 0, 1, NULL, NULL, &error));
        strncat(place.path, "/model.safetensors", sizeof place.path - strlen(place.path) - 1);
        model[v] = golden_read(place.path, &model_bytes[v]);
    }
    if (mkdir(scratch_path(&place, "bare"), 0700)) return -1;
    return scratch_write(&place, "bare/model.safetensors", model[0], model_bytes[0]);
}

static int remove_place(void **state) {
    (void)state;
    free(model[0]);
    free(model[1]);
    scratch_close(&place);
    return 0;
}

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

#define ENGINE(...) {.size = sizeof(openpi_engine_options), __VA_ARGS__}

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
         "isa is \"sse2\", expected reference, avx2, avx512, avx512_bf16 or amx"},
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
#define SAYS(says) OPENPI_BAD_FILE, .part = (says)
#define UNSUPPORTED(says) OPENPI_UNSUPPORTED, .part = (says)

static const broken checkpoints[] = {
    {"an empty folder", .file = "", .status = OPENPI_NOT_FOUND,
     .part = "/case: an empty folder, expected model.safetensors or model.safetensors.index.json"},
    {"an empty file", RAW(""), .status = SAYS("model.safetensors: an empty file, expected weights")},
    {"text", RAW("this is not a safetensors file"),
     .status = SAYS("not a safetensors file: its first 8 bytes would be a header of")},
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
     .status = UNSUPPORTED("action_in_proj.weight takes 6 action dimensions, expected 32")},
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

static openpi_engine *open_engine(int variant) {
    openpi_engine_options options = ENGINE(.threads = 1, .dtype = OPENPI_F32, .synthetic = &small[variant]);
    openpi_engine *engine;
    WORKS(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

static openpi_session *open_session(openpi_engine *engine) {
    openpi_session_options options = {.size = sizeof options,
                                      .batch = BATCH,
                                      .horizon = HORIZON,
                                      .steps = STEPS,
                                      .max_prompt = PROMPT,
                                      .seed = 7};
    openpi_session *session;
    WORKS(openpi_session_create(engine, &options, &session, &error));
    return session;
}

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

static uint8_t grey[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];

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

/* ---- policies ------------------------------------------------------------------------------------- */

#define SEVEN "0,0,0,0,0,0,0"
#define EIGHT "0,0,0,0,0,0,0,0"
#define STATS(state_mean, state_std, rest) \
    "{\"norm_stats\":{\"state\":{\"mean\":[" state_mean "],\"std\":[" state_std "]" rest "}," \
    "\"actions\":{\"mean\":[" EIGHT "],\"std\":[" EIGHT "]}}}"

typedef struct opening {
    const char *what, *checkpoint;     /* in the place, absolute, or NULL: small[0] in memory          */
    const char *robot, *config;
    const char *stats,
        *tokenizer; /* what the files hold; an absolute path is one; "." is a folder without them    */
    int prompt_state, max_prompt;
    openpi_status status;
    const char *part;
} opening;

static const opening openings[] = {
    {"nothing there", "/nowhere/at/all", .status = OPENPI_NOT_FOUND, .part = "/nowhere/at/all: no such checkpoint"},
    {"no robot", "bare", .status = OPENPI_BAD_ARGUMENT, .part = "/bare does not say which robot it is for: give robot (aloha"},
    {"unknown robot", NULL, "r2d2", .status = OPENPI_NOT_FOUND,
     .part = "robot \"r2d2\" is not known and no file of that name is there; known are aloha,"},
    {"empty robot", NULL, "", .status = OPENPI_NOT_FOUND, .part = "robot \"\" is not known"},
    {"robot of LeRobot", NULL, "lerobot", .status = OPENPI_BAD_ARGUMENT,
     .part = "robot is \"lerobot\", but a synthetic model in memory is no LeRobot"},
    {"robot and config", NULL, "droid", "pi0_droid", .status = OPENPI_BAD_ARGUMENT,
     .part = "both robot \"droid\" and config \"pi0_droid\" are given"},
    {"robot's JSON cut", NULL, "{\"like\": \"droid\"", .status = SAYS("not valid JSON")},
    {"unknown key", NULL, "{\"like\": \"droid\", \"colour\": \"red\"}", .status = SAYS("unknown key \"colour\", known are")},
    {"like nobody", NULL, "{\"like\": \"r2d2\"}", .status = SAYS("\"like\" is \"r2d2\", expected one of aloha")},
    {"a state of 33", NULL, "{\"like\": \"droid\", \"state\": {\"s\": 33}}",
     .status = SAYS("\"s\" is 33, expected an integer from 0 to 32")},
    {"no actions", NULL, "{\"like\": \"droid\", \"actions\": 0}",
     .status = SAYS("\"actions\" is 0, expected an integer from 1 to 32")},
    {"cameras by number", NULL, "{\"like\": \"droid\", \"cameras\": {\"front\": 1}}",
     .status = SAYS("camera \"front\" is an integer, expected a slot's name")},
    {"a slot of its own", NULL, "{\"like\": \"droid\", \"cameras\": {\"front\": \"head\"}}",
     .status = SAYS("camera \"front\" has slot \"head\", expected base, left_wrist or right_wrist")},
    {"no camera", NULL, "{\"like\": \"droid\", \"cameras\": {}}", .status = SAYS("\"cameras\" fill no slot")},
    {"deltas of 9", NULL, "{\"like\": \"droid\", \"delta\": [9]}",
     .status = SAYS("\"delta\" covers 9 dimensions, \"actions\" are 8")},
    {"a delta of 0", NULL, "{\"like\": \"droid\", \"delta\": [0]}", .status = SAYS("\"delta\"[0] is no run that fits")},
    {"assets elsewhere", NULL, "{\"like\": \"droid\", \"assets\": \"../../etc\"}",
     .status = SAYS("\"assets\" is \"../../etc\", expected a folder's name")},
    {"unknown config", NULL, NULL, "pi9_droid", .status = OPENPI_NOT_FOUND,
     .part = "config \"pi9_droid\" is not known; known are pi0_aloha"},
    {"FAST config", NULL, NULL, "pi0_fast_droid",
     .status = UNSUPPORTED("config \"pi0_fast_droid\" cannot be run: it is a π0-FAST model")},
    {"debug config", NULL, NULL, "debug", .status = UNSUPPORTED("config \"debug\" cannot be run: it is a debugging config")},
    {"config of the other variant", NULL, NULL, "pi05_droid", .status = OPENPI_BAD_ARGUMENT,
     .part = "config \"pi05_droid\" is for π0.5, but the synthetic checkpoint is a π0 model"},
    {"and the reverse", "good5", NULL, "pi0_droid", .status = OPENPI_BAD_ARGUMENT, .part = "/good5 is a π0.5 model"},
    {"max_prompt -1", NULL, "droid", .max_prompt = -1, .status = OPENPI_BAD_ARGUMENT, .part = "max_prompt is -1, expected 1 to"},
    {"max_prompt of a book", NULL, "droid", .max_prompt = 1000000, .status = OPENPI_BAD_ARGUMENT,
     .part = "max_prompt is 1000000, expected 1 to"},
    {"prompt_state 3", NULL, "droid", .prompt_state = 3, .status = OPENPI_BAD_ARGUMENT, .part = "prompt_state is 3, expected"},
    {"no statistics", "bare", "droid", .status = OPENPI_NOT_FOUND,
     .part = "/bare/assets/droid/norm_stats.json, the statistics of robot \"droid\", is not there"},
    {"statistics nowhere", NULL, "droid", .stats = "/nowhere/norm_stats.json", .status = OPENPI_NOT_FOUND,
     .part = "/nowhere/norm_stats.json: cannot be opened"},
    {"a folder without statistics", NULL, "droid", .stats = ".", .status = OPENPI_NOT_FOUND,
     .part = ": the folder holds no norm_stats.json"},
    {"statistics for none", NULL, "none", .stats = "/nowhere/norm_stats.json", .status = OPENPI_BAD_ARGUMENT,
     .part = "robot \"none\" works in normalised units and takes none"},
    {"empty statistics", NULL, "droid", .stats = "", .status = SAYS("norm_stats.json: not valid JSON")},
    {"statistics of a list", NULL, "droid", .stats = "[]",
     .status = SAYS("\"norm_stats\" is absent, expected an object with state and actions")},
    {"statistics of no state", NULL, "droid", .stats = "{\"norm_stats\":{}}",
     .status = SAYS("norm_stats.\"state\" is absent, expected an object with mean")},
    {"short statistics", NULL, "droid", .stats = STATS(SEVEN, SEVEN, ""),
     .status = SAYS("statistics of a state of 7 numbers, robot \"droid\" has 8")},
    {"uneven statistics", NULL, "droid", .stats = STATS(EIGHT, SEVEN, ""),
     .status = SAYS("norm_stats.state has 8 means and 7 standard deviations")},
    {"a mean of text", NULL, "droid", .stats = STATS("\"0\"," SEVEN, EIGHT, ""),
     .status = SAYS("\"mean\"[0] is a string, expected a finite number")},
    {"a mean of NaN", NULL, "droid", .stats = STATS(SEVEN ",NaN", EIGHT, ""), .status = SAYS("norm_stats.json: not valid JSON")},
    {"an endless mean", NULL, "droid", .stats = STATS(SEVEN ",1e999", EIGHT, ""), .status = SAYS("norm_stats.json: ")},
    {"a negative deviation", NULL, "droid", .stats = STATS(EIGHT, SEVEN ",-1", ""),
     .status = SAYS("norm_stats.state.std[7] is -1, expected 0 or more")},
    {"quantiles of one side", NULL, "droid", .stats = STATS(EIGHT, EIGHT, ",\"q01\":[" EIGHT "]"),
     .status = SAYS("norm_stats.state has 8 q01 and 0 q99")},
    {"no quantiles", "good5", "droid", .stats = STATS(EIGHT, EIGHT, ""),
     .status = SAYS("no q01 and q99 of state, which π0.5 (quantile normalisation) needs")},
    {"no tokenizer", NULL, "droid", .tokenizer = "/nowhere/tokenizer.model", .status = OPENPI_NOT_FOUND,
     .part = "/nowhere/tokenizer.model: cannot be opened"},
    {"a folder without tokenizer", NULL, "droid", .tokenizer = ".", .status = OPENPI_NOT_FOUND,
     .part = ": the folder holds no tokenizer.model or tokenizer.json"},
    {"an empty tokenizer", NULL, "droid", .tokenizer = "",
     .status = SAYS("tokenizer.model: neither a SentencePiece model nor a tokenizer.json")},
    {"a tokenizer of text", NULL, "droid", .tokenizer = "hello", .status = SAYS("tokenizer.model: ")},
    {"a damaged tokenizer", NULL, "droid", .tokenizer = "\n\177abc",
     .status = SAYS("not a SentencePiece model: damaged or cut off at byte")},
    {"a tokenizer.json of nothing", NULL, "droid", .tokenizer = "{}", .status = SAYS("tokenizer.model: ")},
    {"a tokenizer.json cut", NULL, "droid", .tokenizer = "{\"model\": {", .status = SAYS("tokenizer.model: not valid JSON")},
};

/* A path for what a row says of a file. */
static const char *given_file(const char *says, const char *name, char *path, size_t bytes) {
    if (!says || *says == '/') return says;
    snprintf(path, bytes, "%s%s%s", place.folder, strcmp(says, ".") ? "/" : "",
             strcmp(says, ".") ? name : "");
    if (strcmp(says, ".")) assert_int_equal(scratch_write(&place, name, says, strlen(says)), 0);
    return path;
}

static void policies(void **state) {
    (void)state;
    openpi_policy *policy = UNTOUCHED;
    for (size_t i = 0; i < LENGTH(openings); i++) {
        const opening *row = &openings[i];
        char stats[500], tokenizer[500], folder[500];
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        options.robot = row->robot;
        options.config = row->config;
        options.norm_stats = given_file(row->stats, "norm_stats.json", stats, sizeof stats);
        options.tokenizer = given_file(row->tokenizer, "tokenizer.model", tokenizer, sizeof tokenizer);
        options.prompt_state = (openpi_prompt_state)row->prompt_state;
        options.max_prompt = row->max_prompt;
        if (!row->checkpoint) options.synthetic = &small[0];
        if (row->checkpoint && *row->checkpoint != '/')
            snprintf(folder, sizeof folder, "%s/%s", place.folder, row->checkpoint);
        else snprintf(folder, sizeof folder, "%s", row->checkpoint ? row->checkpoint : "");
        REFUSED(row->what, openpi_policy_open(row->checkpoint ? folder : NULL, &options, &policy, to), row->status, row->part);
        assert_ptr_equal(policy, UNTOUCHED);
        unlink(scratch_path(&place, "norm_stats.json"));
        unlink(scratch_path(&place, "tokenizer.model"));
    }
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    REFUSED("neither", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "neither a checkpoint nor a synthetic one");
    REFUSED("no options", openpi_policy_open(NULL, NULL, &policy, to), OPENPI_BAD_ARGUMENT,
            "neither a checkpoint nor a synthetic one");
    options.synthetic = &small[0];
    REFUSED("nowhere", openpi_policy_open(NULL, &options, NULL, to), OPENPI_BAD_ARGUMENT, "policy is NULL");
    const openpi_synthetic third = {.size = sizeof(openpi_synthetic), .dims = small[0].dims,
                                    .variant = (openpi_variant)2};
    options.synthetic = &third;
    REFUSED("a third variant", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "variant is 2, expected OPENPI_PI0");
    options.synthetic = &small[0];
    options.without_lora = -1;
    REFUSED("without_lora -1", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "policy options: without_lora is -1, expected 0 or 1");
    options.without_lora = 0;
    options.reserved = 1;
    REFUSED("reserved 1", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "policy options: reserved is 1, expected 0");
    options.reserved = 0;
    options.size = 3;
    REFUSED("size 3", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "size is 3, expected 88: begin with OPENPI_POLICY_OPTIONS_INIT");
    assert_ptr_equal(policy, UNTOUCHED);
    openpi_policy_close(NULL);
}

/* ---- observations --------------------------------------------------------------------------------- */

static openpi_policy *open_policy(const char *robot) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    options.robot = robot;
    options.synthetic = &small[0];
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

typedef struct seen {
    openpi_observation o;
    openpi_image images[3];
    double state[DIMS + 1];
} seen;

static float floats[4 * 6 * 3];
static double doubles[4 * 6 * 3];

/* What robot "droid" needs. */
static void make_seen(seen *s) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 4 * 6 * 3; i++) floats[i] = 0.5f, doubles[i] = 0.5;
    s->images[0] = (openpi_image)IMAGE("observation/exterior_image_1_left", grey, OPENPI_U8, OPENPI_HWC, 4,
                                       6);
    s->images[1] = s->images[2] = s->images[0];
    s->images[1].name = "observation/wrist_image_left";
    s->o = (openpi_observation)OBSERVATION(s->images, 2, s->state, 8, "pick up the cup", 0);
}

static void picture_of(seen *s, const void *data, openpi_element element) {
    s->images[1].data = data;
    s->images[1].element = element;
}

static void sized(seen *s, int height, int width) {
    s->images[0].height = height;
    s->images[0].width = width;
}

#define SPOIL(name, change) \
    static void name(seen *s) { change; }

SPOIL(short_state, s->o.state_length = 7)
SPOIL(long_state, s->o.state_length = 14)
SPOIL(negative_state, s->o.state_length = -1)
SPOIL(missing_state, s->o.state_length = 0)
SPOIL(null_state, s->o.state = NULL)
SPOIL(nan_state, s->state[3] = (double)NAN)
SPOIL(infinite_state, s->state[7] = (double)INFINITY)
SPOIL(huge_state, s->state[0] = 1e300)
SPOIL(no_prompt, s->o.prompt = NULL)
SPOIL(latin_prompt, s->o.prompt = "caf\xe9 au lait")
SPOIL(cut_prompt, s->o.prompt = "pick \xf0\x9f\xa4")
SPOIL(surrogate_prompt, s->o.prompt = "pick \xed\xa0\x80")
SPOIL(long_prompt, s->o.prompt_length = (size_t)1 << 40)
SPOIL(unknown_camera, s->images[1].name = "cam_low")
SPOIL(long_camera, s->images[1].name = "xééééééééééééééééééééééééééééééééééééééééééééé")
SPOIL(twice, s->images[1].name = "base")
SPOIL(no_wrist, s->o.image_count = 1)
SPOIL(no_pictures, s->o.image_count = 0)
SPOIL(negative_pictures, s->o.image_count = -1)
SPOIL(null_pictures, s->o.images = NULL)
SPOIL(nameless, s->images[0].name = NULL)
SPOIL(null_data, s->images[1].data = NULL)
SPOIL(no_height, sized(s, 0, 6))
SPOIL(no_width, sized(s, 6, 0))
SPOIL(negative_width, sized(s, 6, -6))
SPOIL(sliver, sized(s, 3, 2000))
SPOIL(upright_sliver, sized(s, 2000, 3))
SPOIL(megapixels, sized(s, 16000, 16000))
SPOIL(long_side, sized(s, 1, 20000))
SPOIL(overflow, sized(s, INT32_MAX, INT32_MAX))
SPOIL(nan_float, picture_of(s, floats, OPENPI_FLOAT32); floats[10] = NAN)
SPOIL(infinite_float, picture_of(s, floats, OPENPI_FLOAT32); floats[71] = INFINITY)
SPOIL(nan_double, picture_of(s, doubles, OPENPI_FLOAT64); doubles[0] = (double)NAN)
SPOIL(bytes_as_float, picture_of(s, floats, OPENPI_FLOAT32); floats[3] = 255.0f)
SPOIL(element_9, picture_of(s, grey, (openpi_element)9))
SPOIL(layout_2, s->images[1].layout = (openpi_layout)2)

typedef struct observed {
    const char *what;
    void (*change)(seen *);
    openpi_status status;
    const char *part;
} observed;

static const observed observations[] = {
    {"a state of 7", short_state, OPENPI_BAD_INPUT, "the state has 7 numbers, robot \"droid\" has 8"},
    {"a state of 14", long_state, OPENPI_BAD_INPUT, "the state has 14 numbers, robot \"droid\" has 8"},
    {"a state of -1", negative_state, OPENPI_BAD_ARGUMENT, "the observation's state has -1 numbers"},
    {"no state", missing_state, OPENPI_BAD_INPUT, "the state has 0 numbers, robot \"droid\" has 8"},
    {"a state at NULL", null_state, OPENPI_BAD_ARGUMENT, "the observation's state has 8 numbers at NULL"},
    {"NaN state", nan_state, OPENPI_BAD_INPUT, "state[3] is nan, expected a finite number"},
    {"infinite state", infinite_state, OPENPI_BAD_INPUT, "state[7] is inf, expected a finite number"},
    {"a state past float", huge_state, OPENPI_BAD_INPUT, "state[0] is 1e+300, which is"},
    {"no prompt", no_prompt, OPENPI_BAD_INPUT,
     "a prompt is required: the observation has none, and robot \"droid\" has no default"},
    {"Latin-1", latin_prompt, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte 3 is 0xe9"},
    {"half a character", cut_prompt, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte 5 is 0xf0"},
    {"a surrogate", surrogate_prompt, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte 5 is 0xed"},
    {"a prompt of a terabyte", long_prompt, OPENPI_BAD_INPUT, "the prompt has 1099511627776 bytes, expected at most"},
    {"unknown camera", unknown_camera, OPENPI_BAD_INPUT,
     "robot \"droid\" has no camera \"cam_low\", it has observation/exterior_image_1_left (base)"},
    {"unknown camera of many letters", long_camera, OPENPI_BAD_INPUT, "robot \"droid\" has no camera \"xéé"},
    {"the same camera twice", twice, OPENPI_BAD_INPUT,
     "pictures \"observation/exterior_image_1_left\" and \"base\" are of the same camera"},
    {"a camera missing", no_wrist, OPENPI_BAD_INPUT,
     "camera \"observation/wrist_image_left\" (left_wrist), which robot \"droid\" needs, is missing"},
    {"no pictures", no_pictures, OPENPI_BAD_INPUT, "which robot \"droid\" needs, is missing"},
    {"-1 pictures", negative_pictures, OPENPI_BAD_ARGUMENT, "the observation has -1 pictures"},
    {"pictures at NULL", null_pictures, OPENPI_BAD_ARGUMENT, "the observation has 2 pictures at NULL"},
    {"a picture without name", nameless, OPENPI_BAD_INPUT, "picture 0 has no name; robot \"droid\" has cameras"},
    {"a picture at NULL", null_data, OPENPI_BAD_INPUT, "picture \"observation/wrist_image_left\": its data is NULL"},
    {"6×0", no_height, OPENPI_BAD_INPUT, "6×0 pixels (width×height), expected 1 to 16384 a side"},
    {"0×6", no_width, OPENPI_BAD_INPUT, "0×6 pixels (width×height), expected 1 to 16384 a side"},
    {"-6×6", negative_width, OPENPI_BAD_INPUT, "-6×6 pixels"},
    {"2000×3", sliver, OPENPI_BAD_INPUT,
     "2000×3 pixels (width×height) would shrink to 224×0, expected at least one pixel a side"},
    {"3×2000", upright_sliver, OPENPI_BAD_INPUT, "3×2000 pixels (width×height) would shrink to 0×224"},
    {"256 megapixels", megapixels, OPENPI_BAD_INPUT, "16000×16000 pixels (width×height), expected at most 64 megapixels"},
    {"20000×1", long_side, OPENPI_BAD_INPUT, "20000×1 pixels (width×height), expected 1 to 16384 a side"},
    {"all the pixels", overflow, OPENPI_BAD_INPUT, "2147483647×2147483647 pixels"},
    {"NaN pixel", nan_float, OPENPI_BAD_INPUT, "picture \"observation/wrist_image_left\": element 10 is nan, expected"},
    {"infinite pixel", infinite_float, OPENPI_BAD_INPUT, "element 71 is inf, expected"},
    {"NaN pixel in double", nan_double, OPENPI_BAD_INPUT, "element 0 is nan, expected"},
    {"float pixels to 255", bytes_as_float, OPENPI_BAD_INPUT, "element 3 is 255, expected float pictures in [0,1]"},
    {"elements of no type", element_9, OPENPI_BAD_INPUT, "element type 9, expected OPENPI_U8, OPENPI_FLOAT32 or OPENPI_FLOAT64"},
    {"pixels in no order", layout_2, OPENPI_BAD_INPUT, "layout 2, expected OPENPI_HWC or OPENPI_CHW"},
};

/* Nothing is left of an observation that was refused, nor of the one before it. */
static void holds_nothing(const char *what, const openpi_request *request) {
    float model_actions[HORIZON * DIMS] = {0};
    double actions[HORIZON * DIMS] = {77.0};
    int count = 77;
    openpi_error none = OPENPI_ERROR_INIT;
    if (holds_sample(request) || openpi_request_state(request, &count) || count ||
        openpi_request_prompt_truncated(request))
        fail_msg("%s: the request still holds a sample", what);
    assert_int_equal(openpi_request_finish(request, model_actions, HORIZON, actions, CAPACITY(actions),
                                           &none), OPENPI_BAD_ARGUMENT);
    assert_true(actions[0] == 77.0);
}

static void broken_observations(void **state) {
    (void)state;
    openpi_policy *policy = open_policy("droid");
    openpi_request *request;
    openpi_engine *engine = open_engine(0);
    openpi_session *session = open_session(engine);
    double actions[HORIZON * DIMS], before[HORIZON * DIMS];
    seen s;
    WORKS(openpi_request_create(policy, &request, &error));
    memset(actions, 0x5a, sizeof actions);
    memcpy(before, actions, sizeof before);
    for (size_t i = 0; i < LENGTH(observations); i++) {
        const observed *row = &observations[i];
        make_seen(&s);
        WORKS(openpi_request_prepare(request, &s.o, NULL, &error));
        row->change(&s);
        REFUSED(row->what, openpi_request_prepare(request, &s.o, NULL, to), row->status, row->part);
        holds_nothing(row->what, request);
        REFUSED(row->what, openpi_policy_infer(request, session, &s.o, NULL, actions, CAPACITY(actions),
                                               NULL, to), row->status, row->part);
        refused--;
        assert_memory_equal(actions, before, sizeof actions);
    }
    make_seen(&s);
    REFUSED("no request", openpi_request_prepare(NULL, &s.o, NULL, to), OPENPI_BAD_ARGUMENT, "request prepare: request is NULL");
    REFUSED("no observation", openpi_request_prepare(request, NULL, NULL, to), OPENPI_BAD_ARGUMENT, "observation is NULL");
    REFUSED("no session", openpi_policy_infer(request, NULL, &s.o, NULL, actions, CAPACITY(actions), NULL,
                                              to), OPENPI_BAD_ARGUMENT,
            "the session is NULL");
    REFUSED("no request", openpi_policy_infer(NULL, session, &s.o, NULL, actions, CAPACITY(actions), NULL,
                                              to), OPENPI_BAD_ARGUMENT,
            "the request is NULL");
    REFUSED("no actions", openpi_policy_infer(request, session, &s.o, NULL, NULL, 1, NULL, to),
            OPENPI_BAD_ARGUMENT,
            "actions is NULL");
    REFUSED("no observation", openpi_policy_infer(request, session, NULL, NULL, actions, CAPACITY(actions),
                                                  NULL, to), OPENPI_BAD_ARGUMENT,
            "observation is NULL");
    openpi_request *other = UNTOUCHED;
    REFUSED("no policy", openpi_request_create(NULL, &other, to), OPENPI_BAD_ARGUMENT, "request create: policy is NULL");
    REFUSED("nowhere", openpi_request_create(policy, NULL, to), OPENPI_BAD_ARGUMENT, "request create: request is NULL");
    assert_ptr_equal(other, UNTOUCHED);
    assert_false(holds_sample(NULL));

    float model_actions[HORIZON * DIMS] = {0}, wild[HORIZON * DIMS] = {0};
    wild[2 * DIMS + 5] = NAN;
    WORKS(openpi_request_prepare(request, &s.o, NULL, &error));
    REFUSED("horizon 65", openpi_request_finish(request, model_actions, 65, actions, CAPACITY(actions), to),
            OPENPI_BAD_ARGUMENT,
            "horizon is 65, expected 1 to 64");
    REFUSED("horizon 0", openpi_request_finish(request, model_actions, 0, actions, CAPACITY(actions), to),
            OPENPI_BAD_ARGUMENT,
            "horizon is 0, expected 1 to 64");
    REFUSED("NaN action", openpi_request_finish(request, wild, HORIZON, actions, CAPACITY(actions), to),
            OPENPI_BAD_INPUT,
            "action of step 2, dimension 5 is nan");
    REFUSED("no actions", openpi_request_finish(request, NULL, HORIZON, actions, CAPACITY(actions), to),
            OPENPI_BAD_ARGUMENT, "request finish: ");
    REFUSED("nowhere", openpi_request_finish(request, model_actions, HORIZON, NULL, 1, to),
            OPENPI_BAD_ARGUMENT,
            "request finish: actions is NULL");
    REFUSED("no request", openpi_request_finish(NULL, model_actions, HORIZON, actions, CAPACITY(actions),
                                                to), OPENPI_BAD_ARGUMENT,
            "request finish: request is NULL");
    assert_memory_equal(actions, before, sizeof actions);
    WORKS(openpi_request_finish(request, model_actions, HORIZON, actions, CAPACITY(actions), &error));
    openpi_request_close(request);
    openpi_policy_close(policy);

    policy = open_policy("none");                      /* any state up to 32, any camera, but not none */
    WORKS(openpi_request_create(policy, &request, &error));
    s.images[0].name = "base";
    s.o.image_count = 1;
    s.o.state_length = DIMS + 1;
    REFUSED("a state of 33", openpi_request_prepare(request, &s.o, NULL, to), OPENPI_BAD_INPUT,
            "the state has 33 numbers, expected at most 32");
    s.o.state_length = 0;
    REFUSED("no state", openpi_request_prepare(request, &s.o, NULL, to), OPENPI_BAD_INPUT,
            "the state is missing, expected 1 to 32 numbers");
    s.o.state_length = DIMS;
    s.o.image_count = 0;
    REFUSED("no picture", openpi_request_prepare(request, &s.o, NULL, to), OPENPI_BAD_INPUT,
            "no picture is given; robot \"none\" has cameras base");
    openpi_request_close(request);
    openpi_request_close(NULL);
    openpi_policy_close(policy);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- requests as clients send them ---------------------------------------------------------------- */

typedef enum part { PICTURE = 1, WRIST = 2, JOINTS = 4, GRIPPER = 8, TEXT = 16 } part;

typedef struct sent {
    const char *what;
    int without;                       /* parts that are not there                                     */
    const char *picture_type;          /* default |u1                                                  */
    int shape[4], rank;                /* of the first picture, default 4×6×3                          */
    int bytes;                         /* of its data, default what type u1 and the shape need         */
    const char *state_type;            /* default <f8                                                  */
    int joints;                        /* default 7                                                    */
    int prompt;                        /* 0: text, 1: a number, 2: bytes that are not UTF-8, 3: nothing */
    const char *extra;                 /* one more key                                                 */
    const char *part;
} sent;

static const sent messages[] = {
    {"no picture", .without = PICTURE,
     .part = "camera \"observation/exterior_image_1_left\" (base), which robot \"droid\" needs, is missing"},
    {"no joints", .without = JOINTS,
     .part = "the request has no \"observation/joint_position\", expected 7 numbers of the state"},
    {"no gripper", .without = GRIPPER, .part = "the request has no \"observation/gripper_position\", expected 1 numbers"},
    {"no prompt", .without = TEXT, .part = "a prompt is required"},
    {"six joints", .joints = 6, .part = "\"observation/joint_position\" of the request has 6 numbers, expected 7"},
    {"fourteen joints", .joints = 14, .part = "\"observation/joint_position\" of the request has 14 numbers, expected 7"},
    {"forty joints", .joints = 40, .part = "expected at most 32 numbers"},
    {"complex joints", .state_type = "<c16", .part = "\"observation/joint_position\": dtype \"<c16\" holds complex numbers"},
    {"big-endian joints", .state_type = ">f8", .part = "dtype \">f8\" is big-endian, expected little-endian"},
    {"joints of no type", .state_type = "<q8", .part = "dtype \"<q8\" is unknown, expected b1, u1 to u8"},
    {"objects", .picture_type = "|O", .part = "dtype \"|O\" holds Python objects"},
    {"a picture of shorts", .picture_type = "<i2", .bytes = 144, .part = "expected a picture: u8, f32 or f64 [height,width,3]"},
    {"a gray picture", .shape = {4, 6}, .rank = 2, .bytes = 24, .part = "_1_left\" is an array u8 [4,6], expected a picture"},
    {"four channels", .shape = {4, 6, 4}, .rank = 3, .bytes = 96, .part = "expected a picture: u8, f32 or f64 [height,width,3]"},
    {"an empty picture", .shape = {0, 6, 3}, .rank = 3, .bytes = -1, .part = "6×0 pixels (width×height)"},
    {"short data", .bytes = 71,
     .part = "\"observation/exterior_image_1_left\": 71 bytes of data, expected 72: 72 elements of 1 bytes"},
    {"long data", .bytes = 73, .part = "73 bytes of data, expected 72"},
    {"a negative side", .shape = {-4, 6, 3}, .rank = 3, .bytes = 72, .part = "dimension 0 of its shape is"},
    {"a huge side", .shape = {INT32_MAX, INT32_MAX, 3}, .rank = 3, .bytes = 72,
     .part = "dimension 0 of its shape is larger, expected an integer from 0 to"},
    {"a shape that overflows", .shape = {60000000, 60000000, 60000000}, .rank = 3, .bytes = 72,
     .part = "its shape has more elements than a message's"},
    {"a prompt of a number", .prompt = 1, .part = "\"prompt\" is a number, expected text"},
    {"a prompt in Latin-1", .prompt = 2, .part = "\"prompt\": its text is not valid UTF-8"},
    {"a prompt of nothing", .prompt = 3, .part = "a prompt is required: the observation has none"},
    {"an empty key", .extra = "", .part = "is empty or not valid UTF-8"},
    {"a key twice", .extra = "prompt", .part = "the key \"prompt\" comes twice"},
};

static void pack_sent(msgpack_sbuffer *buffer, const sent *m) {
    static const int side[3] = {4, 6, 3};
    static const double zeros[64];
    msgpack_packer packer;
    int count = !!m->extra;
    for (int p = PICTURE; p <= TEXT; p <<= 1) count += !(m->without & p);
    msgpack_sbuffer_clear(buffer);
    msgpack_packer_init(&packer, buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, (size_t)count);
    if (!(m->without & PICTURE)) {
        pack_text(&packer, "observation/exterior_image_1_left");
        pack_array(&packer, m->picture_type ? m->picture_type : "|u1", m->rank ? m->shape : side,
                   m->rank ? m->rank : 3, grey,
                   m->bytes < 0 ? 0
                   : m->bytes   ? (size_t)m->bytes
                                : 72);
    }
    if (!(m->without & WRIST))
        pack_text(&packer, "observation/wrist_image_left"), pack_array(&packer, "|u1", side, 3, grey, 72);
    int joints = m->joints ? m->joints : 7, one = 1;
    const char *type = m->state_type ? m->state_type : "<f8";
    size_t each = strstr(type, "16") ? 16 : 8;
    if (!(m->without & JOINTS))
        pack_text(&packer, "observation/joint_position"),
            pack_array(&packer, type, &joints, 1, zeros, (size_t)joints * each);
    if (!(m->without & GRIPPER))
        pack_text(&packer, "observation/gripper_position"), pack_array(&packer, "<f8", &one, 1, zeros, 8);
    if (!(m->without & TEXT)) {
        pack_text(&packer, "prompt");
        if (m->prompt == 0) pack_text(&packer, "pick up the cup");
        if (m->prompt == 1) msgpack_pack_int(&packer, 5);
        if (m->prompt == 2) pack_text(&packer, "caf\xe9");
        if (m->prompt == 3) msgpack_pack_nil(&packer);
    }
    if (m->extra) pack_text(&packer, m->extra), msgpack_pack_int(&packer, 1);
}

#define NESTED "\x81\xa1" "a"

static const struct {
    const char *what, *bytes;
    size_t count;
    const char *part;
} raw[] = {
#define BYTES(text) text, sizeof(text) - 1
    {"nothing", "", 0, "request: an empty message, expected a map of msgpack"},
    {"text", BYTES("hello"), "the message starts with byte 0x68, expected a map of msgpack"},
    {"JSON", BYTES("{\"prompt\": 1}"), "the message starts with byte 0x7b, expected a map"},
    {"a list", BYTES("\x93\1\2\3"), "starts with byte 0x93"},
    {"a map of 2^32", BYTES("\xdf\xff\xff\xff\xff"), "a map of 4294967295 entries at byte"},
    {"a text of 2^32", BYTES("\x81\xdb\xff\xff\xff\xff"), "a string of 4294967295 bytes at byte"},
    {"too deep", BYTES(NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED "\1"), "is nested deeper than 8"},
    {"a byte of no meaning", BYTES("\x81\xa1" "a\xc1"), "byte 3 is 0xc1, which msgpack never uses"},
    {"an extension", BYTES("\x81\xa1" "a\xd4\1\2"), "an extension type (0xd4) at byte 3"},
    {"bytes after the map", BYTES("\x80\1"), "1 bytes follow the message's map, expected none"},
    {"a key that is a number", BYTES("\x81\1\2"), "is an integer, expected text"},
    {"no field", BYTES("\x80"), "the request has no \"observation/joint_position\", expected 7 numbers of the state"},
};

static void broken_requests(void **state) {
    (void)state;
    openpi_policy *policy = open_policy("droid");
    openpi_request *request;
    msgpack_sbuffer buffer;
    const sent good = {0};
    msgpack_sbuffer_init(&buffer);
    WORKS(openpi_request_create(policy, &request, &error));
    for (size_t i = 0; i < LENGTH(messages); i++) {
        pack_sent(&buffer, &good);
        WORKS(openpi_request_prepare_msgpack(request, buffer.data, buffer.size, NULL, &error));
        pack_sent(&buffer, &messages[i]);
        REFUSED(messages[i].what, openpi_request_prepare_msgpack(request, buffer.data, buffer.size, NULL, to),
                OPENPI_BAD_INPUT, messages[i].part);
        holds_nothing(messages[i].what, request);
    }
    for (size_t i = 0; i < LENGTH(raw); i++) {
        char *bytes = malloc(raw[i].count + 1); /* as long as the message: reading past its end shows */
        assert_non_null(bytes);
        char *tail = bytes + 1;
        memcpy(tail, raw[i].bytes, raw[i].count);
        REFUSED(raw[i].what, openpi_request_prepare_msgpack(request, tail, raw[i].count, NULL, to),
                OPENPI_BAD_INPUT, raw[i].part);
        holds_nothing(raw[i].what, request);
        free(bytes);
    }
    REFUSED("no bytes", openpi_request_prepare_msgpack(request, NULL, 5, NULL, to), OPENPI_BAD_ARGUMENT, "the bytes are NULL");
    REFUSED("no request", openpi_request_prepare_msgpack(NULL, "\x80", 1, NULL, to), OPENPI_BAD_ARGUMENT, "the request is NULL");
    pack_sent(&buffer, &good);
    for (size_t cut = 1; cut < buffer.size; cut++) {
        char *bytes = malloc(cut);
        assert_non_null(bytes);
        memcpy(bytes, buffer.data, cut);
        REFUSED("cut short", openpi_request_prepare_msgpack(request, bytes, cut, NULL, to), OPENPI_BAD_INPUT,
                "the message is cut short: it ends after");
        refused--;
        free(bytes);
    }
    msgpack_sbuffer_destroy(&buffer);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* ---- pictures ------------------------------------------------------------------------------------- */

static void pictures(void **state) {
    static const struct {
        const char *what, *file, *text;                /* a file of tests/pictures or the bytes themselves */
        size_t keep;                                   /* bytes, 0: all                                */
        int at, becomes;                               /* the byte at `at`, unless 0, becomes this     */
        const char *part;
    } rows[] = {
        {"nothing", NULL, "", 0, 0, 0, "picture.png: neither a PNG nor a JPEG file (0 bytes)"},
        {"text", NULL, "a picture of a cat", 0, 0, 0, "neither a PNG nor a JPEG file (18 bytes)"},
        {"another format", NULL, "GIF89a....", 0, 0, 0, "neither a PNG nor a JPEG file (10 bytes)"},
        {"a PNG's signature", "rgb.png", NULL, 8, 0, 0, "picture.png: not a valid PNG: no header in 8 bytes"},
        {"half a PNG's header", "rgb.png", NULL, 20, 0, 0, "not a valid PNG"},
        {"a PNG without pixels", "rgb.png", NULL, 33, 0, 0, "not a valid PNG"},
        {"half a PNG", "rgb.png", NULL, 60, 0, 0, "not a valid PNG"},
        {"a palette PNG cut", "palette.png", NULL, 50, 0, 0, "not a valid PNG"},
        {"a PNG of 4 Gpixel", "rgb.png", NULL, 0, 16, 0x7f, "expected 1 to 16384 a side and at most 64 megapixels"},
        {"a PNG with a wrong byte", "rgb.png", NULL, 0, 25, 9, "not a valid PNG"},
        {"a JPEG's first bytes", "full.jpg", NULL, 3, 0, 0, "not a valid JPEG"},
        {"a JPEG without pixels", "full.jpg", NULL, 30, 0, 0, "not a valid JPEG"},
        {"a JPEG in CMYK", "cmyk.jpg", NULL, 0, 0, 0, "picture.png: a JPEG in CMYK colours, expected RGB or gray"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char path[600];
        size_t bytes = rows[i].text ? strlen(rows[i].text) : 0;
        char *data = rows[i].text ? strdup(rows[i].text) : NULL;
        if (rows[i].file) {
            snprintf(path, sizeof path, TESTS_DIR "/pictures/%s", rows[i].file);
            data = golden_read(path, &bytes);
        }
        assert_non_null(data);
        if (rows[i].keep) {
            assert_true(rows[i].keep < bytes);
            bytes = rows[i].keep;
        }
        if (rows[i].at) data[rows[i].at] = (char)rows[i].becomes;
        char *exact = malloc(bytes ? bytes : 1);
        assert_non_null(exact);
        memcpy(exact, data, bytes);
        uint8_t *pixels = UNTOUCHED;
        int height = 77, width = 78;
        REFUSED(rows[i].what, openpi_image_decode(exact, bytes, "picture.png", &pixels, &height, &width, to),
                OPENPI_BAD_FILE, rows[i].part);
        assert_ptr_equal(pixels, UNTOUCHED);
        assert_int_equal(height, 77);
        assert_int_equal(width, 78);
        free(exact);
        free(data);
    }
    uint8_t *pixels = UNTOUCHED;
    int height, width;
    REFUSED("no bytes", openpi_image_decode(NULL, 9, "x", &pixels, &height, &width, to), OPENPI_BAD_ARGUMENT, "must not be NULL");
    REFUSED("nowhere", openpi_image_decode("x", 1, "x", NULL, &height, &width, to), OPENPI_BAD_ARGUMENT, "must not be NULL");
    REFUSED("no name", openpi_image_decode("x", 1, NULL, &pixels, &height, &width, to), OPENPI_BAD_FILE,
            "picture: neither a PNG nor a JPEG");
    assert_ptr_equal(pixels, UNTOUCHED);
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static void there_were_enough(void **state) {
    (void)state;
    if (refused < 300) fail_msg("%d broken inputs, expected at least 300", refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),           cmocka_unit_test(dims),     cmocka_unit_test(writing),
        cmocka_unit_test(engines),         cmocka_unit_test(sessions), cmocka_unit_test(runs),
        cmocka_unit_test(policies),        cmocka_unit_test(pictures), cmocka_unit_test(broken_checkpoints),
        cmocka_unit_test(other_folders),
        cmocka_unit_test(broken_requests), cmocka_unit_test(broken_observations),
        cmocka_unit_test(there_were_enough),
    };
    return cmocka_run_group_tests_name("bad input", tests, make_place, remove_place);
}
