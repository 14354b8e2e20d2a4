"""mypy --strict on the package, stubtest on the extension. Where mypy is not installed: skipped, by this name."""

import pathlib
import subprocess
import sys

import pytest

import openpi_c

ROOT = pathlib.Path(__file__).parents[2]
pytest.importorskip("mypy")


@pytest.mark.parametrize("module", [["mypy"], ["mypy.stubtest", "openpi_c._openpi", "--mypy-config-file", "pyproject.toml"]])
def test_types(module):
    place = str(pathlib.Path(openpi_c.__file__).parents[1])
    ran = subprocess.run([sys.executable, "-m", *module, *(["--cache-dir=/dev/null"] if module == ["mypy"] else [])],
                         cwd=ROOT, env={"PYTHONPATH": place, "MYPYPATH": place, "PATH": ""}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
