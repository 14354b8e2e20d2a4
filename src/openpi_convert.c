/* openpi_convert: a checkpoint in any layout becomes a folder in openpi's PyTorch layout (LeRobot's stays
 * LeRobot's): weights, config.json, and what else a policy reads, statistics and tokenizer. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/boundary.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_folder.h"
#include "base/report.h"
#include "base/threads.h"
#include "checkpoint/export.h"
#include "checkpoint/home.h"
#include "checkpoint/place.h"

static const struct {
    dtype type;
    const char *precision;       /* as openpi's converter calls it */
} forms[] = {[OPENPI_FILE_BF16] = {DTYPE_BF16, "bfloat16"},
             [OPENPI_FILE_F32] = {DTYPE_F32, "float32"},
             [OPENPI_FILE_F16] = {DTYPE_F16, "float16"}};

enum { FORMS = sizeof forms / sizeof *forms };

/* ---- where from, where to ---- */

/* Sets real[PATH_MAX] to the path without symbolic links; where nothing is there yet, to that of the folder
 * around it. 0: that is not there either. */
static int find_real(const char *path, char *real) {
    char above[PATH_MAX];
    size_t end, begin = file_last_name(path, &end);
    if (realpath(path, real)) return 1;
    if (errno != ENOENT || begin >= sizeof above) return 0;
    memcpy(above, path, begin);
    strcpy(above + begin, begin ? "" : ".");
    return realpath(above, real) != NULL;
}

static openpi_status check_apart(const char *checkpoint, const char *folder, openpi_error *error) {
    char from[PATH_MAX], to[PATH_MAX];
    if (!file_is_folder(checkpoint) || !realpath(checkpoint, from) || !find_real(folder, to))
        return OPENPI_OK;
    size_t length = strlen(from);
    if (strncmp(to, from, length) || (to[length] && to[length] != '/')) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "%s: is inside of the checkpoint %s, expected a folder elsewhere", folder, checkpoint);
}

/* ---- config.json ---- */

/* openpi's name of these sizes, NULL: it has none. */
static const char *vlm_name(const openpi_dims *d) {
    const openpi_dims *r = dims_released();
    return d->width == r->width && d->depth == r->depth && d->mlp == r->mlp && d->heads == r->heads &&
                   d->head_dim == r->head_dim
               ? "gemma_2b"
               : NULL;
}

static const char *expert_name(const openpi_dims *d) {
    const openpi_dims *r = dims_released();
    return d->expert_width == r->expert_width && d->depth == r->depth && d->expert_mlp == r->expert_mlp &&
                   d->heads == r->heads && d->head_dim == r->head_dim
               ? "gemma_300m"
               : NULL;
}

static openpi_status write_config(new_folder *to, const checkpoint *c, const char *precision,
                                  openpi_error *error) {
    /* openpi wants a horizon. Where the checkpoint says none, the default stays one. */
    const char *from = c->said & CHECKPOINT_HORIZON ? NULL : "openpi's default";
    json_t *config = json_pack("{s:i,s:i,s:s*,s:s*,s:s*,s:s}", "action_dim", c->action_dim, "action_horizon",
                               c->horizon, "action_horizon_from", from, "paligemma_variant",
                               vlm_name(&c->dims), "action_expert_variant", expert_name(&c->dims),
                               "precision", precision);
    char *text = config ? json_text(config, JSON_INDENT(2)) : NULL;
    openpi_status status = text ? new_folder_text(to, "config.json", text, error)
                                : report_no_memory(error, 1024, "config.json");
    free(text);
    json_decref(config);
    return status;
}

/* ---- other files ---- */

