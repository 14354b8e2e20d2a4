/* openpi_policy.h - named pictures of any size, raw robot state and an instruction -> robot actions.
 * The rules of openpi.h hold here.
 */
#ifndef OPENPI_POLICY_H
#define OPENPI_POLICY_H

#include "openpi_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct openpi_policy openpi_policy;

typedef enum openpi_prompt_state {
    OPENPI_PROMPT_STATE_DEFAULT = 0,
    OPENPI_PROMPT_STATE_OFF = 1,
    OPENPI_PROMPT_STATE_ON = 2
} openpi_prompt_state;

/* Strings and structs are read by openpi_policy_open only. */
typedef struct openpi_policy_options {
    size_t size;                 /* sizeof(openpi_policy_options)                                    */
    const char *robot;           /* aloha, aloha_sim, droid, droid_jointpos, libero, lerobot, none, a robot's
                                    JSON file, or its JSON text, which starts with '{' (docs/robots.md) */
    const char *config;          /* openpi's name of a training config: "pi05_droid"                 */
    const char *norm_stats;      /* norm_stats.json or its folder; default from the checkpoint's assets. For
                                    LeRobot's processors only where state or actions have no statistics */
    const char *tokenizer;       /* tokenizer.model or tokenizer.json; default the checkpoint's      */
    openpi_prompt_state prompt_state;      /* state in the prompt; default by variant and config     */
    int max_prompt;              /* default 48 (π0) or 200 (π0.5), or the checkpoint's               */
    const openpi_synthetic *synthetic;     /* not NULL: embedded tokenizer and statistics            */
    const char *tokenizer_cache; /* a folder outside the checkpoint that is searched for a tokenizer if there
                                    is none in `tokenizer` and in the checkpoint; default none          */
    const char *adapter;         /* as the engine's: its processors and statistics count before those of the
                                    checkpoint, also where without_lora is set                          */
    int without_lora;            /* as the engine's; only openpi_inspect asks                           */
    int horizon;                 /* what sessions will be given; then no note says that the checkpoint has
                                    none. 0: nothing                                                    */
    const char *assets;          /* statistics assets/<this>/norm_stats.json of the checkpoint; default the
                                    robot's or config's, else the only ones there are. Not with norm_stats */
    int missing_chunks_are_zero; /* as the engine's; only openpi_inspect asks                        */
    int reserved;                /* 0                                                                */
    const char *formats;         /* as the engine's; only openpi_inspect asks: what such weights take */
} openpi_policy_options;

#define OPENPI_POLICY_OPTIONS_INIT                                                                       \
    {sizeof(openpi_policy_options), NULL, NULL, NULL, NULL, OPENPI_PROMPT_STATE_DEFAULT, 0, NULL, NULL, \
     NULL, 0, 0, NULL, 0, 0, NULL}

/* Reads robot, statistics and tokenizer: what turns observations into prepared samples and model actions into
 * robot actions (MODEL.md, "Pictures, statistics and requests"; docs/robots.md). `checkpoint` is the one that
 * openpi_engine_open took, or NULL with options->synthetic. Of files outside the checkpoint only those that
 * the options name are opened. On success *policy is the caller's, for openpi_policy_close.
 *   OPENPI_BAD_ARGUMENT  options that contradict each other or the checkpoint; an unnamed robot
 *   OPENPI_NOT_FOUND     robot, config, statistics or tokenizer: the sentence lists what there is
 *   OPENPI_UNSUPPORTED   a config or a step of LeRobot's pipelines that this engine does not implement */
OPENPI_API openpi_status openpi_policy_open(const char *checkpoint, const openpi_policy_options *options,
                                            openpi_policy **policy, openpi_error *error);
OPENPI_API void openpi_policy_close(openpi_policy *policy);

/* The prompt of observations that have none, in place of the robot's default; at most 1,023 bytes, copied.
 * Before any request of the policy is prepared. */
OPENPI_API openpi_status openpi_policy_default_prompt(openpi_policy *policy, const char *prompt,
                                                      openpi_error *error);

/* What happens to an action beyond a limit of the robot's file (docs/robots.md, "Limits"). */
typedef enum openpi_on_violation {
    OPENPI_CLAMP = 0,            /* it becomes the nearest one within all limits                     */
    OPENPI_HOLD = 1,             /* it and the rest of the chunk become the last one within all limits */
    OPENPI_STOP = 2              /* nothing of the chunk leaves: OPENPI_BEYOND_LIMIT                 */
} openpi_on_violation;

