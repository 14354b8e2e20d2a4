"""Real-time chunking: LeRobot's own results, and what must hold of any call."""

import os
import shutil
import subprocess
import types
import warnings

import numpy as np
import pytest

import golden
from golden import GOLDEN
import openpi_c
from openpi_c import _openpi

LEROBOT = GOLDEN / "lerobot"
CASES = ["linear", "exp", "ones", "zeros", "linear_weight5", "linear_short", "linear_late", "exp_wide", "linear_long", "trained"]


@pytest.fixture(scope="module")
def pi05(tmp_path_factory):
    """(policies by mode, goldens, observation, noise): LeRobot's π0.5, and the same trained for real-time chunking."""
    folder = tmp_path_factory.mktemp("rtc")
    tensors, about = golden.read(LEROBOT / "pi05" / "expected.safetensors")
    obs = {"observation.state": tensors["in.state"], "task": about["case"]["task"]}
    obs |= {"observation.images." + key[9:]: value for key, value in tensors.items() if key.startswith("in.image.")}
    policies = {}
    for mode, config in (("guided", "pi05/checkpoint"), ("trained", "pi05_rtc/config_trained")):
        openpi_c.write_synthetic(f"tiny:pi05:{about['case']['seed']}", folder / mode, lerobot=True)
        shutil.copytree(LEROBOT / "pi05" / "checkpoint", folder / mode, dirs_exist_ok=True)
        shutil.copytree(LEROBOT / config, folder / mode, dirs_exist_ok=True)
        policies[mode] = openpi_c.Policy(
            folder / mode, robot="lerobot", dtype="f32", steps=about["case"]["steps"], rtc=True, batch=2, progress=None)
        policies[mode].engine_folder = folder / mode
    yield policies, golden.read(LEROBOT / "pi05_rtc" / "expected.safetensors"), obs, tensors["in.noise"]
    for policy in policies.values():
        policy.close()


@pytest.mark.parametrize("name", CASES)
def test_goldens(pi05, name):
    policies, (tensors, about), obs, noise = pi05
    case = about["case"][name]
    policy = policies[case["mode"]]
    previous = tensors["in.previous"][: case["rows"], : case["dims"]]
    rtc = {"delay": case["inference_delay"], "schedule": case["schedule"].lower(), "horizon": case["execution_horizon"],
           "max_weight": case["max_guidance_weight"], "mode": case["mode"]}
    request = policy.request()
    request.prepare(obs)
    with policy.engine.session(rtc=True, horizon=policy.horizon, steps=policy.steps) as session:
        model = session.run_rtc([request.sample()], [previous], rtc, noise[None])[0]
        plain = session.run([request.sample()], noise[None])[0]
    truth = tensors[f"{name}.actions_model"]
    assert np.abs(model - truth).max() <= 2e-4 < np.abs(plain - truth).max()
    answer = policy.infer(obs, noise=noise, previous=previous, rtc=openpi_c.Rtc(**rtc))
    assert (answer["actions"] == request.finish(model)).all() and (answer["chunk"] == request.keep(model)).all()
    twice = policy.infer_batch([obs, obs], noise=np.stack([noise, noise]), previous=[None, previous], rtc=[None, rtc])
    assert (twice[1]["actions"] == answer["actions"]).all()
    assert (twice[0]["chunk"] == policy.infer(obs, noise=noise)["chunk"]).all()  # an ordinary neighbour


def test_all_cases_are_run(pi05):
    assert sorted(pi05[1][1]["case"]) == sorted(CASES)


def test_defaults_are_the_checkpoints(pi05):
    policies, (tensors, _), obs, noise = pi05
    previous = tensors["in.previous"][:12, :7]
    for mode, known in (("guided", {"schedule": "linear", "horizon": 10, "max_weight": 10.0}), ("trained", {})):
        named = policies[mode].infer(obs, noise=noise, previous=previous, rtc={"delay": 3, "mode": mode} | known)
        left_open = policies[mode].infer(obs, noise=noise, previous=previous, rtc={"delay": 3})
        assert (named["actions"] == left_open["actions"]).all()
    assert policies["trained"].engine.info["rtc_max_delay"] == 5 and policies["guided"].engine.info["rtc_mode"] == "off"


