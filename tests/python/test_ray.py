"""openpi_c.ray, against stubs of ray, fastapi and msgpack."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def test_ray_app():
    paths = [HERE / "stub_ray", HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ran = subprocess.run([sys.executable, HERE / "ray_checks.py"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and not ran.stdout, ran.stdout + ran.stderr
