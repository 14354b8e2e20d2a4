"""Observations: read from a file, made up for a robot, and packed as openpi's client packs them.

Read are two formats that run no code when opened: .npz and .msgpack. Pickles are refused.
"""

import pathlib
import struct

import numpy as np

from golden import Problem

PROMPTS = (
    "pick up the red cup",
    "put both moka pots on the stove",
    "open the top drawer and put the spoon inside",
    "fold the towel",
)


# ---- files ---------------------------------------------------------------------------------------------------


def nested(flat):
    """ALOHA's client nests its pictures: "images/cam_high" becomes {"images": {"cam_high": …}}. Other names stay."""
    out = {}
    for key, value in flat.items():
        if key.startswith("images/"):
            out.setdefault("images", {})[key[len("images/") :]] = value
        else:
            out[key] = value
    return out


def read_npz(path):
    """The first axis of every array is the observation. A text is an array of strings [n]."""
    with np.load(path, allow_pickle=False) as file:
        try:
            arrays = {name: file[name] for name in file.files}
        except ValueError as error:
            raise Problem(f"{path}: {error}; save texts as np.array([...], dtype=str)") from None
    if not arrays:
        raise Problem(f"{path}: no array")
    counts = {name: len(a) if a.ndim else None for name, a in arrays.items()}
    if len(set(counts.values())) != 1 or None in counts.values():
        said = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise Problem(f"{path}: every array needs the same first axis, the observation; found {said}")
    plain = lambda a, i: str(a[i]) if a.dtype.kind == "U" else a[i]
    return [
        nested({name: plain(a, i) for name, a in arrays.items()}) for i in range(next(iter(counts.values())))
    ]


def read_msgpack(path):
    """One observation after another, as openpi-client packs them."""
    try:
        import msgpack
    except ImportError:
        raise Problem(f"{path}: reading msgpack needs the package msgpack; or save a .npz") from None

    def numpy_of(value):
        if b"__ndarray__" in value:
            kind = np.dtype(value[b"dtype"])
            if kind.hasobject:
                raise Problem(f"{path}: an array of Python objects")
            return np.frombuffer(value[b"data"], kind).reshape(value[b"shape"])
        if b"__npgeneric__" in value:
            return np.dtype(value[b"dtype"]).type(value[b"data"])
        return value

    with open(path, "rb") as file:
        found = list(msgpack.Unpacker(file, object_hook=numpy_of, max_buffer_size=1 << 30))
    if not found or not all(isinstance(o, dict) for o in found):
        raise Problem(f"{path}: no msgpack map, expected one for each observation")
    return found


def read(path):
    readers = {".npz": read_npz, ".msgpack": read_msgpack}
    kind = pathlib.Path(path).suffix
    if kind not in readers:
        raise Problem(f'{path}: ends in "{kind}", expected .npz or .msgpack')
    if not pathlib.Path(path).is_file():
        raise Problem(f"{path}: no such file")
    return readers[kind](path)


# ---- made up -------------------------------------------------------------------------------------------------


def picture(rng, height, width):
    """uint8 [height, width, 3]: blocks of colour, a ramp over them, a little grain."""
    blocks = rng.integers(0, 180, (height // 24 + 1, width // 24 + 1, 3))
    wide = np.repeat(np.repeat(blocks, 24, 0), 24, 1)[:height, :width]
    ramp = np.arange(height)[:, None, None] * 40 // height + np.arange(width)[None, :, None] * 25 // width
    return (wide + ramp + rng.integers(0, 10, wide.shape)).astype(np.uint8)


def numbers(rng, count):
    return rng.uniform(-0.8, 0.8, count).astype(np.float32)


# ---- packing -------------------------------------------------------------------------------------------------


def _head(kinds, count):
    """The shortest of msgpack's heads that holds `count`; kinds: (limit, head byte, struct letter)."""
    for limit, head, letter in kinds:
        if count < limit:
            return (
                bytes([head | count]) if letter is None else bytes([head]) + struct.pack(">" + letter, count)
            )
    raise Problem(f"an observation has a value of {count} bytes or entries, which msgpack cannot hold")


MAP = ((16, 0x80, None), (1 << 16, 0xDE, "H"), (1 << 32, 0xDF, "I"))
LIST = ((16, 0x90, None), (1 << 16, 0xDC, "H"), (1 << 32, 0xDD, "I"))
TEXT = ((32, 0xA0, None), (1 << 8, 0xD9, "B"), (1 << 16, 0xDA, "H"), (1 << 32, 0xDB, "I"))
BYTES = ((1 << 8, 0xC4, "B"), (1 << 16, 0xC5, "H"), (1 << 32, 0xC6, "I"))


def pack(value):
    """msgpack with numpy arrays as openpi-client sends them."""
    if value is None:
        return b"\xc0"
    if isinstance(value, (bool, np.bool_)):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufU":
            raise Problem(f"an observation holds an array of type {value.dtype}")
        little = (
            np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).reshape(value.shape)
        )
        return pack(
            {
                b"__ndarray__": True,
                b"data": little.tobytes(),
                b"dtype": little.dtype.str,
                b"shape": list(value.shape),
            }
        )
    if isinstance(value, (int, np.integer)):
        value = int(value)
        return bytes([value]) if 0 <= value < 128 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, (float, np.floating)):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _head(TEXT, len(data)) + data
    if isinstance(value, bytes):
        return _head(BYTES, len(value)) + value
    if isinstance(value, (list, tuple)):
        return _head(LIST, len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        return _head(MAP, len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())
    raise Problem(f"an observation holds a {type(value).__name__}, expected arrays, numbers and texts")
