#!/bin/bash
# tools/openpi_config.py in openpi's own environment: what it prints for all configs of openpi and for a user's own (tests/configs)
# is what was recorded, the engine prepares and finishes requests with it as openpi's transforms do, and a user's arm runs.
# SOURCE, BUILD: as the other scripts.
#
#   OPENPI_PYTHON=…/bin/python OPENPI_CHECKOUT=…    openpi's environment and checkout
#   CONFIG_RECORD=1                                 record: write tests/configs/*.json anew instead of comparing
#
# Without openpi only what the tool says then is checked, and the rest is skipped.
set -u
tool=$SOURCE/tools/openpi_config.py
configs=$SOURCE/tests/configs
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1 JAX_PLATFORMS=cpu
cd "$box" || exit 2
status=0
bad() { echo "FAILED: $*"; status=1; }

command -v python3 >python || { echo "SKIPPED: there is no python3"; exit 77; }
python3 -I "$tool" --help >help 2>&1 && grep -q 'my_configs.py:pi0_my_arm' help || bad "--help teaches nothing"
python3 -I "$tool" pi0_droid >out 2>err && bad "a robot without openpi"
[ "$(wc -l <err)" = 1 ] && grep -q "^pi0_droid: ModuleNotFoundError: .* (is this the Python that trains?)$" err || bad "without openpi: $(<err)"
[ -n "${OPENPI_PYTHON:-}" ] || { [ $status = 0 ] || exit $status; echo "SKIPPED: OPENPI_PYTHON is not set"; exit 77; }
export PYTHONPATH=$OPENPI_CHECKOUT/src:$OPENPI_CHECKOUT/packages/openpi-client/src

for name in openpi own; do
    source=$name
    [ $name = own ] && source=$configs/own.py
    "$OPENPI_PYTHON" "$configs/record.py" "$tool" "$source" >"$name.json" 2>err || { bad "$name: $(tail -1 err)"; continue; }
    if [ -n "${CONFIG_RECORD:-}" ]; then cp "$name.json" "$configs/" && echo "recorded $configs/$name.json"
    else diff "$configs/$name.json" "$name.json" || bad "$name: other robots than recorded"; fi
done

# refused NAME SENTENCE...: the tool ends with status 1 and one line that begins so
refused() {
    local name=$1 sentence=$2
    shift 2
    "$OPENPI_PYTHON" "$tool" "$name" "$@" >out 2>err && bad "$name: no refusal"
    [ "$(wc -l <err)" = 1 ] && [[ $(<err) == "$sentence"* ]] && [ ! -s out ] || bad "$name: $(<err)"
}
refused pi0_drone "openpi.training.config: has no TrainConfig 'pi0_drone'; there are pi0_droid"
refused "$configs/own.py:pi0_ur6" "$configs/own.py: has no TrainConfig 'pi0_ur6'; there are "
refused nowhere.py:pi0 "nowhere.py:pi0: ModuleNotFoundError: No module named 'nowhere'"
refused pi0 "pi0: ModuleNotFoundError: No module named 'nowhere'" --config-module nowhere

# The same pictures, states, tokens and actions as openpi's transforms, for every config.
if [ -e "$BUILD/python/openpi_c/_openpi.abi3.so" ]; then
    PYTHONPATH=$PYTHONPATH:$BUILD/python "$OPENPI_PYTHON" "$configs/compare.py" "$configs" 2>err || bad "compare.py: $(tail -3 err)"
else
    echo "not compared with openpi's transforms: the Python extension is not built"
fi

# A user's arm, LoRA and all: questions, their answers, and a run.
PYTHONPATH=$PYTHONPATH:$configs "$OPENPI_PYTHON" "$tool" pi0_ur5_low_mem --config-module own >ur5.json 2>err || bad "ur5: $(<err)"
grep -q "^question: state: how many numbers has joints?" err || bad "no question on stderr"
"$openpi" synth arm --preset tiny --variant pi0 >log 2>&1 || bad "$(<log)"
arm() {
    "$openpi" run arm --robot ur5.json --norm-stats "$configs/assets/ur5" --image front_rgb="$SOURCE/tests/pictures/rgb.png" \
        --state 0.1,0.2,0.3,0.4,0.5,0.6,1 --prompt go --steps 2 --format csv >out 2>err
}
arm && bad "a robot with questions runs"
grep -q 'ur5.json: 2 of the "questions" are unanswered, the first is "state: how many numbers has joints?' err || bad "$(<err)"
python3 - <<'END' || bad "the answers"
import json
robot = json.load(open("ur5.json"))
robot["state"] = {"joints": 6, "gripper": 1}
del robot["questions"]
json.dump(robot, open("ur5.json", "w"))
END
arm || bad "$(<err)"
[ "$(wc -l <out)" = 21 ] && [ "$(tail -1 out | tr -cd , | wc -c)" = 7 ] || bad "not 20 rows of 7 actions: $(head -2 out)"
exit $status
