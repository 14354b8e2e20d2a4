/* One row a figure; docs/peers.md says how to measure the ones that can be. */
#include "systems.h"

#include <stddef.h>

#define WRONG \
    "its suffix attention lets action tokens see at most 11 of 799 keys: less work, and other actions"
#define THEIRS "published"
#define OURS "measured by this project"

const other_system other_systems[] = {
    {"pi0", THEIRS, "PyTorch + torch.compile", "H200", 25.35, 0, "three passes of the vision tower, eager attention"},
    {"pi0", THEIRS, "tuned PyTorch fork", "MI350", 23.7, 1, WRONG},
    {"pi0", THEIRS, "tuned PyTorch fork, masked cameras skipped", "MI350", 21.2, 1, WRONG},
    {"pi0", THEIRS, "tuned PyTorch fork", "MI300X", 26.1, 1, WRONG},
    {"pi0", OURS, "openpi, PyTorch, max-autotune", "H200", 26.5, 0, "a bf16 rotary table"},
    {"pi0", OURS, "realtime-vla, Triton", "H200", 21.0, 0, "tiles tuned by hand for another card"},
    {"pi0", OURS, "realtime-vla, Triton", "H100", 21.8, 0, "tiles tuned by hand for another card"},
    {"pi05", THEIRS, "tuned PyTorch fork", "MI350", 24.8, 1, WRONG},
    {"pi05", THEIRS, "tuned PyTorch fork", "MI300X", 28.7, 1, WRONG},
    {NULL, NULL, NULL, NULL, 0, 0, NULL},
};

const char other_systems_masks[] =
    "Published figures were taken by their authors on their machines. Where masks are marked "
    "wrong, action tokens attend to a "
    "fraction of the keys that the model defines: the time is of less work, and the actions "
    "differ. openpi.c always computes the "
    "model's own masks.";
