#include "checkpoint/tensor_names.h"

#include "base/text.h"

int tensor_is_unused(const char *name) {
    static const char *const tails[] = {EXPERT_HEAD,
                                        "proprio_history_proj.weight",
                                        "proprio_history_proj.bias",
                                        ".rotary_emb.inv_freq",
                                        ".embeddings.position_ids"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (text_ends_with(name, tails[i])) return 1;
    return 0;
}
