"""The plug-in against LeRobot itself, by hand: needs an environment with lerobot, openpi-c and the plug-in installed.

    python tests/python/lerobot_real.py SCRATCH

LeRobot finds the plug-in by itself, builds it by type and by path, and gets its own goldens' actions.
"""

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class
from lerobot.policies.factory import make_pre_post_processors
from lerobot.utils.import_utils import register_third_party_plugins
import numpy as np
import torch

import openpi_c
from openpi_c.verification import read_safetensors

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "lerobot"


def checkpoint_of(name, seed, folder):
    openpi_c.write_synthetic(f"tiny:{name}:{seed}", folder, lerobot=True)
    shutil.copytree(GOLDEN / name / "checkpoint", folder, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "pi05" / "checkpoint" / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)


def batch_of(tensors, about):
    batch = {"observation.state": torch.from_numpy(tensors["in.state"].copy())[None], "task": [about["task"]]}
    for key, value in tensors.items():
        if key.startswith("in.image."):
            picture = torch.from_numpy(value.copy()).permute(2, 0, 1)
            if picture.dtype == torch.uint8:
                picture = picture.to(torch.float32) / 255
            batch["observation.images." + key.removeprefix("in.image.")] = picture[None]
    return batch


def check(name, scratch):
    tensors, about = read_safetensors(GOLDEN / name / "expected.safetensors")
    about = about["case"]
    checkpoint, out = scratch / name, scratch / f"{name}_pretrained"
    checkpoint_of(name, about["seed"], checkpoint)
    names = [f"joint_{i}.pos" for i in range(tensors["actions"].shape[-1])]
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"action_feature_names": names, "n_action_steps": 4}))
    subprocess.run([pathlib.Path(sys.executable).parent / "openpi-c", "lerobot", checkpoint, out], check=True)
    by_path = PreTrainedConfig.from_pretrained(out)
    assert by_path.action_feature_names == names and by_path.n_action_steps == 4
    by_path.dtype, by_path.steps = "f32", about["steps"]
    policies = {
        "path": get_policy_class(by_path.type).from_pretrained(out, config=by_path),
        "type": get_policy_class("openpi_c")(
            PreTrainedConfig.get_choice_class("openpi_c")(
                checkpoint=str(checkpoint), dtype="f32", steps=about["steps"], n_action_steps=3, device="cpu")),
    }
    processors = {"path": make_pre_post_processors(by_path, pretrained_path=str(out)), "type": make_pre_post_processors(policies["type"].config)}
    for how, policy in policies.items():
        before, after = processors[how]
        batch = before(batch_of(tensors, about))
        chunk = after(policy.predict_action_chunk(batch, noise=tensors["in.noise"][None]))
        assert chunk.dtype == torch.float32 and chunk.shape == (1, *tensors["actions"].shape)
        off = np.abs(chunk[0].numpy() - tensors["actions"]).max()
        allowed = 2e-4 * max(1, np.abs(tensors["actions"]).max())
        assert off <= allowed, (name, how, off, allowed)
        print(f"{name} by {how}: actions differ from LeRobot's by {off:.2e} at most, {allowed:.2e} allowed")
    two = {k: (torch.cat([v, v]) if isinstance(v, torch.Tensor) else v * 2 if isinstance(v, list) else v) for k, v in batch.items()}
    noise = np.stack([tensors["in.noise"]] * 2)
    both = policies["type"].predict_action_chunk(two, noise=noise)
    assert torch.equal(both[0], both[1]) and torch.equal(both[0], chunk[0])
    assert policies["type"].config.action_feature_names == names
    first = policies["type"].select_action(two, noise=noise)
    assert torch.equal(first, both[:, 0]) and len(policies["type"]._action_queue) == 2


def main():
    scratch = pathlib.Path(sys.argv[1])
    assert "lerobot_policy_openpi_c" in {d.metadata["Name"] for d in importlib.metadata.distributions()}
    register_third_party_plugins()
    for name in ("pi0", "pi05"):
        check(name, scratch)


if __name__ == "__main__":
    main()
