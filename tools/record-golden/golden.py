"""The file that record-golden writes: a safetensors file that `openpi verify --checkpoint` reads.
docs/verify.md lists its tensors and metadata. Needs numpy and nothing else: safetensors is a simple
format and is written here by hand.

Note: not every row of every stage is kept. Image tokens and K and V are kept for every 29th
row, and for the last prompt token of each observation, so that a file of the full-size model stays below
4 MB an observation.
"""

import json
import os
import pathlib
import struct

import numpy as np

FORMAT = "openpi golden 1"
SLOTS, IMAGE_TOKENS, DIMS, SIDE = 3, 256, 32, 224
EVERY = 29  # a prime: rows of every column of the 16 x 16 patches are met
EDGE = 256  # values at either end of a tensor that go into its hash
TYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "U8": "u1"}


class Problem(Exception):
    """Something that the user can mend; its text is one sentence."""


# ---- safetensors -------------------------------------------------------------------------------------------


def write_safetensors(path, tensors, metadata):
    """Writes beside `path` and renames, so that an interrupt leaves no half a file under its name."""
    names = {np.dtype(numpy): name for name, numpy in TYPES.items()}
    header, at, blocks = {"__metadata__": metadata}, 0, []
    for name in sorted(
        tensors, key=lambda n: (-np.dtype(tensors[n].dtype).itemsize, n)
    ):  # widest first: aligned
        block = np.ascontiguousarray(tensors[name])
        header[name] = {
            "dtype": names[block.dtype],
            "shape": list(block.shape),
            "data_offsets": [at, at + block.nbytes],
        }
        at += block.nbytes
        blocks.append(block)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    part = f"{path}.part"
    try:
        with open(part, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for block in blocks:
                out.write(block.tobytes())
        os.replace(part, path)
    except BaseException:
        pathlib.Path(part).unlink(missing_ok=True)
        raise


def read_header(path):
    """{name: {"dtype", "shape", "data_offsets"}} and the byte where data start."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(length) if 0 < length <= 100 << 20 else b""
    try:
        header = json.loads(text)
    except ValueError:
        raise Problem(f"{path}: no safetensors file") from None
    return header, 8 + length


# ---- the checkpoint's identity ------------------------------------------------------------------------------


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def as_bf16(values):
    """Values as the 16 bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(
        "<u2"
    )


def edges_hash(first, last):
    """Of the first and last 256 values as bf16: the same whether the checkpoint is stored as F32 or BF16."""
    return f"{fnv1a64(first.tobytes() + last.tobytes()):016x}"


def _edges(file, offset, entry):
    """The first and last EDGE values of a tensor in an open file, as bf16 bits."""
    width = {"BF16": 2, "F16": 2, "F32": 4}.get(entry["dtype"])
    if width is None:
        raise Problem(f"{file.name}: a tensor of type {entry['dtype']}, expected F32, BF16 or F16")
    count = int(np.prod(entry["shape"]))
    keep, out = min(count, EDGE), []
    for first in (0, count - keep):
        file.seek(offset + entry["data_offsets"][0] + first * width)
        data = file.read(keep * width)
        if len(data) < keep * width:
            raise Problem(f"{file.name}: cut short")
        if entry["dtype"] == "BF16":
            out.append(np.frombuffer(data, "<u2"))
        else:
            out.append(as_bf16(np.frombuffer(data, "<f2" if width == 2 else "<f4")))
    return out


def checkpoint_files(folder):
    folder = pathlib.Path(folder)
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if folder.is_file():
        return [folder]
    if single.exists():
        return [single]
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    raise Problem(f"{folder}: holds no model.safetensors and no model.safetensors.index.json")


def checkpoint_weights(folder):
    """{tensor: [shape, hash]} of a checkpoint folder. LeRobot's leading "model." is left off, as the engine does."""
    weights = {}
    for path in checkpoint_files(folder):
        header, offset = read_header(path)
        with open(path, "rb") as file:
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                first, last = _edges(file, offset, entry)
                weights[name.removeprefix("model.")] = [entry["shape"], edges_hash(first, last)]
    return weights


def checkpoint_dims(weights, vision_heads=None):
    """The model's sizes, read off the shapes of its tensors. `vision_heads`: as the model's config has it."""
    part = "paligemma_with_expert."
    vision, vlm = (
        part + "paligemma.model.vision_tower.vision_model.",
        part + "paligemma.model.language_model.",
    )
    expert = part + "gemma_expert.model."

    def shape(*names):
        for name in names:
            if name in weights:
                return weights[name][0]
        raise Problem(
            f"the checkpoint has no tensor {names[0]}: it is neither π0 nor π0.5 in PyTorch's layout"
        )

    def depth(lead):
        return len({n[len(lead) :].split(".")[0] for n in weights if n.startswith(lead)})

    width = shape(vision + "embeddings.patch_embedding.weight")[0]
    rows, columns = shape(vlm + "layers.0.self_attn.q_proj.weight")
    head_dim = shape(vlm + "layers.0.self_attn.k_proj.weight")[0]
    return {
        "vision": [
            width,
            depth(vision + "encoder.layers."),
            vision_heads or width // 72,
            shape(vision + "encoder.layers.0.mlp.fc1.weight")[0],
        ],
        "vlm": [
            columns,
            depth(vlm + "layers."),
            rows // head_dim,
            head_dim,
            shape(vlm + "layers.0.mlp.gate_proj.weight")[0],
        ],
        "expert": shape(expert + "layers.0.mlp.gate_proj.weight")[::-1],
        "vocab": shape(vlm + "embed_tokens.weight", part + "paligemma.lm_head.weight")[0],
    }


# ---- what is recorded ----------------------------------------------------------------------------------------


class Golden:
    """Collects observations, each with what the model and the policy made of it, and saves them."""

    def __init__(self, *, layout, pi05, dims, weights, horizon, steps, max_tokens, notes):
        """layout: openpi or lerobot, whose conventions hold. notes: further metadata, {name: text}."""
        self.about = {
            "format": FORMAT,
            "layout": layout,
            "pi05": json.dumps(bool(pi05)),
            "dims": json.dumps(dims),
            "horizon": str(horizon),
            "steps": str(steps),
            "max_tokens": str(max_tokens),
            "weights": json.dumps(weights),
            **{k: str(v) for k, v in notes.items() if v is not None},
        }
        self.horizon, self.steps, self.max_tokens = horizon, steps, max_tokens
        self.observations = []

    def add(self, **o):
        """One observation:
        images [3,224,224,3] u8, or f32 in -1 … 1; image_mask [3]; tokens, token_mask [L]; state [32]; noise [H,32]
        actions_f32 [H,32]; actions_bf16 [H,32] or None
        stages: image_tokens [3,256,W]; k, v [layer,768+L,head_dim]; suffix0 [T,E]; time [N]; velocity, x [N,H,32]; or None
        request: the bytes that a client sends; policy_state [32], policy_actions [H,A] f64; or None
        """
        h, length = self.horizon, self.max_tokens
        expected = {
            "images": (SLOTS, SIDE, SIDE, 3),
            "image_mask": (SLOTS,),
            "tokens": (length,),
            "token_mask": (length,),
            "state": (DIMS,),
            "noise": (h, DIMS),
            "actions_f32": (h, DIMS),
            "actions_bf16": (h, DIMS),
            "policy_state": (DIMS,),
        }
        for name, shape in expected.items():
            if o.get(name) is not None and np.shape(o[name]) != shape:
                raise Problem(f"{name} has shape {list(np.shape(o[name]))}, expected {list(shape)}")
        for name in ("state", "noise", "actions_f32", "policy_actions"):
            if o.get(name) is not None and not np.isfinite(o[name]).all():
                raise Problem(f"{name} of observation {len(self.observations)} is not finite")
        self.observations.append(o)

    def tensors(self):
        of, out = self.observations, {}
        if not of:
            raise Problem("no observation was recorded")

        def stack(name, kind, key):
            if of[0].get(key) is not None:
                out[name] = np.stack([np.asarray(o[key], kind) for o in of])

        stack("in.images", "u1" if np.asarray(of[0]["images"]).dtype == np.uint8 else "<f4", "images")
        for key, kind in (
            ("image_mask", "u1"),
            ("tokens", "<i4"),
            ("token_mask", "u1"),
            ("state", "<f4"),
            ("noise", "<f4"),
        ):
            stack("in." + key, kind, key)
        out["in.tokens"] = out["in.tokens"] * (
            out["in.token_mask"] != 0
        )  # what stands in the padding is nobody's
        stack("actions.f32", "<f4", "actions_f32")
        stack("actions.bf16", "<f4", "actions_bf16")
        stack("policy.state", "<f8", "policy_state")
        stack("policy.actions", "<f8", "policy_actions")
        for i, o in enumerate(of):
            if o.get("request") is not None:
                out[f"request.{i}"] = np.frombuffer(o["request"], "u1")
        if of[0].get("stages") is not None:
            out.update(self._stages())
        return out

    def _stages(self):
        stages, prefix = [o["stages"] for o in self.observations], SLOTS * IMAGE_TOKENS
        last = {
            prefix + int(np.flatnonzero(o["token_mask"])[-1])
            for o in self.observations
            if np.any(o["token_mask"])
        }
        rows = np.array(sorted(set(range(0, prefix + self.max_tokens, EVERY)) | last), "<i4")
        f32 = lambda arrays, axis=0: np.stack([np.asarray(a, "<f4") for a in arrays], axis)
        return {
            "stage.image_tokens": f32([s["image_tokens"][:, ::EVERY] for s in stages]),
            "stage.rows": rows,
            "stage.k": f32([s["k"][:, rows] for s in stages], 1),
            "stage.v": f32([s["v"][:, rows] for s in stages], 1),
            "stage.suffix0": f32([s["suffix0"] for s in stages]),
            "stage.time": np.asarray(stages[0]["time"], "<f4"),
            "stage.velocity": f32([s["velocity"] for s in stages]),
            "stage.x": f32([s["x"] for s in stages]),
        }

    def save(self, path):
        write_safetensors(path, self.tensors(), self.about)
