"""Transforms with an example of an observation beside them, as openpi's policies have; for own.py."""
import dataclasses

import numpy as np
from openpi import transforms


def make_arm_example():
    return {
        "observation/top": np.zeros((240, 320, 3), np.uint8),
        "observation/joint_angles": np.zeros(5),
        "observation/gripper": np.float64(0),
        "prompt": "wave",
    }


@dataclasses.dataclass(frozen=True)
class ArmInputs(transforms.DataTransformFn):
    """A number without a shape becomes a vector of one; it comes first in the state."""

    def __call__(self, data):
        top = np.asarray(data["observation/top"])
        return {
            "image": {"base_0_rgb": top, "left_wrist_0_rgb": np.zeros_like(top), "right_wrist_0_rgb": np.zeros_like(top)},
            "image_mask": {"base_0_rgb": np.True_, "left_wrist_0_rgb": np.False_, "right_wrist_0_rgb": np.False_},
            "state": np.concatenate([np.atleast_1d(data["observation/gripper"]), data["observation/joint_angles"]]),
            **{key: data[key] for key in ("actions", "prompt") if key in data},
        }
