"""Bad input: an exception with a sentence, and the policy works on afterwards."""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import openpi_c
from openpi_c import _openpi

PICTURE = "observation/exterior_image_1_left"
WRIST = "observation/wrist_image_left"
JOINTS = "observation/joint_position"


class Raising:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array today")


class Unsized(list):
    def __len__(self):
        return 5


def cyclic():
    inner = {}
    inner["again"] = inner
    return inner


nan = float("nan")
ONE_NUMBER = {key: {"mean": [0], "std": [1]} for key in ("state", "actions")}
# What is changed in a good observation, the exception, a part of its sentence.
BAD = [
    ({PICTURE: np.zeros((8, 8, 3), np.int64)}, ValueError, f'"{PICTURE}" is an array of format "l"'),
    ({PICTURE: np.zeros((8, 8, 3), np.complex64)}, ValueError, f'"{PICTURE}" is an array of format "Zf"'),
    ({PICTURE: np.zeros((8, 8, 3), ">f8")}, ValueError, "big-endian"),
    ({PICTURE: np.zeros((8, 8, 3), "M8[s]")}, ValueError, f'"{PICTURE}" is no array'),
    ({PICTURE: np.zeros((8, 8, 3), object)}, ValueError, 'of format "O"'),
    ({PICTURE: np.zeros((8, 8, 3), [("a", "u1")])}, ValueError, f'"{PICTURE}" is an array'),
    ({PICTURE: np.zeros((8, 8), np.uint8)}, ValueError, f'"{PICTURE}" is an array u8 [8,8], expected a picture'),
    ({PICTURE: np.zeros((8, 8, 4), np.uint8)}, ValueError, "expected a picture"),
    ({PICTURE: np.zeros((0, 8, 3), np.uint8)}, ValueError, "picture"),
    ({PICTURE: np.zeros((1,) * 9, np.uint8)}, ValueError, 'of format "B" with 9 dimensions, expected a picture'),
    ({PICTURE: np.full((8, 8, 3), nan, np.float32)}, ValueError, "nan"),
    ({PICTURE: np.full((8, 8, 3), 200.0)}, ValueError, "200"),
    ({PICTURE: "a text"}, ValueError, f'"{PICTURE}" is text'),
    ({PICTURE: b"JPEG"}, ValueError, f'"{PICTURE}" is text, expected a picture'),
    ({PICTURE: b"\xff\xd8\xff\xe0"}, ValueError, f'"{PICTURE}" is 4 bytes that are a JPEG file, expected a picture'),
    ({PICTURE: bytearray(8 * 8 * 3)}, ValueError, f'"{PICTURE}" is text, expected a picture'),
    ({PICTURE: [[[1, 2, 3]]]}, ValueError, f'"{PICTURE}" is a list whose element 0 is no number, expected a picture'),
    ({PICTURE: None}, ValueError, f'"{PICTURE}" is nil (None), expected a picture'),
    ({WRIST: None}, ValueError, f'"{WRIST}" is nil (None), expected a picture'),
    ({PICTURE: {}}, ValueError, f'"{PICTURE}" is an empty dict, expected a picture'),
    ({PICTURE: {"data": np.zeros((8, 8, 3), np.uint8)}}, ValueError, f'"{PICTURE}" is a dict with 1 entries, expected a'),
    ({PICTURE: {1, 2}}, ValueError, "<class 'set'>"),
    ({PICTURE: Raising()}, ValueError, "no array today"),
    ({WRIST: np.full((8, 8, 3), 200, np.float16)}, ValueError, "200"),
    ({WRIST: np.full((8, 8, 3), nan, np.float16)}, ValueError, "nan"),
    ({JOINTS: np.zeros(6)}, ValueError, f'"{JOINTS}" of the request has 6 numbers, expected 7'),
    ({JOINTS: np.zeros(40)}, ValueError, "at most"),
    ({JOINTS: np.zeros((7, 1))}, ValueError, "expected a number or a list"),
    ({JOINTS: [nan] * 7}, ValueError, "state[0] is nan"),
    ({JOINTS: [float("inf")] * 7}, ValueError, "state[0] is inf"),
    ({JOINTS: ["1"] * 7}, ValueError, f'"{JOINTS}" is a list whose element 0 is no number'),
    ({JOINTS: Unsized([1.0])}, ValueError, f'"{JOINTS}" is a list whose element 1 is no number'),
    ({JOINTS: None}, ValueError, f'the request has no "{JOINTS}"'),
    ({JOINTS: np.zeros((1, 1, 7))}, ValueError, f'"{JOINTS}" is an array f64 [1,1,7], expected a number or a list'),
    ({JOINTS: 10**400}, ValueError, "float64"),
    ({"prompt": b"\xff"}, ValueError, '"prompt" is 1 bytes that are not valid UTF-8, expected text'),
    ({"prompt": ["go"]}, ValueError, '"prompt" is a list whose element 0 is no number, expected text'),
    ({"prompt": {}}, ValueError, '"prompt" is an empty dict, expected text'),
    ({"prompt": np.array(["go", "on"])}, ValueError, '"prompt" is an array of format "2w"'),
    ({"prompt": 3}, ValueError, '"prompt" is a number, expected text'),
    ({"prompt": "\ud800"}, ValueError, '"prompt" is text with a character that UTF-8 does not have'),
    ({"prompt": "x" * (2 << 20)}, ValueError, '"prompt" has 2097152 bytes'),
    ({"prompt": None}, ValueError, "a prompt is required"),
    ({1: 2}, TypeError, "the observation has a key 1"),
    ({"a\0b": 2}, TypeError, "the observation has a key"),
    ({"": 2}, TypeError, "the observation has a key"),
    ({"k" * 300: 2}, ValueError, "a key of 300 bytes"),
    ({"k" * 140: 2}, ValueError, "more than 127 bytes"),
    ({"deep": cyclic()}, ValueError, "dicts inside each other"),
    ({f"key {i}": i for i in range(300)}, ValueError, "more than 256 values"),
    ({"observation": {"exterior_image_1_left": 1}}, ValueError, "comes twice"),
]


