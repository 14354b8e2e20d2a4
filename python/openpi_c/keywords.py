"""Keyword arguments that are not known: the sentence says which are, and which one was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import functools
import inspect
from typing import ParamSpec
from typing import TypeVar

from openpi_c import _openpi

P = ParamSpec("P")
R = TypeVar("R")


def question(words: Iterable[str], known: Iterable[str]) -> str:
    """'; did you mean "robot"?' of the first word that has a near one, else ''."""
    listed = list(known)
    near = (_openpi.near_word(word, listed) for word in words)
    return next((f'; did you mean "{word}"?' for word in near if word is not None), "")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; what it costs is only paid where a call has failed."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = [key for key in kwargs if key not in known]
            if not unknown:
                raise
            came = ", ".join(f'"{key}"' for key in unknown)
        raise TypeError(f"{name} has no argument {came}, known are {', '.join(known)}{question(unknown, known)}")

    return call