typedef struct openpi_policy_info {
    size_t size;                 /* sizeof(openpi_policy_info)                                       */
    char robot[64];
    char cameras[OPENPI_CAMERAS][64];     /* request key of each slot; "": always masked              */
    int state_length;            /* numbers of an observation's state; 0: any up to 32               */
    int action_dim;              /* actions of a step                                                */
    int horizon;                 /* the config's or the checkpoint's; 0: unknown                     */
    int max_prompt;
    int prompt_state;            /* 1: the state is written into the prompt                          */
    int lerobot;
    char tokenizer[1024];        /* the file in use, its last 1023 bytes; "embedded": the library's own */
    char tokenizer_kind[24];     /* "sentencepiece" (tokenizer.model) or "tokenizer.json"            */
    char statistics[1024];       /* the norm_stats.json in use, its last 1023 bytes; "embedded": the library's
                                    own; "": none, or those of LeRobot's processors                  */
    int limits;                  /* how many openpi_policy_get_limits gives; 0: none                 */
    openpi_on_violation on_violation;
} openpi_policy_info;

#define OPENPI_POLICY_INFO_INIT                                                                          \
    {sizeof(openpi_policy_info), "", {"", "", ""}, 0, 0, 0, 0, 0, 0, "", "", "", 0, OPENPI_CLAMP}

/* Fills *info. */
OPENPI_API openpi_status openpi_policy_get_info(const openpi_policy *policy, openpi_policy_info *info,
                                                openpi_error *error);

/* Limits of the actions that a robot is sent, in their units; each is infinite where there is none. */
typedef struct openpi_limits {
    size_t size;                 /* sizeof(openpi_limits)                                            */
    int count;                   /* how many there are; 0: nothing is limited                        */
    openpi_on_violation on_violation;
    double min[OPENPI_ACTION_DIM];             /* [action_dim]                                       */
    double max[OPENPI_ACTION_DIM];             /* [action_dim]                                       */
    double max_step[OPENPI_ACTION_DIM];        /* [action_dim] from one action to the next           */
    double max_start_jump[OPENPI_ACTION_DIM];  /* [action_dim] of a chunk's first action from the state */
} openpi_limits;

#define OPENPI_LIMITS_INIT {sizeof(openpi_limits), 0, OPENPI_CLAMP, {0}, {0}, {0}, {0}}

/* Fills *limits. */
OPENPI_API openpi_status openpi_policy_get_limits(const openpi_policy *policy, openpi_limits *limits,
                                                  openpi_error *error);

/* As openpi_engine_note, of what the policy was opened with: statistics that are missing, cameras that were
 * found by their position only. The string is the policy's and valid until it is closed. */
OPENPI_API const char *openpi_policy_note(const openpi_policy *policy, int index, int *warning);

/* The engine's notes and then the policy's, as one list: no sentence is in both. Either may be NULL. */
OPENPI_API const char *openpi_note(const openpi_engine *engine, const openpi_policy *policy, int index,
                                   int *warning);

/* The name ("left_waist") and the unit ("rad") of action 0 … action_dim-1 of the robot; "": unknown, NULL: no
 * such action. The strings are the policy's and valid until it is closed. docs/robots.md names their sources.
 */
OPENPI_API const char *openpi_policy_action_name(const openpi_policy *policy, int action);
OPENPI_API const char *openpi_policy_action_unit(const openpi_policy *policy, int action);
/* Where an action starts: the number of the state that is now what the action will be, such as the position
 * of the same joint. -1: none, as of a velocity, or not known. The robot's "starts" says it, or that the
 * action is relative to that number; never its place alone. openpi_request_action_start gives the value. */
OPENPI_API int openpi_policy_action_state(const openpi_policy *policy, int action);
/* What an action commands, which decides what holding still means. A robot's "kinds" says it; an action that
 * starts at a number of the state is a position (docs/robots.md). */
typedef enum openpi_action_kind {
    OPENPI_ACTION_UNKNOWN = 0,
    OPENPI_ACTION_POSITION = 1,  /* where to be: holding still repeats it                            */
    OPENPI_ACTION_VELOCITY = 2,  /* how fast to move, or a step from where it is: holding still is 0 */
} openpi_action_kind;

/* The kind of action 0 … action_dim-1 of the policy's robot. */
OPENPI_API openpi_action_kind openpi_policy_action_kind(const openpi_policy *policy, int action);

