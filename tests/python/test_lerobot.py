"""The LeRobot plug-in, against stubs of lerobot and torch. Against LeRobot itself: lerobot_real.py, by hand."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PLUGIN = HERE.parents[1] / "python" / "lerobot_policy_openpi_c"


def test_plugin(tmp_path):
    paths = [HERE / "stub", PLUGIN, HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ran = subprocess.run(
        [sys.executable, HERE / "plugin_checks.py", tmp_path], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0 and not ran.stdout, ran.stdout + ran.stderr
