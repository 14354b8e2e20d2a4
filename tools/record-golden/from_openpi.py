"""openpi's own policy: its transforms and tokenizer around its PyTorch model, in fp32 and in bf16.

openpi serves the model in bf16. The truth that an engine is judged by is fp32, so a second copy of the
model is loaded whose parameters are fp32; policy and transforms are the same for both.
"""

import dataclasses
import gc
import pathlib
import sys

import numpy as np
from golden import Problem, checkpoint_dims, checkpoint_weights
import observations

try:
    import jax
    import openpi.policies.policy_config as policy_config
    import openpi.training.config as training_config
    import torch
    import torch_model
except ImportError as error:
    raise Problem(
        f"openpi cannot be imported here ({error}): run this tool with the Python of openpi's environment, "
        "for example: uv run python tools/record-golden …"
    ) from None

SLOT_KEYS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def version():
    import importlib.metadata

    names = ("torch", "transformers", "numpy", "pillow")
    said = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return "openpi, PyTorch (" + ", ".join(said) + f", Python {sys.version.split()[0]})"


class Source:
    layout, bf16_notes = "openpi", "the PyTorch model in bfloat16, its rotary table in fp32"

    def __init__(self, name, checkpoint, device, steps):
        self.folder, self.device, self.steps, self.model = pathlib.Path(checkpoint), device, steps or 10, None
        try:
            self.config = training_config.get_config(name)
        except ValueError as error:
            raise Problem(str(error)) from None
        if not (self.folder / "model.safetensors").exists():
            said = (
                "is a JAX checkpoint: convert it with openpi's examples/convert_jax_model_to_pytorch.py"
                if (self.folder / "params").exists()
                else "holds no model.safetensors"
            )
            raise Problem(f"{checkpoint}: {said}")
        if not hasattr(self.config.model, "pi05"):
            raise Problem(f"config {name}: neither π0 nor π0.5")
        if hasattr(self.config.model, "pytorch_compile_mode"):
            self._change_model(pytorch_compile_mode=None)
        self.weights = checkpoint_weights(self.folder)
        self.policy = policy_config.create_trained_policy(
            self.config, self.folder, pytorch_device=device, sample_kwargs={"num_steps": self.steps}
        )
        self.dims = checkpoint_dims(self.weights, torch_model.vision_heads(self.policy._model))
        model = self.config.model
        self.pi05, self.horizon, self.max_tokens = model.pi05, model.action_horizon, model.max_token_len
        if model.action_dim != 32:
            raise Problem(f"config {name}: action_dim is {model.action_dim}, expected 32")
        self.notes = {"config": name, "oracle": version()}

    def _change_model(self, **fields):
        self.config = dataclasses.replace(self.config, model=dataclasses.replace(self.config.model, **fields))

    def load(self, kind):
        """kind: bf16 or f32. One model at a time: the full one takes 7 and 14 GB."""
        if kind == "bf16":
            model = self.policy._model
        else:
            self.policy._model = self.policy._sample_actions = self.model = None
            gc.collect()
            self._change_model(dtype="float32")
            model = self.config.model.load_pytorch(self.config, str(self.folder / "model.safetensors"))
            model.paligemma_with_expert.to_bfloat16_for_selected_params("float32")
            model = model.float().to(self.device).eval()
            torch_model.check_loaded(model, self.weights, "openpi")
        torch_model.exact_rotary(model)
        torch_model.exact_arithmetic()
        self.model = self.policy._model = model
        self.policy._sample_actions = self._sample

    def _sample(self, device, observation, **kwargs):
        sample = torch_model.plain_method(self.model, "sample_actions")
        if self.stages is None:
            self.chunk = sample(device, observation, **kwargs)
        else:
            with self.stages.of(self.model):
                self.chunk = sample(device, observation, **kwargs)
        return self.chunk

    def example(self, rng, i):
        """An observation as a client of this config's robot sends it."""
        data = self.config.data.create(self.config.assets_dirs, self.config.model)
        robots = {"AlohaInputs": self._aloha, "DroidInputs": self._droid, "LiberoInputs": self._libero}
        for step in data.data_transforms.inputs:
            if type(step).__name__ in robots:
                made = robots[type(step).__name__](rng)
                return made | {"prompt": observations.PROMPTS[i % len(observations.PROMPTS)]}
        raise Problem("--example knows ALOHA, DROID and LIBERO; give --observations for another robot")

    def _aloha(self, rng):
        cameras = (
            ("cam_high",)
            if "sim" in self.notes["config"]
            else ("cam_high", "cam_left_wrist", "cam_right_wrist")
        )
        chw = lambda: np.ascontiguousarray(observations.picture(rng, 240, 320).transpose(2, 0, 1))
        return {"state": observations.numbers(rng, 14), "images": {camera: chw() for camera in cameras}}

    def _droid(self, rng):
        return {
            "observation/exterior_image_1_left": observations.picture(rng, 180, 320),
            "observation/wrist_image_left": observations.picture(rng, 180, 320),
            "observation/joint_position": observations.numbers(rng, 7),
            "observation/gripper_position": rng.uniform(0, 1, 1).astype(np.float32),
        }

    def _libero(self, rng):
        return {
            "observation/state": observations.numbers(rng, 8),
            "observation/image": observations.picture(rng, 224, 224),
            "observation/wrist_image": observations.picture(rng, 224, 224),
        }

    def prepare(self, observation):
        """What the model takes, as Golden.add names it."""
        made = self.policy._input_transform(jax.tree.map(lambda x: x, observation))
        state = np.asarray(made["state"])
        return {
            "images": np.stack([np.asarray(made["image"][key]) for key in SLOT_KEYS]),
            "image_mask": np.array([bool(made["image_mask"][key]) for key in SLOT_KEYS], np.uint8),
            "tokens": np.asarray(made["tokenized_prompt"], np.int32),
            "token_mask": np.asarray(made["tokenized_prompt_mask"], np.uint8),
            "state": state.astype(np.float32),
            "policy_state": state.astype(np.float64),
        }

    def run(self, observation, noise, want_stages):
        """(model actions [H,32], robot actions [H,A], stages or None)"""
        self.stages = torch_model.Stages() if want_stages else None
        with torch.no_grad():
            answer = self.policy.infer(observation, noise=noise)
        chunk = torch_model.array(self.chunk)[0]
        return chunk, np.asarray(answer["actions"], np.float64), self.stages and self.stages.result(chunk)
