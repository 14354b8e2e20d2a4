#!/bin/bash
# Adapters that LeRobot and peft themselves save, against what peft's merge_and_unload makes of them: small policies of
# `openpi synth`, LeRobot's default targets and others. Actions in fp32 must agree to rounding, and --without-lora must give
# the base's. SOURCE, BUILD: as the other scripts.
#
#   PEFT_PYTHON=…/bin/python        an environment with lerobot, peft and torch
#
# Without it the script is skipped, and says so.
set -u
[ -n "${PEFT_PYTHON:-}" ] || { echo "SKIPPED: PEFT_PYTHON is not set"; exit 77; }
"$PEFT_PYTHON" -c 'import lerobot, peft' 2>/dev/null || { echo "SKIPPED: $PEFT_PYTHON has no lerobot with peft"; exit 77; }
make=$SOURCE/tests/scripts/peer/peft_policy.py
picture=$SOURCE/tests/pictures/rgb.png
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
cd "$box" || exit 2
status=0
rows=0
state=$(printf '0.3,-0.2,0.1,%.0s' 1 2 3 4 5 6 7 8 9 10)0.5,-0.5

bad() { echo "FAILED: $*"; status=1; }

# actions FILE MODEL...: what the model answers to one observation
actions() {
    local file=$1
    shift
    "$openpi" run "$@" --image base="$picture" --state "$state" --prompt "stack the cups" --horizon 5 --steps 3 \
        --dtype f32 --threads 2 --format npy --out "$file" >log 2>&1 || { cat log; return 1; }
}

# near A B: the largest difference of two files is rounding; "far": it is not
near() {
    "$PEFT_PYTHON" -c 'import sys, numpy as np
off = abs(np.load(sys.argv[1]) - np.load(sys.argv[2])).max()
print("  off by %.2g" % off)
sys.exit(not (off < 2e-5 if sys.argv[3] == "near" else off > 1e-2))' "$1" "$2" "$3"
}

overrides=(
    '{"r": 16}'
    '{"r": 4, "lora_alpha": 12, "use_rslora": true}'
    '{"r": 4, "lora_alpha": 12, "target_modules": "all-linear"}'
    '{"r": 4, "lora_alpha": 12, "rank_pattern": {"gemma_expert.*layers.[12].*q_proj": 6, "^model.action_in_proj": 2},
      "alpha_pattern": {"v_proj": 3.5}}'
    '{"r": 2, "full_training_modules": ["action_out_proj", "multi_modal_projector.linear", "embed_tokens"]}'
)
for variant in pi0 pi05; do
    rm -rf base && "$openpi" synth base --preset tiny --variant "$variant" --lerobot >log 2>&1 || { cat log; exit 1; }
    actions base.npy base || { bad "$variant"; continue; }
    for over in "${overrides[@]}"; do
        rm -rf out ./*.got.npy
        "$PEFT_PYTHON" "$make" base out "$over" >log 2>&1 || { bad "$variant: peft_policy.py $over"; tail -5 log; continue; }
        actions merged.got.npy out/merged && actions own.got.npy out/adapter && actions given.got.npy base --adapter out/adapter &&
            actions without.got.npy out/adapter --without-lora || { bad "$variant $over"; continue; }
        cmp own.got.npy given.got.npy && cmp without.got.npy base.npy && near own.got.npy merged.got.npy near &&
            near own.got.npy base.npy far || { bad "$variant $over: other actions"; continue; }
        rows=$((rows + 1))
    done
done
echo "$rows adapters of peft gave the actions of peft's merged policies ($("$PEFT_PYTHON" -c 'import lerobot, peft
print("peft " + peft.__version__ + ", lerobot " + lerobot.__version__)'))"
[ $rows = 10 ] || bad "$rows adapters, not 10"
exit $status
