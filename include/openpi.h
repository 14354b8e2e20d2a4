/* openpi.h - the π0 and π0.5 robot policies in C.
 *
 * Camera frames, a robot state and an instruction go in; a chunk of actions comes out.
 *
 *   policy level   named pictures of any size, raw robot state, instruction  ->  robot actions
 *   model level    prepared tensors and noise                                ->  normalised actions
 *
 * openpi_runner.h, a header beside this one, leads a robot from chunk to chunk.
 *
 * Example
 *   From one observation to a chunk of actions; what is not set keeps its default. README.md has it as a
 *   whole program.
 *
 *     openpi_image image = OPENPI_IMAGE_INIT;
 *     openpi_observation observation = OPENPI_OBSERVATION_INIT;
 *     openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
 *     openpi_error error = OPENPI_ERROR_INIT;
 *     openpi_engine *engine = NULL;
 *     openpi_session *session = NULL;
 *     openpi_policy *policy = NULL;
 *     openpi_request *request = NULL;
 *     double actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];
 *
 *     image.name = "base", image.data = rgb, image.height = 480, image.width = 640;
 *     observation.images = &image, observation.image_count = 1;
 *     observation.state = state, observation.state_length = 8;
 *     observation.prompt = "pick up the fork";
 *     options.robot = "none";
 *     if (openpi_engine_open("checkpoint", NULL, &engine, &error) ||
 *         openpi_session_create(engine, NULL, &session, &error) ||
 *         openpi_policy_open("checkpoint", &options, &policy, &error) ||
 *         openpi_request_create(policy, &request, &error) ||
 *         openpi_policy_infer(request, session, &observation, NULL, actions,
 *                             sizeof actions / sizeof *actions, NULL, &error))
 *         fprintf(stderr, "%s\n", error.message);
 *     else
 *         printf("first action: %g\n", actions[0]);
 *     openpi_request_close(request);
 *     openpi_policy_close(policy);
 *     openpi_session_close(session);
 *     openpi_engine_close(engine);
 *
 * Handles and threads
 *   openpi_engine    a loaded model and its worker threads. Immutable after opening: any thread, at once.
 *   openpi_session   buffers and plan of one stream of inferences. One thread at a time; several sessions
 *                    of one engine may run at once and share its workers.
 *   openpi_policy    robot transform, normalisation and tokenizer. Immutable: any thread, at once.
 *   openpi_request   the scratch that turns one observation into a prepared sample. One thread at a time.
 *   A handle is closed by one thread, when no other uses it. Functions without a handle may be called by any
 *   thread, at once.
 *
 * Rules that hold for every function here
 *   - Nothing prints, exits, reads an environment variable or keeps a global. The program's locale changes
 *     nothing: numbers have a point, and names compare as in the C locale.
 *   - A function that can fail returns openpi_status and, where `error` is not NULL, writes one sentence
 *     that names the file, tensor, field or value and what was expected. On failure outputs are untouched
 *     unless stated. A NULL where a pointer is required is OPENPI_BAD_ARGUMENT.
 *   - Data that the caller passes are read during the call only and stay the caller's (an observer's `user`
 *     as long as it is set).
 *   - Handles are owned by the caller and closed with the matching function; closing NULL is allowed.
 *     Close requests before their policy. An engine may be closed while sessions of it are open: they keep
 *     working, and what they share with it is freed when the last of them is closed.
 *   - A call takes less than 64 KiB of its thread's stack with the device "cpu". A GPU's driver runs on the
 *     caller's stack too and says nothing about it: give such threads 1 MiB.
 *   - A child that fork makes may open engines of its own. The parent's engine has no threads and no device
 *     there: openpi_session_create and openpi_session_run return OPENPI_SYSTEM, the close functions return.
 *   - Strings are UTF-8 and NUL-terminated unless a length is given.
 *   - Arrays are contiguous, the last index fastest; times are milliseconds, sizes bytes.
 *
 * Sizes
 *   Every struct here begins with `size`, the caller's sizeof. OPENPI_*_INIT sets it and makes every other
 *   field 0, which is the default. So a program and a library of different releases understand each other:
 *   - A struct that the library reads may be shorter than the library's own (a program of an older release):
 *     the missing fields are 0. Where it is longer, the bytes that the library does not know must be 0.
 *   - Of a struct that the library fills, it writes the first `size` bytes at most, sets bytes that it does
 *     not know to 0 and keeps `size`.
 *   - Arrays: element 0's `size` is the distance between elements. Where the library reads, all elements must
 *     have the same `size`; where it fills, it sets that of the others.
 *   - A size that no release has (0, less than the first release's, no multiple of sizeof(size_t), above
 *     64 KiB) and unknown bytes that are not 0 are OPENPI_BAD_ARGUMENT. The sentence names the macro that was
 *     forgotten. An openpi_error of such a size is left untouched: no sentence can be written into it.
 *   How a struct grows (for those who change this header): a new field goes to the end, 0 means what was done
 *   before it, OPENPI_*_INIT gets a value for it. No field is moved, resized or removed, no struct ends in
 *   padding (src/base/boundary.h lists all of them, the compiler checks it). openpi_dims lies inside other
 *   structs, so its size never changes: a new field takes the place of one of its `reserved`.
 *
 * Notation: B batch, H action horizon (chunk length), N denoising steps, L prompt tokens.
 * Formulas: MODEL.md of this project, which follows Physical-Intelligence/openpi.
 */
#ifndef OPENPI_H
#define OPENPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OPENPI_API __attribute__((visibility("default")))
#else
#define OPENPI_API
#endif

#define OPENPI_VERSION_MAJOR 0
#define OPENPI_VERSION_MINOR 1
#define OPENPI_VERSION_PATCH 0

/* Fixed sizes of the model family. */
enum {
    OPENPI_CAMERAS = 3,          /* image slots: base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb       */
    OPENPI_IMAGE_SIZE = 224,     /* pixels a side of a prepared picture                                */
    OPENPI_IMAGE_TOKENS = 256,   /* tokens a camera                                                    */
    OPENPI_ACTION_DIM = 32,      /* model-space dimensions of state and action                         */
    OPENPI_MAX_HORIZON = 64,
    OPENPI_MAX_STEPS = 100,
    OPENPI_MAX_BATCH = 64,
    OPENPI_MAX_STAGES = 16,      /* places for stage times, OPENPI_STAGES of them used                 */
    OPENPI_MAX_OBSERVATIONS = 256,         /* in one message                                           */
};

