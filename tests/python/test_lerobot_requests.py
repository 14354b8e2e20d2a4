"""A LeRobot policy's observations: both of two names, cameras by position, prompts that are cut."""

import warnings

import numpy as np
import pytest

import openpi_c

RNG = np.random.default_rng(0)
A, B = (RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(2))
CAMERA = "observation.images.left_wrist_0_rgb"


@pytest.fixture(scope="module")
def pi05(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lerobot") / "pi05"
    openpi_c.write_synthetic("tiny:pi05:8", folder, lerobot=True)
    with openpi_c.Policy(folder, dtype="f32", steps=1, progress=None) as policy:
        noise = openpi_c.noise((policy.horizon, 32), seed=1)
        yield policy, noise, policy.infer(observation(), noise=noise)["actions"]


def observation(**more):
    state = np.full(32, 0.1)
    return {"observation.images.base_0_rgb": A, CAMERA: B, "observation.state": state, "task": "pick"} | more


REFUSED = {
    "None": ({CAMERA: None}, rf'"{CAMERA}" is nil \(None\), expected a picture'),
    "an empty dict": ({CAMERA: {}}, f'"{CAMERA}" is an empty dict, expected a picture'),
    "two states": ({"state": np.zeros(32)}, '"state" and "observation.state" of the request are the state, and they differ'),
    "two lengths": ({"state": np.zeros(31)}, "expected 32"),
    "two prompts": ({"prompt": "drop"}, '"prompt" and "task" of the request differ'),
    "a list": ({"task": ["pick"]}, '"task" is a list whose element 0 is no number, expected text'),
    "rank 3": ({"observation.state": np.full((1, 1, 32), 0.1)}, r'"observation.state" is an array f64 \[1,1,32\], expected'),
    "two names": ({"left_wrist": B}, "are of the same camera"),
    "a wrong name of None": ({"observation.images.top": None}, 'no camera "observation.images.top", it has base_0_rgb'),
    "a wrong name of {}": ({"observation.images.top": {}}, 'no camera "observation.images.top", it has base_0_rgb'),
    "a wrong name": ({"observation.images.top": B}, 'no camera "observation.images.top", it has base_0_rgb, left_wrist_0_rgb'),
}


@pytest.mark.parametrize("change,sentence", REFUSED.values(), ids=REFUSED.keys())
def test_refused(pi05, change, sentence):
    policy, noise, actions = pi05
    with pytest.raises(ValueError, match=sentence):
        policy.infer(observation(**change), noise=noise)
    assert (policy.infer(observation(), noise=noise)["actions"] == actions).all()


@pytest.mark.filterwarnings("error")
def test_equal_values_and_other_keys(pi05):
    policy, noise, actions = pi05
    more = {"state": np.full(32, 0.1), "prompt": "pick", "observation.images.depth": A[..., :1].astype("u2"), "action_is_pad": np.zeros((1, 50), bool), "depth": A[..., 0].astype("u2")}
    assert (policy.infer(observation(**more), noise=noise)["actions"] == actions).all()


def test_a_prompt_that_is_cut_is_told(pi05):
    policy, noise, _ = pi05
    with pytest.warns(UserWarning, match="longer than the 200 tokens .* its end was cut, and with it the state"):
        answer = policy.infer(observation(task="pick up the cube " * 200), noise=noise)
    assert answer["prompt_truncated"] is True and "notes" not in answer
    request = policy.request()
    with pytest.warns(UserWarning, match="its end was cut"):
        request.prepare(observation(task="pick up the cube " * 200))
    assert request.prompt_truncated
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "prompt_truncated" not in policy.infer(observation(), noise=noise)