/* The request key of part 0, 1, … of the state ("observation/joint_position") and its *length (0: any); NULL:
 * no such part. The string is the policy's and valid until it is closed. */
OPENPI_API const char *openpi_policy_state_key(const openpi_policy *policy, int part, int *length);
/* The request key of camera 0, 1, … ("images/cam_high"); "": one that no observation has; NULL: no such
 * camera. *slot: of the model, -1: accepted and not looked at. *required: 1, an observation without it is
 * refused; where no camera is required an observation has one at least. *chw: 1, pictures of messages are
 * [3][height][width] in any case. The string is the policy's and valid until it is closed. */
OPENPI_API const char *openpi_policy_camera(const openpi_policy *policy, int camera, int *slot, int *required,
                                            int *chw);
/* The prompt of an observation that has none; NULL: it has to have one. The string is the policy's and valid
 * until it is closed. */
OPENPI_API const char *openpi_policy_prompt(const openpi_policy *policy);
/* Steps of a chunk that the robot makes a second, in Hz; 0: unknown. */
OPENPI_API double openpi_policy_rate(const openpi_policy *policy);
/* The config's reset pose [*count], as openpi's server sends it in its metadata; NULL and 0: it has none. The
 * numbers are the policy's and valid until it is closed. */
OPENPI_API const double *openpi_policy_reset_pose(const openpi_policy *policy, int *count);

typedef enum openpi_element {
    OPENPI_U8 = 0, OPENPI_FLOAT32 = 1, OPENPI_FLOAT64 = 2, OPENPI_FLOAT16 = 3
} openpi_element;
typedef enum openpi_layout { OPENPI_HWC = 0, OPENPI_CHW = 1 } openpi_layout;
/* The order of a pixel's channels, or of a CHW picture's planes. Alpha is ignored. */
typedef enum openpi_channels {
    OPENPI_RGB = 0, OPENPI_BGR = 1, OPENPI_RGBA = 2, OPENPI_BGRA = 3
} openpi_channels;

typedef struct openpi_image {
    size_t size;                 /* sizeof(openpi_image)                                             */
    const char *name;            /* the robot's own key ("cam_high", "observation/image") or a slot ("base",
                                    "left_wrist", "right_wrist"; also base_0_rgb …): LeRobot's feature of
                                    that name, else by position, which openpi_request_note tells     */
    const void *data;            /* HWC [height][width][3], CHW [3][height][width]; 4 with alpha; at any
                                    address. A strided picture ends with its last row's last pixel    */
    openpi_element element;      /* float pictures are in [0,1]; LeRobot's, which it clamps where it
                                    resizes, in [-0.5,1.5]                                           */
    openpi_layout layout;
    int height, width;
    size_t row_bytes;            /* from a row to the next; 0: one row ends where the next begins    */
    size_t plane_bytes;          /* CHW: from a plane to the next; 0: height * row_bytes             */
    openpi_channels channels;
    int reserved;                /* 0                                                                */
} openpi_image;

#define OPENPI_IMAGE_INIT {sizeof(openpi_image), NULL, NULL, OPENPI_U8, OPENPI_HWC, 0, 0, 0, 0, OPENPI_RGB, 0}

/* One raw observation. Everything is read during the call only, except pictures of a request that borrows. */
typedef struct openpi_observation {
    size_t size;                 /* sizeof(openpi_observation)                                       */
    const openpi_image *images;
    int image_count;
    const double *state;         /* [state_length] robot units                                       */
    int state_length;
    const char *prompt;          /* NULL: the robot's default prompt, else an error                  */
    size_t prompt_length;        /* bytes; 0 with a non-NULL prompt: strlen                          */
} openpi_observation;

#define OPENPI_OBSERVATION_INIT {sizeof(openpi_observation), NULL, 0, NULL, 0, NULL, 0}

typedef struct openpi_request openpi_request;

/* Allocates what a prepare needs: later calls allocate only for pictures or prompts that are larger than
 * usual. The policy must stay open. On success *request is the caller's, for openpi_request_close. */
OPENPI_API openpi_status openpi_request_create(const openpi_policy *policy, openpi_request **request,
                                               openpi_error *error);
OPENPI_API void openpi_request_close(openpi_request *request);

/* prepare + openpi_session_run (batch 1) + finish. noise [H][32] or NULL, as for openpi_session_run; actions
 * [H][action_dim]; `capacity`: doubles that `actions` holds, checked first. On the thread of request and
 * session. OPENPI_BAD_ARGUMENT also where openpi_policy_match says so. */
