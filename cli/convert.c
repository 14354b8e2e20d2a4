/* openpi convert: any checkpoint that openpi reads, in openpi's PyTorch layout. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli.h"
#include "output.h"
#include "progress.h"

typedef struct convert_values {
    lora_values lora;
    int dtype, threads, force;
    uint64_t shard_bytes;
} convert_values;

/* --force takes the place of these, and of nothing else. */
static const char *const written[] = {"model.safetensors", "model-*-of-*.safetensors",
                                      "model.safetensors.index.json", "config.json", "train_config.json",
                                      "policy_*", "assets", "tokenizer", "tokenizer.json",
                                      "tokenizer.model", "paligemma_tokenizer.model", NULL};

/* 1: the folder is there, and the path is in it. */
static int holds(const char *folder, const char *path) {
    char outer[PATH_MAX], inner[PATH_MAX];
    if (!realpath(folder, outer) || !realpath(path, inner)) return 0;
    size_t length = strlen(outer);
    return !strncmp(inner, outer, length) && inner[length] == '/';
}

static int same(const char *a, const char *b) {
    char one[PATH_MAX], other[PATH_MAX];
    return realpath(a, one) && realpath(b, other) && !strcmp(one, other);
}

/* The base that an adapter's folder names, where it is there. */
static int find_base(const char *folder, char base[PATH_MAX]) {
    char path[PATH_MAX];
    json_t *root = NULL;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path) return 0;
    if (json_read(path, &root, NULL) != OPENPI_OK) return 0;
    const char *name = json_string_value(json_object_get(root, "base_model_name_or_path"));
    int length = !name          ? PATH_MAX
                 : *name == '/' ? snprintf(base, PATH_MAX, "%s", name)
                                : snprintf(base, PATH_MAX, "%s/%s", folder, name);
    json_decref(root);
    return length < PATH_MAX && realpath(base, path) != NULL;
}

/* --force would remove what is read: the checkpoint, its adapter, or the base that the adapter names. */
static int check_force(const convert_values *v, const char *folder, const char *checkpoint) {
    const char *const folders[] = {checkpoint, v->lora.adapter};
    for (int i = 0; v->force && i < 2 && folders[i]; i++) {
        char base[PATH_MAX];
        if (holds(folder, folders[i]))
            return input_error(&verb_convert, "%s: holds the %s %s, which --force would remove", folder,
                               i ? "adapter" : "checkpoint", folders[i]);
        if (find_base(folders[i], base) && (holds(folder, base) || same(folder, base)))
            return input_error(&verb_convert, "%s: holds the base of %s, which --force would remove", folder,
                               folders[i]);
    }
    return END_FINE;
}

static void say(void *bar, const char *text, int warning) {
    progress_end(bar);
    machine_say_note(&verb_convert, text, warning);
}

static int convert_run(const void *values, char **positional, int count) {
    const convert_values *v = values;
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    progress bar;
    if (count < 2)
        return usage_error(&verb_convert, count ? "OUT is missing" : "CHECKPOINT and OUT are missing");
    const char *checkpoint = positional[0], *folder = positional[1];
    char path[HOME_PATH];
    int end = not_standard_input(&verb_convert, "CHECKPOINT", checkpoint);
    if (end == END_FINE) end = checkpoint_path(&verb_convert, checkpoint, path, &checkpoint);
    if (end != END_FINE) return end;
    end = check_force(v, folder, checkpoint);
    if (end != END_FINE) return end;
    end = output_open_folder(&verb_convert, "OUT", folder, v->force ? written : NULL);
    if (end != END_FINE) return end;
    if (v->dtype) options.dtype = (openpi_file_dtype)(v->dtype - 1);       /* choices count from 1 */
    options.threads = v->threads;
    options.adapter = v->lora.adapter;
    options.without_lora = v->lora.without_lora;
    options.missing_chunks_are_zero = v->lora.missing_chunks_are_zero;
    options.shard_bytes = v->shard_bytes;
    options.progress = progress_show;
    options.progress_user = options.tell_user = &bar;
    options.tell = say;
    progress_start(&bar);
    bar.bytes = 1;
    openpi_status status = openpi_convert(checkpoint, output_folder(folder), &options, &error);
    progress_end(&bar);
    if (status != OPENPI_OK) end = library_error(&verb_convert, &error);
    if (status == OPENPI_SYSTEM) return END_USAGE; /* a file that cannot be written, as with every verb */
    if (end != END_FINE) return end;
    end = outputs_finish(&verb_convert);
    if (end != END_FINE) return end;
    printf("%s\n", folder);
    return END_FINE;
}

#define AT(field) offsetof(convert_values, field)

static const option_row options[] = {
    {OPTION_CHOICE, "dtype", "bf16|f32|f16",
     "what the weights are stored in, each value rounded once (default: bf16, as openpi's converter)",
     .offset = AT(dtype)},
    {OPTION_BYTES, "shard-size", "SIZE",
     "cut into shards of at most this size, such as 2GB, with model.safetensors.index.json (openpi itself "
     "reads one file only)",
     .offset = AT(shard_bytes)},
    LORA_OPTIONS(convert_values, lora),
    {OPTION_FLAG, "force", NULL, "replace the checkpoint that OUT holds", .offset = AT(force)},
    {OPTION_INT, "threads", "N",
     "threads that decode and write (default: every processor this process may use)",
     .offset = AT(threads), .low = 1, .high = 1024},
    {0},
};

static const example examples[] = {
    {"openpi's JAX checkpoint, once, for fast starts", "openpi convert pi05_droid/ pi05_droid_pytorch/"},
    {"LoRA merged, every bit kept", "openpi convert checkpoints/pi0_libero_low_mem_finetune/mine/29999 "
                                    "merged/ --dtype f32"},
    {"a LeRobot adapter merged into its base", "openpi convert pi0_base/ merged/ --adapter my_lora/"},
    {"in files that fit an upload", "openpi convert pi0_base/ out/ --shard-size 4GB"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT OUT [options]", NULL};

const verb verb_convert = {
    .name = "convert",
    .summary = "write a checkpoint in openpi's PyTorch layout",
    .synopsis = synopsis,
    .positional = "CHECKPOINT OUT",
    .positional_max = 2,
    .description =
        "Reads any checkpoint that openpi runs (JAX's, as released or as trained, with LoRA or without; "
        "PyTorch's; LeRobot's) and writes a new folder OUT: model.safetensors under the names of openpi's "
        "own converter, config.json, assets with the statistics, and the tokenizer. It needs neither Python "
        "nor the memory of a whole model. OUT loads several times faster than JAX's files, and openpi's "
        "PyTorch port reads it too.\n\n"
        "LoRA is merged in fp32 and rounded once. A checkpoint of LeRobot's stays one, with its processors. "
        "Actions from OUT are those of CHECKPOINT, bit for bit, where `run` computes in the type that was "
        "stored (--dtype bf16, or --dtype f32 for both).\n\n"
        "OUT appears when it is whole: a full disk or Ctrl-C leaves nothing behind. The bytes are the same "
        "on every run.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(convert_values),
    .run = convert_run,
};
