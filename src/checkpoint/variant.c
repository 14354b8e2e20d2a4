/* Each trait names where openpi decides it (src/openpi/ of its repository). */
#include "checkpoint/variant.h"

#include <string.h>

#include "base/report.h"

static const variant_traits traits[VARIANTS] = {
    [OPENPI_PI0] = {
        .name = "pi0",
        .symbol = "π0",
        .state_token = 1,                       /* models/pi0.py, Pi0.embed_suffix: state_proj          */
        .state_in_prompt = 0,                   /* models/pi0_config.py, Pi0Config: discrete_state_input */
        .adaptive_norms = 0,                    /* models/pi0.py, Pi0.__init__: adarms                  */
        .action_time_mlp = 1,                   /* models/pi0.py, Pi0.embed_suffix: action_time_mlp     */
        .time_mlp_in = "action_time_mlp_in",    /* models_pytorch/pi0_pytorch.py, PI0Pytorch.__init__   */
        .time_mlp_out = "action_time_mlp_out",
        .quantiles = 0,                         /* training/config.py, DataConfigFactory.create_base_config */
        .max_prompt = 48,                       /* models/pi0_config.py, Pi0Config: max_token_len       */
    },
    [OPENPI_PI05] = {
        .name = "pi05",
        .symbol = "π0.5",
        .state_token = 0,
        .state_in_prompt = 1,
        .adaptive_norms = 1,
        .action_time_mlp = 0,
        .time_mlp_in = "time_mlp_in",
        .time_mlp_out = "time_mlp_out",
        .quantiles = 1,
        .max_prompt = 200,
    },
};

const variant_traits *variant_of(openpi_variant variant) { return &traits[variant]; }

openpi_variant variant_by_norms(int adaptive) {
    int v = 0;
    while (traits[v].adaptive_norms != adaptive) v++;
    return (openpi_variant)v;
}

int variant_parse(const char *name, size_t length, openpi_variant *out) {
    for (int v = 0; v < VARIANTS; v++) {
        if (strlen(traits[v].name) != length || memcmp(traits[v].name, name, length)) continue;
        *out = (openpi_variant)v;
        return 1;
    }
    return 0;
}

openpi_status variant_check(openpi_variant variant, const char *what, openpi_error *error) {
    if ((unsigned)variant < VARIANTS) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s is %d, expected OPENPI_PI0 or OPENPI_PI05", what,
                  (int)variant);
}
