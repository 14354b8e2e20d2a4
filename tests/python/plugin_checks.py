"""The LeRobot plug-in against stubs of lerobot and torch: run by test_lerobot.py in a process of its own, with SCRATCH."""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch

import golden
from lerobot.policies.rtc.configuration_rtc import RTCAttentionSchedule
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot_policy_openpi_c import OpenpiCConfig
from lerobot_policy_openpi_c import OpenpiCPolicy
from lerobot_policy_openpi_c import convert
from lerobot_policy_openpi_c.modeling_openpi_c import LastChunk
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
    names = [f"joint_{i}.pos" for i in range(tensors["actions"].shape[-1])]
    set_config(checkpoint, action_feature_names=names, n_action_steps=4)
    sys.argv = ["openpi-c", "lerobot", str(checkpoint), str(out)]
    convert.main()
    written = json.loads((out / "config.json").read_text())
    assert written["type"] == "openpi_c" and written["checkpoint"] == "weights"
    assert written["action_feature_names"] == names and written["n_action_steps"] == 4
    by_type = OpenpiCPolicy(OpenpiCConfig(checkpoint=str(checkpoint)))
    assert by_type.config.action_feature_names == names and by_type._actions == 4
    assert by_type.engine.metadata["action_names"] == names
    chosen = OpenpiCPolicy(OpenpiCConfig(checkpoint=str(checkpoint), n_action_steps=2, action_feature_names=names[::-1]))
    assert chosen._actions == 2 and chosen.config.action_feature_names == names[::-1]
    set_config(checkpoint, n_action_steps="ten")
    refused(ValueError, "n_action_steps is 'ten'", lambda: convert.convert(checkpoint, scratch / "odd"))
    assert not (scratch / "odd").exists()
    set_config(checkpoint, n_action_steps=4)
    assert (out / "weights" / "model.safetensors").exists()
    assert {file.name for file in out.glob("policy_*.json")} == {"policy_preprocessor.json", "policy_postprocessor.json"}
    steps = {kind: json.loads((out / f"policy_{kind}processor.json").read_text())["steps"] for kind in ("pre", "post")}
    assert {"device_processor", "rename_observations_processor"} <= set(steps["pre"])  # LeRobot's commands change those
    assert steps["post"] == ["device_processor"]

    config = OpenpiCConfig.from_pretrained(out)
    config.dtype, config.steps, config.n_action_steps = "f32", about["steps"], 3
    policy = OpenpiCPolicy.from_pretrained(out, config=config)
    batch = torch_batch(tensors, about["task"], 2)
    noise = np.stack([tensors["in.noise"]] * 2)
    chunk = policy.predict_action_chunk(batch, noise=noise)
    assert chunk.shape == (2, *tensors["actions"].shape) and chunk.dtype == np.float32
    assert np.abs(chunk - tensors["actions"]).max() <= 2e-4 * np.abs(tensors["actions"]).max()
    assert policy.engine._lanes.lanes[0].session.info["batch"] == 2  # one call of the model
    for step in range(3):
        assert (policy.select_action(batch, noise=noise) == chunk[:, step]).all()
    assert not policy._action_queue
    policy.select_action(batch)
    assert len(policy._action_queue) == 2
    policy.reset()
    assert not policy._action_queue
    refused(NotImplementedError, "does not train", lambda: policy.forward(batch))
    refused(NotImplementedError, "does not train", config.get_optimizer_preset)
    refused(ValueError, "no observation", lambda: policy.predict_action_chunk({"task": ["go"]}))
    assert policy.get_optim_params() == {}


def set_config(checkpoint, **values):
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def torch_batch(tensors, task, count=1):
    batch = {"observation.state": torch.from_numpy(np.stack([tensors["in.state"]] * count)), "task": [task] * count}
    for key, value in tensors.items():
        if key.startswith("in.image."):
            scaled = value.astype(np.float32) / np.float32(255) if value.dtype == np.uint8 else value
            batch["observation.images." + key[9:]] = torch.from_numpy(np.stack([scaled.transpose(2, 0, 1)] * count))
    return batch


