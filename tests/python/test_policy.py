"""What a Policy offers beside the numbers: batches, noise, prompts, its parts, openpi's function."""

import json
import re
import types

import numpy as np
import pytest

import golden
import openpi_c


def test_timing(droid):
    policy, obs, _, actions = droid
    answer = policy.infer(obs)
    timing = answer["policy_timing"]
    assert answer["actions"].shape == actions.shape == (policy.horizon, 8)
    assert answer["actions"].flags.c_contiguous and answer["actions"].flags.writeable
    assert list(timing["stages"]) == [
        "picture", "prompt", "upload", "vision", "prefix", "denoise", "download", "actions"]
    assert 0 < timing["device_ms"] <= timing["infer_ms"] < timing["total_ms"]


def test_batches_are_single_calls(droid):
    policy, obs, noise, actions = droid
    other = {**obs, "prompt": "another one"}
    rng = np.random.default_rng(1)
    noises = rng.standard_normal((5, *noise.shape)).astype(np.float32)
    noises[0] = noise
    batch = [obs, other, obs, other, {**obs, "observation/gripper_position": np.array([0.5])}]
    answers = policy.infer_batch(batch, noise=noises)
    assert len(answers) == 5 and (answers[0]["actions"] == actions).all()
    for one, given, answer in zip(batch, noises, answers, strict=True):
        assert (policy.infer(one, noise=given)["actions"] == answer["actions"]).all()
    assert not (answers[1]["actions"] == answers[0]["actions"]).all()
    assert policy.infer_batch([]) == []


def test_reserve(none):
    policy, obs = none
    noise = openpi_c.noise((3, 4, 32))
    one_by_one = policy.infer_batch([obs] * 3, noise=noise)
    policy.reserve(3)
    policy.reserve(2)
    together = policy.infer_batch([obs] * 3, noise=noise)
    assert policy._lanes.lanes[0].session.info["batch"] == 3
    for a, b in zip(one_by_one, together, strict=True):
        assert (a["actions"] == b["actions"]).all()
    assert together[0]["policy_timing"] is together[2]["policy_timing"]  # one call of the model
    with pytest.raises(ValueError, match="batch is 65"):
        policy.reserve(65)
    policy.close()
    with pytest.raises(ValueError, match="closed"):
        policy.reserve(8)


def test_drawn_noise_follows_the_calls(none):
    policy, obs = none
    first, second = policy.infer(obs), policy.infer(obs)
    for call, answer in enumerate((first, second)):
        noise = openpi_c.noise((4, 32), stream=64 * call)
        assert (policy.infer(obs, noise=noise)["actions"] == answer["actions"]).all()
    assert policy.reset() is None


def test_samples_are_single_calls(droid):
    policy, obs, noise, _ = droid
    noises = np.random.default_rng(2).standard_normal((3, *noise.shape)).astype(np.float32)
    answer = policy.infer(obs, samples=3, noise=noises)
    alone = [policy.infer(obs, noise=one)["actions"] for one in noises]
    assert answer["actions"].dtype == np.float64 and (answer["actions"] == np.stack(alone)).all()
    assert 0 < answer["policy_timing"]["device_ms"] <= answer["policy_timing"]["infer_ms"]
    assert (policy.infer(obs, samples=1, noise=noises[:1])["actions"][0] == alone[0]).all()
    with pytest.raises(ValueError, match="samples is 0, expected 1 to 64"):
        policy.infer(obs, samples=0)
    with pytest.raises(ValueError, match=r"the noise has shape \[3, .*, expected \[2, "):
        policy.infer(obs, samples=2, noise=noises)
    with pytest.raises(ValueError, match="samples and previous do not go together"):
        policy.infer(obs, samples=2, previous=np.zeros((3, 32), np.float32))