/* ---- status and errors ---------------------------------------------------------------------------- */

/* X(name, value, text): the one list that makes the enum and its texts. */
#define OPENPI_STATUS_LIST(X)                                              \
    X(OPENPI_OK, 0, "ok")                                                  \
    X(OPENPI_BAD_ARGUMENT, 1, "bad argument")                              \
    X(OPENPI_BAD_INPUT, 2, "bad input")                                    \
    X(OPENPI_BAD_FILE, 3, "bad file")                                      \
    X(OPENPI_NOT_FOUND, 4, "not found")                                    \
    X(OPENPI_NO_MEMORY, 5, "out of memory")                                \
    X(OPENPI_NO_DEVICE, 6, "no such device")                               \
    X(OPENPI_DEVICE_LOST, 7, "device lost")                                \
    X(OPENPI_UNSUPPORTED, 8, "not supported")                              \
    X(OPENPI_SYSTEM, 9, "system error")                                    \
    X(OPENPI_CANCELLED, 10, "cancelled")                                   \
    X(OPENPI_BEYOND_LIMIT, 11, "beyond a limit")

typedef enum openpi_status {
#define X(name, value, text) name = value,
    OPENPI_STATUS_LIST(X)
#undef X
} openpi_status;

typedef struct openpi_error {
    size_t size;                 /* sizeof(openpi_error)                */
    openpi_status status;
    char message[500];           /* one sentence, no newline at its end */
} openpi_error;

#define OPENPI_ERROR_INIT {sizeof(openpi_error), OPENPI_OK, ""}

/* The text of a status, such as "bad file"; "unknown status" for other values. Constant, never NULL. */
OPENPI_API const char *openpi_status_text(openpi_status status);

/* The library's version, "0.1.0". Constant. */
OPENPI_API const char *openpi_version(void);

/* Frees a buffer whose function names openpi_free. NULL is allowed. */
OPENPI_API void openpi_free(void *buffer);

/* Reports progress of long work, on the calling thread: `done` of `total` units of `what`, which is valid
 * during the call ("packing weights" counts tasks, "decoding weights" of a JAX checkpoint bytes). `user` is
 * the caller's. NULL wherever a progress is optional: no reports. */
typedef void (*openpi_progress)(void *user, const char *what, uint64_t done, uint64_t total);

/* Shall long work stop? 0: it goes on; else the call ends with OPENPI_CANCELLED. Asked after each report of
 * progress, on the calling thread. */
typedef int (*openpi_cancel)(void *user);

/* Tells what changes actions and is no error, a sentence a call, valid during it, on the calling thread.
 * `warning` as of openpi_engine_note. */
typedef void (*openpi_tell)(void *user, const char *sentence, int warning);

/* ---- devices -------------------------------------------------------------------------------------- */

typedef enum openpi_dtype {
    OPENPI_DTYPE_DEFAULT = 0,    /* bf16 */
    OPENPI_BF16 = 1,             /* bf16 at tensor boundaries, fp32 inside an operation, fp32 heads */
    OPENPI_F32 = 2,              /* fp32 throughout, from the file's weights                        */
} openpi_dtype;

/* What products keep their weights in. The heads keep the file's precision with BF16. */
typedef enum openpi_weights {
    OPENPI_WEIGHTS_AUTO = 0,     /* bf16; with OPENPI_F32 as precise as the file, bf16 or fp32      */
    OPENPI_WEIGHTS_BF16 = 1,     /* with OPENPI_F32 half the memory of an fp32 file's weights        */
    OPENPI_WEIGHTS_F32 = 2,      /* fp32, also where the file has bf16                              */
} openpi_weights;

/* Formats by group of products, for fields named `formats`: a list of FORMAT and GROUP=FORMAT with commas,
 * such as "expert=int8,ffn=int8x8". FORMAT alone, at most once, is for all groups but the heads, which keep
 * the file's precision (with f32 they are f32 too); a group that is named has its own. A group is named once.
 *
 *   vision      the layers of the vision tower, and the projector
 *   attention   of the language model: q, k, v and o
 *   ffn         of the language model: gate, up and down
 *   expert      all layers of the action expert
 *   heads       patches, state, actions, time and modulations
 *
 *   bf16        OPENPI_WEIGHTS_BF16
 *   f32         OPENPI_WEIGHTS_F32
 *   file        as the file has them, bf16 or fp32: OPENPI_WEIGHTS_AUTO with OPENPI_F32
 *   int8        8-bit integers, a scale for 64 inputs of an output
 *   int8x8      8-bit integers, a scale an output; the product's rows too, a scale a row; not for heads
 *   e4m3        8-bit floats, a scale an output
 *
 * "+smooth" after one of the last three: channels are made alike before weights become 8 bits, by factors
 * that only a plan has (docs/w8.md). Without one it is refused; lists that are told have it. "+static" after
 * ffn=int8x8: rows that down reads have one scale a layer, which only a plan has either.
 *
 * "w8" and "w8=FILE" stand alone: the list that `openpi quantize` chose for this checkpoint, from
 * openpi-w8.json beside it or from FILE. Refused are a plan that is missing, edited, of another format, dtype
 * or other weights, one above its bound, and one whose stored observation, which is run when the engine
 * opens, is not off by what was recorded (docs/w8.md). Never is anything else taken in its place.
 *
 * The embedding table is never of 8 bits: it has the format for all groups, else the file's precision. A CPU
 * runs every list, 8 bits slowly; a GPU without kernels for a format is OPENPI_UNSUPPORTED with a sentence
 * that names group, format and device. docs/weights.md says what each costs. */

