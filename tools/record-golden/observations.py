"""Observations: read from a file, made up for a robot, and packed as openpi's client packs them.

Read are three formats that run no code when opened: .npz, .msgpack, and the recordings (.mcap) of `openpi serve --record`.
Pickles are refused.
"""

import io
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


def msgpack_of(path):
    """The package, and what makes an array of openpi-client's map of it."""
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

    return msgpack, numpy_of


def read_msgpack(path):
    """One observation after another, as openpi-client packs them."""
    msgpack, numpy_of = msgpack_of(path)
    with open(path, "rb") as file:
        found = list(msgpack.Unpacker(file, object_hook=numpy_of, max_buffer_size=1 << 30))
    if not found or not all(isinstance(o, dict) for o in found):
        raise Problem(f"{path}: no msgpack map, expected one for each observation")
    return found


# A recording: docs/recording.md, and https://mcap.dev/spec for the records. Only what openpi writes is read.
MAGIC, CHANNEL, MESSAGE, CHUNK, DATA_END = b"\x89MCAP0\r\n", 4, 5, 6, 15


def mcap_text(body, at):
    (count,) = struct.unpack_from("<I", body, at)
    return body[at + 4 : at + 4 + count], at + 4 + count


def mcap_records(path, file):
    """(opcode, body), those in chunks too, up to the data's end or where the file is cut."""
    while len(head := file.read(9)) == 9:
        opcode, count = struct.unpack("<BQ", head)
        body = file.read(count)
        if opcode == DATA_END or len(body) < count:
            return
        if opcode != CHUNK:
            yield opcode, body
            continue
        compression, at = mcap_text(body, 28)
        if compression:
            raise Problem(f"{path}: a chunk is compressed ({compression.decode()}), which openpi never writes")
        yield from mcap_records(path, io.BytesIO(body[at + 8 :]))


def mcap_calls(path, msgpack):
    """Of each answered call what /openpi/exact has, and its pictures' messages by topic."""
    topics, pictures = {}, {}
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Problem(f"{path}: does not begin as an MCAP file does")
        for opcode, body in mcap_records(path, file):
            if opcode == CHANNEL:
                topics[struct.unpack_from("<H", body)[0]] = mcap_text(body, 4)[0].decode()
            if opcode != MESSAGE:
                continue
            channel, sequence = struct.unpack_from("<HI", body)
            topic, data = topics.get(channel), body[22:]
            if topic == "/openpi/exact":
                exact = msgpack.unpackb(data)
                if exact["format"] != 1:
                    raise Problem(f"{path}: call {exact['order']} is of format {exact['format']}, expected 1")
                if not exact["status"]:
                    yield exact, pictures
                pictures = {}
            elif topic and topic.startswith("/camera/"):
                pictures[topic[len("/camera/") :], sequence] = data


def mcap_request(path, exact, pictures):
    """The bytes that the robot sent: its pictures are put back where they were."""
    rest, out = exact["request"], bytearray()
    for key, offset, count, planar in exact["pictures"]:
        message = pictures.get((key, exact["order"] & 0xFFFFFFFF))
        if message is None or len(message) < count:
            raise Problem(f"{path}: call {exact['order']}: picture {key} is missing")
        picture = message[len(message) - count :]
        before = offset - len(out)
        out += rest[:before]
        rest = rest[before:]
        out += np.frombuffer(picture, np.uint8).reshape(-1, 3).T.tobytes() if planar else picture
    return bytes(out) + rest


def read_mcap(path, most):
    """Evenly out of all answered calls: those that follow each other look alike. What is openpi.c's own ("openpi/…") goes."""
    msgpack, numpy_of = msgpack_of(path)
    found = []
    try:
        count = sum(1 for _ in mcap_calls(path, msgpack))
        wanted = {i * count // most for i in range(most)} if count > most else range(count)
        for i, (exact, pictures) in enumerate(mcap_calls(path, msgpack)):
            if i in wanted:
                request = msgpack.unpackb(mcap_request(path, exact, pictures), object_hook=numpy_of)
                found.append({key: value for key, value in request.items() if not key.startswith("openpi/")})
    except (struct.error, KeyError, ValueError) as error:
        raise Problem(f"{path}: {error}; it is not as openpi writes it") from None
    if not found:
        raise Problem(f"{path}: has no call that was answered")
    return found


def read(path, most):
    """Up to `most` observations."""
    readers = {".npz": read_npz, ".msgpack": read_msgpack}
    kind = pathlib.Path(path).suffix
    if kind not in readers and kind != ".mcap":
        raise Problem(f'{path}: ends in "{kind}", expected .npz, .msgpack or .mcap')
    if not pathlib.Path(path).is_file():
        raise Problem(f"{path}: no such file")
    return read_mcap(path, most) if kind == ".mcap" else readers[kind](path)[:most]


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