@pytest.mark.parametrize("batch", [1, 2])
def test_samples_of_a_batch_are_single_calls(none, batch):
    policy, obs = none
    policy.reserve(batch)
    several = [obs, {**obs, "prompt": "another one"}, {**obs, "state": [0.5]}]
    noises = np.random.default_rng(3).standard_normal((3, 2, 4, 32)).astype(np.float32)
    answers = policy.infer_batch(several, samples=2, noise=noises)
    for one, given, answer in zip(several, noises, answers, strict=True):
        alone = [policy.infer(one, noise=noise)["actions"] for noise in given]
        assert (answer["actions"] == np.stack(alone)).all()
        assert (policy.infer(one, samples=2, noise=given)["actions"] == answer["actions"]).all()
    assert not (answers[0]["actions"] == answers[1]["actions"]).all()
    drawn = policy.infer_batch([obs, obs], samples=2)
    assert len({answer["actions"].tobytes() for answer in drawn}) == 2 and drawn[1]["actions"].shape[0] == 2
    assert policy.infer_batch([], samples=2) == []
    with pytest.raises(ValueError, match="^observation 1: the state is missing"):
        policy.infer_batch([obs, {k: v for k, v in obs.items() if k != "state"}, obs], samples=2)
    with pytest.raises(ValueError, match=r"the noise has shape \[3, 2, .*, expected \[2, 2, 4, 32\]"):
        policy.infer_batch(several[:2], samples=2, noise=noises)
    with pytest.raises(ValueError, match="samples is 65, expected 1 to 64"):
        policy.infer_batch(several, samples=65)
    with pytest.raises(ValueError, match="samples and previous do not go together"):
        policy.infer_batch([obs], samples=2, previous=[None])


def test_samples_draw_noise_as_a_batch_does(none):
    policy, obs = none
    answer = policy.infer(obs, samples=2)
    given = np.stack([openpi_c.noise((4, 32), stream=i) for i in range(2)])
    assert (policy.infer(obs, samples=2, noise=given)["actions"] == answer["actions"]).all()
    assert not (answer["actions"][0] == answer["actions"][1]).all()
    policy.close()
    with pytest.raises(ValueError, match="closed"):
        policy.infer(obs, samples=2)


def test_parts_of_a_call(none):
    policy, obs = none
    request = policy.request()
    request.prepare(obs)
    sample, noise = request.sample(), openpi_c.noise((2, 3, 4, 32))
    with policy.engine.session(batch=6, horizon=4, parts=True) as session:
        whole = session.run_many([sample, sample], 3, noise)
        assert whole.shape == (2, 3, 4, 32)
        assert (whole.reshape(6, 4, 32) == session.run([sample] * 6, noise.reshape(6, 4, 32))).all()
        session.prefix([sample, sample], 3)
        steps = session.info["steps"]
        x = session.denoise(noise.reshape(6, 4, 32), 0, 1)
        assert (session.denoise(x, 1).reshape(whole.shape) == whole).all() and session.info["prefixes_kept"] == 0
        session.prefix([sample, sample], 3)
        assert session.info["prefixes_kept"] == 1
        with pytest.raises(ValueError, match="x has 2 chunks, expected 6"):
            session.denoise(noise[0, :2])
        with pytest.raises(ValueError, match=f"within 0 to {steps}"):
            session.denoise(noise.reshape(6, 4, 32), 0, steps + 1)
        with pytest.raises(ValueError, match="bytes, expected float32"):
            session.denoise(np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match="the noise has shape"):
            session.run_many([sample], 2, noise)
    with policy.engine.session(batch=2) as session, pytest.raises(ValueError, match="without the option parts"):
        session.prefix([sample])


def test_times_of_actions(none):
    policy, obs = none
    request = policy.request()
    request.prepare(obs)
    sample, noise = request.sample(), openpi_c.noise((2, 4, 32))
    with policy.engine.session(horizon=4, batch=2, parts=True, times=2) as session:
        session.prefix([sample], 2)
        by = np.float32(-1 / session.info["steps"])
        assert (session.step(noise, np.ones((2, 4)), np.full((2, 4), by)) == session.denoise(noise, 0, 1)).all()
        moved = session.step(noise, [1, 1, 0, 0], [by, by, 0, 0])
        assert ((moved == noise).all(axis=2) == [False, False, True, True]).all()
        with pytest.raises(ValueError, match="more than 2 different times"):
            session.step(noise, [1, 0.5, 0, 0], np.zeros(4))
        with pytest.raises(ValueError, match=r"times\[1\] is 2, expected 0 to 1"):
            session.step(noise, [1, 2, 1, 1], np.zeros(4))
        with pytest.raises(ValueError, match="broadcast"):
            session.step(noise, np.zeros(5), np.zeros(4))