OPENPI_API openpi_status openpi_policy_infer(openpi_request *request, openpi_session *session,
                                             const openpi_observation *observation, const float *noise,
                                             double *actions, size_t capacity, openpi_timing *timing,
                                             openpi_error *error);

/* 1: from the next prepare on, a picture that is as the model takes it (openpi's conventions; uint8 RGB, HWC,
 * 224×224, rows without gaps) is not copied. The sample points to the memory of the observation, the fields
 * or the message. That memory stays the caller's: it must not be changed or freed before the last call that
 * takes the sample has returned. openpi_request_finish and openpi_request_keep do not read it, nor does
 * openpi_request_close. 0, as at first: copied. */
OPENPI_API void openpi_request_borrow(openpi_request *request, int borrows);

/* Prepares an observation: cameras to slots, resize, robot transform, normalisation, tokenizer (MODEL.md,
 * "Pictures, statistics and requests"). openpi_request_sample then gives the sample. `timing` (may be NULL):
 * picture and prompt stages are set, the rest is 0. A wrong, missing or non-finite picture, state or prompt
 * is OPENPI_BAD_INPUT; then the request holds no sample. */
OPENPI_API openpi_status openpi_request_prepare(openpi_request *request,
                                                const openpi_observation *observation, openpi_timing *timing,
                                                openpi_error *error);

/* Fills *sample for openpi_session_run. Its pointers are the request's and valid until the next prepare or
 * close. If nothing was prepared or the last prepare failed: OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_request_sample(const openpi_request *request, openpi_sample *sample,
                                               openpi_error *error);

/* As openpi_request_prepare, from bytes[count] that an openpi client sends: msgpack with numpy arrays
 * (MODEL.md, "Pictures, statistics and requests"). A malformed message is OPENPI_BAD_INPUT. */
OPENPI_API openpi_status openpi_request_prepare_msgpack(openpi_request *request, const void *bytes,
                                                        size_t count, openpi_timing *timing,
                                                        openpi_error *error);

/* The two halves of openpi_request_prepare_msgpack. The first decodes the message and checks what takes no
 * long work: names and shapes, the state, the prompt's length, and the extras, which openpi_request_extras
 * gives from then on. The second tokenises the prompt and resizes the pictures; bytes[count] must be there as
 * before. Without a message that was read, it is OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_request_read_msgpack(openpi_request *request, const void *bytes, size_t count,
                                                     openpi_error *error);
OPENPI_API openpi_status openpi_request_prepare_read(openpi_request *request, openpi_timing *timing,
                                                     openpi_error *error);

/* A message of several observations: a list of maps, or one map with "openpi/batch" B, whose arrays and lists
 * have B entries each, while text and numbers are the same for all. *observations is how many, 1 …
 * OPENPI_MAX_OBSERVATIONS; 0: the message is one observation. The second function is
 * openpi_request_read_msgpack of observation `index` of such a message. */
OPENPI_API openpi_status openpi_message_observations(const void *bytes, size_t count, int *observations,
                                                     openpi_error *error);
OPENPI_API openpi_status openpi_request_read_msgpack_at(openpi_request *request, const void *bytes,
                                                        size_t count, int index, openpi_error *error);

/* Forgets what was read or prepared, and gives its memory back: the request is as it was created. */
OPENPI_API void openpi_request_clear(openpi_request *request);

/* At most so many bytes of memory a request of the policy has while it prepares a message of so many bytes,
 * besides the message. *kept (may be NULL): while it is prepared; for 0 bytes: as it was created. */
OPENPI_API size_t openpi_request_bytes(const openpi_policy *policy, size_t message_bytes, size_t *kept);

/* A value of an observation under the key that openpi has for it. Everything is read during the call only,
 * except pictures of a request that borrows. */
typedef struct openpi_field {
    size_t size;                 /* sizeof(openpi_field)                                             */
    const char *name;            /* "observation/image", "state", "prompt"; keys of a map inside another are
                                    joined by '/': "images/cam_high"                                 */
    const char *text;            /* not NULL: a text, the rest is ignored                            */
    size_t text_length;          /* bytes of `text`                                                  */
    const void *data;            /* numbers, the last index fastest, at any address                  */
    openpi_element element;
    int rank;                    /* 0: one number; at most 8                                         */
    int64_t shape[8];            /* [rank]                                                           */
    const char *unknown;         /* not NULL: a value of a type that no key has, and what it is ("None",
                                    "a set"); refused where its key is read, else ignored            */
} openpi_field;

