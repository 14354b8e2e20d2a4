"""The goldens of tests/golden, and openpi's messages as dicts."""

import json
import pathlib
import struct

import numpy as np

from openpi_c.verification import read_safetensors as read

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def message(data):
    """The dict of a message of openpi's client: msgpack with numpy arrays; one of the goldens has its text as bytes."""
    value, at = _value(memoryview(data), 0)
    assert at == len(data)
    return {key: item.decode() if isinstance(item, bytes) else item for key, item in value.items()}


def _value(data, at):
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind < 0x90:
        return _map(data, at, kind & 15)
    if kind < 0xA0:
        return _list(data, at, kind & 15)
    if kind < 0xC0:
        return bytes(data[at : at + (kind & 31)]).decode(), at + (kind & 31)
    simple = {0xC0: None, 0xC2: False, 0xC3: True}
    if kind in simple:
        return simple[kind], at
    numbers = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
    if kind in numbers:
        (number,) = struct.unpack_from(numbers[kind], data, at)
        return number, at + struct.calcsize(numbers[kind])
    sized = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDE: ">H"}
    (size,) = struct.unpack_from(sized[kind], data, at)
    at += struct.calcsize(sized[kind])
    if kind == 0xDC:
        return _list(data, at, size)
    if kind == 0xDE:
        return _map(data, at, size)
    found = bytes(data[at : at + size])
    return (found if kind < 0xD0 else found.decode()), at + size


def _list(data, at, count):
    items = []
    for _ in range(count):
        item, at = _value(data, at)
        items.append(item)
    return items, at


def _map(data, at, count):
    items = {}
    for _ in range(count):
        key, at = _value(data, at)
        items[key.decode() if isinstance(key, bytes) else key], at = _value(data, at)
    if "__ndarray__" in items:
        return np.frombuffer(items["data"], np.dtype(items["dtype"])).reshape(items["shape"]), at
    return items, at


def policy_case(name):
    """(arguments of Policy, message, tensors) of a golden of tests/golden/policy."""
    folder = GOLDEN / "policy" / name
    tensors, about = read(folder / "expected.safetensors")
    pi05 = about.get("pi05", False)
    robot = {
        "like": about["robot"],
        "delta": about.get("delta", []),
        "transform": "aloha" if about.get("adapt_to_pi", False) else "none",
    }
    arguments = {
        "synthetic": f"tiny:{'pi05' if pi05 else 'pi0'}:{about['seed']}",
        "robot": json.dumps(robot),
        "norm_stats": folder / "norm_stats.json",
        "tokenizer": GOLDEN / "tokenizer.model",
        "prompt_state": about.get("discrete_state", pi05),
        "horizon": about["horizon"],
        "steps": 10,
    }
    return arguments, (folder / "request.msgpack").read_bytes(), tensors