def test_default_prompt():
    arguments, data, tensors = golden.policy_case("libero_pi0")
    obs = golden.message(data)
    given = policy_actions(arguments, obs, tensors)
    prompt = obs.pop("prompt")
    assert (policy_actions(arguments | {"default_prompt": prompt}, obs, tensors) == given).all()
    with pytest.raises(ValueError, match="a prompt is required"):
        policy_actions(arguments, obs, tensors)


def policy_actions(arguments, obs, tensors):
    with openpi_c.Policy(**arguments) as policy:
        return policy.infer(obs, noise=tensors["noise"])["actions"]


def test_norm_stats_as_openpi_has_them():
    arguments, data, tensors = golden.policy_case("droid_pi0")
    stats = json.loads(arguments["norm_stats"].read_text())["norm_stats"]
    as_objects = {key: types.SimpleNamespace(**{k: v and np.array(v) for k, v in value.items()}) for key, value in stats.items()}
    obs = golden.message(data)
    expected = policy_actions(arguments, obs, tensors)
    for given in (stats, as_objects):
        assert (policy_actions(arguments | {"norm_stats": given}, obs, tensors) == expected).all()
    with openpi_c.Policy(**arguments | {"norm_stats": stats}) as policy:
        assert policy.info["statistics"] == "norm_stats"                    # and no file that is gone


def test_statistics_are_chosen(tmp_path):
    openpi_c.write_synthetic("tiny:pi0:7", tmp_path / "ckpt")
    given = (golden.GOLDEN / "policy/droid_pi0/norm_stats.json").read_text()
    for name in ("droid", "mine"):
        (tmp_path / "ckpt/assets" / name).mkdir()
        (tmp_path / "ckpt/assets" / name / "norm_stats.json").write_text(given)
    arguments = {"robot": "droid", "tokenizer": golden.GOLDEN / "tokenizer.model"}
    for assets in (None, "mine"):
        file = str(tmp_path / "ckpt/assets" / (assets or "droid") / "norm_stats.json")
        with openpi_c.Policy(tmp_path / "ckpt", assets=assets, progress=None, **arguments) as policy:
            assert policy.info["statistics"] == file
        found = openpi_c.inspect(tmp_path / "ckpt", assets=assets, **arguments)
        assert found["assets"] == ["droid", "mine", "synthetic"] and found["policy"]["statistics"] == file
    with pytest.raises(FileNotFoundError, match='assets is "ur5", but .* holds droid, mine, synthetic: give assets'):
        openpi_c.Policy(tmp_path / "ckpt", assets="ur5", progress=None, **arguments)


def test_create_trained_policy(tmp_path):
    openpi_c.write_synthetic("tiny:pi0:7", tmp_path / "ckpt")
    stats = json.loads((golden.GOLDEN / "policy/droid_pi0/norm_stats.json").read_text())["norm_stats"]
    config = types.SimpleNamespace(name="pi0_droid")
    for train_config in ("pi0_droid", config):
        with openpi_c.create_trained_policy(
            train_config,
            tmp_path / "ckpt",
            norm_stats=stats,
            default_prompt="go",
            sample_kwargs={"num_steps": 3},
            progress=None,
            tokenizer=golden.GOLDEN / "tokenizer.model",
        ) as policy:
            assert policy.steps == 3 and policy.info["robot"] == "droid"
    refused = {
        "repack_transforms": object(),
        "pytorch_device": "cuda",
        "sample_kwargs": {"num_steps": 3, "temperature": 2},
    }
    for name, value in refused.items():
        with pytest.raises(NotImplementedError, match=name):
            openpi_c.create_trained_policy("pi0_droid", tmp_path / "ckpt", **{name: value})
    with pytest.raises(TypeError, match="jit"):
        openpi_c.create_trained_policy("pi0_droid", tmp_path / "ckpt", jit=True)