@pytest.mark.parametrize("change,kind,sentence", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_observation(droid, change, kind, sentence):
    policy, obs, noise, actions = droid
    with pytest.raises(kind) as raised:
        policy.infer(obs | change, noise=noise)
    assert sentence in str(raised.value)
    assert (policy.infer(obs, noise=noise)["actions"] == actions).all()


@pytest.mark.parametrize("obs", [None, 3, "text", [1], object(), np.zeros(3)])
def test_no_dict(droid, obs):
    with pytest.raises(TypeError, match="expected a dict"):
        droid[0].infer(obs)


IGNORED = {
    "None": None, "a set": {1}, "a list of texts": ["a"], "bytes": b"\xff\xd8", "an object": object(), "a dict": {"x": {}},
    "bool [1, 50]": np.zeros((1, 50), bool), "depth": np.zeros((8, 8), np.uint16), "int64": np.zeros((1, 8), np.int64),
    "big-endian": np.zeros(3, ">f8"), "dates": np.zeros(2, "M8[s]"), "records": np.zeros(2, [("a", "u1")]), "raising": Raising(),
    "texts": np.array(["a", "b"]), "a half text": "\ud800", "a large number": 10**400, "a long text": "x" * (2 << 20),
    "an iterator": iter([1]), "complex": 1j,
}


@pytest.mark.parametrize("value", IGNORED.values(), ids=IGNORED.keys())
def test_other_keys_are_ignored(droid, value):
    """As openpi ignores them, whatever they hold."""
    policy, obs, noise, actions = droid
    assert (policy.infer(obs | {"extra": value}, noise=noise)["actions"] == actions).all()


def test_missing_values_name_what_came(droid):
    policy, obs, noise, _ = droid
    for key in (PICTURE, JOINTS):
        with pytest.raises(ValueError, match='; the request has "my/other_key", ".*"prompt"'):
            policy.infer({"my/other_key": 1} | {k: v for k, v in obs.items() if k != key}, noise=noise)


def test_what_was_probably_meant(droid, aloha):
    """Keys of observations, arguments, robots and choices: what came, what is expected, and the near one."""
    policy, obs, noise, _ = droid
    for key, came in ((PICTURE, PICTURE.replace("exterior", "extrior")), (JOINTS, JOINTS + "s"), ("prompt", "promt")):
        with pytest.raises(ValueError, match=f'; the request has .*; did you mean "{key}" by "{came}"\\?$'):
            policy.infer({came: obs[key]} | {k: v for k, v in obs.items() if k != key}, noise=noise)
    images = {"cam_hihg": aloha[1]["images"]["cam_high"]}
    with pytest.raises(ValueError, match='no camera "images/cam_hihg", it has images/cam_high .*; did you mean "images/cam_high"'):
        aloha[0].infer(aloha[1] | {"images": images})
    with pytest.raises(TypeError, match='^Policy has no argument "robto", known are checkpoint, .*; did you mean "robot"'):
        openpi_c.Policy(synthetic="tiny", robto="droid")
    with pytest.raises(TypeError, match='^Policy.infer has no argument "nosie", known are obs, noise, .*did you mean "noise"'):
        policy.infer(obs, nosie=noise)
    with pytest.raises(TypeError, match='^Engine has no argument "zzzz", known are checkpoint, .*progress$'):
        openpi_c.Engine(synthetic="tiny", zzzz=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        policy.infer()
    for words, near in (
        ({"robot": "droit"}, "droid"), ({"robot": "DROID"}, "droid"), ({"config": "pi05_drod"}, "pi05_droid"),
        ({"robot": "none", "dtype": "bf61"}, "bf16"), ({"robot": "none", "isa": "avx52"}, "avx2"),
        ({"robot": "none", "without": "fused-qk"}, "fused-qkv"), ({"robot": "none", "synthetic": "tinny"}, "tiny"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=f'; did you mean "{near}"\\?$'):
            openpi_c.Policy(**({"synthetic": "tiny"} | words))


def test_broken_message(droid):
    with pytest.raises(ValueError, match="empty message|request"):
        droid[0].infer(b"")
    with pytest.raises(ValueError, match="request"):
        droid[0].infer(b"\xc1\x00")


def test_unknown_picture_where_openpi_refuses_it(aloha):
    policy, obs, noise, _ = aloha
    images = obs["images"] | {"cam_front": obs["images"]["cam_high"]}
    with pytest.raises(ValueError, match='no camera "images/cam_front"'):
        policy.infer(obs | {"images": images}, noise=noise)


@pytest.mark.parametrize(
    "noise,sentence",
    [
        (np.zeros((9, 32), np.float32), r"shape \[9, 32\], expected \[1, 10, 32\]"),
        (np.zeros((2, 10, 32), np.float32), r"shape \[2, 10, 32\]"),
        (np.full((10, 32), nan, np.float32), "nan"),
        (np.zeros((10, 32), "S1"), "dtype"),
        ("noise", "dtype"),
        (np.zeros((10, 32), object), "dtype object"),
    ],
)
def test_bad_noise(droid, noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        droid[0].infer(droid[1], noise=noise)


def test_error_in_a_batch_names_the_observation(droid):
    policy, obs, noise, actions = droid
    with pytest.raises(ValueError, match=f'^observation 1: the request has no "{JOINTS}"'):
        policy.infer_batch([obs, {k: v for k, v in obs.items() if k != JOINTS}, obs])
    with pytest.raises(TypeError, match="expected a dict"):
        policy.infer_batch([obs, 5])
    assert (policy.infer(obs, noise=noise)["actions"] == actions).all()


@pytest.mark.parametrize(
    "arguments,kind,sentence",
    [
        ({"synthetic": "huge"}, ValueError, "huge"),
        ({"synthetic": "tiny", "robot": "nobody"}, FileNotFoundError, "nobody"),
        ({"synthetic": "tiny", "robot": "none", "device": "cuda:99"}, openpi_c.Error, "99"),
        ({"synthetic": "tiny", "robot": "none", "device": "tpu"}, openpi_c.Error, "tpu"),
        ({"synthetic": "tiny", "robot": "none", "dtype": "fp8"}, ValueError, 'dtype is "fp8"'),
        ({"synthetic": "tiny", "robot": "none", "isa": "mmx"}, ValueError, "mmx"),
        ({"synthetic": "tiny", "robot": "none", "weights": "exprt=int8"}, ValueError,
         'weights is "exprt=int8": "exprt" is no group, expected vision, attention, ffn, expert or heads; did you mean "expert"?'),
        ({"synthetic": "tiny", "robot": "none", "weights": "ffn=int88"}, ValueError,
         '"int88" is no format, expected bf16, f32, int8, int8x8, e4m3 or file'),
        ({"synthetic": "tiny", "robot": "none", "steps": 1000}, ValueError, "steps is 1000"),
        ({"synthetic": "tiny", "robot": "none", "horizon": -1}, ValueError, "horizon is -1"),
        ({"synthetic": "tiny", "robot": "none", "sessions": 0}, ValueError, "sessions is 0"),
        ({"synthetic": "tiny", "robot": "none", "batch": 65}, ValueError, "batch is 65"),
        ({"synthetic": "tiny", "robot": "none", "progress": 3}, TypeError, "progress is 3"),
        ({"synthetic": "tiny", "robot": "none", "norm_stats": {"state": {"mean": [nan]}}}, ValueError, '"mean" of "state" has a'),
        ({"synthetic": "tiny", "robot": "droid", "norm_stats": {}}, ValueError, 'the dict norm_stats: norm_stats."state" is absent'),
        ({"synthetic": "tiny", "robot": "droid", "norm_stats": ONE_NUMBER}, ValueError, "the dict norm_stats: statistics of a state of 1 "),
        ({"synthetic": "tiny", "robot": "none", "config": "pi0_droid"}, ValueError, "both robot"),
        ({"synthetic": "tiny", "robot": "none", "assets": "droid"}, ValueError, 'assets is "droid", but robot "none"'),
        ({"synthetic": "tiny", "robot": "droid", "assets": "../x"}, ValueError, 'assets is "../x", expected'),
        ({}, ValueError, ""),
        ({"robot": "none"}, ValueError, "neither a checkpoint"),
        ({"checkpoint": "/nowhere/at/all", "robot": "none"}, FileNotFoundError, "/nowhere/at/all"),
        ({"checkpoint": 3, "robot": "none"}, TypeError, ""),
        ({"checkpoint": "a\0b", "robot": "none"}, ValueError, "null"),
        ({"synthetic": "tiny", "robot": "none", "temperature": 1}, TypeError, "temperature"),
    ],
)
def test_bad_arguments(arguments, kind, sentence):
    with pytest.raises(kind) as raised:
        openpi_c.Policy(**arguments)
    assert sentence in str(raised.value)


def test_damaged_file_is_an_error_with_its_status(tmp_path):
    openpi_c.write_synthetic("tiny:pi0:7", tmp_path / "ckpt")
    file = tmp_path / "ckpt" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(openpi_c.Error) as raised:
        openpi_c.Policy(tmp_path / "ckpt", robot="none")
    assert raised.value.status == "bad file" and "model.safetensors" in str(raised.value)
    assert issubclass(openpi_c.Error, RuntimeError)


def test_unsupported_config_is_not_implemented(tmp_path):
    with pytest.raises(NotImplementedError):
        openpi_c.Policy(synthetic="tiny", config="pi0_fast_droid")


def test_model_level(none):
    policy, _ = none
    picture, tokens, state = np.zeros((224, 224, 3), np.uint8), [2, 3], np.zeros(32)
    good = openpi_c.Sample([picture, None, None], tokens, state)
    with policy.engine.session(horizon=4, steps=2, batch=2) as session:
        assert session.run([good]).shape == (1, 4, 32)
        bad = {
            "expected 3": openpi_c.Sample([picture], tokens, state),
            'expected uint8 or float32 [224, 224, 3]': openpi_c.Sample([picture[:-1], None, None], tokens, state),
            "expected one type": openpi_c.Sample([picture, picture.astype(np.float32), None], tokens, state),
            '"state" has 31 elements, expected 32': openpi_c.Sample([picture, None, None], tokens, state[:31]),
            "token": openpi_c.Sample([picture, None, None], [2, 1 << 20], state),
            "state is": openpi_c.Sample([picture, None, None], tokens),
        }
        for sentence, sample in bad.items():
            with pytest.raises(ValueError) as raised:
                session.run([sample])
            assert sentence in str(raised.value), sentence
        with pytest.raises(ValueError, match="batch"):
            session.run([good] * 3)
        with pytest.raises(ValueError, match="0 samples"):
            session.run([])
        assert session.run([good]).shape == (1, 4, 32)
    with pytest.raises(ValueError, match="the session is closed"):
        session.run([good])


def test_wrong_arrays_in_the_extension(none):
    """What the package's Python checks beforehand, the extension refuses too."""
    policy, obs = none
    infer = lambda noise=None, rtc=None: _openpi.infer(policy._lanes.lanes, (obs,), noise, 0, 0, rtc)
    assert len(infer()) == 1
    for noise, sentence in (
        (np.zeros(5, np.float32), '"noise" has 5 elements, expected 128'),
        (np.zeros((4, 32)), '"noise" has elements of format "d", expected float32'),
        (np.zeros((4, 32), ">f4"), "expected float32"),
    ):
        with pytest.raises(ValueError, match=sentence):
            infer(noise)
    for rtc, kind, sentence in (
        (3, ValueError, "real-time chunking is of <class 'int'>"),
        ((None, None), ValueError, "expected None or a tuple of 1"),
        ((3,), TypeError, "no tuple of six"),
        (((np.zeros((2, 7)), "guided", 1, None, 0, 0.0),), ValueError, '"previous" has elements of format "d"'),
        (((np.zeros((2, 7), np.int32), "guided", 1, None, 0, 0.0),), ValueError, '"previous" has elements of format "i"'),
    ):
        with pytest.raises(kind, match=sentence):
            infer(rtc=rtc)
    sample = openpi_c.Sample([np.zeros((224, 224, 3), np.uint8), None, None], [2], np.zeros(32)).parts()
    fixed = np.zeros((1, 4, 32), np.float32)
    fixed.flags.writeable = False
    with policy.engine.session(horizon=4, steps=1) as session:
        for actions, sentence in (
            (np.zeros((1, 4, 31), np.float32), '"actions" has 124 elements, expected 128'),
            (np.zeros((1, 4, 32)), '"actions" has elements of format "d", expected float32'),
            (fixed, '"actions" cannot be read as an array'),
        ):
            with pytest.raises(ValueError, match=sentence):
                session._handle.run_into((sample,), None, actions)
        with pytest.raises(ValueError, match="real-time chunking is of <class 'int'>"):
            session._handle.run_into((sample,), None, np.zeros((1, 4, 32), np.float32), 3)


def test_request_by_hand(none):
    policy, obs = none
    request = policy.request()
    with pytest.raises(ValueError, match="nothing was prepared"):
        request.sample()
    with pytest.raises(ValueError, match="nothing was prepared"):
        request.finish(np.zeros((4, 32)))
    request.prepare(obs)
    assert request.finish(np.zeros((4, 32))).shape == (4, 32)
    with pytest.raises(ValueError, match="expected .horizon, 32."):
        request.finish(np.zeros((4, 31)))
    with pytest.raises(ValueError, match="65, expected 1 to 64"):
        request.finish(np.zeros((100, 32)))
    request.close()
    with pytest.raises(ValueError, match="the request is closed"):
        request.prepare(obs)


def narrow_checkpoint(folder, dims=8):
    """A synthetic π0 whose projections of state and actions have `dims` dimensions, as Pi0Config(action_dim=8) has."""
    openpi_c.write_synthetic("tiny:pi0:7", folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body, tensors = json.loads(data[8 : 8 + length]), data[8 + length :], b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(body[begin:end], {"F32": np.float32, "BF16": np.uint16}[entry["dtype"]]).reshape(entry["shape"])
        if name in ("action_in_proj.weight", "state_proj.weight"):
            array = array[:, :dims]
        if name.startswith("action_out_proj."):
            array = array[:dims]
        entry |= {"shape": list(array.shape), "data_offsets": [len(tensors), len(tensors) + array.nbytes]}
        tensors += np.ascontiguousarray(array).tobytes()
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + tensors)
    (folder / "config.json").unlink()


def test_noise_of_a_model_with_fewer_dimensions(tmp_path):
    """[H, 8] is the same as [H, 32], of which the model reads 8 columns, in every place that takes noise."""
    narrow_checkpoint(tmp_path / "narrow")
    obs = {"base": np.zeros((8, 8, 3), np.uint8), "state": np.zeros(8), "prompt": "go"}
    wide = openpi_c.noise((4, 32), seed=3)
    with openpi_c.Policy(tmp_path / "narrow", robot="none", horizon=4, steps=2, dtype="f32") as policy:
        assert policy.engine.info["action_dim"] == policy.info["action_dim"] == 8
        expected = policy.infer(obs, noise=wide)["actions"]
        assert expected.shape == (4, 8) and expected.any()
        for given in (wide[:, :8], wide[None, :, :8], np.pad(wide[:, :8], ((0, 0), (0, 24)))):
            assert (policy.infer(obs, noise=given)["actions"] == expected).all()
        assert (policy.infer_batch([obs], noise=wide[None, :, :8])[0]["actions"] == expected).all()
        assert (policy.infer(obs | {"openpi/noise": wide[:, :8]}, noise=wide)["actions"] == expected).all()
        with pytest.raises(ValueError, match=r"shape \[4, 7\], expected \[1, 4, 32\] or \[1, 4, 8\]$"):
            policy.infer(obs, noise=wide[:, :7])
        request = policy.request()
        request.prepare(obs)
        session = policy.engine.session(horizon=4, steps=2)
        model = session.run([request.sample()], noise=wide[None, :, :8])
        assert (request.finish(model[0]) == expected).all() and not model[0, :, 8:].any()
    command = os.environ.get("OPENPI_COMMAND")
    if not command:
        return
    np.save(tmp_path / "narrow.npy", wide[:, :8])
    np.save(tmp_path / "seven.npy", wide[:, :7])
    picture = pathlib.Path(__file__).parents[1] / "pictures" / "rgb.png"
    line = [command, "run", tmp_path / "narrow", "--robot", "none", "--horizon", "4", "--steps", "2", "--format", "csv",
            "--image", f"base={picture}", "--state", "0,0,0,0,0,0,0,0", "--prompt", "go"]
    np.save(tmp_path / "wide.npy", wide)
    said = [
        subprocess.run([*line, "--noise", tmp_path / f"{name}.npy"], capture_output=True, text=True, check=False)
        for name in ("wide", "narrow", "seven")
    ]
    assert said[0].stdout == said[1].stdout != "" and said[2].returncode == 2
    assert "seven.npy: shape is [4, 7], expected [4, 32] or [4, 8]" in said[2].stderr
