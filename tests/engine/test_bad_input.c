/* Bad observations, policies, requests and pictures at the library's surface (openpi.h): every row of the
 * tables below is one thing that a caller, a file or a client can get wrong, with the status and the words
 * that must come back (refusals.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "refusals.h"

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
    options.horizon = OPENPI_MAX_HORIZON + 1;
    REFUSED("horizon 65", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "policy options: horizon is 65, expected 0 to 64");
    options.horizon = 0;
    options.reserved = 1;
    REFUSED("reserved 1", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "policy options: reserved is 1, expected 0");
    options.reserved = 0;
    options.size = 3;
    REFUSED("size 3", openpi_policy_open(NULL, &options, &policy, to), OPENPI_BAD_ARGUMENT,
            "size is 3, expected 104: begin with OPENPI_POLICY_OPTIONS_INIT");
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
    {"elements of no type", element_9, OPENPI_BAD_INPUT, "element type 9, expected OPENPI_U8, OPENPI_FLOAT32, OPENPI_FLOAT64 or OPENPI_FLOAT16"},
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
    int shape[4], rank;                /* shape of the first picture, default 4×6×3                    */
    int bytes;                         /* size of its data, default what type u1 and the shape need    */
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
    {"a picture of shorts", .picture_type = "<i2", .bytes = 144, .part = "expected a picture: u8, f16, f32 or f64 [height,width,3]"},
    {"a gray picture", .shape = {4, 6}, .rank = 2, .bytes = 24, .part = "_1_left\" is an array u8 [4,6], expected a picture"},
    {"four channels", .shape = {4, 6, 4}, .rank = 3, .bytes = 96, .part = "expected a picture: u8, f16, f32 or f64 [height,width,3]"},
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
    {"an extension", BYTES("\x81\xa1" "a\xd4\1\2"), "the request has \"a\""},
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
    were_enough(150);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies), cmocka_unit_test(broken_observations), cmocka_unit_test(broken_requests),
        cmocka_unit_test(pictures), cmocka_unit_test(there_were_enough),
    };
    return cmocka_run_group_tests_name("bad input", tests, make_place, remove_place);
}