/* 1: a policy may read it, and the conversion does not write it. */
static int is_kept(const char *name, int lerobot) {
    static const char *const names[] = {"assets", "tokenizer", "tokenizer.model", "tokenizer.json",
                                        "paligemma_tokenizer.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    if (!lerobot || *name == '.') return 0;
    if (file_has_ending(name, ".index.json") || !strcmp(name, "adapter_config.json")) return 0;
    return file_has_ending(name, ".json") || !strncmp(name, "policy_", 7);
}

/* LeRobot's config of an adapter, which is merged now. */
static openpi_status write_merged_config(new_folder *to, const char *from, openpi_error *error) {
    json_t *config;
    TRY(json_read(from, &config, error));
    int failed = json_is_true(json_object_get(config, "use_peft")) &&
                 json_object_set_new(config, "use_peft", json_false());
    char *text = failed ? NULL : json_text(config, JSON_INDENT(4));
    openpi_status status = text ? new_folder_text(to, "config.json", text, error)
                                : report_no_memory(error, 4096, "config.json");
    free(text);
    json_decref(config);
    return status;
}

/* A file that an earlier folder had counts before this one's. */
static openpi_status copy_entry(new_folder *to, const char *home, const char *name, int merged,
                                openpi_error *error) {
    char *from = file_join(home, name), *there = file_join(to->path, name);
    openpi_status status = OPENPI_OK;
    if (!from || !there) status = report_no_memory(error, strlen(home) + 256, home);
    else if (!file_exists(there) && merged && !strcmp(name, "config.json"))
        status = write_merged_config(to, from, error);
    else if (!file_exists(there)) status = new_folder_copy(to, name, from, error);
    free(from);
    free(there);
    return status;
}

static openpi_status copy_kept(new_folder *to, const char *home, int lerobot, int merged,
                               openpi_error *error) {
    DIR *list = opendir(home);
    if (!list)
        return report(error, errno == ENOMEM ? OPENPI_NO_MEMORY : OPENPI_BAD_FILE, "%s: cannot be read: %s",
                      home, ascii_errno(errno));
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while (status == OPENPI_OK && (entry = readdir(list)))
        if (is_kept(entry->d_name, lerobot)) status = copy_entry(to, home, entry->d_name, merged, error);
    closedir(list);
    return status;
}

/* An adapter's own files, then those that its base has besides. */
static openpi_status copy_others(new_folder *to, const model_place *place, int lerobot, openpi_error *error) {
    char *home;
    if (place->adapter && lerobot) TRY(copy_kept(to, place->adapter, lerobot, 1, error));
    TRY(home_find(place->base, &home, error));
    openpi_status status = copy_kept(to, home, lerobot, 0, error);
    free(home);
    return status;
}

/* ---- all of it ---- */

/* The small files first: a folder that cannot be written says so before the long work. */
static openpi_status write_all(new_folder *to, const checkpoint *c, const model_place *place, pool *pool,
                               const openpi_convert_options *options, openpi_error *error) {
    export_order order = {.folder = to->path,
                          .type = forms[options->dtype].type,
                          .shard_bytes = options->shard_bytes,
                          .pool = pool,
                          .created = new_folder_note,
                          .created_user = to,
                          .progress = options->progress,
                          .cancel = options->cancel,
                          .progress_user = options->progress_user};
    TRY(new_folder_begin(to, error));
    TRY(copy_others(to, place, c->lerobot, error));
    if (!c->lerobot) TRY(write_config(to, c, forms[options->dtype].precision, error));
    return export_weights(c, &order, error);
}

static void tell_notes(const checkpoint *c, const openpi_convert_options *options) {
    const char *text;
    int warning;
    for (int i = 0; options->tell && (text = notes_get(&c->notes, i, &warning)); i++)
        options->tell(options->tell_user, text, warning);
}

static openpi_status convert(const char *path, const char *folder, const openpi_convert_options *options,
                             openpi_error *error) {
    const checkpoint_source source = {
        .path = path, .adapter = options->adapter, .without_lora = options->without_lora,
        .missing_chunks_are_zero = options->missing_chunks_are_zero};
    checkpoint *checkpoint = NULL;
    pool *pool = NULL;
    model_place place = {0};
    new_folder to = {.path = folder};
    openpi_status status =
        model_place_find(path, options->adapter, options->without_lora, &place, error);
    if (status == OPENPI_OK) status = check_apart(place.base, folder, error);
    if (status == OPENPI_OK && place.adapter) status = check_apart(place.adapter, folder, error);
    if (status == OPENPI_OK) status = checkpoint_open_source(&source, &checkpoint, error);
    if (status == OPENPI_OK) tell_notes(checkpoint, options);
    if (status == OPENPI_OK) status = pool_create(options->threads, 0, &pool, error);
    if (status == OPENPI_OK) status = write_all(&to, checkpoint, &place, pool, options, error);
    new_folder_end(&to, status != OPENPI_OK);
    pool_close(pool);
    model_place_free(&place);
    checkpoint_close(checkpoint);
    return status;
}

openpi_status openpi_convert(const char *checkpoint, const char *folder,
                             const openpi_convert_options *options, openpi_error *error) {
    openpi_convert_options own;
    if (!checkpoint || !folder || !*folder)
        return report(error, OPENPI_BAD_ARGUMENT, "convert: %s, expected two paths",
                      !checkpoint ? "the checkpoint is NULL" : "the folder's path is empty");
    TRY(BOUNDARY_TAKE(openpi_convert_options, options, &own, error));
    if ((unsigned)own.dtype >= FORMS)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "convert: dtype is %d, expected OPENPI_FILE_BF16, OPENPI_FILE_F32 or OPENPI_FILE_F16",
                      (int)own.dtype);
    if (own.without_lora != 0 && own.without_lora != 1)
        return report(error, OPENPI_BAD_ARGUMENT, "convert: without_lora is %d, expected 0 or 1",
                      own.without_lora);
    if (own.missing_chunks_are_zero != 0 && own.missing_chunks_are_zero != 1)
        return report(error, OPENPI_BAD_ARGUMENT, "convert: missing_chunks_are_zero is %d, expected 0 or 1",
                      own.missing_chunks_are_zero);
    return convert(checkpoint, folder, &own, error);
}
