#!/bin/bash
# examples/gym_simulator.py: a tiny model through the runner in gym-aloha: every step is given an action and no call fails.
# Timing and not success. STEPS=500 for the long run; without a GPU a step is rendered in up to 1.5 s.
#
#   ALOHA_PYTHON=…/bin/python      an environment with gym-aloha
#
# Skipped where that is not set, where the package is not built, and where MuJoCo cannot render here.
set -u
[ -n "${ALOHA_PYTHON:-}" ] || { echo "SKIPPED: ALOHA_PYTHON is not set"; exit 77; }
[ -e "$BUILD/python/openpi_c/_openpi.abi3.so" ] || { echo "SKIPPED: the Python package is not built"; exit 77; }
"$ALOHA_PYTHON" -c 'import gym_aloha' 2>/dev/null || { echo "SKIPPED: $ALOHA_PYTHON has no gym-aloha"; exit 77; }
export MUJOCO_GL=${MUJOCO_GL:-egl} PYTHONPATH=$BUILD/python PYTHONDONTWRITEBYTECODE=1
"$ALOHA_PYTHON" -c 'import mujoco; mujoco.GLContext(8, 8).free()' 2>/dev/null ||
    { echo "SKIPPED: MuJoCo renders nothing with MUJOCO_GL=$MUJOCO_GL"; exit 77; }
steps=${STEPS:-20}
said=$("$ALOHA_PYTHON" "$SOURCE/examples/gym_simulator.py" --synthetic tiny --steps "$steps") ||
    { echo "it fails: $said"; exit 1; }
echo "$said"
case $said in
*"\"steps\": $steps, "*'"failed": 0, '*) ;;
*) echo "expected $steps steps and no failed call"; exit 1 ;;
esac
