"""The forms in which an observation may come: each gives the actions of the plain one, and is left as it was."""

import array
import copy
import tracemalloc
import types

import numpy as np
import pytest

PICTURE = "observation/exterior_image_1_left"
JOINTS = "observation/joint_position"


def reversed_twice(a):
    return a[::-1].copy()[::-1]


def read_only(a):
    b = a.copy()
    b.flags.writeable = False
    return b


def unaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)
    out = raw[1:].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


class ArrayLike:
    """What torch's tensors are to numpy."""

    def __init__(self, a):
        self.a = a

    def __array__(self, dtype=None, copy=None):
        return self.a


class Lying(np.ndarray):
    """Its shape is not that of its memory."""

    shape = property(lambda self: (1 << 20, 1 << 20, 3))
    ndim = 7
    strides = property(lambda self: (1, 1, 1))
    nbytes = 0


LAYOUTS = {
    "fortran": np.asfortranarray,
    "reversed": reversed_twice,
    "sliced": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read only": read_only,
    "unaligned": unaligned,
    "memoryview": memoryview,
    "__array__": ArrayLike,
    "subclass that lies": lambda a: a.view(Lying),
}
STATES = {
    "list": lambda a: a.tolist(),
    "tuple": lambda a: tuple(a.tolist()),
    "array.array": lambda a: array.array("d", a.tolist()),
    "list of numpy scalars": list,
    "float64 strided": lambda a: np.repeat(a, 2)[::2],
}


def check(case, change):
    policy, obs, noise, actions = case
    changed = change(dict(obs))
    seen = dict(changed)
    assert (policy.infer(changed, noise=noise)["actions"] == actions).all()
    assert list(changed) == list(seen) and all(changed[key] is seen[key] for key in seen)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_picture_layouts(droid, layout):
    check(droid, lambda obs: obs | {PICTURE: LAYOUTS[layout](obs[PICTURE])})


@pytest.mark.parametrize("form", STATES)
def test_state_forms(droid, form):
    check(droid, lambda obs: obs | {JOINTS: STATES[form](obs[JOINTS])})


def test_channels_first(droid):
    check(droid, lambda obs: obs | {PICTURE: obs[PICTURE].transpose(2, 0, 1)})


def test_prompt_as_numpy(droid):
    for kind in (np.array, np.str_):
        check(droid, lambda obs, kind=kind: obs | {"prompt": kind(obs["prompt"])})
    check(droid, lambda obs: obs | {"prompt": np.array(obs["prompt"], object)})


def nested(obs):
    out = {}
    for key, value in obs.items():
        inner = out
        *folders, name = key.split("/")
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = value
    return out


def test_nested_and_mapping(droid, aloha):
    check(droid, nested)
    policy, obs, noise, actions = droid
    assert (policy.infer(types.MappingProxyType(obs), noise=noise)["actions"] == actions).all()
    assert isinstance(aloha[1]["images"], dict)
    check(aloha, lambda obs: {k: v for k, v in obs.items() if k != "images"} | {
        f"images/{k}": v for k, v in obs["images"].items()})


def test_unknown_keys_are_ignored(droid):
    check(droid, lambda obs: obs | {"timestamp": 12.5, "note": "a text", "depth": np.zeros((4, 4)), "none": None})


def test_observation_is_not_changed(droid):
    policy, obs, noise, _ = droid
    before = {key: (value, copy.deepcopy(value)) for key, value in obs.items()}
    policy.infer(obs, noise=noise)
    assert list(obs) == list(before)
    for key, (same, equal) in before.items():
        assert obs[key] is same
        assert np.array_equal(same, equal)


def test_pictures_are_not_copied(droid):
    """While a call runs its arrays are exported: numpy then refuses to resize the memory that the engine reads."""
    policy, obs, noise, actions = droid
    held = []

    class Spy(dict):
        def items(self):
            held.extend(value for value in self.values() if isinstance(value, np.ndarray))
            return super().items()

    assert (policy.infer(Spy(obs), noise=noise)["actions"] == actions).all()
    assert held  # the mapping's own items() is what is read
    large = {**obs, PICTURE: np.zeros((720, 1280, 3), np.uint8)}
    tracemalloc.start()
    policy.infer(large, noise=noise)
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    policy.infer(large, noise=noise)
    peak = tracemalloc.get_traced_memory()[1] - start
    tracemalloc.stop()
    assert peak < large[PICTURE].nbytes / 20


def test_torch_tensors(droid):
    torch = pytest.importorskip("torch")
    check(droid, lambda obs: obs | {key: torch.from_numpy(obs[key].copy()) for key in (PICTURE, JOINTS)})
    channels_first = lambda obs: obs | {PICTURE: torch.from_numpy(obs[PICTURE].copy()).permute(2, 0, 1)}
    check(droid, channels_first)


PROMPTS = {"bytes": lambda t: t.encode(), "bytearray": lambda t: bytearray(t.encode()), "array": lambda t: np.array([t]),
           "array [1, 1]": lambda t: np.array([[t]]), "array of bytes": lambda t: np.array(t.encode()),
           "object": lambda t: np.array(t, object)}


@pytest.mark.parametrize("make", PROMPTS.values(), ids=PROMPTS.keys())
def test_prompts(droid, make):
    """DROID's clients send bytes, others an array of one text."""
    policy, obs, noise, actions = droid
    assert (policy.infer(obs | {"prompt": make(obs["prompt"])}, noise=noise)["actions"] == actions).all()


def test_float16(droid):
    """A picture in float16 is uint8 of 255 times it in float16, as openpi's; a state is what it holds."""
    policy, obs, noise, _ = droid
    half = np.random.default_rng(0).random((32, 32, 3)).astype(np.float16)
    as_bytes = policy.infer(obs | {PICTURE: (255 * half).astype(np.uint8)}, noise=noise)["actions"]
    assert (policy.infer(obs | {PICTURE: half}, noise=noise)["actions"] == as_bytes).all()
    joints = np.asarray(obs[JOINTS], np.float16)
    wide = policy.infer(obs | {JOINTS: joints.astype(np.float64)}, noise=noise)["actions"]
    assert (policy.infer(obs | {JOINTS: joints}, noise=noise)["actions"] == wide).all()
