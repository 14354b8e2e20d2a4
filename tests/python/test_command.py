"""The same numbers as the command, bit for bit."""

import json
import os
import subprocess

import numpy as np
import pytest

import golden
import openpi_c

COMMAND = os.environ.get("OPENPI_COMMAND")
pytestmark = pytest.mark.skipif(not COMMAND, reason="OPENPI_COMMAND names no openpi command")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("noise", ["given", "drawn"])
@pytest.mark.parametrize("name", ["aloha_sim", "droid_pi0", "libero_pi05"])
def test_run_json(name, noise, dtype, tmp_path):
    arguments, data, tensors = golden.policy_case(name)
    del arguments["prompt_state"]
    (tmp_path / "request.msgpack").write_bytes(data)
    np.save(tmp_path / "noise.npy", tensors["noise"])
    options = [f"--{key.replace('_', '-')}={value}" for key, value in arguments.items() if key != "robot"]
    (tmp_path / "robot.json").write_text(arguments["robot"])
    options += ["--robot", tmp_path / "robot.json", "--request", tmp_path / "request.msgpack", "--dtype", dtype]
    options += ["--noise", tmp_path / "noise.npy"] if noise == "given" else ["--seed", "3"]
    printed = subprocess.run([COMMAND, "run", *options, "--format", "json"], check=True, capture_output=True).stdout
    with openpi_c.Policy(dtype=dtype, seed=3, **arguments) as policy:
        given = tensors["noise"] if noise == "given" else None
        actions = policy.infer(golden.message(data), noise=given)["actions"]
    assert (actions == np.array(json.loads(printed)["actions"])).all()
