#!/bin/bash
# Checkpoints that orbax-checkpoint itself writes, against the PyTorch layout that they were made from: small models of
# `openpi synth` as openpi's JAX tree, on one device and on four, as released and as trained. The actions must be the same
# to the last bit, and the lowest bits of F32 must be rounded off. SOURCE, BUILD: as the other scripts.
#
#   ORBAX_PYTHON="…/bin/python …"       environments with orbax-checkpoint, jax and numpy, each of another version
#
# Without one the script is skipped, and says so.
set -u
[ -n "${ORBAX_PYTHON:-}" ] || { echo "SKIPPED: ORBAX_PYTHON is not set"; exit 77; }
for python in $ORBAX_PYTHON; do
    "$python" -c 'import orbax.checkpoint' 2>/dev/null || { echo "SKIPPED: $python has no orbax-checkpoint"; exit 77; }
done
tree=$SOURCE/tests/scripts/peer/orbax_tree.py
picture=$SOURCE/tests/pictures/rgb.png
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1 JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4
cd "$box" || exit 2
status=0
rows=0
wanted=0

bad() { echo "FAILED: $*"; status=1; }

# actions CHECKPOINT FILE DTYPE: what the model answers to one observation
actions() {
    "$openpi" run "$1" --robot none --tokenizer torch/tokenizer.model --image base="$picture" \
        --state 0.3,-0.2,0.1 --prompt "stack the cups" --horizon 5 --steps 3 --dtype "$3" --threads 2 --format npy \
        --out "$2" >log 2>&1 || { cat log; return 1; }
}

# compare PYTHON MODEL: the model as this environment writes it, in every form, gives the actions that torch/ gave
compare() {
    local form dtype
    for form in "--devices 1" "--devices 1 --value" "--devices 4" "--devices 4 --value" "--devices 4 --value --low-bits"; do
        rm -rf orbax got.npy
        # shellcheck disable=SC2086
        "$1" "$tree" torch orbax $form >log 2>&1 || { bad "$2: orbax_tree.py $form"; cat log; continue; }
        for dtype in bf16 f32; do
            [ "$dtype $form" = "f32 --devices 4 --value --low-bits" ] && continue  # the bits are kept, and count
            rm -f got.npy
            actions orbax got.npy "$dtype" && cmp "$dtype.npy" got.npy || { bad "$2 $form, $dtype: other actions"; continue; }
            rows=$((rows + 1))
        done
    done
}

for model in tiny:pi0:5 tiny:pi05:6 odd:pi0:7 odd:pi05:8; do
    IFS=: read -r preset variant seed <<<"$model"
    rm -rf torch && "$openpi" synth torch --preset "$preset" --variant "$variant" --seed "$seed" >log 2>&1 || { cat log; exit 1; }
    for dtype in bf16 f32; do
        rm -f "$dtype.npy"
        actions torch "$dtype.npy" "$dtype" || bad "$model $dtype"
    done
    for python in $ORBAX_PYTHON; do
        compare "$python" "$model"
    done
done
for python in $ORBAX_PYTHON; do
    echo "$("$python" -c 'import orbax.checkpoint as o, jax; print(f"orbax-checkpoint {o.__version__}, jax {jax.__version__}")')"
    wanted=$((wanted + 36))
done
echo "$rows runs from Orbax gave the actions of the PyTorch layout"
[ $rows = $wanted ] || bad "$rows runs, not $wanted"
exit $status
