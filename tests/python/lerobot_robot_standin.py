"""A robot of LeRobot without hardware, for lerobot_peer.sh: 14 joints that go where they are sent, two cameras.

LeRobot imports every installed distribution whose name starts with `lerobot_robot_`. A rollout in which nothing
moved a joint, or with an action that is not a number, ends with an exception.
"""

import dataclasses
import math

from lerobot.robots import Robot
from lerobot.robots import RobotConfig
import numpy as np

CAMERAS = {"top": (180, 240, 3), "left_wrist": (97, 64, 3)}
JOINTS = [f"joint_{number}.pos" for number in range(14)]


@RobotConfig.register_subclass("standin")
@dataclasses.dataclass
class StandinConfig(RobotConfig):
    pass


class Standin(Robot):
    config_class = StandinConfig
    name = "standin"
    is_connected = False
    is_calibrated = True

    def __init__(self, config):
        super().__init__(config)
        self.joints = dict.fromkeys(JOINTS, 0.0)
        self.random = np.random.default_rng(1)
        self.moves = 0

    @property
    def observation_features(self):
        return {**dict.fromkeys(JOINTS, float), **CAMERAS}

    @property
    def action_features(self):
        return dict.fromkeys(JOINTS, float)

    def connect(self, calibrate=True):
        self.is_connected = True

    def calibrate(self):
        pass

    def configure(self):
        pass

    def get_observation(self):
        pictures = {name: self.random.integers(0, 256, shape, np.uint8) for name, shape in CAMERAS.items()}
        return {**self.joints, **pictures}

    def send_action(self, action):
        wrong = {name: value for name, value in action.items() if name not in self.joints or not math.isfinite(value)}
        if wrong:
            raise ValueError(f"the action has {wrong}, expected finite numbers of {JOINTS}")
        self.moves += action != self.joints
        self.joints.update(action)
        return action

    def disconnect(self):
        self.is_connected = False
        if not self.moves:
            raise RuntimeError("the rollout moved nothing")
        print(f"the stand-in robot moved {self.moves} times")
