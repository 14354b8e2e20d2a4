"""LeRobot's own policy: its saved processors around its PyTorch model, in fp32 and in bf16."""

import gc
import importlib.metadata
import pathlib
import sys

import numpy as np
from golden import DIMS, SIDE, SLOTS, Problem, checkpoint_dims, checkpoint_weights
import observations

try:
    import torch
    import torch_model
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.policies.utils import prepare_observation_for_inference
except ImportError as error:
    raise Problem(
        f"LeRobot cannot be imported here ({error}): run this tool with the Python of LeRobot's environment"
    ) from None

STATE, TOKENS = "observation.state", "observation.language.tokens"
TOKEN_MASK = "observation.language.attention_mask"


def version():
    names = ("lerobot", "torch", "transformers", "numpy", "pillow")
    said = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return "LeRobot, PyTorch (" + ", ".join(said) + f", Python {sys.version.split()[0]})"


class Source:
    layout, bf16_notes = "lerobot", "the PyTorch model in bfloat16, its rotary table in fp32"

    def __init__(self, path, device, steps):
        self.folder, self.device, self.policy = pathlib.Path(path), device, None
        if not self.folder.is_dir():
            raise Problem(
                f"{path}: no such folder; download the checkpoint first: huggingface-cli download {path} --local-dir …"
            )
        self.config = PreTrainedConfig.from_pretrained(str(path))
        if self.config.type not in ("pi0", "pi05"):
            raise Problem(f"{path}: a {self.config.type} policy, expected pi0 or pi05")
        self.config.device, self.config.compile_model = device, False
        if getattr(self.config, "rtc_config", None) is not None:
            self.config.rtc_config = None
        if steps:
            self.config.num_inference_steps = steps
        self.before, self.after = make_pre_post_processors(
            self.config,
            pretrained_path=str(path),
            preprocessor_overrides={"device_processor": {"device": device}},
            postprocessor_overrides={"device_processor": {"device": "cpu"}},
        )
        self.weights = checkpoint_weights(self.folder)
        self.pi05, self.horizon = self.config.type == "pi05", self.config.chunk_size
        self.steps, self.max_tokens = self.config.num_inference_steps, self.config.tokenizer_max_length
        self.load("bf16")
        self.dims = checkpoint_dims(self.weights, torch_model.vision_heads(self.policy.model))
        self.notes = {"oracle": version()}

    def load(self, kind):
        wanted = "bfloat16" if kind == "bf16" else "float32"
        if self.policy is not None and self.config.dtype == wanted:
            return
        self.policy = None
        gc.collect()
        self.config.dtype = wanted
        self.policy = get_policy_class(self.config.type).from_pretrained(
            str(self.folder), config=self.config, strict=False
        )
        self.policy.to(self.device).eval()
        if kind == "f32":
            self.policy.float()
        torch_model.check_loaded(self.policy.model, self.weights, "LeRobot")
        torch_model.exact_rotary(self.policy.model)
        torch_model.exact_arithmetic()

    def example(self, rng, i):
        """An observation by the names before the saved renaming."""
        renames = {}
        for step in self.before.steps:
            renames |= {new: old for old, new in getattr(step, "rename_map", {}).items()}
        out = {}
        for name, feature in self.config.input_features.items():
            if name == STATE:
                out[renames.get(name, name)] = observations.numbers(rng, feature.shape[0])
            elif name.startswith("observation.images.") and "empty_camera" not in name:
                out[renames.get(name, name)] = observations.picture(rng, *feature.shape[1:])
        return out | {"task": observations.PROMPTS[i % len(observations.PROMPTS)]}

    def _batch(self, observation):
        task = observation.get("task", observation.get("prompt"))
        if task is None:
            raise Problem('an observation has no "task"')
        arrays = {k: np.array(v) for k, v in observation.items() if k not in ("task", "prompt")}
        return self.before(prepare_observation_for_inference(arrays, torch.device(self.device), str(task)))

    def prepare(self, observation):
        """What the model takes, as Golden.add names it."""
        batch = self._batch(observation)
        pictures, masks = self.policy._preprocess_images(batch)
        if len(pictures) > SLOTS:
            raise Problem(f"{len(pictures)} cameras, expected at most {SLOTS}")
        images, mask = np.full((SLOTS, SIDE, SIDE, 3), -1, np.float32), np.zeros(SLOTS, np.uint8)
        for i, (picture, there) in enumerate(zip(pictures, masks)):
            images[i], mask[i] = torch_model.array(picture)[0].transpose(1, 2, 0), bool(there[0])
        state = torch_model.array(batch[STATE])[0]
        padded = np.zeros(DIMS, np.float32)
        padded[: len(state)] = state
        return {
            "images": images,
            "image_mask": mask,
            "tokens": batch[TOKENS][0].cpu().numpy().astype(np.int32),
            "token_mask": batch[TOKEN_MASK][0].cpu().numpy().astype(np.uint8),
            "state": padded,
            "policy_state": padded.astype(np.float64),
        }

    def run(self, observation, noise, want_stages):
        """(model actions [H,32], robot actions [H,A], stages or None)"""
        model, stages = self.policy.model, torch_model.Stages() if want_stages else None
        sample, seen = torch_model.plain_method(model, "sample_actions"), []

        def kept(*args, **kwargs):
            if stages is None:
                seen.append(sample(*args, **kwargs))
            else:
                with stages.of(model):
                    seen.append(sample(*args, **kwargs))
            return seen[-1]

        object.__setattr__(model, "sample_actions", kept)
        try:
            cut = self.policy.predict_action_chunk(
                self._batch(observation), noise=torch.from_numpy(noise)[None].to(self.device)
            )
        finally:
            object.__delattr__(model, "sample_actions")
        chunk = torch_model.array(seen[-1])[0]
        return (
            chunk,
            torch_model.array(self.after(cut.float()))[0].astype(np.float64),
            stages and stages.result(chunk),
        )
