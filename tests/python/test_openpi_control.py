"""examples/openpi_control.py over stand-ins with the names of openpi-control's package: arms follow the actions to the number,
an effector stays within 0 and 1, a state that is not fresh holds the arms, and they hold at the end. No ZeroMQ, no arm."""
import importlib.util
import pathlib
import types

import numpy as np
import pytest

import openpi_c

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "openpi_control.py"
DOF, ROWS = 6, 20
ROBOT = (
    '{"name": "yams", "cameras": {"front": "base"}, "state": {"state": 13}, "actions": 13, "rate_hz": 500, "kinds": ['
    + ", ".join(['"position"'] * 13)
    + "]}"
)


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("openpi_control_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Arm:
    """Is at once where it is told to be; from `stale_after` commands on its state is old."""

    def __init__(self, effector, stale_after=10**9):
        self.capabilities = types.SimpleNamespace(dof=DOF, has_effector=effector)
        self.commands, self.held, self.stale_after = [], 0, stale_after

    @property
    def latest_state(self):
        joints, gripper = self.commands[-1] if self.commands else (np.zeros(DOF), 0.5)
        return types.SimpleNamespace(
            joints=types.SimpleNamespace(position_rad=joints),
            effector=types.SimpleNamespace(position=gripper),
            is_fresh=lambda seconds: seconds > 0 and len(self.commands) < self.stale_after,
        )

    def command(self, command):
        self.commands.append(command)

    def hold(self):
        self.held += 1


class Counting:
    """Each action is 0.1 more than the state of the picture, the first one being 0.1 more than that."""

    def infer(self, obs):
        assert obs["state"].shape == (2 * DOF + 1,) and obs["prompt"] == "fold"
        return {"actions": obs["state"] + 0.1 * np.arange(1, ROWS + 1)[:, None]}


def look():
    look.shade = getattr(look, "shade", 0) + 1
    return {"front": np.full((8, 8, 3), 60 + look.shade % 100, np.uint8)}


def moved(example, arms, steps, **options):
    with openpi_c.Runner(Counting(), robot=ROBOT, deadline_ms=1e6, **options) as runner:
        command = lambda joints, effector: (np.array(joints), effector)  # noqa: E731
        end = example.move(runner, arms, command, 500, steps, "fold", "state", look)
        return end, runner.info


def test_arms_follow(example):
    arms = [Arm(True), Arm(False)]
    end, info = moved(example, arms, 30, max_age_ms=1e6)
    assert end == "done" and info["steps"] == 30 and info["failed"] == 0
    assert [arm.held for arm in arms] == [1, 1]
    for arm in arms:
        assert all(command[0].shape == (DOF,) for command in arm.commands)
    left, right = (np.array([command[0] for command in arm.commands]) for arm in arms)
    assert np.array_equal(left, right) and left[-1, 0] > left[0, 0] > 0
    assert all(0 <= command[1] <= 1 for command in arms[0].commands) and arms[0].commands[-1][1] == 1
    assert all(command[1] is None for command in arms[1].commands)


def test_a_state_that_is_not_fresh(example):
    arms = [Arm(True), Arm(False, stale_after=10)]
    end, info = moved(example, arms, 1000, max_age_ms=20, ending="stop")
    assert end in ("the newest observation is too old", "the next chunk is late") and info["steps"] < 1000
    assert [arm.held for arm in arms] == [1, 1]
    assert all(np.array_equal(arm.commands[-1][0], arm.commands[-2][0]) for arm in arms)  # held where it was
