/* openpi_engine.h - a model on a device, and its calls: prepared tensors and noise -> normalised actions.
 * The rules of openpi.h hold here. What all headers share stands here, too: status, errors, devices, sizes.
 */
#ifndef OPENPI_ENGINE_H
#define OPENPI_ENGINE_H

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

/* ---- calls ---------------------------------------------------------------------------------------- */

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

#ifdef __cplusplus
}
#endif
#endif