#define OPENPI_FIELD_INIT {sizeof(openpi_field), NULL, NULL, 0, NULL, OPENPI_U8, 0, {0}, NULL}

/* As openpi_request_prepare_msgpack, from fields[count] that lie in memory: the same keys, shapes and
 * sentences. Pictures are read where they are, without a copy. A field of another key than the robot's is
 * ignored, as openpi does, whatever its type, but for pictures where the robot's own transform refuses
 * unknown ones. A camera may only be absent by not being there. Two keys of one thing ("prompt" and "task")
 * may come if their values are equal. */
OPENPI_API openpi_status openpi_request_prepare_fields(openpi_request *request, const openpi_field *fields,
                                                       int count, openpi_timing *timing, openpi_error *error);

/* What a message may say beside its observation, in keys that openpi itself ignores. */
typedef struct openpi_extras {
    size_t size;                 /* sizeof(openpi_extras)                                            */
    const float *noise;          /* "openpi/noise": [noise_rows][32], with `samples` one for each of them
                                    after the other, with zeros where a model of fewer action dimensions got
                                    as many columns; NULL: absent                                    */
    int noise_rows;              /* 1 … 64                                                           */
    int samples;                 /* "openpi/samples": chunks of the observation, 1 … 64; 0: absent     */
    double deadline_ms;          /* "openpi/deadline_ms": milliseconds after which the sender has no use for
                                    the actions; 0: absent                                           */
    int rtc;                     /* 1: "openpi/rtc" is present, a map: real-time chunking             */
    int rtc_executed;            /* its "executed": steps of the sender's last chunk, 0 or more       */
    int rtc_delay;               /* as openpi_rtc's fields; not given: 0, OFF, DEFAULT, 0 and 0       */
    openpi_rtc_mode rtc_mode;
    openpi_rtc_schedule rtc_schedule;
    int rtc_horizon;
    double rtc_max_weight;
    int runner;                  /* 1: "openpi/runner" is present, a map: what a runner tells of its robot */
    int runner_executed;         /* its "executed": rows of the sender's last chunk; -1: not given    */
    double runner_held_ms;       /* its "held_ms": how long the robot was held since the last request */
    int runner_reason;           /* its "reason": an openpi_reason (openpi_runner.h)                 */
    int runner_reserved;         /* 0                                                                */
} openpi_extras;

#define OPENPI_EXTRAS_INIT                                                                               \
    {sizeof(openpi_extras), NULL, 0, 0, 0, 0, 0, 0, OPENPI_RTC_OFF, OPENPI_RTC_SCHEDULE_DEFAULT, 0, 0,    \
     0, -1, 0, 0, 0}

/* Fills *extras from the last openpi_request_read_msgpack, openpi_request_prepare_msgpack or _fields;
 * pointers are valid until the next prepare or close. All absent after openpi_request_prepare, and where the
 * last one failed. */
OPENPI_API openpi_status openpi_request_extras(const openpi_request *request, openpi_extras *extras,
                                               openpi_error *error);

/* 1: the prepared prompt had more than max_prompt tokens and was truncated, as openpi does (it logs a
 * warning). */
OPENPI_API int openpi_request_prompt_truncated(const openpi_request *request);

/* What the last prepare did that changes actions and is no error: a prompt that was cut, a camera that was
 * found by its position only. Sentence 0, 1, …; NULL after the last. *warning as of openpi_engine_note. The
 * string is the request's and valid until the next prepare or close. */
OPENPI_API const char *openpi_request_note(const openpi_request *request, int index, int *warning);

/* The prompt that was prepared, *count bytes of UTF-8 without an end: the observation's or the robot's own.
 * It lies where it was given, in the observation or the message. NULL: nothing is prepared. */
OPENPI_API const char *openpi_request_prompt(const openpi_request *request, size_t *count);
/* The state that was prepared, in the robot's units: [*count] doubles, valid until the next prepare or close.
 * NULL: nothing is prepared. */
OPENPI_API const double *openpi_request_raw_state(const openpi_request *request, int *count);

/* Where an action starts in the prepared state, in the action's units: the number that
 * openpi_policy_action_state names; of ALOHA's real grippers, whose state is an opening, the angle that their
 * actions command. A plot of a chunk shows it at time 0. NaN: none, or nothing is prepared. */
OPENPI_API double openpi_request_action_start(const openpi_request *request, int action);

/* The prepared state, normalised, before it is rounded to fp32 and padded: [*count] doubles, valid until the
 * next prepare or close. NULL: nothing is prepared. */