typedef struct openpi_device {
    size_t size;                 /* sizeof(openpi_device)                                           */
    char name[32];               /* for the options' `device`: "cpu", "cuda:0"                      */
    char description[128];       /* "AMD EPYC, 2 threads"                                           */
    char path[32];               /* kernels that would run: "avx512_bf16"                           */
    char reason[256];            /* empty if usable, else one sentence with the reason              */
    int usable;                  /* 1: openpi_engine_open accepts it                                */
    uint64_t memory_bytes;       /* in all; 0: unknown                                              */
    int shared_memory;           /* 1: a GPU whose memory is the processor's                        */
    int reserved;                /* 0                                                               */
} openpi_device;

#define OPENPI_DEVICE_INIT {sizeof(openpi_device), "", "", "", "", 0, 0, 0, 0}

/* Fills devices[0 … capacity-1] with the devices of this machine, usable or not; *count is their number (may
 * exceed capacity). `devices` may be NULL if capacity is 0. A device that cannot be used is no error: its
 * `reason` says why. */
OPENPI_API openpi_status openpi_devices(openpi_device *devices, int capacity, int *count,
                                        openpi_error *error);

/* ---- models --------------------------------------------------------------------------------------- */

typedef enum openpi_variant { OPENPI_PI0 = 0, OPENPI_PI05 = 1 } openpi_variant;

/* The sizes of a model (MODEL.md, "The pieces"). The struct's size is frozen, because it lies inside other
 * structs. */
typedef struct openpi_dims {
    size_t size;                 /* sizeof(openpi_dims), 128, also where it lies inside another struct */
    int vision_width, vision_depth, vision_heads, vision_mlp;
    int width, depth, heads, head_dim, mlp;                    /* language stack; one K/V head        */
    int expert_width, expert_mlp;                              /* action expert, same depth and heads */
    int vocab;
    int reserved[18];                                          /* 0                                   */
} openpi_dims;

#define OPENPI_DIMS_INIT {sizeof(openpi_dims), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Outlier channels, as trained models have them, in a synthetic checkpoint that is written: one channel of
 * 256 is larger by 64 or 1024, or each by a power of two of its own (SPREAD, 1.5 octaves of deviation). The
 * weights that read them take it back, so the actions stay the same; what 8 bits lose grows. */
typedef enum openpi_outliers {
    OPENPI_OUTLIERS_NONE = 0,
    OPENPI_OUTLIERS_64 = 1,
    OPENPI_OUTLIERS_1024 = 2,
    OPENPI_OUTLIERS_SPREAD = 3
} openpi_outliers;

/* A checkpoint whose weights are pure functions of (seed, tensor name, index): tests/golden/SYNTH.md. */
typedef struct openpi_synthetic {
    size_t size;                 /* sizeof(openpi_synthetic)                                        */
    openpi_variant variant;
    int lerobot;                 /* 1: written as LeRobot writes it (names with a leading "model.",
                                    its config and processors) and run by its conventions; same values */
    uint64_t seed;
    openpi_dims dims;
    int rtc_max_delay;           /* as openpi_engine_info's; not 0: π0.5 only                        */
    openpi_outliers outliers;    /* openpi_synthetic_write only                                      */
} openpi_synthetic;

#define OPENPI_SYNTHETIC_INIT \
    {sizeof(openpi_synthetic), OPENPI_PI0, 0, 0, OPENPI_DIMS_INIT, 0, OPENPI_OUTLIERS_NONE}

/* ---- engine --------------------------------------------------------------------------------------- */

typedef struct openpi_engine openpi_engine;

typedef struct openpi_engine_options {
    size_t size;                       /* sizeof(openpi_engine_options)                              */
    const char *device;                /* "cpu" (default)                                            */
    openpi_dtype dtype;                /* default bf16                                               */
    int threads;                       /* worker threads, default all that this process may use; they
                                          block every signal and have the scheduling policy and the
                                          priority of the thread that opens the engine               */
    const char *isa;                   /* cap for the CPU: "reference", on x86-64 also "avx2", "avx512",
                                          "avx512_vnni", "avx512_bf16", "amx", on ARM "neon",
                                          "neon_dot", "neon_bf16"; default the best that the CPU runs */
    int pin;                           /* 1: pin worker i to the i-th allowed processor              */
    const openpi_synthetic *synthetic; /* not NULL: make the weights in memory, `checkpoint` is NULL */
    openpi_progress progress;
    void *progress_user;
    const char *path;                  /* kernels of a GPU: "hopper", "portable"; default its best     */
    const char *without;               /* optimisations to switch off, "fused-qkv,graph-replay": the
                                          names are openpi_switches'; default none                   */
    const char *table;                 /* tuner's table of kernel choices (a file); default the one in
                                          the library for this device, if any                        */
    openpi_weights weights;            /* default AUTO, which follows dtype                          */
    int without_lora;                  /* 1: LoRA in a JAX checkpoint and adapters are not applied   */
    const char *adapter;               /* a folder with a PEFT adapter (adapter_config.json), which is
                                          added to the checkpoint's weights; default none            */
    openpi_cancel cancel;              /* asked with progress_user while the weights load            */
    int missing_chunks_are_zero;       /* 1: zeros stand for the chunks that a JAX checkpoint lacks where
                                          nothing in it says whether they were saved; default: refused */
    int accept_error;                  /* 1: a plan of "w8" counts although its error is above its bound or
                                          not reproduced here; a warning among the notes says so     */
    const char *formats;               /* weights by group, "expert=int8,ffn=int8x8" (see openpi_weights);
                                          what it leaves open is `weights`; default none             */
    const char *as_card;               /* a GPU keeps to what this card has ("rtx4090": docs/cards.md), so
                                          that its kernels are those that would run there; path is then
                                          "portable"; default its own                                */
} openpi_engine_options;

#define OPENPI_ENGINE_OPTIONS_INIT                                                                       \
    {sizeof(openpi_engine_options), NULL, OPENPI_DTYPE_DEFAULT, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, \
     NULL, OPENPI_WEIGHTS_AUTO, 0, NULL, NULL, 0, 0, NULL, NULL}

