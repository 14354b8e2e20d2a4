"""What shows how far loading is: a line on a terminal, a caller's function, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import sys
import time
from typing import Literal
from typing import TextIO

Report = Callable[[str, int, int], object]
Progress = Report | Literal["auto"] | None


class Bar:
    """A line that is drawn over, after half a second and ten times a second at most."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._start = time.monotonic()
        self._next = self._start + 0.5
        self._drawn = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.1
        part = done / total if total else 1.0
        line = f"{what} {part:4.0%} |{'#' * int(part * 30):30}| {now - self._start:.0f} s"
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def close(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()


@contextlib.contextmanager
def reporter(progress: Progress) -> Iterator[Report | None]:
    """The function that the engine calls. "auto": a Bar where standard error is a terminal, else nothing."""
    if progress is not None and progress != "auto":
        if not callable(progress):
            raise TypeError(f"progress is {progress!r}, expected a function of (what, done, total), None or 'auto'")
        yield progress
    elif progress is None or sys.stderr is None or not sys.stderr.isatty():
        yield None
    else:
        bar = Bar(sys.stderr)
        try:
            yield bar
        finally:
            bar.close()