OPENPI_API const double *openpi_request_state(const openpi_request *request, int *count);

/* model_actions [horizon][32] -> actions [horizon][action_dim] in the robot's units: unnormalise, add the
 * prepared state to relative actions, robot output transform (openpi src/openpi/transforms.py, Unnormalize
 * and AbsoluteActions). double as in openpi; LeRobot's arithmetic is float. `capacity`: doubles that
 * `actions` holds, at least horizon * action_dim, else OPENPI_BAD_ARGUMENT. A model action or a result that
 * is NaN or infinite is OPENPI_BAD_INPUT. The robot's limits hold for what leaves; openpi_request_get_limited
 * says what they changed. Actions that may not leave are OPENPI_BEYOND_LIMIT, and `actions` is untouched. */
OPENPI_API openpi_status openpi_request_finish(const openpi_request *request, const float *model_actions,
                                               int horizon, double *actions, size_t capacity,
                                               openpi_error *error);

/* The action that the robot was sent last, before the chunk of the observation that is prepared: [count],
 * count = the policy's action_dim. The limit max_step then holds between it and the first action, too, and a
 * chunk may be held at it. NULL: not known, as after every prepare, except where the message has
 * "openpi/last_action". A number that is not finite is OPENPI_BAD_INPUT. */
OPENPI_API openpi_status openpi_request_last_action(openpi_request *request, const double *action, int count,
                                                    openpi_error *error);

/* What the robot's limits did to the chunk of the last openpi_request_finish, also where it failed with
 * OPENPI_BEYOND_LIMIT. */
typedef struct openpi_limited {
    size_t size;                 /* sizeof(openpi_limited)                                           */
    int changed;                 /* numbers of the chunk that left and are not as they came; 0: none  */
    int below_min, above_max;    /* numbers that were beyond that limit. One may be beyond several. With
                                    HOLD those of the step where holding began, with STOP up to the step
                                    that is refused                                                  */
    int beyond_step, beyond_start;       /* max_step, max_start_jump                                 */
    int held;                    /* steps that became the action before them                         */
    int step, action;            /* the first number beyond a limit; -1: none was                    */
    uint64_t changed_steps;      /* bit s: numbers of step s changed                                 */
} openpi_limited;

#define OPENPI_LIMITED_INIT {sizeof(openpi_limited), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills *limited: all 0, and step and action -1, after a prepare. */
OPENPI_API openpi_status openpi_request_get_limited(const openpi_request *request, openpi_limited *limited,
                                                    openpi_error *error);

/* May samples of the policy run in the session? OPENPI_BAD_ARGUMENT, because actions would be wrong: a policy
 * of another variant than the session's engine, or of LeRobot's conventions where the engine's are openpi's
 * (or the reverse); a session whose horizon was left to the checkpoint and is not the policy's, or whose
 * max_prompt was and is shorter. Sizes that the caller set are accepted. */
OPENPI_API openpi_status openpi_policy_match(const openpi_policy *policy, const openpi_session *session,
                                             openpi_error *error);

/* Real-time chunking from call to call: what the caller keeps of a chunk until the robot's next observation.
 * model_actions [horizon][32], of the observation that is prepared, -> kept [horizon][32]: the same numbers,
 * or, where the policy's actions are relative to the state, absolute ones in the units of its statistics.
 * `capacity`: doubles that `kept` holds, at least horizon * 32, else OPENPI_BAD_ARGUMENT. A model action or a
 * result that is NaN or infinite is OPENPI_BAD_INPUT. */
OPENPI_API openpi_status openpi_request_keep(const openpi_request *request, const float *model_actions,
                                             int horizon, double *kept, size_t capacity,
                                             openpi_error *error);

/* What is left of a kept chunk when the robot has executed `executed` of its steps, 0 … horizon-1, in model
 * space and relative to the observation that is prepared now (LeRobot policies/rtc/relative.py): previous
 * [*rows][*dims] for openpi_rtc, with *rows = horizon - executed and *dims = the policy's action_dim. The
 * request may be another one than that which kept it, of the same policy. `capacity`: floats that `previous`
 * holds, at least *rows * *dims. */
OPENPI_API openpi_status openpi_request_previous(const openpi_request *request, const double *kept,
                                                 int horizon, int executed, float *previous, size_t capacity,
                                                 int *rows, int *dims, openpi_error *error);

#ifdef __cplusplus
}
#endif
#endif