/* Loads a checkpoint folder (openpi's PyTorch layout or LeRobot's; one file or sharded; F32, BF16, F16;
 * openpi's JAX layout; a PEFT adapter whose adapter_config.json names a folder as its base) or a .safetensors
 * file and packs its weights for the device, the embedding table among them. LoRA is merged in fp32
 * (MODEL.md, "PEFT adapters"). Afterwards the files are closed: they may be changed or removed. `options` may
 * be NULL: all defaults. On success *engine is the caller's, for openpi_engine_close.
 *
 *   OPENPI_NOT_FOUND     no such checkpoint
 *   OPENPI_BAD_FILE      damaged, incomplete, neither π0 nor π0.5, or a weight that is NaN or infinite
 *   OPENPI_UNSUPPORTED   a model or setting that this engine does not implement
 *   OPENPI_CANCELLED     options->cancel said so
 *   OPENPI_NO_DEVICE     the device does not exist or cannot be used: the sentence gives the reason
 *   OPENPI_NO_MEMORY     the weights do not fit; the sentence gives needed and free bytes where known */
OPENPI_API openpi_status openpi_engine_open(const char *checkpoint, const openpi_engine_options *options,
                                            openpi_engine **engine, openpi_error *error);
/* Sessions of the engine keep working; weights and threads are freed with the last of them. */
OPENPI_API void openpi_engine_close(openpi_engine *engine);

/* How a new chunk follows on from the one that the robot is still executing (MODEL.md, "Real-time
 * chunking"). */
typedef enum openpi_rtc_mode {
    OPENPI_RTC_OFF = 0,          /* an ordinary sample                                               */
    OPENPI_RTC_GUIDED = 1,       /* every step pulls the new chunk towards the previous one; any model */
    OPENPI_RTC_TRAINED = 2,      /* the first steps are given; a model trained for it, rtc_max_delay > 0 */
    OPENPI_RTC_VJP = 3           /* guided through the denoiser's Jacobian, as the paper does:
                                    OPENPI_UNSUPPORTED, it needs a backward pass                     */
} openpi_rtc_mode;

/* The weight w of step k of the overlap: 1 before the delay d, 0 from the horizon s on, between them: */
typedef enum openpi_rtc_schedule {
    OPENPI_RTC_SCHEDULE_DEFAULT = 0,   /* the checkpoint's, else linear                              */
    OPENPI_RTC_ZEROS = 1,        /* 0                                                                */
    OPENPI_RTC_ONES = 2,         /* 1                                                                */
    OPENPI_RTC_LINEAR = 3,       /* u = 1 - (k-d+1)/(s-d+1)                                          */
    OPENPI_RTC_EXP = 4           /* u·(exp(u)-1)/(e-1)                                               */
} openpi_rtc_schedule;

typedef struct openpi_engine_info {
    size_t size;                 /* sizeof(openpi_engine_info)                                       */
    openpi_dims dims;
    openpi_variant variant;
    openpi_dtype dtype;
    char device[32];             /* "cpu"                                                            */
    char path[32];               /* kernels in use: "avx512_bf16"                                    */
    int threads;
    int lerobot;                 /* 1: LeRobot's conventions (time values, resize)                   */
    int default_horizon, default_steps, default_prompt;   /* from the checkpoint, else openpi's      */
    uint64_t parameters;         /* used at inference: a file's unused heads are not counted         */
    uint64_t weight_bytes;       /* packed weights on the device                                     */
    char without[400];           /* switches that are off, as openpi_engine_options.without          */
    char table[128];             /* tuner's table in use, empty: none                                */
    openpi_weights weights;      /* BF16 or F32: of the language model's products; AUTO: see `formats` */
    int rtc_max_delay;           /* largest delay that OPENPI_RTC_TRAINED takes; 0: not trained for it */
    openpi_rtc_mode rtc_mode;    /* the checkpoint's, else OFF                                       */
    openpi_rtc_schedule rtc_schedule;    /* what openpi_rtc's zeros stand for: the checkpoint's, else
                                            LINEAR, 10 steps, 10                                     */
    int rtc_horizon;
    int action_dim;              /* of the model, 1 to 32: it reads no more columns of noise and state, and
                                    its actions beyond are 0                                         */
    double rtc_max_weight;
    char table_ignored[160];     /* which entries of the table are left out, and why; empty: none        */
    char formats[128];           /* weights by group, the shortest list that says it: "bf16,expert=int8"  */
    int w8;                      /* 1: they are a plan's, openpi_engine_options.formats was "w8"         */
    int error_accepted;          /* 1: and accept_error let it pass                                      */
    double w8_error, w8_bound;   /* the plan's figure that is nearest to its bound, and that             */
    char w8_measure[80];         /* what it is a figure of: "rms"                                        */
    char checkpoint_hash[24];    /* which weights these are, 16 hexadecimal digits, wherever they lie: over
                                    samples of their files, the adapter, and whether LoRA is left out    */
} openpi_engine_info;

#define OPENPI_ENGINE_INFO_INIT                                                                          \
    {sizeof(openpi_engine_info), OPENPI_DIMS_INIT, OPENPI_PI0, OPENPI_DTYPE_DEFAULT, "", "", 0, 0, 0, 0, 0, \
     0, 0, "", "", OPENPI_WEIGHTS_AUTO, 0, OPENPI_RTC_OFF, OPENPI_RTC_SCHEDULE_DEFAULT, 0, 0, 0, "", "", 0, \
     0, 0, 0, "", ""}

/* Fills *info. */
OPENPI_API openpi_status openpi_engine_get_info(const openpi_engine *engine, openpi_engine_info *info,
                                                openpi_error *error);

