"""The policy level: openpi's `policy.infer(obs)` on the C engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
import json
import os
import threading
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np
import numpy.typing as npt

from openpi_c import _openpi
from openpi_c.closing import Closing
from openpi_c.keywords import checked
from openpi_c.model import Engine
from openpi_c.model import Path
from openpi_c.model import Rtc
from openpi_c.model import Sample
from openpi_c.model import Session
from openpi_c.model import check_chunks
from openpi_c.model import check_noise
from openpi_c.model import check_number
from openpi_c.model import noise as draw_noise
from openpi_c.model import rtc_defaults
from openpi_c.model import rtc_parts
from openpi_c.model import say_notes
from openpi_c.model import tokenizer_cache
from openpi_c.progress import Progress

# An observation in openpi's form, or the bytes of a message of openpi's client.
Observation = Mapping[str, Any] | bytes


class Request:
    """The scratch that turns one observation into a prepared sample, and model actions into the robot's."""

    def __init__(self, policy: Policy):
        self._handle = _openpi.Request(policy._transform)
        self._dims: int = policy.info["action_dim"]

    def prepare(self, obs: Observation) -> None:
        self._handle.prepare(obs)
        for _, text in self._handle.notes:
            warnings.warn(text, UserWarning, stacklevel=2)

    @property
    def prompt_truncated(self) -> bool:
        return self._handle.prompt_truncated

    @property
    def limited(self) -> dict[str, int]:
        """What the robot's limits did to the actions of the last finish, as counts."""
        return self._handle.limited

    def sample(self) -> Sample:
        """What the last prepare made, as copies."""
        *pictures, floats, tokens, state, _ = self._handle.sample()
        kind = np.float32 if floats else np.uint8
        images = [None if p is None else np.frombuffer(p, kind).reshape(224, 224, 3) for p in pictures]
        return Sample(images, np.frombuffer(tokens, np.int32), np.frombuffer(state, np.float32))

    @property
    def state(self) -> npt.NDArray[np.float64]:
        """The prepared state, normalised."""
        return np.frombuffer(self._handle.sample()[-1], np.float64)

    def finish(self, model_actions: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Normalised actions [H, 32] to the robot's [H, action_dim], for the observation prepared last."""
        model = _model_actions(model_actions)
        actions = np.empty((model.shape[0], self._dims))
        self._handle.finish_into(model, actions)
        return actions

    def keep(self, model_actions: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """What to keep of normalised actions [H, 32] for `previous` of a later observation: float64 [H, 32]."""
        model = _model_actions(model_actions)
        kept = np.empty(model.shape)
        self._handle.keep_into(model, kept)
        return kept

    def previous(self, kept: npt.ArrayLike, executed: int = 0) -> npt.NDArray[np.float32]:
        """What is left of a kept chunk after `executed` steps, for the observation prepared last and run_rtc."""
        chunk = np.ascontiguousarray(_numbers("the kept chunk", kept), np.float64)
        if chunk.ndim != 2 or chunk.shape[1] != _openpi.ACTION_DIM:
            raise ValueError(f"the kept chunk has shape {list(chunk.shape)}, expected [horizon, 32]")
        left = np.empty(chunk.size, np.float32)
        rows, dims = self._handle.previous_into(chunk, executed, left)
        return left[: rows * dims].reshape(rows, dims)

    def close(self) -> None:
        self._handle.close()


def _numbers(what: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    found = np.asarray(given)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"{what} is of dtype {found.dtype}, expected numbers")
    return found


def _model_actions(given: npt.ArrayLike) -> npt.NDArray[np.float32]:
    model = np.ascontiguousarray(_numbers("the model's chunk", given), np.float32)
    if model.ndim != 2 or model.shape[1] != _openpi.ACTION_DIM:
        raise ValueError(f"the model's actions have shape {list(model.shape)}, expected [horizon, 32]")
    return model


class _Lane(NamedTuple):
    """What one call at a time needs: a session, and a request for each observation of a batch."""

    handle: _openpi.Session
    requests: tuple[_openpi.Request, ...]
    session: Session

    @property
    def busy(self) -> bool:
        return self.handle.busy

    def close(self) -> None:
        self.session.close()
        for request in self.requests:
            request.close()


class _Lanes:
    """Lanes for the calls that run at once, made when they are needed, at most `limit`; more calls wait.

    The extension takes a lane that is free and gives it back. The lock is only for calls that have to wait.
    """

    def __init__(self, make: Callable[[], _Lane], limit: int):
        self._make = make
        self._limit = limit
        self._made = 0
        self._waiting = 0
        self._process = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._ending: list[_Lane] = []
        self.closed = False
        self.lanes: list[_Lane] = []

    def infer(
        self,
        observations: tuple[Observation, ...],
        noise: npt.NDArray[np.float32] | None,
        seed: int,
        stream: int,
        rtc: tuple[Any, ...] | None,
    ) -> list[dict[str, Any]]:
        try:
            while (answers := _openpi.infer(self.lanes, observations, noise, seed, stream, rtc)) is None:
                self.await_lane()
            return answers
        finally:
            if self._waiting or self.closed:
                self._tell()

    def await_lane(self) -> None:
        """Returns when a lane is free or was, another one where there may be more."""
        if os.getpid() != self._process:
            raise _openpi.Error(
                f"process {self._process} opened the policy and this is process {os.getpid()}, forked from it: "
                "expected a policy opened here"
            )
        with self._changed:
            if self.closed:
                raise ValueError("the policy is closed")
            if self._made == self._limit:
                self._waiting += 1
                try:
                    while not self.closed and self._made == self._limit and all(lane.busy for lane in self.lanes):
                        self._changed.wait()
                finally:
                    self._waiting -= 1
                return
            self._made += 1
        lane = None
        try:
            lane = self._make()
        except ValueError:
            if self.closed:  # while the lane was made
                raise ValueError("the policy is closed") from None
            raise
        finally:
            self._made_one(lane)

    def _made_one(self, lane: _Lane | None) -> None:
        with self._changed:
            if lane is None:
                self._made -= 1
            elif self.closed:
                lane.close()
            else:
                self.lanes.append(lane)
            self._changed.notify_all()

    def _tell(self) -> None:
        """A call has ended: those that wait look for its lane; after `close` it is closed."""
        with self._changed:
            self._changed.notify()
            ended = [lane for lane in self._ending if not lane.busy]
            self._ending = [lane for lane in self._ending if lane.busy]
        for lane in ended:
            lane.close()

    def close(self) -> None:
        """Calls that run end as usual; those that wait are told that the policy is closed."""
        with self._changed:
            self.closed = True
            self._ending += self.lanes
            self.lanes.clear()
            self._changed.notify_all()
        self._tell()


class _Sampler:
    """Several chunks of each observation: a session as large as the largest call so far, and requests."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._session: Session | None = None

    def check(self, count: int) -> None:
        if not 1 <= count <= _openpi.MAX_BATCH:
            raise ValueError(f"samples is {count}, expected 1 to {_openpi.MAX_BATCH}")

    def infer(
        self,
        observations: Sequence[Observation],
        count: int,
        noise: npt.NDArray[np.float32] | None,
        seed: int,
        stream: int,
        first: int | None = None,
    ) -> list[dict[str, Any]]:
        """One call of the model. noise: [B, count, H, 32]. first: the number of the first one, for sentences."""
        policy, batch = self._policy, len(observations)
        if noise is None:
            shape, all_chunks = (policy.horizon, _openpi.ACTION_DIM), range(batch * count)
            drawn = np.stack([draw_noise(shape, seed=seed, stream=stream + i) for i in all_chunks])
            noise = drawn.reshape(batch, count, *shape)
        with self._lock:
            requests, session = self._open(batch, count)
            for i, (request, obs) in enumerate(zip(requests, observations, strict=True)):
                _prepare(request, obs, None if first is None else first + i)
            model, times = session._run_many([request.sample() for request in requests], count, noise)
            timing = {"infer_ms": times[-1], "device_ms": times[-2]}
            return [_finish(request, chunks, timing) for request, chunks in zip(requests, model, strict=True)]

    def _open(self, batch: int, count: int) -> tuple[list[Request], Session]:
        policy = self._policy
        if policy.closed:
            raise ValueError("the policy is closed")
        if self._session is None or self._session.info["batch"] < batch * count:
            if self._session is not None:
                self._session.close()
                self._session = None
            self._session = policy.engine.session(batch=batch * count, parts=True, **policy._shape)
        while len(self._requests) < batch:
            self._requests.append(policy.request())
        return self._requests[:batch], self._session

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()
            for request in self._requests:
                request.close()
            self._requests, self._session = [], None


def _prepare(request: Request, obs: Observation, number: int | None) -> None:
    """number: which of several observations it is; None: the only one."""
    try:
        request.prepare(obs)
    except (ValueError, TypeError) as error:
        if number is None:
            raise
        raise type(error)(f"observation {number}: {error}") from None


def _finish(request: Request, chunks: npt.NDArray[np.float32], timing: dict[str, float]) -> dict[str, Any]:
    """The answer to one observation: the robot's actions of each chunk."""
    actions, limited = [], Counter[str]()
    for chunk in chunks:
        actions.append(request.finish(chunk))
        limited.update(request.limited)
    answer: dict[str, Any] = {"policy_timing": timing, "actions": np.stack(actions)}
    if limited["changed"]:
        answer["limited"] = dict(limited)
    if request.prompt_truncated:
        answer["prompt_truncated"] = True
    return answer


class Policy(Closing):
    """A robot's policy: observations as openpi takes them in, a chunk of robot actions out.

    Any number of threads may call it: up to `sessions` calls run at once, the others wait. `batch` is the largest
    number of observations that infer_batch runs as one call of the model. rtc: calls may follow on from the chunk
    that the robot is executing (infer's `previous`). Other arguments are those of Engine and of openpi.h's
    openpi_policy_options; None and 0 mean what the checkpoint says.
    """

    @checked
    def __init__(
        self,
        checkpoint: Path | None = None,
        *,
        config: str | None = None,
        robot: Path | None = None,
        synthetic: str | None = None,
        device: str = "cpu",
        dtype: str | None = None,
        weights: str | None = None,
        threads: int = 0,
        isa: str | None = None,
        path: str | None = None,
        without: str | None = None,
        table: Path | None = None,
        adapter: Path | None = None,
        without_lora: bool = False,
        missing_chunks_are_zero: bool = False,
        accept_error: bool = False,
        norm_stats: Path | Mapping[str, Any] | None = None,
        assets: str | None = None,
        tokenizer: Path | None = None,
        prompt_state: bool | None = None,
        max_prompt: int = 0,
        default_prompt: str | None = None,
        horizon: int = 0,
        steps: int = 0,
        seed: int = 0,
        batch: int = 1,
        sessions: int = 1,
        rtc: bool = False,
        progress: Progress = "auto",
    ):
        if sessions < 1:
            raise ValueError(f"sessions is {sessions}, expected 1 or more")
        if not 1 <= batch <= _openpi.MAX_BATCH:
            raise ValueError(f"batch is {batch}, expected 1 to {_openpi.MAX_BATCH}")
        self._seed = check_number("seed", seed)
        with _stats_file(norm_stats) as stats:
            self._transform = _openpi.Transform(
                checkpoint,
                synthetic=synthetic,
                robot=robot,
                config=config,
                norm_stats=stats,
                assets=assets,
                tokenizer=tokenizer,
                tokenizer_cache=tokenizer_cache(),
                prompt_state=prompt_state,
                max_prompt=max_prompt,
                adapter=adapter,
                horizon=horizon,
            )
        self.info: dict[str, Any] = self._transform.info()
        say_notes(self.info["notes"])
        if isinstance(norm_stats, Mapping):
            self.info["statistics"] = "norm_stats"
        self.engine = Engine(
            checkpoint,
            synthetic=synthetic,
            device=device,
            dtype=dtype,
            weights=weights,
            threads=threads,
            isa=isa,
            path=path,
            without=without,
            table=table,
            adapter=adapter,
            without_lora=without_lora,
            missing_chunks_are_zero=missing_chunks_are_zero,
            accept_error=accept_error,
            progress=progress,
        )
        self._default_prompt = default_prompt
        self._streams = itertools.count(0, _openpi.MAX_BATCH)
        self._shape = {
            "horizon": horizon or self.info["horizon"],
            "steps": steps,
            "max_prompt": self.info["max_prompt"],
        }
        self._sessions = sessions
        self._open_lanes(batch, rtc)
        self._lanes.await_lane()
        self._sampler = _Sampler(self)
        session = self._lanes.lanes[0].session.info
        self.horizon: int = session["horizon"]
        self.steps: int = session["steps"]
        self._defaults = rtc_defaults(self.engine, self.steps)
        self._model_dims: int = self.engine.info["action_dim"]

    @property
    def notes(self) -> tuple[tuple[bool, str], ...]:
        """What loading found that changes actions: (is it a warning, the sentence), each once."""
        return tuple(dict.fromkeys(self.engine.notes + self.info["notes"]))

    # ---- openpi's interface --------------------------------------------------------------------------------

    @checked
    def infer(
        self,
        obs: Observation,
        *,
        noise: npt.ArrayLike | None = None,
        previous: npt.ArrayLike | None = None,
        rtc: Rtc | Mapping[str, Any] | None = None,
        samples: int | None = None,
    ) -> dict[str, Any]:
        """{"actions": float64 [H, action_dim], "policy_timing": {"infer_ms", "stages", …}}.

        noise: [H, 32] or [1, H, 32], x at t = 1; a model of fewer action dimensions takes as many columns, too.
        Without it the policy draws noise from its seed and the number of the call. infer_ms is the model's own time, total_ms that of the whole call in the engine.

        A policy with rtc=True also answers "chunk", float64 [H, 32]. What is left of it, `chunk[executed:]`, is
        `previous` of the next call, and rtc={"delay": d} says how many further steps the robot executes meanwhile.
        `previous` may also be float32 [steps, dimensions], normalised, in model space.

        samples=N: N chunks of the observation from one vision and prefix pass, "actions" float64 [N, H, action_dim];
        noise is [N, H, 32] then. The first such call, and each with more samples than any before, takes the memory
        of a session of its own; such calls wait for each other.

        "prompt_truncated": True is there where the prompt was cut; Python warns of it, too.

        "limited" is there where limits of the robot's file changed actions: a dict of counts, "changed", "below_min",
        "above_max", "beyond_step", "beyond_start", "held". Actions that may not be sent raise openpi_c.Error.
        """
        if self._default_prompt is not None:
            obs = self._with_prompt(obs)
        if samples is not None:
            if previous is not None or rtc is not None:
                raise ValueError("samples and previous do not go together: expected one of them")
            self._sampler.check(samples)
            chunks = None if noise is None else check_noise(noise, samples, self.horizon, self._model_dims)[None]
            return self._sampler.infer([obs], samples, chunks, self._seed, next(self._streams))[0]
        given = None if noise is None else check_noise(noise, 1, self.horizon, self._model_dims)
        rules = None if previous is None else rtc_parts([_previous(previous)], rtc, 1, self._defaults)
        return _warned(self._lanes.infer((obs,), given, self._seed, next(self._streams), rules))[0]

    @checked
    def infer_batch(
        self,
        observations: Sequence[Observation],
        *,
        noise: npt.ArrayLike | None = None,
        previous: Sequence[npt.ArrayLike | None] | None = None,
        rtc: Sequence[Rtc | Mapping[str, Any] | None] | Rtc | Mapping[str, Any] | None = None,
        samples: int | None = None,
    ) -> list[dict[str, Any]]:
        """infer for several observations: each has the result that it would have alone. noise: [B, H, 32].

        samples=N: N chunks of each, "actions" float64 [N, H, action_dim]; noise is [B, N, H, 32] then. A call of the
        model computes as many observations as the policy's batch, and at most 64 chunks, in the memory of infer's
        samples.
        """
        count = len(observations)
        if samples is not None:
            if previous is not None or rtc is not None:
                raise ValueError("samples and previous do not go together: expected one of them")
            return self._infer_samples(observations, samples, noise)
        given = None if noise is None else check_noise(noise, count, self.horizon, self._model_dims)
        rules = None
        if previous is not None:
            rules = rtc_parts([None if p is None else _previous(p) for p in previous], rtc, count, self._defaults)
        answers: list[dict[str, Any]] = []
        for first in range(0, count, self._batch):
            part = slice(first, first + self._batch)
            answers += _warned(
                self._lanes.infer(
                    tuple(self._with_prompt(obs) for obs in observations[part]),
                    None if given is None else given[part],
                    self._seed,
                    next(self._streams),
                    None if rules is None else rules[part],
                )
            )
        return answers

    def _infer_samples(
        self, observations: Sequence[Observation], samples: int, noise: npt.ArrayLike | None
    ) -> list[dict[str, Any]]:
        self._sampler.check(samples)
        given = None
        if noise is not None:
            given = check_chunks(noise, len(observations), samples, self.horizon, self._model_dims)
        most = max(1, min(self._batch, _openpi.MAX_BATCH // samples))
        answers: list[dict[str, Any]] = []
        for first in range(0, len(observations), most):
            part = slice(first, first + most)
            full = [self._with_prompt(obs) for obs in observations[part]]
            chunks = None if given is None else given[part]
            answers += self._sampler.infer(full, samples, chunks, self._seed, next(self._streams), first)
        return answers

    def reset(self) -> None:
        """Does nothing: no call leaves a trace in the next."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What a server tells a client at the start: the config's (`reset_pose`, where it has one), the robot's."""
        pose = self.info["reset_pose"]
        told = [("warning: " if warning else "") + text for warning, text in self.notes]
        return ({} if pose is None else {"reset_pose": list(pose)}) | {
            "robot": self.info["robot"],
            "cameras": [camera for camera in self.info["cameras"] if camera],
            "action_horizon": self.horizon,
            "action_dim": self.info["action_dim"],
            "action_names": list(self.info["action_names"]),
            "action_units": list(self.info["action_units"]),
            "rate_hz": self.info["rate_hz"],
        } | ({"notes": told} if told else {})

    # ---- the rest ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        """Preparing and finishing by hand, with sessions of `engine` in between."""
        return Request(self)

    def reserve(self, batch: int = 1, *, rtc: bool = False) -> None:
        """Lets infer_batch run up to `batch` observations as one call from now on; rtc: as the argument of Policy.

        Not while other threads call.
        """
        batch, rtc = max(batch, self._batch), rtc or self._rtc
        if batch > self._batch or rtc != self._rtc:
            if batch > _openpi.MAX_BATCH:
                raise ValueError(f"batch is {batch}, expected 1 to {_openpi.MAX_BATCH}")
            if self.closed:
                raise ValueError("the policy is closed")
            self._lanes.close()
            self._open_lanes(batch, rtc)

    def _open_lanes(self, batch: int, rtc: bool) -> None:
        engine, transform, shape = self.engine, self._transform, self._shape

        def make() -> _Lane:
            session = engine.session(batch=batch, rtc=rtc, **shape)
            return _Lane(session._handle, tuple(_openpi.Request(transform) for _ in range(batch)), session)

        self._batch, self._rtc = batch, rtc
        self._lanes = _Lanes(make, self._sessions)

    @property
    def closed(self) -> bool:
        return self._lanes.closed

    def close(self) -> None:
        """Frees the model. Calls of other threads that run already end first."""
        self._lanes.close()
        self._sampler.close()
        self.engine.close()
        self._transform.close()

    def _with_prompt(self, obs: Observation) -> Observation:
        if self._default_prompt is None or isinstance(obs, bytes) or "prompt" in obs or "task" in obs:
            return obs
        return {**obs, "prompt": self._default_prompt}


def _warned(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Python's warning for what a call did that changes actions: a prompt that was cut, a camera found by position."""
    for answer in answers:
        for text in answer.pop("notes", ()):
            warnings.warn(text, UserWarning, stacklevel=3)
    return answers


def _previous(given: npt.ArrayLike) -> npt.NDArray[Any]:
    """A kept chunk or numbers in model space, as they are: actions in the robot's units are neither."""
    found = np.asarray(given)
    wide = found.shape[-1] if found.ndim == 2 else 0
    if (found.dtype == np.float64 and wide == _openpi.ACTION_DIM) or (
        found.dtype == np.float32 and 1 <= wide <= _openpi.ACTION_DIM
    ):
        return np.ascontiguousarray(found)
    raise ValueError(
        f"the previous chunk is {found.dtype} {list(found.shape)}, expected rows of what an answer has as \"chunk\", "
        f"float64 [steps, {_openpi.ACTION_DIM}], or float32 [steps, dimensions] in model space"
    )


@contextlib.contextmanager
def _stats_file(stats: Path | Mapping[str, Any] | None) -> Iterator[Path | None]:
    """A path as it is; openpi's dict of NormStats as a file that is there for the time of opening."""
    if not isinstance(stats, Mapping):
        yield stats
        return
    import tempfile  # here, because it takes longer to import than the rest of this file

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "norm_stats.json")
        with open(file, "w", encoding="utf-8") as out:
            json.dump({"norm_stats": {key: _stats_lists(key, value) for key, value in stats.items()}}, out)
        try:
            yield file
        except _openpi.Error as error:  # of a file that the caller never saw: it is a value of an argument
            if not str(error).startswith(file):
                raise
            raise ValueError(str(error).replace(file, "the dict norm_stats", 1)) from None


def _stats_lists(name: str, stats: Any) -> dict[str, Any]:
    """{"mean": […], …} of a dict or of an object with such attributes."""
    found: dict[str, Any] = {}
    for key in ("mean", "std", "q01", "q99"):
        value = stats.get(key) if isinstance(stats, Mapping) else getattr(stats, key, None)
        if value is None:
            continue
        numbers = np.asarray(value, np.float64)
        if not np.isfinite(numbers).all():
            raise ValueError(f'the dict norm_stats: "{key}" of "{name}" has a number that is not finite')
        found[key] = numbers.tolist()
    return found


def create_trained_policy(
    train_config: Any,
    checkpoint_dir: Path,
    *,
    sample_kwargs: Mapping[str, Any] | None = None,
    default_prompt: str | None = None,
    norm_stats: Mapping[str, Any] | None = None,
    repack_transforms: None = None,
    pytorch_device: None = None,
    **options: Any,
) -> Policy:
    """openpi's function of that name. train_config: a config's name, or openpi's object. options: as of Policy."""
    if repack_transforms is not None:
        raise NotImplementedError("repack_transforms are Python functions, expected none: rename keys beforehand")
    if pytorch_device is not None:
        raise NotImplementedError("pytorch_device is PyTorch's, expected device=\"cpu\" or \"cuda:0\" in its place")
    given = dict(sample_kwargs or {})
    steps = given.pop("num_steps", 0)
    if given:
        raise NotImplementedError(f"sample_kwargs has {sorted(given)}, expected only \"num_steps\"")
    name = train_config if isinstance(train_config, str) else train_config.name
    return Policy(
        checkpoint_dir, config=name, steps=steps, default_prompt=default_prompt, norm_stats=norm_stats, **options
    )


def _become_a_base_policy() -> None:
    """Where openpi's client is installed, a Policy is an instance of its BasePolicy."""
    try:
        from openpi_client.base_policy import BasePolicy
    except ImportError:
        return
    BasePolicy.register(Policy)


_become_a_base_policy()
