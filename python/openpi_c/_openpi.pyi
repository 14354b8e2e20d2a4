from collections.abc import Callable
import os
from typing import Any
from typing import final

_Path = str | bytes | os.PathLike[str]

ACTION_DIM: int
MAX_BATCH: int
REASONS: dict[int, tuple[str, str]]

class Error(RuntimeError):
    status: str

def version() -> str: ...
def devices() -> list[dict[str, Any]]: ...
def switches() -> dict[str, str]: ...
def inspect(
    checkpoint: _Path | None,
    *,
    robot: str | None = ...,
    config: str | None = ...,
    norm_stats: _Path | None = ...,
    tokenizer: _Path | None = ...,
    tokenizer_cache: _Path | None = ...,
    assets: str | None = ...,
    adapter: _Path | None = ...,
    without_lora: bool = ...,
    missing_chunks_are_zero: bool = ...,
    weights: str | None = ...,
) -> str: ...
def near_word(word: str, known: list[str], /) -> str | None: ...
def noise(seed: int, stream: int, out: Any, /) -> None: ...
def synthetic_write(spec: str, folder: _Path, *, lerobot: bool = ..., threads: int = ...) -> None: ...
def infer(
    lanes: list[Any],
    observations: tuple[Any, ...],
    noise: Any,
    seed: int,
    stream: int,
    rtc: tuple[Any, ...] | None,
    /,
) -> list[dict[str, Any]] | None: ...
@final
class Engine:
    def __init__(
        self,
        checkpoint: _Path | None = ...,
        *,
        synthetic: str | None = ...,
        device: str | None = ...,
        dtype: str | None = ...,
        threads: int = ...,
        isa: str | None = ...,
        pin: bool = ...,
        path: str | None = ...,
        without: str | None = ...,
        table: _Path | None = ...,
        adapter: _Path | None = ...,
        weights: str | None = ...,
        without_lora: bool = ...,
        missing_chunks_are_zero: bool = ...,
        accept_error: bool = ...,
        progress: Callable[[str, int, int], object] | None = ...,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def info(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
@final
class Session:
    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = ...,
        horizon: int = ...,
        steps: int = ...,
        max_prompt: int = ...,
        seed: int = ...,
        rtc: bool = ...,
        parts: bool = ...,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def busy(self) -> bool: ...
    @property
    def horizon(self) -> int: ...
    def info(self) -> dict[str, Any]: ...
    def run_into(
        self,
        samples: tuple[Any, ...],
        noise: Any,
        actions: Any,
        rtc: tuple[Any, ...] | None = ...,
        chunks: int = ...,
        /,
    ) -> tuple[float, ...]: ...
    def prefix(self, samples: tuple[Any, ...], chunks: int, /) -> tuple[float, ...]: ...
    def denoise_into(self, x: Any, first: int, last: int, /) -> tuple[float, ...]: ...
    def close(self) -> None: ...
@final
class Transform:
    def __init__(
        self,
        checkpoint: _Path | None = ...,
        *,
        synthetic: str | None = ...,
        robot: _Path | None = ...,
        config: str | None = ...,
        norm_stats: _Path | None = ...,
        tokenizer: _Path | None = ...,
        tokenizer_cache: _Path | None = ...,
        prompt_state: bool | None = ...,
        max_prompt: int = ...,
        assets: str | None = ...,
        adapter: _Path | None = ...,
        horizon: int = ...,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def info(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
@final
class Request:
    def __init__(self, transform: Transform) -> None: ...
    @property
    def prompt_truncated(self) -> bool: ...
    @property
    def notes(self) -> tuple[tuple[bool, str], ...]: ...
    @property
    def limited(self) -> dict[str, int]: ...
    def prepare(self, observation: Any, /) -> None: ...
    def sample(self) -> tuple[Any, Any, Any, int, bytes, bytes, bytes]: ...
    def finish_into(self, model_actions: Any, actions: Any, /) -> None: ...
    def keep_into(self, model_actions: Any, kept: Any, /) -> None: ...
    def previous_into(self, kept: Any, executed: int, previous: Any, /) -> tuple[int, int]: ...
    def close(self) -> None: ...
@final
class Runner:
    def __init__(
        self,
        engine: Engine | None = ...,
        *,
        transform: Transform | None = ...,
        infer: Callable[[list[tuple[Any, ...]], bool, int, int, float, int, float, int], Any] | None = ...,
        cancel: Callable[[], object] | None = ...,
        robot: _Path | None = ...,
        rate_hz: float = ...,
        calls_per_step: int = ...,
        interpolate: bool = ...,
        kind: str | None = ...,
        seam: str | None = ...,
        blend_steps: int = ...,
        ending: str | None = ...,
        decelerate_steps: int = ...,
        ask_after: int = ...,
        rtc: str | None = ...,
        max_age_ms: float = ...,
        deadline_ms: float = ...,
        retry_ms: float = ...,
        frozen_after: int = ...,
        black_allowed: bool = ...,
        horizon: int = ...,
        steps: int = ...,
        max_prompt: int = ...,
        seed: int = ...,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def observe(self, observation: Any, taken_ms: float, /) -> None: ...
    def next_into(
        self, now_ms: float, action: Any, /
    ) -> tuple[int, int, int, int, int, int, bool, int, int, bool, float]: ...
    def info(self) -> dict[str, Any]: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
