#!/bin/bash
# tools/record-golden with the real openpi and the real LeRobot, on small checkpoints that `openpi synth` writes, and what
# `openpi verify --checkpoint` says of the files. SOURCE, BUILD: as the other scripts. The peers are named by
#
#   OPENPI_PYTHON=…/bin/python OPENPI_CHECKOUT=…       openpi's environment and checkout (PyTorch, transformers patched)
#   LEROBOT_PYTHON=…/bin/python                        an environment with pip's lerobot[pi]
#
# Without either it is skipped, and says so. tools/record-golden/README.md tells how to make both.
set -u
[ -n "${OPENPI_PYTHON:-}${LEROBOT_PYTHON:-}" ] || { echo "SKIPPED: neither OPENPI_PYTHON nor LEROBOT_PYTHON is set"; exit 77; }
tiny=$SOURCE/tests/scripts/record_tiny.py
tool=$SOURCE/tools/record-golden
golden=$SOURCE/tests/golden
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 JAX_PLATFORMS=cpu
cd "$box" || exit 2
status=0

bad() { echo "FAILED: $*"; status=1; }
synth() { "$openpi" synth "$@" >log 2>&1 || { cat log; exit 1; }; }

# judged CHECKPOINT FILE: all four rows right; and the same file refused for the weights of `other`
judged() {
    "$openpi" verify --checkpoint "$1" "$2" | tee out
    grep -q "^4 ok, 0 FAIL, 0 skipped" out || bad "verify --checkpoint $1 $2"
    "$openpi" verify --checkpoint other "$2" >out && bad "$2 is right for other weights"
    grep -q "recorded from " out || bad "$2: no word of other weights"
}

synth other --preset tiny --variant pi0 --seed 99

if [ -n "${OPENPI_PYTHON:-}" ]; then
    export PYTHONPATH=$OPENPI_CHECKOUT/src:$OPENPI_CHECKOUT/packages/openpi-client/src
    while read -r config variant seed assets; do
        synth "$config" --preset tiny --variant "$variant" --seed "$seed"
        mkdir -p "$(dirname "$config/assets/$assets")"
        mv "$config/assets/synthetic" "$config/assets/$assets"
        if ! "$OPENPI_PYTHON" "$tiny" openpi "$tool" "$config" "$golden/tokenizer.model" --config "$config" \
            --checkpoint "$config" --example --count 2 --seed "$seed" --out "$config.safetensors" >log 2>&1; then
            bad "record-golden --config $config"
            cat log
            continue
        fi
        judged "$config" "$config.safetensors"
    done <<TABLE
pi0_libero pi0 7 physical-intelligence/libero
pi05_libero pi05 8 physical-intelligence/libero
pi0_droid pi0 11 droid
pi05_droid pi05 12 droid
pi0_aloha_sim pi0 13 lerobot/aloha_sim_transfer_cube_human
pi05_aloha pi05 14 trossen
TABLE
    unset PYTHONPATH
fi

if [ -n "${LEROBOT_PYTHON:-}" ]; then
    while read -r variant seed; do
        synth "lerobot-$variant" --preset tiny --variant "$variant" --seed "$seed" --lerobot
        if ! "$LEROBOT_PYTHON" "$tiny" lerobot "$tool" "lerobot-$variant" "$golden/lerobot/$variant/checkpoint/tokenizer" \
            --policy "lerobot-$variant" --example --count 2 --seed "$seed" --out "lerobot-$variant.safetensors" >log 2>&1; then
            bad "record-golden --policy lerobot-$variant"
            cat log
            continue
        fi
        judged "lerobot-$variant" "lerobot-$variant.safetensors"
    done <<TABLE
pi0 15
pi05 16
TABLE
fi
exit $status
