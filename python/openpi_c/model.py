"""The model level: an engine, its sessions, prepared samples. And what needs no model: inspect, noise."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import operator
import os
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np
import numpy.typing as npt

from openpi_c import _openpi
from openpi_c.closing import Closing
from openpi_c.keywords import checked
from openpi_c.keywords import question
from openpi_c.progress import Progress
from openpi_c.progress import reporter

Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Sample:
    """One observation in model space (openpi.h, openpi_sample).

    images: a picture a slot (base, left wrist, right wrist), uint8 or float32 in [-1, 1] [224, 224, 3]; None: none.
    tokens: int32 prompt ids without padding. state: float32 [32], normalised; None is allowed for π0.5.
    """

    images: Sequence[npt.ArrayLike | None]
    tokens: npt.ArrayLike
    state: npt.ArrayLike | None = None

    def parts(self) -> tuple[Any, Any, Any, Any, Any]:
        """The tuple that the extension takes."""
        if len(self.images) != 3:
            raise ValueError(f"the sample has {len(self.images)} images, expected 3, None where a camera is missing")
        base, left, right = self.images
        tokens = np.ascontiguousarray(self.tokens, np.int32)
        state = None if self.state is None else np.ascontiguousarray(self.state, np.float32)
        return (base, left, right, tokens, state)


@dataclasses.dataclass(frozen=True)
class Rtc:
    """How a new chunk follows on from the one that the robot is executing (openpi.h, openpi_rtc).

    delay: steps of the previous chunk that the robot will have executed when the new one is there. mode: "guided" (any
    checkpoint) or "trained"; schedule ("zeros", "ones", "linear", "exp"), horizon (1 or more) and max_weight (above 0,
    cut to the number of denoising steps) are of "guided". None: the checkpoint's, else "guided", "linear", 10 steps, 10.
    """

    delay: int = 0
    mode: str | None = None
    schedule: str | None = None
    horizon: int | None = None
    max_weight: float | None = None

    def parts(self) -> tuple[int, int, float]:
        """delay, horizon and max_weight as the extension takes them: 0 stands for None there, so it is refused here."""
        delay = _steps("delay", self.delay, 0)
        horizon = 0 if self.horizon is None else _steps("horizon", self.horizon, 1)
        if self.max_weight is None:
            return (delay, horizon, 0.0)
        weight = self.max_weight
        if isinstance(weight, str | bytes | bool) or not 0 < float(weight) < float("inf"):
            raise ValueError(f"rtc max_weight is {weight!r}, expected a number above 0, or None for the checkpoint's")
        return (delay, horizon, float(weight))


def _steps(name: str, given: Any, low: int) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError
        steps = operator.index(given)
    except TypeError:
        raise TypeError(f"rtc {name} is {given!r}, expected a whole number (int) of steps") from None
    if not low <= steps < 2**31:
        least = f"{low} or more" + (", or None for the checkpoint's" if low else "")
        raise ValueError(f"rtc {name} is {steps}, expected {least}")
    return steps


class RtcDefaults(NamedTuple):
    """What a call gets that names no mode and no weight, the largest weight (the session's steps) and trained delay."""

    mode: str
    max_weight: float
    steps: int
    max_delay: int


def rtc_defaults(engine: Engine, steps: int) -> RtcDefaults:
    """The checkpoint's, else "guided" and 10."""
    info = engine.info
    mode = "guided" if info["rtc_mode"] == "off" else info["rtc_mode"]
    return RtcDefaults(mode, info["rtc_max_weight"], steps, info["rtc_max_delay"])


def rtc_parts(
    previous: Sequence[Any],
    rtc: Sequence[Rtc | Mapping[str, Any] | None] | Rtc | Mapping[str, Any] | None,
    count: int,
    defaults: RtcDefaults,
) -> tuple[Any, ...]:
    """The tuple that the extension takes, an entry a sample. One `rtc` counts for all samples."""
    rules = [rtc] * count if rtc is None or isinstance(rtc, Rtc | Mapping) else list(rtc)
    if len(previous) != count or len(rules) != count:
        raise ValueError(f"{len(previous)} previous chunks and {len(rules)} rtc for {count} samples, expected one each")
    return tuple(
        None if chunk is None else _rtc_part(chunk, rule, defaults) for chunk, rule in zip(previous, rules, strict=True)
    )


def _rtc_part(previous: Any, rule: Rtc | Mapping[str, Any] | None, defaults: RtcDefaults) -> tuple[Any, ...]:
    if isinstance(rule, Mapping):
        names = [field.name for field in dataclasses.fields(Rtc)]
        unknown = sorted(str(key) for key in rule if key not in names)
        if unknown:
            asked = question(unknown, names)
            raise ValueError(f"rtc has {', '.join(unknown)}, expected some of {', '.join(names)}{asked}")
        rule = Rtc(**rule)
    rule = rule or Rtc()
    delay, horizon, max_weight = rule.parts()
    mode = rule.mode or defaults.mode
    weight = max_weight or defaults.max_weight
    if mode == "guided" and defaults.max_delay:
        warnings.warn(
            f"the checkpoint was trained for real-time chunking with delays up to {defaults.max_delay} steps and runs "
            'guided, because mode is "guided": "trained" runs it as it was trained',
            UserWarning,
            stacklevel=4,
        )
    if mode == "guided" and weight > defaults.steps:
        warnings.warn(
            f"rtc max_weight {weight:g} is cut to {defaults.steps}, the number of denoising steps, at which a step lands "
            "on the previous chunk",
            UserWarning,
            stacklevel=4,
        )
    return (previous, mode, delay, rule.schedule, horizon, max_weight)


def say_notes(notes: Sequence[tuple[bool, str]]) -> None:
    """Python's warning for each note that is one; those that are not stay in `notes`."""
    for warning, text in notes:
        if warning:
            warnings.warn(text, UserWarning, stacklevel=3)


class Engine(Closing):
    """A loaded model and its worker threads. Any thread may use it."""

    @checked
    def __init__(
        self,
        checkpoint: Path | None = None,
        *,
        synthetic: str | None = None,
        device: str = "cpu",
        dtype: str | None = None,
        weights: str | None = None,
        threads: int = 0,
        isa: str | None = None,
        pin: bool = False,
        path: str | None = None,
        without: str | None = None,
        table: Path | None = None,
        adapter: Path | None = None,
        without_lora: bool = False,
        missing_chunks_are_zero: bool = False,
        accept_error: bool = False,
        progress: Progress = "auto",
    ):
        with reporter(progress) as function:
            self._handle = _openpi.Engine(
                checkpoint,
                synthetic=synthetic,
                device=device,
                dtype=dtype,
                weights=weights,
                threads=threads,
                isa=isa,
                pin=pin,
                path=path,
                without=without,
                table=table,
                adapter=adapter,
                without_lora=without_lora,
                missing_chunks_are_zero=missing_chunks_are_zero,
                accept_error=accept_error,
                progress=function,
            )

        say_notes(self.notes)

    @property
    def info(self) -> dict[str, Any]:
        return self._handle.info()

    @property
    def notes(self) -> tuple[tuple[bool, str], ...]:
        """What loading found that changes actions: (is it a warning, the sentence)."""
        notes: tuple[tuple[bool, str], ...] = self.info["notes"]
        return notes

    @property
    def closed(self) -> bool:
        return self._handle.closed

    @checked
    def session(
        self,
        *,
        batch: int = 1,
        horizon: int = 0,
        steps: int = 0,
        max_prompt: int = 0,
        seed: int = 0,
        rtc: bool = False,
        parts: bool = False,
        times: int = 0,
    ) -> Session:
        """Memory and plan for calls of up to `batch` samples. 0: the checkpoint's. rtc: for Session.run_rtc.

        parts: for Session.run_many, prefix and denoise; a prefix that is the same as in the call before is kept.
        times: for Session.step, most different times of the rows of one step.
        """
        return Session(
            self,
            batch=batch,
            horizon=horizon,
            steps=steps,
            max_prompt=max_prompt,
            seed=seed,
            rtc=rtc,
            parts=parts,
            times=times,
        )

    def close(self) -> None:
        """Sessions keep working; the weights are freed with the last of them."""
        self._handle.close()


class Session(Closing):
    """Buffers and plan of one stream of inferences: one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = 1,
        horizon: int = 0,
        steps: int = 0,
        max_prompt: int = 0,
        seed: int = 0,
        rtc: bool = False,
        parts: bool = False,
        times: int = 0,
    ):
        self._handle = _openpi.Session(
            engine._handle,
            batch=batch,
            horizon=horizon,
            steps=steps,
            max_prompt=max_prompt,
            seed=check_number("seed", seed),
            rtc=rtc,
            parts=parts,
            times=times,
        )
        self._defaults = rtc_defaults(engine, self._handle.info()["steps"])
        self._dims: int = engine.info["action_dim"]

    @property
    def info(self) -> dict[str, Any]:
        return self._handle.info()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def run(self, samples: Sequence[Sample], noise: npt.ArrayLike | None = None) -> npt.NDArray[np.float32]:
        """Prepared samples to normalised actions float32 [B, H, 32]. noise: float32 [B, H, 32], x at t = 1."""
        return self._run(samples, noise, None)

    def run_rtc(
        self,
        samples: Sequence[Sample],
        previous: Sequence[npt.ArrayLike | None],
        rtc: Sequence[Rtc | Mapping[str, Any] | None] | Rtc | Mapping[str, Any] | None = None,
        noise: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.float32]:
        """`run` where each sample follows on from its `previous`; None: an ordinary sample, bit for bit.

        previous: float32 [steps, dimensions], the chunk that the robot is executing from the first step that is not
        executed yet, normalised, in model space. The session needs rtc=True.
        """
        chunks = [None if p is None else _model_chunk(p) for p in previous]
        return self._run(samples, noise, rtc_parts(chunks, rtc, len(samples), self._defaults))

    def run_many(
        self, samples: Sequence[Sample], chunks: int, noise: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.float32]:
        """`chunks` chunks of each sample from one prefix: float32 [B, chunks, H, 32]; noise has the same shape.

        The session needs parts=True and a batch of B * chunks.
        """
        return self._run_many(samples, chunks, noise)[0]

    def prefix(self, samples: Sequence[Sample], chunks: int = 1) -> None:
        """Vision and prefix alone; what they leave is kept for `denoise`, until the next run or prefix."""
        self._handle.prefix(tuple(sample.parts() for sample in samples), chunks)

    def denoise(self, x: npt.ArrayLike, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Euler steps first … last - 1 over the kept prefix, from any x: float32 [B * chunks, H, 32] to the same.

        Step k is at the time 1 - k / steps. From 0 to the end, as by default, noise becomes actions.
        """
        out = np.array(x, np.float32, order="C")
        self._handle.denoise_into(out, first, self.info["steps"] if last is None else last)
        return out

    def step(self, x: npt.ArrayLike, times: npt.ArrayLike, dt: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """One Euler step in which every action row has a time of its own: x + dt * velocity, float32 [B * chunks, H, 32].

        times: [B * chunks, H] or [H], 1 noise and 0 actions; dt: the same shape, what each changes by. A row whose dt
        is 0 stays. The session needs times=N, as many different ones as a step has at most.
        """
        out = np.array(x, np.float32, order="C")
        shape = out.shape[:-1]
        own, by = (np.ascontiguousarray(np.broadcast_to(np.asarray(a, np.float32), shape)) for a in (times, dt))
        self._handle.step_into(out, own, by)
        return out

    def _run_many(
        self, samples: Sequence[Sample], chunks: int, noise: npt.ArrayLike | None
    ) -> tuple[npt.NDArray[np.float32], tuple[float, ...]]:
        count, horizon = len(samples), self._handle.horizon
        if not 1 <= chunks <= _openpi.MAX_BATCH:
            raise ValueError(f"chunks is {chunks}, expected 1 to {_openpi.MAX_BATCH}")
        actions = np.empty((count, chunks, horizon, _openpi.ACTION_DIM), np.float32)
        given = None
        if noise is not None:
            given = check_chunks(noise, count, chunks, horizon, self._dims).reshape(-1, horizon, _openpi.ACTION_DIM)
        parts = tuple(sample.parts() for sample in samples)
        return actions, self._handle.run_into(parts, given, actions, None, chunks)

    def _run(
        self, samples: Sequence[Sample], noise: npt.ArrayLike | None, rtc: tuple[Any, ...] | None
    ) -> npt.NDArray[np.float32]:
        actions = np.empty((len(samples), self._handle.horizon, _openpi.ACTION_DIM), np.float32)
        given = None if noise is None else check_noise(noise, len(samples), self._handle.horizon, self._dims)
        self._handle.run_into(tuple(sample.parts() for sample in samples), given, actions, rtc)
        return actions

    def close(self) -> None:
        self._handle.close()


def _model_chunk(given: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Never converted: float64 is what a policy keeps, whose relative actions are absolute."""
    found = np.asarray(given)
    if found.dtype != np.float32:
        raise ValueError(
            f"the previous chunk is of dtype {found.dtype}, expected float32 in model space, which Request.previous makes"
        )
    return np.ascontiguousarray(found)


def check_number(name: str, given: int) -> int:
    """A seed or a stream of the noise: one of 64 bits."""
    number = operator.index(given)
    if not 0 <= number < 2**64:
        raise ValueError(f"{name} is {number}, expected 0 to 2**64 - 1")
    return number


def check_noise(noise: npt.ArrayLike, batch: int, horizon: int, dims: int) -> npt.NDArray[np.float32]:
    """Noise as float32 [batch, horizon, 32]; [horizon, 32] is accepted for a batch of one.

    A model of `dims` action dimensions, fewer than 32, takes as many columns too and reads no others.
    """
    found = np.asarray(noise)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"the noise is of dtype {found.dtype}, expected float32")
    shapes = [(batch, horizon, columns) for columns in dict.fromkeys((_openpi.ACTION_DIM, dims))]
    if found.shape not in shapes and not (batch == 1 and found.shape in [shape[1:] for shape in shapes]):
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"the noise has shape {list(found.shape)}, expected {expected}")
    rows = np.asarray(found, np.float32).reshape(batch, horizon, -1)
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, 0), (0, _openpi.ACTION_DIM - rows.shape[2]))))


def check_chunks(
    noise: npt.ArrayLike, count: int, chunks: int, horizon: int, dims: int
) -> npt.NDArray[np.float32]:
    """Noise as float32 [count, chunks, horizon, 32]."""
    found = np.asarray(noise)
    if found.shape[:2] != (count, chunks):
        raise ValueError(
            f"the noise has shape {list(found.shape)}, expected {[count, chunks, horizon, _openpi.ACTION_DIM]}"
        )
    rows = check_noise(found.reshape(count * chunks, *found.shape[2:]), count * chunks, horizon, dims)
    return rows.reshape(count, chunks, horizon, _openpi.ACTION_DIM)


@checked
def inspect(
    checkpoint: Path,
    *,
    robot: str | None = None,
    config: str | None = None,
    norm_stats: Path | None = None,
    assets: str | None = None,
    tokenizer: Path | None = None,
    adapter: Path | None = None,
    without_lora: bool = False,
    missing_chunks_are_zero: bool = False,
    weights: str | None = None,
) -> dict[str, Any]:
    """What a checkpoint is, and the memory that it needs on each device. Loads no weights."""
    text = _openpi.inspect(
        checkpoint,
        robot=robot,
        config=config,
        norm_stats=norm_stats,
        assets=assets,
        tokenizer=tokenizer,
        tokenizer_cache=tokenizer_cache(),
        adapter=adapter,
        without_lora=without_lora,
        missing_chunks_are_zero=missing_chunks_are_zero,
        weights=weights,
    )
    result: dict[str, Any] = json.loads(text)
    return result


def tokenizer_cache() -> str:
    """Where openpi keeps the tokenizer that it downloads."""
    return os.path.expanduser("~/.cache/openpi/big_vision")


def noise(shape: int | Sequence[int], *, seed: int = 0, stream: int = 0) -> npt.NDArray[np.float32]:
    """Standard normal numbers, a pure function of seed, stream and index: what a call draws that is given none."""
    out = np.empty(shape, np.float32)
    _openpi.noise(check_number("seed", seed), check_number("stream", stream), out)
    return out


def write_synthetic(spec: str, folder: Path, *, lerobot: bool = False, threads: int = 0) -> None:
    """Writes a checkpoint with made-up weights, "tiny:pi05:8", into a new or empty folder, for tests."""
    _openpi.synthetic_write(spec, folder, lerobot=lerobot, threads=threads)


