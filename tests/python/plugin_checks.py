"""The LeRobot plug-in against stubs of lerobot and torch: run by test_lerobot.py in a process of its own, with SCRATCH."""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch

import golden
from lerobot_policy_openpi_c import OpenpiCConfig
from lerobot_policy_openpi_c import OpenpiCPolicy
from lerobot_policy_openpi_c import convert
import openpi_c

LEROBOT = golden.GOLDEN / "lerobot"


def refused(kind, sentence, call):
    try:
        call()
    except kind as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {sentence}")


def lerobot_goldens(scratch):
    """A LeRobot checkpoint, converted: its goldens' actions, two environments in one call, the queue."""
    tensors, about = golden.read(LEROBOT / "pi0" / "expected.safetensors")
    about, checkpoint, out = about["case"], scratch / "pi0", scratch / "out"
    openpi_c.write_synthetic(f"tiny:pi0:{about['seed']}", checkpoint, lerobot=True)
    shutil.copytree(LEROBOT / "pi0" / "checkpoint", checkpoint, dirs_exist_ok=True)
    shutil.copytree(LEROBOT / "pi05" / "checkpoint" / "tokenizer", checkpoint / "tokenizer", dirs_exist_ok=True)
    sys.argv = ["openpi-c", "lerobot", str(checkpoint), str(out)]
    convert.main()
    written = json.loads((out / "config.json").read_text())
    assert written["type"] == "openpi_c" and written["checkpoint"] == "weights"
    assert (out / "weights" / "model.safetensors").exists()
    assert {file.name for file in out.glob("policy_*.json")} == {"policy_preprocessor.json", "policy_postprocessor.json"}

    config = OpenpiCConfig.from_pretrained(out)
    config.dtype, config.steps, config.n_action_steps = "f32", about["steps"], 3
    policy = OpenpiCPolicy.from_pretrained(out, config=config)
    batch = {"observation.state": torch.from_numpy(np.stack([tensors["in.state"]] * 2)), "task": [about["task"]] * 2}
    for key, value in tensors.items():
        if key.startswith("in.image."):
            scaled = value.astype(np.float32) / np.float32(255) if value.dtype == np.uint8 else value
            batch["observation.images." + key[9:]] = torch.from_numpy(np.stack([scaled.transpose(2, 0, 1)] * 2))
    noise = np.stack([tensors["in.noise"]] * 2)
    chunk = policy.predict_action_chunk(batch, noise=noise)
    assert chunk.shape == (2, *tensors["actions"].shape) and chunk.dtype == np.float32
    assert np.abs(chunk - tensors["actions"]).max() <= 2e-4 * np.abs(tensors["actions"]).max()
    assert policy.engine._lanes._idle[0].session.info["batch"] == 2  # one call of the model
    for step in range(3):
        assert (policy.select_action(batch, noise=noise) == chunk[:, step]).all()
    assert not policy._action_queue
    policy.select_action(batch)
    assert len(policy._action_queue) == 2
    policy.reset()
    assert not policy._action_queue
    assert policy.supports_rtc() is False
    refused(NotImplementedError, "real-time", lambda: policy.predict_action_chunk(batch, prev_chunk_left_over=chunk[0]))
    refused(NotImplementedError, "does not train", lambda: policy.forward(batch))
    refused(NotImplementedError, "does not train", config.get_optimizer_preset)
    refused(ValueError, "no observation", lambda: policy.predict_action_chunk({"task": ["go"]}))
    assert policy.get_optim_params() == {}


def openpi_robot(scratch):
    """A robot of openpi: floats become the bytes that they were made of, the state is split, cameras are found by name."""
    arguments, data, tensors = golden.policy_case("droid_pi0")
    obs = golden.message(data)
    checkpoint = scratch / "droid"
    openpi_c.write_synthetic(arguments["synthetic"], checkpoint)
    assets = checkpoint / "assets" / "droid"
    assets.mkdir(parents=True)
    shutil.copy(arguments["norm_stats"], assets)
    shutil.copy(golden.GOLDEN / "tokenizer.model", checkpoint)
    policy = OpenpiCPolicy(OpenpiCConfig(checkpoint=str(checkpoint), robot="droid", steps=10, seed=5))
    state = np.concatenate([obs["observation/joint_position"], np.atleast_1d(obs["observation/gripper_position"])])
    batch = {"observation.state": torch.from_numpy(state[None]), "task": obs["prompt"]}
    for key in ("exterior_image_1_left", "wrist_image_left"):
        floats = obs["observation/" + key].astype(np.float32).transpose(2, 0, 1) / np.float32(255)
        batch["observation.images." + key] = torch.from_numpy(floats[None])
    noise = openpi_c.noise((1, policy.engine.horizon, 32))
    chunk = policy.predict_action_chunk(batch, noise=noise)
    expected = policy.engine.infer(obs, noise=noise)["actions"].astype(np.float32)
    assert (chunk[0] == expected).all()
    renamed = {("observation.images.a" if "wrist" in k else k): v for k, v in batch.items()}
    refused(ValueError, "observation/wrist_image_left", lambda: policy.predict_action_chunk(renamed, noise=noise))
    policy.config.rename = {"observation.images.a": "observation/wrist_image_left"}
    assert (policy.predict_action_chunk(renamed, noise=noise)[0] == expected).all()
    long = {**batch, "observation.state": torch.from_numpy(np.zeros((1, 9)))}
    refused(ValueError, "has 9 numbers, robot droid has 8", lambda: policy.predict_action_chunk(long))


def bad_configs():
    refused(ValueError, "no checkpoint", lambda: OpenpiCPolicy(OpenpiCConfig()))
    refused(ValueError, "n_action_steps is 0", lambda: OpenpiCConfig(n_action_steps=0))
    refused(FileNotFoundError, "/nowhere", lambda: OpenpiCPolicy(OpenpiCConfig(checkpoint="/nowhere", robot="droid")))
    refused(FileNotFoundError, "no such folder", lambda: convert.convert(pathlib.Path("/nowhere"), pathlib.Path("x")))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    lerobot_goldens(folder)
    openpi_robot(folder)
    bad_configs()