/* Other weights in the place of tensors[count], float32 arrays by the name and of the shape that the
 * checkpoint has them with ("model." of LeRobot's is left out). They are packed beside the calls that run,
 * and all of them are put in place between two calls, so each call has either the weights before or those
 * after. Where a matrix is packed of several tensors (q, k and v; gate and up) all of them are given.
 * Sessions and their recordings stay valid; a prefix that was kept is computed again, and
 * openpi_session_denoise refuses it. checkpoint_hash becomes another one. On any thread; updates of several
 * threads follow each other. On failure the weights are as before, but where the device is lost.
 *
 * Or the tensors are an adapter's: LoRA factors by peft's names ("base_model.model.….lora_A.weight"), with
 * the number "lora_alpha" beside them, or by openpi's ("PaliGemma.llm.layers.attn.q_einsum.lora_a", "/" as
 * good as "."), beside which other tensors replace the checkpoint's. They are added to the checkpoint's own
 * weights, which are read from its files again, and to nothing else: an adapter takes the place of the one
 * before, of engine options and of a JAX checkpoint's LoRA too. Only what either of them changes is read and
 * packed. The sum is rounded to the type that the weight is stored in. To weights that an update has replaced
 * nothing is added: openpi_engine_restore comes first.
 *   OPENPI_BAD_ARGUMENT  a shape or type, a tensor twice, or one without those that it is packed with
 *   OPENPI_NOT_FOUND     the checkpoint has no such tensor
 *   OPENPI_BAD_FILE      factors that do not fit: half a pair, ranks that differ, an unknown target, another
 *                        model's shapes; or the checkpoint's files are no longer those that were opened
 *   OPENPI_BAD_INPUT     a NaN or an infinity
 *   OPENPI_UNSUPPORTED   weights of a plan (w8) */
struct openpi_field;
OPENPI_API openpi_status openpi_engine_update(openpi_engine *engine, const struct openpi_field *tensors,
                                              int count, openpi_error *error);

/* The same with all tensors of a safetensors file (F32, BF16 or F16), for engines[engine_count] that have the
 * same checkpoint, as those of several devices: they are packed for every engine before the first one
 * changes, so either all of them have the new weights or none, but where a device is lost. Of an adapter the
 * file may be a folder as peft saves it; where adapter_config.json lies beside the file, it counts for
 * factors of peft's names, in place of "lora_alpha". Memory: the packed weights that change, once more on
 * each device, until this returns; files are read in pieces. *count (may be NULL): how many tensors have
 * changed.
 *   OPENPI_BAD_FILE  no safetensors file, or none that is whole */
OPENPI_API openpi_status openpi_engine_update_file(openpi_engine *const *engines, int engine_count,
                                                   const char *file, int *count, openpi_error *error);

/* The checkpoint's own weights, read from its files again, in the place of all that updates have replaced and
 * adapters have changed: bit for bit those of an engine that is opened without an adapter. */
OPENPI_API openpi_status openpi_engine_restore(openpi_engine *const *engines, int engine_count, int *count,
                                               openpi_error *error);

/* What loading found that changes actions and is no error, such as an older step of an unfinished training
 * run: sentence 0, 1, …; NULL after the last. *warning (may be NULL) becomes 1 where actions may not be what
 * the user expects, else 0. A program shows them to its user. The string is the engine's and valid until it
 * is closed. */
OPENPI_API const char *openpi_engine_note(const openpi_engine *engine, int index, int *warning);

/* ---- session -------------------------------------------------------------------------------------- */

typedef struct openpi_session openpi_session;

typedef struct openpi_session_options {
    size_t size;                 /* sizeof(openpi_session_options)                                   */
    int batch;                   /* largest B, default 1                                             */
    int horizon;                 /* H, 1 … 64, default the checkpoint's                              */
    int steps;                   /* N, 1 … 100, default the checkpoint's (10)                        */
    int max_prompt;              /* L, default the checkpoint's (48 π0, 200 π0.5)                    */
    uint64_t seed;               /* of the noise drawn where a call passes none                      */
    int rtc;                     /* 1: openpi_session_run_rtc may be called                          */
    int parts;                   /* 1: prefix and steps may be called apart, several chunks of one
                                    observation made, and the prefix of a call whose pictures and tokens are
                                    those of the call before is not computed again                   */
    int times;                   /* with parts: most different times of the rows of one openpi_session_step,
                                    0 … B*H; default 0: that function is refused                     */
    int reserved;                /* 0                                                                */
} openpi_session_options;

#define OPENPI_SESSION_OPTIONS_INIT {sizeof(openpi_session_options), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* *bytes: the memory that openpi_session_create takes with these options, device and host together. Allocates
 * nothing that lasts. `options` may be NULL: all defaults. */
OPENPI_API openpi_status openpi_session_bytes(const openpi_engine *engine,
                                              const openpi_session_options *options, uint64_t *bytes,
                                              openpi_error *error);

/* Allocates everything that an inference needs; afterwards openpi_session_run allocates nothing. `options`
 * may be NULL: all defaults. On success *session is the caller's, for openpi_session_close. Options out of
 * range are OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_session_create(openpi_engine *engine, const openpi_session_options *options,
                                               openpi_session **session, openpi_error *error);
OPENPI_API void openpi_session_close(openpi_session *session);

typedef enum openpi_stage {
    OPENPI_STAGE_PICTURE,        /* decode excluded; resize and copies on the host                   */
    OPENPI_STAGE_PROMPT,         /* state normalisation, tokenizer                                   */
    OPENPI_STAGE_UPLOAD,         /* assembling the inputs; without a recorded plan also their copy   */
    OPENPI_STAGE_VISION,
    OPENPI_STAGE_PREFIX,
    OPENPI_STAGE_DENOISE,
    OPENPI_STAGE_DOWNLOAD,
    OPENPI_STAGE_ACTIONS,        /* unnormalise, robot output transform                              */
    OPENPI_STAGES                /* how many there are, at most OPENPI_MAX_STAGES                    */
} openpi_stage;

/* The name of a stage, "vision"; constant, never NULL. */
OPENPI_API const char *openpi_stage_name(openpi_stage stage);

typedef struct openpi_timing {
    size_t size;                 /* sizeof(openpi_timing)                                            */
    double stage_ms[OPENPI_MAX_STAGES];                  /* by openpi_stage                          */
    double device_ms;            /* inputs on the device -> outputs on the device (vision … denoise); by the
                                    device's clock if it runs a recorded plan                        */
    double total_ms;             /* from the call's start to its end, by the host's clock            */
} openpi_timing;

#define OPENPI_TIMING_INIT {sizeof(openpi_timing), {0}, 0, 0}

