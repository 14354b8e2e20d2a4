"""Random calls: each gives actions or an exception with a sentence, whatever comes in. OPENPI_FUZZ_CALLS says how many;
with the extension built under AddressSanitizer, 20,000 of them are a check by hand (docs/python.md)."""

import os
import random

import numpy as np
import pytest

import openpi_c
from openpi_c import _openpi

CALLS = int(os.environ.get("OPENPI_FUZZ_CALLS", "600"))
DTYPES = ["u1", "f4", "f8", "i8", "i4", "u2", "f2", "?", ">f4", "<U3", "S2", "O", "c8", "M8[s]", "g", "V4"]
KEYS = ["base", "left_wrist", "right_wrist", "state", "prompt", "task", "images", "observation/image", "x", "", "\0", "ü" * 70]
NUMBERS = [0, 1, -1, 3, 224, 2**31, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), True]
TEXTS = ["", "go", "a" * 5000, "\n\t ", "\0", "\ud800", "ünï", "<bos>", "\N{GRINNING FACE}" * 300]


class Lying(np.ndarray):
    shape = property(lambda self: (2**40, 3))


class Strange:
    """Every protocol, each of them broken."""

    def __init__(self, rng):
        self.rng = rng

    def __array__(self, dtype=None, copy=None):
        return self.rng.choice([None, 3, "x", np.zeros((4, 4, 3), np.uint8)])

    def __len__(self):
        return self.rng.choice([0, 3, 2**40])

    def __float__(self):
        raise ZeroDivisionError("no number")


class Changing(dict):
    """A dict whose items are no pairs, or raise."""

    def items(self):
        choice = len(self) % 3
        if choice == 0:
            return [1, 2]
        if choice == 1:
            raise LookupError("no items")
        return [(key, value, 3) for key, value in super().items()]


def an_array(rng):
    dtype = np.dtype(rng.choice(DTYPES))
    shape = tuple(rng.choice([0, 1, 2, 3, 3, 7, 16, 33]) for _ in range(rng.choice([0, 1, 1, 2, 3, 3, 3, 4, 9])))
    if np.prod(shape, dtype=object) > 20000:
        shape = shape[:2]
    array = np.zeros(shape, dtype)
    if dtype.kind in "fuib" and rng.random() < 0.6:
        array = np.asarray(array + rng.choice([0, 1, 0.3]), dtype)
    change = rng.choice(["as it is", "transpose", "reverse", "step", "read only", "lying", "memoryview", "broadcast"])
    try:
        return {
            "as it is": lambda: array,
            "transpose": lambda: array.T,
            "reverse": lambda: array[::-1],
            "step": lambda: array[::2],
            "read only": lambda: np.frombuffer(array.tobytes(), dtype).reshape(shape),
            "lying": lambda: array.view(Lying),
            "memoryview": lambda: memoryview(array),
            "broadcast": lambda: np.broadcast_to(array, (3, *shape)),
        }[change]()
    except (ValueError, TypeError, IndexError):
        return array


