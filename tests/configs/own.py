"""TrainConfigs as users write them, for tests/configs/record.py: own cameras, own state, own delta mask, LoRA; and some whose
transforms do what no robot of openpi.c can, or do not tell all that it needs."""
import dataclasses
import pathlib

import arm
import numpy as np
from openpi import transforms
from openpi.models import pi0_config
from openpi.training import config


@dataclasses.dataclass(frozen=True)
class ArmInputs(transforms.DataTransformFn):
    """Request keys to slots. `keys` are joined to the state; `edit` and `scale` change what comes."""
    cameras: dict
    keys: tuple = ("joints", "gripper")
    edit: str = ""
    scale: float = 1.0

    def __call__(self, data):
        pictures = {slot: np.asarray(data[key]) for slot, key in self.cameras.items() if key in data or slot == "base_0_rgb"}
        if self.edit == "mirror":
            pictures["base_0_rgb"] = pictures["base_0_rgb"][:, ::-1]
        if self.edit == "crop":
            pictures["base_0_rgb"] = pictures["base_0_rgb"][:, 48:272]
        first = next(iter(pictures.values()))
        slots = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
        out = {
            "image": {slot: pictures.get(slot, np.zeros_like(first)) for slot in slots},
            "image_mask": {slot: np.bool_(slot in pictures) for slot in slots},
            "state": self.scale * np.concatenate([np.atleast_1d(data[key]) for key in self.keys]),
        }
        out |= {key: data[key] for key in ("actions", "prompt") if key in data}
        if self.edit == "prompt":
            out["prompt"] = str(out["prompt"]).upper()
        if self.edit == "short prompt":
            out["prompt"] = str(out["prompt"])[:100]
        if self.edit == "limits":
            out["state"] = np.concatenate([np.clip(out["state"][:-1], -3.14, 3.14), np.maximum(out["state"][-1:], 0)])
        if self.edit == "tight":
            out["state"] = np.clip(out["state"], -0.02, 0.02)
        if self.edit == "bytes" and out["state"][-1] > 1.5:
            out["state"] = np.concatenate([out["state"][:-1], out["state"][-1:] / 255])
        return out | {"state": out["state"].astype(np.float32) if self.edit == "cast" else out["state"]}


@dataclasses.dataclass(frozen=True)
class HandInputs(transforms.DataTransformFn):
    """Twelve joints in nested keys, in the order that the model wants: it takes no other number of them."""

    def __call__(self, data):
        fingers = np.asarray(data["hand"]["fingers"]).reshape(12)
        top, palm = data["views"]["top"], data["views"]["palm"]
        return {
            "image": {"base_0_rgb": top, "left_wrist_0_rgb": np.zeros_like(top), "right_wrist_0_rgb": palm},
            "image_mask": {"base_0_rgb": np.True_, "left_wrist_0_rgb": np.False_, "right_wrist_0_rgb": np.True_},
            "state": np.concatenate([data["hand"]["wrist"], fingers]),
            **({"prompt": data["prompt"]} if "prompt" in data else {}),
        }


@dataclasses.dataclass(frozen=True)
class FirstActions(transforms.DataTransformFn):
    """`edit`: what safe arms do to actions that are too large."""
    count: int
    every: int = 1
    edit: str = ""

    def __call__(self, data):
        a = np.array(data["actions"][:: self.every, : self.count])
        if self.edit == "limits":
            a = np.concatenate([np.clip(a[:, :6], -3.14, 3.14), np.clip(a[:, 6:], 0, 1)], 1)
        if self.edit == "wrap":
            a[:, :6] = (a[:, :6] + np.pi) % (2 * np.pi) - np.pi
        if self.edit == "steps":
            a[1:] = a[:1] + np.clip(a[1:] - a[:1], -5, 5)
        if self.edit == "norm":
            a *= np.minimum(1, 100 / np.linalg.norm(a, axis=1, keepdims=True))
        if self.edit == "cast":
            a = a.astype(np.float32)
        return {"actions": a} | ({"gripper": a[:, 6:]} if self.edit == "more" else {})


