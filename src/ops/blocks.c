#include "ops/blocks.h"

/* The block without its first operations. */
static int rest_of(const op_block *block, int at, op_block *rest) {
    const int is_steps = block->kind == BLOCK_EXPERT_STEPS, each = is_steps ? block->step_ops : LAYER_OPS;
    if (at < 0 || at >= block->count || at % each) return 0;
    *rest = *block;
    rest->ops += at;
    rest->count -= at;
    if (is_steps) {
        rest->steps -= at / each;
        return 1;
    }
    rest->layers -= at / each;
    rest->step_ops = rest->count;
    return 1;
}

int block_at(const op_list *list, int place, op_block *rest) {
    for (int i = 0; i < list->block_count; i++) {
        const op_block *block = &list->blocks[i];
        if (rest_of(block, place - (int)(block->ops - list->ops), rest)) return 1;
    }
    return 0;
}