typedef struct openpi_session_info {
    size_t size;                 /* sizeof(openpi_session_info)                                      */
    int batch, horizon, steps, max_prompt;
    uint64_t bytes;              /* as openpi_session_bytes                                          */
    uint64_t runs;               /* completed calls                                                  */
    int operations;              /* fused operations of the plan                                     */
    int recorded;                /* 1: a call replays the whole plan as one graph                    */
    char not_recorded[200];      /* the reason if a device that records plans did not; else empty    */
    uint64_t prefixes_kept;      /* calls whose prefix was that of the call before                   */
    uint64_t ranges_recorded;    /* ranges of steps of openpi_session_denoise that were recorded, each at the
                                    first call with it; 0 on a processor                             */
    /* ffn=int8x8+static, all calls: numbers beyond what the static scale can say, which were clipped; rows
     * of a layer with such a number; numbers that were NaN or infinite: a call with one has failed. */
    uint64_t w8_clipped, w8_clipped_rows, w8_not_finite;
} openpi_session_info;

#define OPENPI_SESSION_INFO_INIT {sizeof(openpi_session_info), 0, 0, 0, 0, 0, 0, 0, 0, "", 0, 0, 0, 0, 0}

/* Fills *info. On the session's thread. */
OPENPI_API openpi_status openpi_session_get_info(const openpi_session *session, openpi_session_info *info,
                                                 openpi_error *error);

/* ---- policy level --------------------------------------------------------------------------------- */

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

/* ---- model level ---------------------------------------------------------------------------------- */

typedef enum openpi_pixels {
    OPENPI_PIXELS_U8 = 0,        /* uint8  [224][224][3], scaled inside: u8/255*2-1                  */
    OPENPI_PIXELS_F32 = 1,       /* float  [224][224][3], already in [-1,1], to 1e-5                 */
} openpi_pixels;

/* One observation in model space (MODEL.md, "One call"). Everything is read during the call only. */
typedef struct openpi_sample {
    size_t size;                              /* sizeof(openpi_sample)                               */
    const void *images[OPENPI_CAMERAS];       /* slot order; ignored where the mask is 0             */
    openpi_pixels pixels;                     /* of all images of the sample                         */
    uint8_t image_mask[OPENPI_CAMERAS];       /* 1: it has a picture                                 */
    const int32_t *tokens;                    /* [token_count] prompt ids, no padding                */
    int token_count;                          /* 0 … the session's max_prompt                        */
    const float *state;                       /* [32] normalised, zero padded; NULL allowed for π0.5 */
} openpi_sample;

#define OPENPI_SAMPLE_INIT                                                                               \
    {sizeof(openpi_sample), {NULL, NULL, NULL}, OPENPI_PIXELS_U8, {0, 0, 0}, NULL, 0, NULL}

/* Runs B = `batch` samples (any mix of masks and prompt lengths) through vision, prefix and N Euler steps
 * (MODEL.md, "One call").
 *
 *   samples  [B]
 *   noise    [B][H][32] x at t = 1; NULL: sample b draws openpi_noise(seed, runs * 64 + b), where `runs` is
 *            the session's completed calls (openpi_session_info) and 64 is OPENPI_MAX_BATCH
 *   actions  [B][H][32] normalised actions, x at t = 0
 *   timing   may be NULL
 *
 * A sample's result does not depend on its neighbours, on padding, on masked pictures, or on the number of
 * threads. Only finite actions are returned.
 *
 *   OPENPI_BAD_ARGUMENT  batch is not 1 … the session's
 *   OPENPI_BAD_INPUT     a field of a sample, NaN or infinite state or noise, a float pixel outside of
 *                        [-1,1], or an x that overflows
 *   OPENPI_DEVICE_LOST   a driver call failed; later calls on this engine return the same */
OPENPI_API openpi_status openpi_session_run(openpi_session *session, const openpi_sample *samples, int batch,
                                            const float *noise, float *actions, openpi_timing *timing,
                                            openpi_error *error);

/* Real-time chunking of one sample: the robot goes on executing the previous chunk while this one is
 * computed, and the new one follows on from it. Sources: LeRobot src/lerobot/policies/rtc/modeling_rtc.py
 * (guided) and policies/pi05/modeling_pi05.py (trained); Kinetix src/model.py has the same weights; arXiv
 * 2506.07339, 2512.05964. openpi_request_previous makes `previous`. What a mode does not use is ignored. */
typedef struct openpi_rtc {
    size_t size;                 /* sizeof(openpi_rtc)                                               */
    openpi_rtc_mode mode;
    int delay;                   /* d, 0 … H-1: steps of `previous` that the robot will have executed when
                                    the new chunk arrives; TRAINED: at most rtc_max_delay, and 0 is OFF */
    const float *previous;       /* [rows][dims] the previous chunk from the first step that is not executed
                                    yet, normalised, model space; zeros after `dims` and (GUIDED) `rows` */
    int rows;                    /* 1 … H; TRAINED: at least d                                       */
    int dims;                    /* 1 … 32                                                           */
    openpi_rtc_schedule schedule;    /* GUIDED                                                       */
    int horizon;                 /* GUIDED: s, end of the overlap, 1 … H, cut to `rows`; 0: the default */
    double max_weight;           /* GUIDED: largest guidance weight, cut to N, where a step lands on the
                                    previous chunk; 0: the default                                   */
} openpi_rtc;

#define OPENPI_RTC_INIT                                                                                  \
    {sizeof(openpi_rtc), OPENPI_RTC_OFF, 0, NULL, 0, 0, OPENPI_RTC_SCHEDULE_DEFAULT, 0, 0}

/* openpi_session_run with real-time chunking: rtc [B], one a sample, each with a mode of its own; NULL: all
 * are OFF. The result of a sample that is OFF is that of openpi_session_run, bit for bit, whatever its
 * neighbours are. GUIDED: x̂ = x - t·v, v -= g·w_k·(previous - x̂), g = min((1-τ)/τ·((1-τ)²+τ²)/(1-τ)²,
 * max_weight, N) with τ = 1-t. TRAINED: rows k < d are `previous` throughout, with time 0; so are they in the
 * result.
 *
 *   OPENPI_BAD_ARGUMENT  also: the session was created without the option `rtc`
 *   OPENPI_BAD_INPUT     also: a field of openpi_rtc, a NaN or infinity in `previous`
 *   OPENPI_UNSUPPORTED   VJP, or TRAINED with a checkpoint that was not trained for it */