def real_time_chunking(scratch):
    """LeRobot's goldens: its cases of 7 dimensions, which are the policy's. The robot's units come in and go out."""
    tensors, about = golden.read(LEROBOT / "pi05" / "expected.safetensors")
    wanted, cases = golden.read(LEROBOT / "pi05_rtc" / "expected.safetensors")
    batch, noise = torch_batch(tensors, about["case"]["task"]), tensors["in.noise"][None]
    policies = {}
    for mode, config in (("guided", "pi05/checkpoint"), ("trained", "pi05_rtc/config_trained")):
        openpi_c.write_synthetic(f"tiny:pi05:{about['case']['seed']}", scratch / mode, lerobot=True)
        shutil.copytree(LEROBOT / "pi05" / "checkpoint", scratch / mode, dirs_exist_ok=True)
        shutil.copytree(LEROBOT / config, scratch / mode, dirs_exist_ok=True)
        policies[mode] = OpenpiCPolicy(OpenpiCConfig(checkpoint=str(scratch / mode), dtype="f32", steps=about["case"]["steps"]))
        assert policies[mode].supports_rtc()
        policies[mode].init_rtc_processor()
    request = policies["guided"].engine.request()
    request.prepare(policies["guided"]._observation(batch, 0))
    slope = np.abs(request.finish(np.ones((15, 32))) - request.finish(np.zeros((15, 32))))
    names = [name for name, case in cases["case"].items() if case["dims"] == 7]
    assert len(names) == 8 and len(cases["case"]) == 10
    for name in names:
        case, policy = cases["case"][name], policies[cases["case"][name]["mode"]]
        schedule = RTCAttentionSchedule(case["schedule"])
        policy.config.rtc_config = RTCConfig(True, schedule, case["max_guidance_weight"], case["execution_horizon"])
        executed = 15 - case["rows"]
        last = np.concatenate([np.zeros((executed, 32), np.float32), wanted["in.previous"][: case["rows"]]])
        policy._last = LastChunk(request.finish(last)[None].astype(np.float32), request.keep(last)[None])
        left_over = policy._last.actions[0][executed:]
        cut = np.zeros((case["execution_horizon"], 7), np.float32)  # as lerobot-rollout cuts it or fills it up
        cut[: len(left_over)] = left_over[: len(cut)]
        for given in (left_over, left_over[None], cut):
            last = policy._last
            chunk = policy.predict_action_chunk(
                batch, inference_delay=case["inference_delay"], prev_chunk_left_over=torch.from_numpy(given), noise=noise)
            off = np.abs(chunk[0] - request.finish(wanted[f"{name}.actions_model"]))
            assert (off <= 2e-4 * slope + 1e-6).all(), (name, off.max())
            policy._last, new = last, policy._last
        assert (new.actions == chunk).all()


def chunks_from_call_to_call(scratch):
    """What LeRobot's queue does: two robots, each with the rest of its own chunk; and what it must not do."""
    policy = OpenpiCPolicy(OpenpiCConfig(checkpoint=str(scratch / "guided"), dtype="f32", steps=2))
    tensors, about = golden.read(LEROBOT / "pi05" / "expected.safetensors")
    batch = torch_batch(tensors, about["case"]["task"], 2)
    noise = openpi_c.noise((2, 15, 32), seed=3)
    ordinary = policy.predict_action_chunk(batch, noise=noise)
    assert (policy.predict_action_chunk(batch, noise=noise, prev_chunk_left_over=ordinary[:, 3:]) == ordinary).all()  # off
    policy.config.rtc_config = RTCConfig()
    follow = lambda left, **more: policy.predict_action_chunk(batch, noise=-noise, prev_chunk_left_over=left, **more)
    refused(ValueError, "expected a rest of the chunk", lambda: follow(ordinary[:, 3:]))
    assert (policy.predict_action_chunk(batch, noise=noise, inference_delay=2) == ordinary).all()  # the first chunk
    last = policy._last
    second = follow(ordinary[:, 3:], inference_delay=2)
    for robot in range(2):
        expected = policy.engine.infer(
            policy._observation(batch, robot), noise=-noise[robot], previous=last._kept[robot][3:],
            rtc=openpi_c.Rtc(delay=2, schedule="linear", horizon=10, max_weight=10.0))
        assert (second[robot] == expected["actions"].astype(np.float32)).all()
    free = policy.predict_action_chunk(batch, noise=-noise)
    near = lambda chunk: np.abs(chunk[:, :2] - ordinary[:, 3:5]).max()
    assert near(second) < near(free) / 2  # the first two steps are those of the chunk before
    policy._last = last
    assert (follow(ordinary[:, 15:]) == free).all()  # nothing is left
    policy._last = last
    short = follow(ordinary[:, 11:], inference_delay=2)
    assert (short != free).any()
    policy._last = last
    assert (follow(torch.from_numpy(np.zeros((2, 10, 7), np.float32))) == free).all()  # nothing, filled up with 0
    held = np.concatenate([ordinary[:, 11:], np.repeat(ordinary[:, -1:], 6, 1)], 1)  # filled up with the last action
    for left in (held, np.concatenate([ordinary[:, 11:], 0 * held[:, :6]], 1)):
        policy._last = last
        assert (follow(torch.from_numpy(left), inference_delay=2) == short).all()
    policy._last = last
    refused(ValueError, "no rest of the chunk", lambda: follow(torch.from_numpy(held[:, ::-1].copy())))
    refused(ValueError, "no rest of the chunk", lambda: follow(ordinary[:, 3:] + np.float32(0.5)))
    refused(ValueError, "is of 1 robots", lambda: follow(ordinary[0, 3:]))
    policy.reset()
    refused(ValueError, "expected a rest of the chunk", lambda: follow(ordinary[:, 3:]))


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
    assert policy.config.action_feature_names[-1] == "gripper_position" and policy.config.n_action_steps is None
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
    real_time_chunking(folder)
    chunks_from_call_to_call(folder)
    openpi_robot(folder)
    bad_configs()
