"""Re-expresses goldens that openpi itself computed as record-golden would have written them, with its own
writing code.

record.py TOOL MODEL-GOLDEN CHECKPOINT OUT      tests/golden/model/NAME.safetensors
record.py TOOL POLICY-FOLDER CHECKPOINT OUT [CONFIG]    tests/golden/policy/NAME: the policy level alone
record.py TOOL --change FILE TENSOR INDEX BY    adds BY to one element in place, as a fault
"""

import json
import pathlib
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import golden  # noqa: E402


def load(path):
    header, offset = golden.read_header(path)
    data = pathlib.Path(path).read_bytes()[offset:]
    about = {k: json.loads(v) for k, v in header.pop("__metadata__").items()}
    cut = lambda e: np.frombuffer(data[slice(*e["data_offsets"])], golden.TYPES[e["dtype"]]).reshape(
        e["shape"]
    )
    return {name: cut(entry) for name, entry in header.items()}, about


def spread(rows, count, kept, axis):
    """The inverse of keeping rows: zeros where nothing was kept."""
    shape = list(kept.shape)
    shape[axis] = count
    out = np.zeros(shape, np.float32)
    at = [slice(None)] * kept.ndim
    at[axis] = rows
    out[tuple(at)] = kept
    return out


def begin(checkpoint, pi05, horizon, steps, max_tokens, config=None):
    weights = golden.checkpoint_weights(checkpoint)
    return golden.Golden(
        layout="openpi",
        pi05=pi05,
        dims=golden.checkpoint_dims(weights),
        weights=weights,
        horizon=horizon,
        steps=steps,
        max_tokens=max_tokens,
        notes={"config": config},
    )


def model(path, checkpoint, out):
    t, about = load(path)
    length, prefix = about["max_tokens"], 768 + about["max_tokens"]
    new = begin(checkpoint, about["pi05"], about["horizon"], about["steps"], length)
    assert new.about["dims"] == json.dumps(about["dims"]), (new.about["dims"], about["dims"])
    for b in range(len(t["in.images"])):
        stages = {name: t["stage." + name][b] for name in ("suffix0", "velocity", "x")} | {
            "time": t["stage.time"]
        }
        kept = np.arange(0, 256, golden.EVERY)
        stages["image_tokens"] = spread(kept, 256, t["stage.image_tokens"][b], 1)
        for name in "kv":
            stages[name] = spread(t["stage.rows"], prefix, t["stage." + name][:, b], 1)
        one = {
            name: t["in." + name][b]
            for name in ("images", "image_mask", "tokens", "token_mask", "state", "noise")
        }
        new.add(
            **one, actions_f32=t["actions.jax_f32"][b], actions_bf16=t["actions.jax_bf16"][b], stages=stages
        )
    # Rows that the original did not keep would be zeros here: the last token of samples 1 and up.
    tensors = new.tensors()
    keep = np.isin(tensors["stage.rows"], t["stage.rows"])
    for name in ("stage.k", "stage.v"):
        tensors[name] = tensors[name][:, :, keep]
    tensors["stage.rows"] = tensors["stage.rows"][keep]
    golden.write_safetensors(out, tensors, new.about)


def policy(folder, checkpoint, out, config=None):
    t, about = load(folder / "expected.safetensors")
    pi05 = about.get("pi05", False)
    new = begin(checkpoint, pi05, about["horizon"], 10, len(t["tokens"]), config)
    new.add(
        **{name: t[name] for name in ("images", "image_mask", "tokens", "token_mask", "noise")},
        state=t["state"].astype(np.float32),
        request=(folder / "request.msgpack").read_bytes(),
        policy_state=t["state"],
        policy_actions=t["actions"]
    )
    new.save(out)


def change(path, tensor, index, by):
    header, offset = golden.read_header(path)
    entry = header[tensor]
    kind = np.dtype(golden.TYPES[entry["dtype"]])
    data = bytearray(pathlib.Path(path).read_bytes())
    at = offset + entry["data_offsets"][0] + int(index) * kind.itemsize
    value = np.frombuffer(data[at : at + kind.itemsize], kind)[0]
    moved = int(value) + int(by) & 255 if kind.kind == "u" else value + float(by)
    data[at : at + kind.itemsize] = kind.type(moved).tobytes()
    pathlib.Path(path).write_bytes(data)


if __name__ == "__main__":
    if sys.argv[2] == "--change":
        change(*sys.argv[3:])
    else:
        source = pathlib.Path(sys.argv[2])
        (policy if source.is_dir() else model)(source, *sys.argv[3:])