def test_metadata_and_parts(droid):
    policy, *_ = droid
    assert policy.metadata["robot"] == "golden" or policy.metadata["action_dim"] == 8
    assert policy.metadata["action_horizon"] == policy.horizon
    assert policy.engine.info["variant"] == "pi0" and policy.engine.info["device"] == "cpu"
    json.dumps(policy.metadata)


def test_base_policy_of_openpi(droid):
    base = pytest.importorskip("openpi_client.base_policy")
    assert isinstance(droid[0], base.BasePolicy)


def test_devices_and_inspect(tmp_path):
    devices = openpi_c.devices()
    assert devices[0]["name"] == "cpu" and devices[0]["usable"] and devices[0]["memory_bytes"] > 0
    assert "fused-qkv" in openpi_c.switches()
    openpi_c.write_synthetic("tiny:pi05:8", tmp_path / "ckpt")
    found = openpi_c.inspect(tmp_path / "ckpt", robot="none")
    assert found["variant"] == "pi05" and found["dims"]


def test_weights_by_group():
    """A list reaches the engine; that 8 bits change the actions stands in notes and metadata."""
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", weights="expert=int8,ffn=int8x8") as policy:
        info = policy.engine.info
        told = [text for _, text in policy.notes if "products of 8 bits change the actions" in text]
        assert info["formats"] == "bf16,ffn=int8x8,expert=int8" and info["formats"] in told[0]
        assert told[0] in policy.metadata["notes"]
    with openpi_c.Engine(synthetic="odd:pi0:7", weights="ffn=f32") as plain:
        assert plain.info["formats"] == "bf16,ffn=f32" and plain.info["weight_bytes"] > info["weight_bytes"]
        assert not any("8 bits" in text for _, text in plain.notes)


def test_state_keys(droid, aloha):
    assert droid[0].info["state"] == (("observation/joint_position", 7), ("observation/gripper_position", 1))
    assert aloha[0].info["state"] == (("state", 14),)
    assert droid[0].info["action_states"] == (None,) * 7 + (7,) and aloha[0].info["action_states"] == tuple(range(14))


def test_noise_is_openpi_h():
    noise = openpi_c.noise(5, seed=7, stream=9)
    assert noise.dtype == np.float32 and (openpi_c.noise((2, 3), seed=7, stream=9).ravel()[:5] == noise).all()
    assert not (openpi_c.noise(5, seed=8, stream=9) == noise).any()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_are_refused(seed):
    """They would be another seed's numbers."""
    sentence = re.escape(f"seed is {seed}, expected 0 to 2**64 - 1")
    with pytest.raises(ValueError, match=sentence):
        openpi_c.noise(5, seed=seed)
    with pytest.raises(ValueError, match=sentence):
        openpi_c.Policy(synthetic="odd", robot="none", seed=seed)
    with openpi_c.Engine(synthetic="odd") as engine, pytest.raises(ValueError, match=sentence):
        engine.session(seed=seed)
    with pytest.raises(TypeError):
        openpi_c.Policy(synthetic="odd", robot="none", seed=1.5)


