/* adapter_config.json of a PEFT adapter: the rank and the factor of every module's pair, the modules that are
 * replaced (MODEL.md, "PEFT adapters").
 *
 * Note: a field that asks for more than W + factor·B·A is refused by its name, not ignored. */
#ifndef MODEL_ADAPTER_CONFIG_H
#define MODEL_ADAPTER_CONFIG_H

#include "base/json.h"

typedef struct adapter_pattern adapter_pattern;

typedef struct adapter_config {
    char *path;                  /* path of the file, for sentences                                       */
    json_t *root;
    int rank;                    /* "r"                                                                   */
    double alpha;                /* "lora_alpha"                                                          */
    int rslora;                  /* 1: the factor is alpha / √rank                                        */
    int biases;                  /* 1: "bias" is not "none"                                               */
    adapter_pattern *ranks, *alphas;       /* "rank_pattern" and "alpha_pattern", in the file's order     */
    int rank_count, alpha_count;
} adapter_config;

/* Reads FOLDER/adapter_config.json. Zeros before; adapter_config_close also after a failure. */
openpi_status adapter_config_read(const char *folder, adapter_config *config, openpi_error *error);
void adapter_config_close(adapter_config *config);

/* What a module's pair must have as its rank; *field: the key that says so, "r" or one of "rank_pattern". */
int adapter_config_rank(const adapter_config *config, const char *module, const char **field);
/* What B·A is multiplied by. */
double adapter_config_factor(const adapter_config *config, const char *module);
/* 1: the tensor of a module, "….state_proj.weight", is one of "modules_to_save". */
int adapter_config_saves(const adapter_config *config, const char *tensor);

/* 1: the module, "model.….q_proj", is one that the config changes; 0: it leaves it out, and *field is the key
 * that does; -1: it does not say, or by a pattern that is not understood here. */
int adapter_config_changes(const adapter_config *config, const char *module, const char **field);

#endif
