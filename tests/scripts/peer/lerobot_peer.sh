#!/bin/bash
# The plug-in against LeRobot itself: its goldens' actions by path and by type, real-time chunking with LeRobot's own queue,
# and the commands of docs/lerobot.md as they stand (lerobot-eval for 20 steps, two environments in a batch; lerobot-rollout
# with a robot that has no hardware; the asynchronous server). SOURCE, BUILD: as the other scripts.
#
#   LEROBOT_PYTHON=…/bin/python   an environment with lerobot[aloha,evaluation] 0.6.1, setuptools and pytest
#   MUJOCO_GL=egl                 how MuJoCo draws (default egl)
#
# Without it the script is skipped, and says so. The environment is not changed: the plug-in goes into one of its own.
set -u
[ -n "${LEROBOT_PYTHON:-}" ] || { echo "SKIPPED: LEROBOT_PYTHON is not set"; exit 77; }
"$LEROBOT_PYTHON" -c 'import lerobot, gym_aloha, pytest, setuptools' 2>/dev/null ||
    { echo "SKIPPED: $LEROBOT_PYTHON has no lerobot with gym_aloha, setuptools and pytest"; exit 77; }
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$BUILD/python MUJOCO_GL=${MUJOCO_GL:-egl} HF_HUB_OFFLINE=1
status=0

"$LEROBOT_PYTHON" -m venv --without-pip "$box/venv" || exit 2
python=$box/venv/bin/python
"$LEROBOT_PYTHON" -c 'import site, sys; print("\n".join(p for p in sys.path if p.endswith("site-packages")))' \
    >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/lerobot.pth"
"$python" - "$box/venv/bin" <<'END'    # LeRobot's commands, under the Python that has the plug-in
import importlib.metadata, pathlib, sys
for entry in importlib.metadata.entry_points(group="console_scripts"):
    if entry.name.startswith("lerobot-"):
        file = pathlib.Path(sys.argv[1]) / entry.name
        file.write_text(f"#!{sys.executable}\nimport sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n")
        file.chmod(0o755)
END
cp -r "$SOURCE/python/lerobot_policy_openpi_c" "$box/plugin"
"$python" -m pip install -q --no-deps --no-build-isolation --no-index "$box/plugin" || { echo "FAILED: installing the plug-in"; exit 1; }
place=$("$python" -c 'import site; print(site.getsitepackages()[0])')
cp "$SOURCE/tests/python/lerobot_robot_standin.py" "$place"    # a distribution, which LeRobot finds by its name
mkdir "$place/lerobot_robot_standin-1.dist-info"
printf 'Metadata-Version: 2.1\nName: lerobot_robot_standin\nVersion: 1\n' >"$place/lerobot_robot_standin-1.dist-info/METADATA"
export HF_HOME=$box/hf

"$python" "$SOURCE/tests/python/lerobot_real.py" "$box" || { echo "FAILED: lerobot_real.py ended with $?"; status=1; }
"$python" -m pytest -q -rs -p no:cacheprovider "$SOURCE/tests/python/test_docs.py" -k lerobot || { echo "FAILED: docs/lerobot.md"; status=1; }
exit $status