OPENPI_API openpi_status openpi_session_run_rtc(openpi_session *session, const openpi_sample *samples,
                                                const openpi_rtc *rtc, int batch, const float *noise,
                                                float *actions, openpi_timing *timing, openpi_error *error);

/* Several chunks of each observation from one vision and prefix pass: openpi_session_run of a batch in which
 * every sample stands `chunks` times, bit for bit, at the cost of `batch` prefixes. batch * chunks is at most
 * the session's batch, and the session was created with `parts`.
 *
 *   noise    [B][chunks][H][32]; NULL: chunk i of all draws as sample i of openpi_session_run
 *   actions  [B][chunks][H][32] */
OPENPI_API openpi_status openpi_session_run_many(openpi_session *session, const openpi_sample *samples,
                                                 int batch, int chunks, const float *noise, float *actions,
                                                 openpi_timing *timing, openpi_error *error);

/* The same in parts, of a session that was created with `parts`. openpi_session_prefix computes vision and
 * prefix and keeps K and V in the session; openpi_session_denoise makes the Euler steps from … to-1 of its N
 * from any x, as often as one likes: step k is at the time 1 - k/N. A prefix is valid until the next prefix
 * or run of the session. With steps 0 to N the chunks are those of openpi_session_run_many, bit for bit, and
 * so they are where the N steps are made in several calls.
 *
 * A device that records plans records a range of steps at its first call, which takes longer; the ranges that
 * are recorded have at most 4·N steps together, and the one that was used least lately goes first.
 *
 *   x      [count][H][32], in and out; finite, else OPENPI_BAD_INPUT. After a failure x is as it was
 *   count  batch * chunks of the prefix
 *
 * OPENPI_BAD_ARGUMENT: there is no prefix, count is another, steps are none of the session's. Observers see
 * neither function. */
OPENPI_API openpi_status openpi_session_prefix(openpi_session *session, const openpi_sample *samples,
                                               int batch, int chunks, openpi_timing *timing,
                                               openpi_error *error);
OPENPI_API openpi_status openpi_session_denoise(openpi_session *session, float *x, int count, int from,
                                                int to, openpi_timing *timing, openpi_error *error);

/* One Euler step over the prefix that is kept, in which actions have times of their own: with v the velocity
 * of all rows of a chunk together, x[row] += dt[row]·v[row]. A row's time enters where the model has one:
 * in its adaptive norms and gates (π0.5; LeRobot policies/pi_gemma.py, `cond` of a token), in its token (π0);
 * attention is that of any step. So trained real-time chunking is made step by step (given rows: time 0,
 * dt 0), and the staircase of πR² (arXiv 2607.26055, eq. 3; LeRobot's pull request 4427): with a delay d row
 * k is at u(k) = (k - d)/(H - 2d), cut to 0 … 1, and dt[k] = u(k - d) - u(k) finishes d actions a call.
 * Whether a checkpoint was trained for its times the caller has to know.
 *
 *   x, count  as of openpi_session_denoise
 *   times     [count][H] 0 … 1, 1 noise and 0 actions
 *   dt        [count][H] what a row's time changes by, negative towards the actions; 0: its x stays
 *
 * The session's option `times` bounds how many different ones a call has. Those that the call before had,
 * too, are not computed again. Where all rows of a chunk are at a time of the session's steps and dt is
 * (float)(-1.0/N), the result is that of openpi_session_denoise, with the times of trained chunking that of
 * openpi_session_run_rtc: bit for bit on a processor, on a GPU to rounding, since other kernels run there.
 *
 *   OPENPI_BAD_ARGUMENT  also: more different times than the session takes, or created without `times`
 *   OPENPI_BAD_INPUT     also: a time outside of 0 … 1, a dt that is not finite */
OPENPI_API openpi_status openpi_session_step(openpi_session *session, float *x, int count,
                                             const float *times, const float *dt, openpi_timing *timing,
                                             openpi_error *error);

/* Fills *sample for openpi_session_run. Its pointers are the request's and valid until the next prepare or
 * close. If nothing was prepared or the last prepare failed: OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_request_sample(const openpi_request *request, openpi_sample *sample,
                                               openpi_error *error);

/* Intermediate results of a run, in fp32, for tests and for verifying a machine. */
typedef enum openpi_tensor {
    OPENPI_TENSOR_IMAGE_TOKENS,  /* [256][width]           sample, camera slot in `index`            */
    OPENPI_TENSOR_K,             /* [prefix rows][head_dim] sample, layer in `index`, after RoPE      */
    OPENPI_TENSOR_V,             /* [prefix rows][head_dim] sample, layer in `index`                  */
    OPENPI_TENSOR_SUFFIX,        /* [H or H+1][expert width] sample, first step: the expert's input    */
    OPENPI_TENSOR_VELOCITY,      /* [H][32]                sample, step in `index`                   */
    OPENPI_TENSOR_X,             /* [H][32]                sample, step in `index`, after the step   */
} openpi_tensor;                 /* OPENPI_RTC_TRAINED: the velocity of the given rows is not used        */

/* Receives data[rows][columns], valid during the call, on the thread that runs the session. Rows of K and V
 * are the valid prefix tokens only: present cameras in slot order, then prompt tokens. */
typedef void (*openpi_observer)(void *user, openpi_tensor tensor, int sample, int index, const float *data,
                                int rows, int columns);
/* Sets the session's observer, NULL: none. With an observer a run is slower and allocates. On the session's
 * thread. */
OPENPI_API void openpi_session_observe(openpi_session *session, openpi_observer observer, void *user);

/* Fills noise[count] with standard normal numbers, a pure function of (seed, stream, index): Philox4x32-10 on
 * the counter (index/4, stream), key = seed, then Box-Muller in double; element i of a block of four takes
 * uniforms (u0,u1) -> z0 = sqrt(-2 ln u0) cos(2π u1), z1 = … sin(…), (u2,u3) -> z2, z3 with
 * u = (bits + 0.5) * 2^-32. Salmon et al. 2011. */
OPENPI_API void openpi_noise(uint64_t seed, uint64_t stream, float *noise, size_t count);

/* ---- tools: looking at a checkpoint --------------------------------------------------------------- */