def a_value(rng, depth=0):
    kind = rng.randrange(12)
    if kind < 4:
        return an_array(rng)
    if kind == 4:
        return rng.choice(TEXTS)
    if kind == 5:
        return rng.choice(NUMBERS)
    if kind == 6:
        return [rng.choice([*NUMBERS, "x", None]) for _ in range(rng.randrange(5))]
    if kind == 7 and depth < 12:
        return {rng.choice(KEYS): a_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    if kind == 8:
        return Strange(rng)
    if kind == 9:
        return Changing({i: i for i in range(rng.randrange(4))})
    return rng.choice([None, b"bytes", bytearray(9), {1, 2}, object(), int, range(3), np.str_("go"), np.float32(1)])


def an_observation(rng):
    """Often good, or nearly."""
    obs = {"base": np.zeros((9, 11, 3), np.uint8), "state": [0.5, 0.25], "prompt": "go"}
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        obs[rng.choice(KEYS)] = a_value(rng)
    for key in list(obs):
        if rng.random() < 0.05:
            del obs[key]
    return a_value(rng) if rng.random() < 0.03 else obs


def a_sample(rng):
    good = [np.zeros((224, 224, 3), np.uint8), None, None, np.array([2, 3], np.int32), np.zeros(32, np.float32)]
    for _ in range(rng.choice([0, 1, 1, 2])):
        good[rng.randrange(5)] = a_value(rng)
    return tuple(good[: rng.choice([5, 5, 5, 5, 4])])


def infer(rng, policy, session, request):
    noise = np.zeros((3, 32), np.float32) if rng.random() < 0.5 else None if rng.random() < 0.7 else a_value(rng)
    answer = policy.infer(an_observation(rng), noise=noise)
    assert answer["actions"].shape == (3, 32) and np.isfinite(answer["actions"]).all()


def infer_batch(rng, policy, session, request):
    answers = policy.infer_batch([an_observation(rng) for _ in range(rng.randrange(4))])
    assert all(answer["actions"].shape == (3, 32) for answer in answers)


def extension(rng, policy, session, request):
    handles = (request._handle, policy._lanes.lanes[0].requests[0])
    requests = tuple(rng.choice([*handles, a_value(rng)]) for _ in range(rng.choice([0, 1, 1, 1, 2, 3])))
    lanes = [rng.choice([(session._handle, requests), *policy._lanes.lanes]) for _ in range(rng.choice([0, 1, 1, 2]))]
    if rng.random() < 0.1:
        lanes.insert(0, rng.choice([a_value(rng), (a_value(rng), requests), (session._handle, a_value(rng))]))
    observations = tuple(an_observation(rng) for _ in requests) if rng.random() < 0.9 else (1,) * 70
    rtc = a_value(rng) if rng.random() < 0.3 else tuple(a_following(rng) for _ in observations)
    _openpi.infer(lanes, observations, rng.choice([None, an_array(rng)]), 1, 2, rng.choice([None, rtc]))


def a_following(rng):
    """Real-time chunking of one sample."""
    if rng.random() < 0.3:
        return None
    previous = rng.choice([np.zeros((3, 32)), np.zeros((2, 5), np.float32), a_value(rng)])
    mode = rng.choice(["guided", "guided", "trained", "vjp", *TEXTS])
    given = [previous, mode, rng.choice([0, 1, 2, *NUMBERS]), rng.choice([None, "exp", *TEXTS]), rng.choice([0, 2, -1]), 1.5]
    return tuple(given[: rng.choice([6, 6, 6, 5])])


def follow(rng, policy, session, request):
    previous = rng.choice([np.zeros((3, 32)), np.ones((1, 32)), np.zeros((2, 5), np.float32), a_value(rng)])
    rtc = {rng.choice(["delay", "horizon", "max_weight", "mode", "x"]): rng.choice([*NUMBERS, "guided", "ones"])}
    answer = policy.infer(an_observation(rng), previous=previous, rtc=rng.choice([None, rtc, {"delay": 1}]))
    assert answer["actions"].shape == (3, 32) and answer["chunk"].shape == (3, 32)


def keep(rng, policy, session, request):
    request.prepare(an_observation(rng))
    kept = request.keep(np.zeros((3, 32)))
    request.previous(rng.choice([kept, a_value(rng)]), rng.choice([0, 1, 2, 3, -1]))
    request._handle.previous_into(rng.choice([kept, a_value(rng)]), 0, a_value(rng))


def run(rng, policy, session, request):
    out = np.empty((1, 3, 32), np.float32) if rng.random() < 0.8 else a_value(rng)
    rtc = rng.choice([None, None, (a_following(rng),), a_value(rng)])
    session._handle.run_into((a_sample(rng),), rng.choice([None, an_array(rng)]), out, rtc)


def by_hand(rng, policy, session, request):
    request.prepare(an_observation(rng))
    request.sample()
    request._handle.finish_into(a_value(rng), a_value(rng))


def open_things(rng, policy, session, request):
    names = ["synthetic", "robot", "device", "dtype", "horizon", "steps", "batch", "seed", "isa", "threads", "table"]
    values = [*NUMBERS, *TEXTS, None, "odd", "cuda:7", "none", "bf16", b"x"]
    given = {"synthetic": "huge", rng.choice(names): rng.choice(values), rng.choice(names): rng.choice(values)}
    openpi_c.Policy(**{**given, "synthetic": "huge" if rng.random() < 0.9 else rng.choice(values)})


KINDS = [infer] * 6 + [infer_batch] * 2 + [extension, extension, run, run, by_hand, open_things, follow, follow, keep]


def test_random_calls():
    rng = random.Random(int(os.environ.get("OPENPI_FUZZ_SEED", "1")))
    good = bad = 0
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=3, batch=2, rtc=True) as policy:
        session = policy.engine.session(steps=1, horizon=3, rtc=True)
        request = policy.request()
        for _ in range(CALLS):
            try:
                rng.choice(KINDS)(rng, policy, session, request)
                good += 1
            except (ValueError, TypeError, OverflowError, LookupError, ZeroDivisionError, openpi_c.Error) as error:
                assert str(error)
                bad += 1
            except (FileNotFoundError, NotImplementedError) as error:
                assert str(error)
                bad += 1
    assert good > CALLS / 10 and bad > CALLS / 10