def write_adapter(folder, rng):
    """A PEFT adapter of the tiny model: rank 2 on the action head."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["action_out_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        "base_model.model.model.action_out_proj.lora_A.weight": rng.standard_normal((2, 64)).astype(np.float32),
        "base_model.model.model.action_out_proj.lora_B.weight": rng.standard_normal((32, 2)).astype(np.float32),
    }
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_adapters(tmp_path):
    """The engine's adapters and the switch that leaves them out, through each way to open a policy."""
    openpi_c.write_synthetic("tiny:pi0:7", tmp_path / "ckpt")
    write_adapter(tmp_path / "lora", np.random.default_rng(1))
    picture = np.zeros((224, 224, 3), np.uint8)
    obs = {"observation/image": picture, "observation/wrist_image": picture, "observation/state": np.zeros(8)}
    stats = json.loads((golden.GOLDEN / "policy/libero_pi0/norm_stats.json").read_text())["norm_stats"]
    given = {"norm_stats": stats, "tokenizer": golden.GOLDEN / "tokenizer.model", "default_prompt": "go", "progress": None}

    def actions(**options):
        opened = openpi_c.create_trained_policy("pi0_libero", tmp_path / "ckpt", sample_kwargs={"num_steps": 1}, **given, **options)
        with opened as policy:
            return policy.infer(obs)["actions"]

    base, adapted = actions(), actions(adapter=tmp_path / "lora")
    assert not (base == adapted).all()
    assert (actions(adapter=tmp_path / "lora", without_lora=True) == base).all()
    with pytest.raises(FileNotFoundError, match="nothing"):
        actions(adapter=tmp_path / "nothing")
    found = openpi_c.inspect(tmp_path / "ckpt", robot="none", adapter=tmp_path / "lora")
    assert found["adapter"]["modules"][0]["rank"] == 2
    sample = openpi_c.Sample([picture, None, None], [2], np.zeros(32))
    chunks = []
    for without in (False, True):
        with openpi_c.Engine(tmp_path / "ckpt", adapter=tmp_path / "lora", without_lora=without, progress=None) as engine:
            with engine.session(steps=1, horizon=2) as session:
                chunks.append(session.run([sample]))
    assert not (chunks[0] == chunks[1]).all()


def test_reset_pose():
    """The config's, as the first message of a server has it."""
    with openpi_c.Policy(synthetic="tiny:pi0:7", config="pi0_aloha_towel", progress=None) as policy:
        assert policy.metadata["reset_pose"] == [0, -1.5, 1.5, 0, 0, 0]
        json.dumps(policy.metadata)
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", progress=None) as policy:
        assert "reset_pose" not in policy.metadata


def test_limits(tmp_path):
    """Limits of a robot's file: what leaves is within them, and the answer says what was changed."""
    arm = {"like": "none", "name": "arm", "actions": 2, "limits": {"max_step": [1e-3, None], "max": [None, 0.25]}}
    obs = {"base": np.full((20, 30, 3), 7, np.uint8), "state": [0.1, -0.2], "prompt": "go"}
    settings = {"synthetic": "odd:pi0:7", "steps": 2, "horizon": 4}

    def policy(**limits):
        (tmp_path / "arm.json").write_text(json.dumps(arm | {"limits": limits}))
        return openpi_c.Policy(robot=str(tmp_path / "arm.json"), **settings)

    with policy() as free:
        free_actions = free.infer(obs, noise=np.ones((4, 32), np.float32))
        assert "limited" not in free_actions
        assert free.info["limits"] == 0
    with policy(max_step=[1e-3, None], max=[None, 0.25]) as arms:
        assert arms.info["limits"] == 2 and arms.info["on_violation"] == "clamp"
        answer = arms.infer(obs, noise=np.ones((4, 32), np.float32))
        actions, limited = answer["actions"], answer["limited"]
        assert np.all(np.abs(np.diff(actions[:, 0])) <= 1e-3) and np.all(actions[:, 1] <= 0.25)
        assert limited["changed"] == np.sum(actions != free_actions["actions"]) > 0
        assert limited["beyond_step"] > 0 and limited["held"] == 0
        last = np.array([actions[0, 0] + 1, 0])
        told = arms.infer(obs | {"openpi/last_action": last}, noise=np.ones((4, 32), np.float32))["actions"]
        assert abs(told[0, 0] - last[0]) <= 1e-3
        request = arms.request()
        request.prepare(obs)
        request.finish(np.ones((4, 32), np.float32))
        assert request.limited["above_max"] == 4 and request.limited["changed"] == 4
    with policy(max_step=[1e-9, None], on_violation="stop") as stopped:
        with pytest.raises(openpi_c.Error, match="is sent nothing: action 0 of step 1") as raised:
            stopped.infer(obs)
        assert raised.value.status == "beyond a limit"
