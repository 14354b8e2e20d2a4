"""openpi's and LeRobot's own numbers, through the package."""

import json
import shutil
import struct

import numpy as np
import pytest

import golden
from golden import GOLDEN
import openpi_c

MODELS = ["pi0_odd", "pi05_odd", "pi0_tiny", "pi05_tiny", "pi0_tiny_batch", "pi05_tiny_batch", "pi0_tiny_droid"]
ROBOTS = ["aloha_pi05", "aloha_sim", "droid_jointpos", "droid_pi0", "libero_pi0", "libero_pi05"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name, dtype):
    (check,) = openpi_c.verify(GOLDEN / "model" / f"{name}.safetensors", dtype=dtype)
    assert check.passed and check.name == name
    assert check.largest_allowed <= (1e-4 if dtype == "f32" else 0.08) and 0 < check.rms < check.largest


def test_verify_finds_a_wrong_golden(tmp_path):
    data = bytearray((GOLDEN / "model" / "pi0_odd.safetensors").read_bytes())
    (size,) = struct.unpack_from("<Q", data)
    at = 8 + size + json.loads(data[8 : 8 + size])["actions.jax_f32"]["data_offsets"][0]
    (value,) = struct.unpack_from("<f", data, at)
    struct.pack_into("<f", data, at, value + 1e-3)
    (tmp_path / "moved.safetensors").write_bytes(data)
    (check,) = openpi_c.verify(tmp_path, dtype="f32")
    assert not check.passed
    for content, sentence in ((b"", "expected a golden"), (b"\x02" + bytes(7) + b"{}", "__metadata__")):
        (tmp_path / "moved.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            openpi_c.verify(tmp_path)
    with pytest.raises(FileNotFoundError, match="no golden there"):
        openpi_c.verify(tmp_path / "nothing")


@pytest.mark.parametrize("form", ["dict", "message"])
@pytest.mark.parametrize("name", ROBOTS)
def test_policy(name, form):
    arguments, data, tensors = golden.policy_case(name)
    obs = data if form == "message" else golden.message(data)
    std = json.loads((GOLDEN / "policy" / name / "norm_stats.json").read_text())["norm_stats"]["actions"]["std"]
    with openpi_c.Policy(dtype="f32", **arguments) as policy:
        request = policy.request()
        request.prepare(obs)
        check_sample(request, tensors)
        answer = policy.infer(obs, noise=tensors["noise"])
        again = policy.infer(obs, noise=tensors["noise"][None])
    actions = answer["actions"]
    assert actions.dtype == np.float64 and actions.shape == tensors["actions"].shape
    assert (np.abs(actions - tensors["actions"]) <= 1e-3 * np.array(std)[: actions.shape[1]]).all()
    assert (again["actions"] == actions).all()
    assert answer["policy_timing"]["infer_ms"] > 0


def check_sample(request, tensors):
    sample = request.sample()
    for slot in range(3):
        if tensors["image_mask"][slot]:
            assert (sample.images[slot] == tensors["images"][slot]).all()
        else:
            assert sample.images[slot] is None
    assert (sample.tokens == tensors["tokens"][tensors["token_mask"] > 0]).all()
    state = request.state
    assert np.abs(state - tensors["state"][: len(state)]).max() <= 1e-12


@pytest.mark.parametrize("case", ["expected", "expected_missing"])
@pytest.mark.parametrize("name", ["pi0", "pi05"])
def test_lerobot(name, case, tmp_path):
    folder = tmp_path / name
    tensors, about = golden.read(GOLDEN / "lerobot" / name / f"{case}.safetensors")
    about = about["case"]
    openpi_c.write_synthetic(f"tiny:{name}:{about['seed']}", folder, lerobot=True)
    shutil.copytree(GOLDEN / "lerobot" / name / "checkpoint", folder, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "lerobot" / "pi05" / "checkpoint" / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    obs = {"observation.state": tensors["in.state"], "task": about["task"]}
    for key in tensors:
        if key.startswith("in.image."):
            obs["observation.images." + key[len("in.image.") :]] = tensors[key]
    with openpi_c.Policy(folder, robot="lerobot", dtype="f32", steps=about["steps"]) as policy:
        request = policy.request()
        request.prepare(obs)
        assert (request.sample().tokens == tensors["tokens"][tensors["token_mask"] > 0]).all()
        assert (request.state == tensors["state"]).all()
        finished = request.finish(tensors["actions_model"])
        assert (finished.astype(np.float32) == tensors["actions"]).all()
        actions = policy.infer(obs, noise=tensors["in.noise"])["actions"]
    assert actions.shape == tensors["actions"].shape
    # In units of the model's actions: by how much the robot's actions move with them.
    slope = np.abs(request.finish(tensors["actions_model"] + 1) - finished)
    assert (np.abs(actions - tensors["actions"]) <= 2e-4 * slope + 1e-6).all()
