/* Which tokenizer a policy has: the caller's, one beside the weights, PaliGemma's from the cache.
 *
 * Note: LeRobot names the tokenizer. One of another name has other ids for the same words, so the cache's
 * does not stand in for it. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "policy/policy_source.h"

openpi_status policy_find_file(const char *folder, const char *name, char **path, openpi_error *error) {
    *path = file_join(folder, name);
    if (!*path) return report_no_memory(error, strlen(folder) + strlen(name) + 2, "a path");
    if (file_exists(*path)) return OPENPI_OK;
    free(*path);
    *path = NULL;
    return OPENPI_OK;
}

static const char *const tokenizer_files[] = {"tokenizer.model", "tokenizer/tokenizer.json", "tokenizer.json",
                                              "paligemma_tokenizer.model"};

enum { TOKENIZER_FILES = sizeof tokenizer_files / sizeof *tokenizer_files };

static openpi_status find_tokenizer(const char *folder, char **path, openpi_error *error) {
    *path = NULL;
    for (int i = 0; i < TOKENIZER_FILES && !*path; i++)
        TRY(policy_find_file(folder, tokenizer_files[i], path, error));
    return OPENPI_OK;
}

static openpi_status find_saved_tokenizer(const policy_source *from, const openpi_policy *policy, char **path,
                                          openpi_error *error) {
    int foreign = policy->lerobot && lerobot_tokenizer_is_foreign(&policy->pipeline);
    *path = NULL;
    if (from->folder && policy->lerobot && policy->pipeline.tokenizer[0]) {
        char *folder = file_join(from->folder, policy->pipeline.tokenizer);
        if (!folder) return report_no_memory(error, strlen(from->folder) + LEROBOT_KEY_BYTES, "a path");
        openpi_status status = find_tokenizer(folder, path, error);
        if (status == OPENPI_OK && !*path && !from->options.synthetic && !from->second)
            status = report(error, OPENPI_NOT_FOUND,
                            "%s: holds no tokenizer.json, which policy_preprocessor.json names; give "
                            "tokenizer, a tokenizer.json",
                            folder);
        free(folder);
        if (status != OPENPI_OK || *path) return status;
    }
    if (from->folder) TRY(find_tokenizer(from->folder, path, error));
    if (!*path && from->second && !foreign) TRY(find_tokenizer(from->second, path, error));
    if (!*path && from->folder && !(foreign && from->second) && strcmp(from->folder, from->checkpoint))
        TRY(find_tokenizer(from->checkpoint, path, error));      /* beside a run or its params, too */
    return OPENPI_OK;
}

/* Another tokenizer has other ids for the same words. */
static openpi_status refuse_tokenizer(const policy_source *from, const char *name, openpi_error *error) {
    if (!*name)
        return report(error, OPENPI_NOT_FOUND,
                      "%s/policy_preprocessor.json: the tokenizer_processor has no \"tokenizer_name\", and "
                      "the folder holds no tokenizer: give tokenizer, the tokenizer.json of its training",
                      from->folder);
    return report(error, OPENPI_NOT_FOUND,
                  "%s/policy_preprocessor.json: \"tokenizer_name\" is \"%s\", which is not PaliGemma's "
                  "(google/paligemma-3b-pt-224), and the folder holds no tokenizer: give tokenizer, the "
                  "tokenizer.json of that name",
                  from->folder, name);
}

/* *path, malloc; NULL: the embedded tokenizer. */
static openpi_status choose_tokenizer(const policy_source *from, const openpi_policy *policy, char **path,
                                      openpi_error *error) {
    const char *given = from->options.tokenizer, *cache = from->options.tokenizer_cache;
    *path = NULL;
    if (given && !file_is_folder(given)) {
        *path = strdup(given);
        return *path ? OPENPI_OK : report_no_memory(error, strlen(given) + 1, "a path");
    }
    if (given) {
        TRY(find_tokenizer(given, path, error));
        if (*path) return OPENPI_OK;
        return report(error, OPENPI_NOT_FOUND, "%s: the folder holds no tokenizer.model or tokenizer.json",
                      given);
    }
    TRY(find_saved_tokenizer(from, policy, path, error));
    if (*path || from->options.synthetic) return OPENPI_OK;
    if (policy->lerobot && lerobot_tokenizer_is_foreign(&policy->pipeline))
        return refuse_tokenizer(from, policy->pipeline.tokenizer_name, error);
    if (cache) TRY(find_tokenizer(cache, path, error));
    if (*path) return OPENPI_OK;
    return report(
        error, OPENPI_NOT_FOUND,
        "%s: no tokenizer (tokenizer.model, tokenizer.json) in it%s%.200s: give tokenizer, PaliGemma's "
        "paligemma_tokenizer.model from gs://big_vision "
        "(https://storage.googleapis.com/big_vision/paligemma_tokenizer.model)",
        from->checkpoint, cache ? " nor in " : "", cache ? cache : "");
}

openpi_status policy_open_tokenizer(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    TRY(choose_tokenizer(from, policy, &policy->tokenizer_path, error));
    if (policy->tokenizer_path && policy->lerobot && !from->options.tokenizer &&
        lerobot_tokenizer_is_foreign(&policy->pipeline))
        notes_add(&policy->notes, 0,
                  "policy_preprocessor.json names the tokenizer \"%.80s\", which is not PaliGemma's; %.160s "
                  "is taken for it: tokenizer gives another",
                  policy->pipeline.tokenizer_name, policy->tokenizer_path);
    if (!policy->tokenizer_path) return tokenizer_synthetic(&policy->tokenizer, error);
    return tokenizer_open(policy->tokenizer_path, &policy->tokenizer, error);
}
