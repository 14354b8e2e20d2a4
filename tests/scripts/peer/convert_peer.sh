#!/bin/bash
# openpi's own converter (examples/convert_jax_model_to_pytorch.py) and `openpi convert` give the same names, metadata and
# tensors, bit for bit, of small checkpoints that orbax-checkpoint writes. The widths of the language stack are those of its
# heads together: only so openpi's transpose of o_proj is right, as in the released models. SOURCE, BUILD: as the other scripts.
#
#   OPENPI_PYTHON=…/bin/python OPENPI_CHECKOUT=…    openpi's environment (with its changes of transformers) and checkout
#
# Without them the script is skipped, and says so.
set -u
[ -n "${OPENPI_PYTHON:-}" ] || { echo "SKIPPED: OPENPI_PYTHON is not set"; exit 77; }
[ -e "${OPENPI_CHECKOUT:-}/examples/convert_jax_model_to_pytorch.py" ] || { echo "SKIPPED: OPENPI_CHECKOUT is no checkout of openpi"; exit 77; }
"$OPENPI_PYTHON" -c 'import orbax.checkpoint, torch, transformers' 2>/dev/null || { echo "SKIPPED: $OPENPI_PYTHON has no torch"; exit 77; }
scripts=$SOURCE/tests/scripts/peer
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1 JAX_PLATFORMS=cpu
cd "$box" || exit 2
status=0
rows=0
bad() { echo "FAILED: $*"; status=1; }

dims='{"vision": [96, 2, 4, 56], "vlm": [64, 2, 4, 16, 80], "expert": [32, 48], "vocab": 512}'
for variant in pi0 pi05; do
    rm -rf torch "$variant"
    "$openpi" synth torch --dims "$dims" --variant "$variant" --seed 3 >log 2>&1 || { cat log; exit 1; }
    "$OPENPI_PYTHON" "$scripts/orbax_tree.py" torch "$variant" --value --low-bits >log 2>&1 || { bad "$variant: orbax_tree.py"; tail -3 log; continue; }
    for types in bfloat16:bf16 float32:f32; do
        rm -rf theirs ours
        "$OPENPI_PYTHON" "$scripts/convert_peer.py" "$OPENPI_CHECKOUT" "$variant" "$dims" "${types%:*}" theirs >log 2>&1 ||
            { bad "$variant $types: openpi's converter"; tail -3 log; continue; }
        "$openpi" convert "$variant" ours --dtype "${types#*:}" >log 2>&1 || { bad "$variant $types: $(<log)"; continue; }
        "$OPENPI_PYTHON" "$scripts/convert_peer.py" --compare theirs ours || { bad "$variant $types"; continue; }
        rows=$((rows + 1))
    done
done
echo "$rows conversions are openpi's"
[ $rows = 4 ] || bad "$rows conversions, not 4"
exit $status