@dataclasses.dataclass(frozen=True)
class ArmData(config.DataConfigFactory):
    inputs: transforms.DataTransformFn = None
    actions: int = 7
    delta: tuple = ()
    every: int = 1
    names: dict = dataclasses.field(default_factory=dict)
    prompt: str | None = None
    edit: str = ""

    def create(self, assets_dirs, model_config):
        group = transforms.Group(inputs=[self.inputs], outputs=[FirstActions(self.actions, self.every, self.edit)])
        if self.delta:
            mask = transforms.make_bool_mask(*self.delta)
            group = group.push(inputs=[transforms.DeltaActions(mask)], outputs=[transforms.AbsoluteActions(mask)])
        return dataclasses.replace(
            self.create_base_config(assets_dirs, model_config),
            repack_transforms=transforms.Group(inputs=[transforms.RepackTransform(self.names)] if self.names else []),
            data_transforms=group,
            model_transforms=config.ModelTransformFactory(default_prompt=self.prompt)(model_config),
        )


CAMERAS = {"base_0_rgb": "front_rgb", "left_wrist_0_rgb": "wrist_rgb"}
NAMES = {"front_rgb": "image", "wrist_rgb": "wrist_image", "joints": "joints", "gripper": "gripper", "actions": "action"}
MEASURED = config.AssetsConfig(str(pathlib.Path(__file__).parent / "assets"), "bench")
LORA = pi0_config.Pi0Config(paligemma_variant="gemma_2b_lora", action_expert_variant="gemma_300m_lora", action_horizon=20)


def own(name, data, model=pi0_config.Pi0Config()):
    return config.TrainConfig(name=name, model=model, data=data)


CONFIGS = [
    own("pi0_ur5_low_mem", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS), delta=(6, -1), names=NAMES), LORA),
    own("pi0_no_names", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, keys=("joints",)), delta=(3, -2, 2), prompt="go")),
    own("pi05_hand", ArmData(repo_id="me/hand", inputs=HandInputs(), actions=20, delta=(-2, 12),
                             names={"views": {"top": "top", "palm": "palm"},
                                    "hand": {"wrist": "wrist", "fingers": "fingers"}}),
        pi0_config.Pi0Config(pi05=True, discrete_state_input=False, max_token_len=64)),
    own("pi05_arm", ArmData(repo_id="me/arm", inputs=arm.ArmInputs(), actions=6, delta=(-1, 5), prompt="wave"),
        pi0_config.Pi0Config(pi05=True, action_horizon=12)),
    own("pi0_measured", ArmData(repo_id="me/bench", inputs=ArmInputs(CAMERAS, keys=("joints",)), names=NAMES,
                                assets=MEASURED)),
    own("pi0_mirrored", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, edit="mirror"), names=NAMES)),
    own("pi0_cropped", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, edit="crop"), names=NAMES)),
    own("pi0_shouting", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, edit="prompt"), names=NAMES)),
    own("pi0_degrees", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, scale=57.3), names=NAMES)),
    own("pi0_thinned", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS), every=2, names=NAMES)),
    *(own(f"pi0_{edit}", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, keys=("joints",), edit=edit), names=NAMES, edit=edit,
                                 delta=(6, -1), assets=MEASURED)) for edit in ("limits", "wrap", "steps", "norm", "cast", "more", "bytes")),
    own("pi0_tight", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, keys=("gripper", "joints"), edit="tight"), names=NAMES)),
    own("pi0_short_prompts", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS, edit="short prompt"), names=NAMES)),
    own("pi0_wide", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS), names=NAMES), pi0_config.Pi0Config(action_dim=64)),
    own("pi0_many_steps", ArmData(repo_id="me/ur5", inputs=ArmInputs(CAMERAS), names=NAMES), pi0_config.Pi0Config(action_horizon=100)),
    own("pi0_no_assets", ArmData(inputs=ArmInputs(CAMERAS), names=NAMES)),
]
