"""Is this machine right? openpi's own results for synthetic weights (tests/golden/model), computed again."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
import os
import pathlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from openpi_c.model import Engine
from openpi_c.model import Path
from openpi_c.model import Sample

DTYPES: dict[str, npt.DTypeLike] = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "U8": np.uint8}


@dataclasses.dataclass(frozen=True)
class Check:
    """How far the actions of one golden are from the truth, and how far they may be."""

    name: str
    largest: float
    rms: float
    largest_allowed: float
    rms_allowed: float

    @property
    def passed(self) -> bool:
        return self.largest <= self.largest_allowed and self.rms <= self.rms_allowed


def verify(path: Path, *, device: str = "cpu", dtype: str = "bf16", threads: int = 0) -> list[Check]:
    """Recomputes a golden, or every one of a folder but those of the full size, and compares (tests/golden/README.md).

    `openpi verify` also compares stages, requests and checkpoints of your own.
    """
    found = pathlib.Path(os.fspath(path))
    files = [found] if found.is_file() else sorted(f for f in found.glob("*.safetensors") if "_full" not in f.name)
    if not files:
        raise FileNotFoundError(f"{found}: no golden there, expected a .safetensors file or a folder of them")
    return [_check(file, device=device, dtype=dtype, threads=threads) for file in files]


def read_safetensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """(tensors by name, metadata with its JSON values read) of a golden."""
    data = pathlib.Path(os.fspath(path)).read_bytes()
    try:
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        metadata = {key: json.loads(value) for key, value in header.pop("__metadata__").items()}
        tensors = {name: _tensor(data[8 + size :], entry) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a golden in safetensors, {error}") from None
    return tensors, metadata


def _tensor(data: bytes, entry: dict[str, Any]) -> npt.NDArray[Any]:
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _samples(tensors: dict[str, npt.NDArray[Any]]) -> Iterator[Sample]:
    inputs = (tensors["in." + key] for key in ("images", "image_mask", "tokens", "token_mask", "state"))
    for images, image_mask, tokens, mask, state in zip(*inputs, strict=True):
        pictures = [image if there else None for image, there in zip(images, image_mask, strict=True)]
        yield Sample(pictures, tokens[: int(mask.sum())], state)


def _check(file: pathlib.Path, *, device: str, dtype: str, threads: int) -> Check:
    tensors, about = read_safetensors(file)
    try:
        spec = f"{about['preset']}:{'pi05' if about['pi05'] else 'pi0'}:{about['seed']}"
        shape = {"horizon": about["horizon"], "steps": about["steps"], "max_prompt": about["max_tokens"]}
        samples, noise = list(_samples(tensors)), tensors["in.noise"]
        truth = tensors["actions.jax_f32"]
        rounded = tensors["actions.jax_bf16"] - truth
    except KeyError as error:
        raise ValueError(f"{file}: no golden of a whole model, {error} is missing") from None
    with Engine(synthetic=spec, device=device, dtype=dtype, threads=threads) as engine:
        with engine.session(batch=len(samples), **shape) as session:
            off = session.run(samples, noise) - truth
    if dtype == "f32":
        allowed = 1e-4 if device == "cpu" else 3e-4
        return Check(file.stem, _largest(off), _rms(off), allowed, allowed)
    return Check(file.stem, _largest(off), _rms(off), 2 * _largest(rounded), 1.15 * _rms(rounded))


def _largest(off: npt.NDArray[Any]) -> float:
    return float(np.abs(off).max())


def _rms(off: npt.NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(off, dtype=np.float64))))
