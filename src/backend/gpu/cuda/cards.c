/* Cards of NVIDIA's by name: what the portable path's heuristics know of each, and what --as puts in place of
 * the device's own. docs/cards.md says where each number is from. */
#include "backend/gpu/cuda/vendor.h"

#include <string.h>

/* What every card of a chip has: compute capability, shared memory and threads of a multiprocessor (a block
 * may have 1 KB less), 1 where kernels may start early. */
#define SM_80 8, 0, 164 << 10, 2048, 0
#define SM_86 8, 6, 100 << 10, 1536, 0
#define SM_87 8, 7, 164 << 10, 1536, 0
#define SM_89 8, 9, 100 << 10, 1536, 0
#define SM_90 9, 0, 228 << 10, 2048, 1
#define SM_110 11, 0, 228 << 10, 1536, 1
#define SM_120 12, 0, 100 << 10, 1536, 1
#define SM_121 12, 1, 100 << 10, 1536, 1

/* The first of a chip stands for its cards that are not here. bf16: with sums of fp32, by mma.sync. */
const gpu_card cuda_cards[] = {
    /* name, the driver's name, chip; multiprocessors; MB of L2; GB/s; TFLOP/s bf16, TOP/s int8; GB; W */
    {"rtx3090", "NVIDIA GeForce RTX 3090", SM_86, 82, 6, 936, 71.2, 285, 24, 350},
    {"rtx4090", "NVIDIA GeForce RTX 4090", SM_89, 128, 72, 1008, 165.2, 661, 24, 450},
    {"rtx5090", "NVIDIA GeForce RTX 5090", SM_120, 170, 96, 1792, 209.5, 838, 32, 575},
    {"a100", "NVIDIA A100-SXM4-80GB", SM_80, 108, 40, 2039, 312, 624, 80, 400},
    {"l4", "NVIDIA L4", SM_89, 58, 48, 300, 121, 242, 24, 72},
    {"l40s", "NVIDIA L40S", SM_89, 142, 96, 864, 362, 733, 48, 350},
    {"a6000", "NVIDIA RTX A6000", SM_86, 84, 6, 768, 154.8, 310, 48, 300},
    {"rtx6000ada", "NVIDIA RTX 6000 Ada Generation", SM_89, 142, 96, 960, 364.2, 728, 48, 300},
    {"orin", "Orin", SM_87, 16, 4, 204.8, 42.6, 85, 64, 60},
    {"thor", "NVIDIA Thor", SM_110, 20, 32, 273, 129, 258, 128, 130},
    {"spark", "NVIDIA GB10", SM_121, 48, 24, 273, 62.5, 250, 128, 140},
    {"h100", "NVIDIA H100 80GB HBM3", SM_90, 132, 50, 3350, 650, 1315, 80, 700},
    {"h200", "NVIDIA H200", SM_90, 132, 50, 4800, 650, 1315, 141, 700},
    {.name = NULL},
};

const gpu_card *cuda_card_of(const char *title, int major, int minor) {
    const gpu_card *chips = NULL;
    for (const gpu_card *card = cuda_cards; card->name; card++) {
        if (!strcmp(card->title, title)) return card;
        if (!chips && card->major == major && card->minor == minor) chips = card;
    }
    return chips;
}