/* *json: an object that describes a checkpoint, for openpi_free: variant, dims, parameters, dtypes, cameras,
 * robot, stats, prompt format, steps, horizon, real-time chunking; the ranks and factors of LoRA and of an
 * adapter; and for every device the memory that weights (each group of them) and a default session need, the
 * memory that is free, and whether it fits; "notes", the sentences of openpi_engine_note and
 * openpi_policy_note, warnings with "warning: " in front. `options` may be NULL. */
OPENPI_API openpi_status openpi_inspect(const char *checkpoint, const openpi_policy_options *options,
                                        char **json, openpi_error *error);

/* ---- tools: converting a checkpoint --------------------------------------------------------------- */

/* What every tensor of a converted checkpoint is stored in. */
typedef enum openpi_file_dtype {
    OPENPI_FILE_BF16 = 0,        /* default, as openpi's converter                                   */
    OPENPI_FILE_F32 = 1,         /* nothing is rounded                                               */
    OPENPI_FILE_F16 = 2,
} openpi_file_dtype;

typedef struct openpi_convert_options {
    size_t size;                 /* sizeof(openpi_convert_options)                                   */
    openpi_file_dtype dtype;
    int threads;                 /* default all that this process may use                            */
    uint64_t shard_bytes;        /* default 0: model.safetensors; else shards of at most so many bytes of
                                    tensors and model.safetensors.index.json                         */
    openpi_progress progress;    /* "writing weights", in bytes                                      */
    void *progress_user;
    const char *adapter;         /* as the engine's: merged in fp32; default none                    */
    openpi_cancel cancel;        /* asked with progress_user while the weights are written           */
    int without_lora;            /* as the engine's                                                  */
    int missing_chunks_are_zero; /* as the engine's                                                  */
    openpi_tell tell;            /* what openpi_engine_note would tell of the checkpoint, which the new one
                                    does not say any more; default nobody                            */
    void *tell_user;
} openpi_convert_options;

#define OPENPI_CONVERT_OPTIONS_INIT \
    {sizeof(openpi_convert_options), OPENPI_FILE_BF16, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL}

/* Writes the checkpoint (any that openpi_engine_open takes) into a new or empty folder outside of it, as
 * openpi's PyTorch port saves it (docs/convert.md): weights, config.json, assets and tokenizer; LoRA is
 * merged. A checkpoint of LeRobot's stays one, with all its processors. Each value is rounded once; the files
 * are the same bytes on every run, with any number of threads. `options` may be NULL. On failure the files
 * written so far are removed.
 *   OPENPI_BAD_FILE      also a weight that is NaN, infinite or too large for the type
 *   OPENPI_CANCELLED     options->cancel said so
 *   OPENPI_SYSTEM        a file cannot be written, or less space is free than the weights need */
OPENPI_API openpi_status openpi_convert(const char *checkpoint, const char *folder,
                                        const openpi_convert_options *options, openpi_error *error);

/* ---- tools: synthetic checkpoints ----------------------------------------------------------------- */

/* Fills *synthetic from "full|tiny|odd[:pi0|pi05[:SEED]]"; what is omitted is that of "full:pi0:7". Other
 * text is OPENPI_BAD_ARGUMENT. */
OPENPI_API openpi_status openpi_synthetic_parse(const char *spec, openpi_synthetic *synthetic,
                                                openpi_error *error);

/* Fills *dims from {"vision":[width,depth,heads,mlp],"vlm":[width,depth,heads,head_dim,mlp],
 * "expert":[width,mlp],"vocab":n}, or from a preset's name: "full", "tiny", "odd". */
OPENPI_API openpi_status openpi_dims_parse(const char *json, openpi_dims *dims, openpi_error *error);

/* Writes the checkpoint into a new or empty folder: model.safetensors (if shard_bytes is not 0: shards of at
 * most `shard_bytes` and model.safetensors.index.json), config.json, assets/synthetic/norm_stats.json,
 * tokenizer.model; if synthetic->lerobot, LeRobot's files instead. `threads` 0: all that this process may
 * use. On failure the files written so far are removed. */
OPENPI_API openpi_status openpi_synthetic_write(const openpi_synthetic *synthetic, const char *folder,
                                                uint64_t shard_bytes, int threads, openpi_progress progress,
                                                void *progress_user, openpi_error *error);

/* ---- tools: pictures, names and switches ---------------------------------------------------------- */

/* Decodes bytes[count] of a PNG or JPEG file into *pixels, RGB uint8 [*height][*width][3], for openpi_free. A
 * picture with an orientation in its EXIF or XMP is rotated or mirrored upright, as Pillow's exif_transpose
 * does; height and width are those of the upright picture. Pixels are those of Pillow's convert("RGB").
 * Error sentences begin with `name` (may be NULL). Damaged files, other formats, more than 64 megapixels and
 * 16 bits of gray with a value above 255, which are white to Pillow, are OPENPI_BAD_FILE. */
OPENPI_API openpi_status openpi_image_decode(const void *bytes, size_t count, const char *name,
                                             uint8_t **pixels, int *height, int *width, openpi_error *error);

/* The word of known[count] that was probably meant by `word`, which is none of them: a few letters missing,
 * added, changed or swapped, or another case. Its index; -1: none is near, or `word` is one of them. For
 * names that a program reads itself; the library's own sentences end in 'did you mean "…"?'. */
OPENPI_API int openpi_near_word(const char *word, const char *const *known, int count);

/* An optimisation that can be switched off, to measure its effect. Actions are equal to rounding whichever
 * are off. */
typedef struct openpi_switch {
    size_t size;                 /* sizeof(openpi_switch)                                            */
    const char *name;            /* "fused-qkv"                                                      */
    const char *text;            /* what it does, in a line                                          */
} openpi_switch;

#define OPENPI_SWITCH_INIT {sizeof(openpi_switch), NULL, NULL}

/* Fills switches[0 … capacity-1] in the order in which `openpi ladder` switches them on; *count is their
 * number (may exceed capacity). `switches` may be NULL if capacity is 0. The strings are constants. */
OPENPI_API openpi_status openpi_switches(openpi_switch *switches, int capacity, int *count,
                                         openpi_error *error);

#ifdef __cplusplus
}
#endif
#endif
