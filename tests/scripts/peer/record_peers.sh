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

# recorded NAME COMMAND...: the command writes NAME.safetensors from checkpoint NAME; all four of its rows are right, and the
# same file is refused for the weights of `other`.
recorded() {
    local name=$1
    shift
    if ! "$@" --example --count 2 --seed "$seed" --out "$name.safetensors" >log 2>&1; then
        bad "record-golden of $name"
        cat log
        return
    fi
    "$openpi" verify --checkpoint "$name" "$name.safetensors" | tee out
    grep -q "^4 ok, 0 FAIL, 0 skipped" out || bad "verify --checkpoint $name"
    "$openpi" verify --checkpoint other "$name.safetensors" >out && bad "$name.safetensors is right for other weights"
    grep -q "recorded from " out || bad "$name.safetensors: no word of other weights"
}

synth other --preset tiny --variant pi0 --seed 99

# A row a checkpoint: who computes, its name, variant, seed, and where openpi looks for its statistics.
while read -r peer name variant seed assets; do
    case $peer in
    openpi)
        [ -n "${OPENPI_PYTHON:-}" ] || continue
        synth "$name" --preset tiny --variant "$variant" --seed "$seed"
        mkdir -p "$(dirname "$name/assets/$assets")"
        mv "$name/assets/synthetic" "$name/assets/$assets"
        PYTHONPATH=$OPENPI_CHECKOUT/src:$OPENPI_CHECKOUT/packages/openpi-client/src \
            recorded "$name" "$OPENPI_PYTHON" "$tiny" openpi "$tool" "$name" "$golden/tokenizer.model" --config "$name" \
            --checkpoint "$name"
        ;;
    lerobot)
        [ -n "${LEROBOT_PYTHON:-}" ] || continue
        synth "$name" --preset tiny --variant "$variant" --seed "$seed" --lerobot
        recorded "$name" "$LEROBOT_PYTHON" "$tiny" lerobot "$tool" "$name" "$golden/lerobot/pi05/checkpoint/tokenizer" \
            --policy "$name"
        ;;
    esac
done <<TABLE
openpi pi0_libero pi0 7 physical-intelligence/libero
openpi pi05_libero pi05 8 physical-intelligence/libero
openpi pi0_droid pi0 11 droid
openpi pi05_droid pi05 12 droid
openpi pi0_aloha_sim pi0 13 lerobot/aloha_sim_transfer_cube_human
openpi pi05_aloha pi05 14 trossen
lerobot lerobot-pi0 pi0 15
lerobot lerobot-pi05 pi05 16
TABLE
exit $status