def test_guided_though_trained_is_told(pi05, tmp_path):
    """A checkpoint that was trained for delays and runs guided, as LeRobot's default makes it, says so."""
    policies, (tensors, _), obs, noise = pi05
    previous, told = tensors["in.previous"][:12, :7], "trained for real-time chunking with delays up to 5 steps and runs guided"
    for policy, mode, warns in (("trained", "guided", True), ("trained", "trained", False), ("trained", None, False),
                                ("guided", "guided", False)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            policies[policy].infer(obs, noise=noise, previous=previous, rtc={"delay": 3, "mode": mode})
        assert any(told in str(one.message) for one in said) == warns, (policy, mode)
    command = os.environ.get("OPENPI_COMMAND")
    if not command:
        return
    np.save(tmp_path / "previous.npy", np.ascontiguousarray(previous, np.float32))
    picture = GOLDEN.parent / "pictures" / "rgb.png"
    for policy, mode, warns in (("trained", "guided", True), ("trained", "trained", False), ("guided", "guided", False)):
        folder = policies[policy].engine_folder
        line = [command, "run", folder, "--image", f"front={picture}", "--state", "0,0,0,0,0,0,0,0", "--prompt", "go",
                "--steps", "1", "--previous", tmp_path / "previous.npy", "--rtc", mode, "--delay", "2"]
        ran = subprocess.run(line, capture_output=True, text=True, check=True)
        assert (f"warning: the checkpoint was {told}" in ran.stderr) == warns, ran.stderr


@pytest.mark.parametrize("name", ["pi05_relative", "pi0_relative", "pi05_relative_unnamed"])
def test_leftovers_are_lerobots(name):
    """Absolute actions that are left over, relative to a new state: reanchor_relative_rtc_prefix, bit for bit
    but for the dimension without a span."""
    tensors, _ = golden.read(LEROBOT / name / "expected.safetensors")
    tokenizer = LEROBOT / "pi05" / "checkpoint" / "tokenizer" / "tokenizer.json"
    transform = _openpi.Transform(LEROBOT / name / "checkpoint", tokenizer=tokenizer)
    request = openpi_c.Request(types.SimpleNamespace(_transform=transform, info=transform.info()))
    obs = {"observation.state": tensors["in.state"][0], "task": "go"}
    obs[transform.info()["cameras"][0]] = np.zeros((3, 1, 1), np.float32)
    request.prepare(obs)
    kept = np.zeros((5, 32))
    kept[:, : tensors["leftover_normalized"].shape[1]] = tensors["in.actions_absolute"][0]
    for executed in range(5):
        previous, lerobots = request.previous(kept, executed), tensors["leftover_normalized"][executed:]
        idle = (previous == previous[0]).all(0) & np.isin(previous[0], [0, -1])  # no span: LeRobot divides by 1e-8
        assert idle.sum() <= 1 and (previous == lerobots)[:, ~idle].all()
    with pytest.raises(ValueError, match="5 steps are executed, expected 0 to 4"):
        request.previous(kept, 5)


def test_a_kept_chunk_is_followed(aloha_rtc):
    """Relative actions: what is kept counts from the new observation's state, however the robot moved."""
    policy, obs = aloha_rtc
    first = policy.infer(obs)
    moved = obs | {"state": np.asarray(obs["state"]) + 0.1}
    request = policy.request()
    request.prepare(moved)
    noise = openpi_c.noise((policy.horizon, 32), seed=3)
    left = first["chunk"][4:]
    rtc = {"delay": 2, "schedule": "exp", "horizon": 5}
    by_policy = policy.infer(moved, noise=noise, previous=left, rtc=rtc)
    with policy.engine.session(horizon=policy.horizon, steps=policy.steps, rtc=True) as session:
        by_hand = session.run_rtc([request.sample()], [request.previous(first["chunk"], 4)], rtc, noise[None])[0]
    assert (by_policy["actions"] == request.finish(by_hand)).all()
    assert not (by_policy["actions"] == policy.infer(moved, noise=noise)["actions"]).all()


@pytest.fixture
def aloha_rtc():
    arguments, data, _ = golden.policy_case("aloha_sim")
    with openpi_c.Policy(rtc=True, **arguments) as policy:
        yield policy, golden.message(data)


ROWS = np.zeros((2, 7), np.float32)
BAD = [
    (ROWS, {"delay": 20}, ValueError, "delay is 20"),
    (ROWS, {"mode": "vjp"}, NotImplementedError, "Jacobian|backward"),
    (ROWS, {"mode": "trained", "delay": 1}, NotImplementedError, "trained"),
    (ROWS, {"mode": "off"}, ValueError, 'mode is "off", expected "guided", "trained" or "vjp"'),
    (ROWS, {"schedule": "cosine"}, ValueError, 'schedule is "cosine"'),
    (ROWS, {"horizon": 99}, ValueError, "99"),
    (ROWS, {"max_weight": -1.0}, ValueError, "-1"),
    (ROWS, {"inference_delay": 3}, ValueError, "rtc has inference_delay, expected some of delay, mode"),
    (ROWS, {"max_weight": 0}, ValueError, "rtc max_weight is 0, expected a number above 0, or None"),
    (ROWS, {"max_weight": 0.0}, ValueError, "rtc max_weight is 0.0, expected a number above 0"),
    (ROWS, {"max_weight": np.inf}, ValueError, "rtc max_weight is inf"),
    (ROWS, {"max_weight": np.nan}, ValueError, "rtc max_weight is nan"),
    (ROWS, {"max_weight": "5"}, ValueError, "rtc max_weight is '5'"),
    (ROWS, {"horizon": 0}, ValueError, "rtc horizon is 0, expected 1 or more, or None"),
    (ROWS, {"delay": "3"}, TypeError, r"rtc delay is '3', expected a whole number \(int\)"),
    (ROWS, {"delay": True}, TypeError, r"rtc delay is True, expected a whole number \(int\)"),
    (ROWS, {"max_weight": True}, ValueError, "rtc max_weight is True"),
    (ROWS, {"delay": 2.5}, TypeError, r"rtc delay is 2.5, expected a whole number \(int\)"),
    (ROWS, {"delay": -1}, ValueError, "rtc delay is -1, expected 0 or more"),
    (ROWS, {"horizon": 2.5}, TypeError, "rtc horizon is 2.5"),
    (np.full((2, 7), np.nan, np.float32), {}, ValueError, "nan"),
    (np.full((2, 32), 1e300), {}, ValueError, "is inf, expected a finite number"),
    (np.full((20, 7), 50.0), {}, ValueError, r'is float64 \[20, 7\], expected rows of what an answer has as "chunk"'),
    (np.zeros((1, 2, 32), np.float32), {}, ValueError, r"is float32 \[1, 2, 32\]"),
    (np.zeros(7), {}, ValueError, r"is float64 \[7\]"),
    (np.zeros((0, 32)), {}, ValueError, "0 steps of 32 numbers"),
    (np.zeros((2, 33), np.float32), {}, ValueError, r"is float32 \[2, 33\]"),
    (np.zeros((65, 32)), {}, ValueError, "65 steps"),
    (np.zeros((2, 32), np.float16), {}, ValueError, r"is float16 \[2, 32\]"),
    (np.zeros((2, 32), int), {}, ValueError, r"is int64 \[2, 32\]"),
    ("text", {}, ValueError, r"the previous chunk is <U4 \[\]"),
    ([[None]], {}, ValueError, r"is object \[1, 1\]"),
    (np.zeros((2, 7), complex), {}, ValueError, r"is complex128 \[2, 7\]"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("previous,rtc,kind,sentence", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_calls(pi05, previous, rtc, kind, sentence):
    policies, _, obs, noise = pi05
    with pytest.raises(kind, match=sentence):
        policies["guided"].infer(obs, noise=noise, previous=previous, rtc=rtc)


@pytest.mark.filterwarnings("error")
def test_a_weight_is_cut_to_the_steps():
    """A weight above the number of steps would throw the arm: it is cut, and that is told."""
    obs = {"base": np.zeros((224, 224, 3), np.uint8), "state": [0.0], "prompt": "go"}
    noise = openpi_c.noise((4, 32), seed=1)
    with openpi_c.Policy(synthetic="tiny", robot="none", rtc=True, dtype="f32", horizon=4, steps=1, progress=None) as policy:
        left = policy.infer(obs)["chunk"][1:]
        with pytest.warns(UserWarning, match="rtc max_weight 10 is cut to 1, the number of denoising steps"):
            first = policy.infer(obs, noise=noise, previous=left, rtc={"delay": 2})["chunk"]
        with pytest.warns(UserWarning, match="rtc max_weight 1e[+]30 is cut to 1"):
            assert (policy.infer(obs, noise=noise, previous=left, rtc={"delay": 2, "max_weight": 1e30})["chunk"] == first).all()
        assert np.abs(first[:2] - left[:2]).max() < 1e-5
        assert (policy.infer(obs, noise=noise, previous=left, rtc={"delay": 2, "max_weight": 1})["chunk"] == first).all()


def test_a_policy_without(none):
    policy, obs = none
    assert "chunk" not in policy.infer(obs)
    with pytest.raises(ValueError, match="rtc"):
        policy.infer(obs, previous=np.zeros((2, 32)), rtc={"delay": 1})
    with pytest.raises(ValueError, match="1 previous chunks and 1 rtc for 2 samples"):
        policy.infer_batch([obs, obs], previous=[np.zeros((2, 32))], rtc=[None])
    policy.reserve(rtc=True)
    first = policy.infer(obs)["chunk"]
    assert first.shape == (4, 32) and first.dtype == np.float64
    assert policy.infer(obs, previous=first[1:], rtc={"delay": 1})["actions"].shape == (4, 32)
    sample = openpi_c.Sample([np.zeros((224, 224, 3), np.uint8), None, None], [2], np.zeros(32))
    with policy.engine.session(horizon=4, steps=1) as session, pytest.raises(ValueError, match="rtc"):
        session.run_rtc([sample], [np.zeros((2, 32), np.float32)])
    with policy.engine.session(horizon=4, steps=1, rtc=True) as session:
        with pytest.raises(ValueError, match="the previous chunk is of dtype float64, expected float32 in model space"):
            session.run_rtc([sample], [np.zeros((2, 32))])
        with pytest.raises(ValueError, match="expected float32 in model space"):
            session._handle.run_into((sample.parts(),), None, np.empty((1, 4, 32), np.float32),
                                     ((np.zeros((2, 32)), "guided", 0, None, 0, 0.0),))
