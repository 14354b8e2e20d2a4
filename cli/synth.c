/* openpi synth: writes a checkpoint whose every weight is a pure function of seed, tensor name and index. */
#include <stdio.h>

#include "cli.h"
#include "output.h"
#include "progress.h"

typedef struct synth_values {
    const char *dims;
    int preset, variant, lerobot, threads, outliers;
    uint64_t seed, shard_bytes;
} synth_values;

static int synth_run(const void *values, char **positional, int count) {
    static const char *const presets[] = {"full", "tiny", "odd"};
    const synth_values *v = values;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (v->variant) synthetic.variant = (openpi_variant)(v->variant - 1);     /* choices count from 1 */
    synthetic.seed = v->seed;
    synthetic.lerobot = v->lerobot;
    synthetic.outliers = (openpi_outliers)v->outliers;                       /* choices count from 1 */
    progress bar;
    (void)count;
    if (!v->preset && !v->dims)
        return usage_error(&verb_synth, "no sizes: give --preset full|tiny|odd or --dims JSON");
    if (openpi_dims_parse(v->preset ? presets[v->preset - 1] : v->dims, &synthetic.dims, &error) != OPENPI_OK)
        return library_error(&verb_synth, &error);
    int end = output_open_folder(&verb_synth, "DIR", positional[0], NULL);
    if (end != END_FINE) return end;
    progress_start(&bar);
    openpi_status status = openpi_synthetic_write(&synthetic, output_folder(positional[0]), v->shard_bytes,
                                                  v->threads, progress_show, &bar, &error);
    progress_end(&bar);
    if (status != OPENPI_OK) end = library_error(&verb_synth, &error);
    if (status == OPENPI_SYSTEM) return END_USAGE; /* a file that cannot be written, as with every verb */
    if (end != END_FINE) return end;
    end = outputs_finish(&verb_synth);
    if (end != END_FINE) return end;
    printf("%s\n", positional[0]);
    return END_FINE;
}

#define AT(field) offsetof(synth_values, field)

static const synth_values defaults = {.seed = 7};

static const option_row options[] = {
    {OPTION_CHOICE, "variant", "pi0|pi05", "which model (default: pi0)", .offset = AT(variant)},
    {OPTION_CHOICE, "preset", "full|tiny|odd",
     "sizes by name: the published model, a small one, a small one with awkward sizes", .offset = AT(preset)},
    {OPTION_TEXT, "dims", "JSON",
     "sizes by number: {\"vision\": [width, depth, heads, mlp], \"vlm\": [width, depth, heads, head_dim, "
     "mlp], \"expert\": [width, mlp], \"vocab\": n}", .offset = AT(dims)},
    {OPTION_U64, "seed", "N", "seed of the weights (default: 7)", .offset = AT(seed)},
    {OPTION_FLAG, "lerobot", NULL,
     "write it as LeRobot does: its names, config and processors; the values are the same",
     .offset = AT(lerobot)},
    {OPTION_CHOICE, "outliers", "64|1024|spread",
     "enlarge channels as trained models have them, one of 256 by this factor, or each by its own, and take "
     "it back in the next weights: actions stay, 8 bits lose more (docs/w8.md)", .offset = AT(outliers)},
    {OPTION_BYTES, "shard-bytes", "SIZE",
     "cut into shards of at most this size, such as 2GB, with model.safetensors.index.json",
     .offset = AT(shard_bytes)},
    {OPTION_INT, "threads", "N",
     "threads that make the weights (default: every processor this process may use)",
     .offset = AT(threads), .low = 1, .high = 1024},
    {0},
};

static const conflict conflicts[] = {
    {"preset", "dims", "the sizes come by name or by number"},
    {0},
};

static const example examples[] = {
    {"the published π0 with synthetic weights, 7 GB", "openpi synth ckpt/ --preset full"},
    {"a small π0.5, as LeRobot saves it", "openpi synth small/ --preset tiny --variant pi05 --lerobot"},
    {"sizes of your own, in shards", "openpi synth own/ --dims "
                                     "'{\"vision\":[144,2,2,208],\"vlm\":[128,3,8,256,272],\"expert\":[64,"
                                     "144],\"vocab\":2048}' "
                                     "--shard-bytes 1MB"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"DIR --preset full|tiny|odd [options]", "DIR --dims JSON [options]",
                                       NULL};

const verb verb_synth = {
    .name = "synth",
    .summary = "write a synthetic checkpoint",
    .synopsis = synopsis,
    .positional = "DIR",
    .positional_min = 1,
    .positional_max = 1,
    .description = "Writes a checkpoint of seeded weights into a new or empty folder: model.safetensors, "
                   "config.json, "
                   "normalisation statistics and a "
                   "small tokenizer, so that every verb works on it. The same seed gives the same bytes on "
                   "every machine. Every "
                   "input (each camera, "
                   "the prompt, the state, the noise) visibly moves its actions, which is what tests and "
                   "benchmarks need; it "
                   "knows nothing of robots.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(synth_values),
    .defaults = &defaults,
    .run = synth_run,
};
