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
    printed, actions = run_and_infer(name, tmp_path, noise == "given", dtype=dtype)
    assert (actions == printed).all()


def test_run_json_with_formats(tmp_path):
    """A list of formats changes the actions, in Python to the command's bits."""
    _, plain = run_and_infer("droid_pi0", tmp_path, True)
    printed, actions = run_and_infer("droid_pi0", tmp_path, True, weights="expert=int8,ffn=int8x8")
    assert (actions == printed).all()
    assert not (actions == plain).all()


def run_and_infer(name, folder, noise_given, **settings):
    """Actions of a golden's request: what the command prints, what Python returns."""
    arguments, data, tensors = golden.policy_case(name)
    del arguments["prompt_state"]
    (folder / "request.msgpack").write_bytes(data)
    (folder / "robot.json").write_text(arguments["robot"])
    np.save(folder / "noise.npy", tensors["noise"])
    given = {key: value for key, value in (arguments | settings).items() if key != "robot"}
    options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    options += ["--robot", folder / "robot.json", "--request", folder / "request.msgpack"]
    options += ["--noise", folder / "noise.npy"] if noise_given else ["--seed", "3"]
    printed = subprocess.run([COMMAND, "run", *options, "--format", "json"], check=True, capture_output=True).stdout
    with openpi_c.Policy(seed=3, **arguments, **settings) as policy:
        actions = policy.infer(golden.message(data), noise=tensors["noise"] if noise_given else None)["actions"]
    return np.array(json.loads(printed)["actions"]), actions
