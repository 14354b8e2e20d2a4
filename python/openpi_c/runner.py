"""From chunks to a robot that moves all day: openpi_runner.h's runner, over a policy or a policy server."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from collections.abc import Mapping
import threading
import time
from typing import Any
from typing import NamedTuple
import weakref

import numpy as np
import numpy.typing as npt

from openpi_c import _openpi
from openpi_c.closing import Closing
from openpi_c.keywords import checked
from openpi_c.model import Path
from openpi_c.policy import Policy

_MOVES = ("action", "hold", "stop")
_REASONS = {
    number: (name.removeprefix("OPENPI_REASON_").lower(), text) for number, (name, text) in _openpi.REASONS.items()
}
CONNECT_SECONDS = 5


class Tick(NamedTuple):
    """What the robot is to be given now, and why (openpi_runner.h, openpi_runner_state).

    action: float64 [action_dim], in the robot's units; before the first chunk (known is False) positions are NaN.
    move: "action", "hold" (it recovers by itself) or "stop" (until `resume`). reason: "none" where it moves, else such
    as "no_actions" or "lost"; why: the same as a text.
    """

    action: npt.NDArray[np.float64]
    move: str
    reason: str
    why: str
    step: int
    chunk: int
    row: int
    delay: int
    fresh: bool
    left: int
    limited: int
    known: bool
    age_ms: float


def clock_ms() -> float:
    """The clock of observe and next where they are given no time."""
    return time.monotonic() * 1e3


class Runner(Closing):
    """Observations in when they come, an action out at every call of next; chunks are computed in between.

    over: a Policy, which has to stay open; the address of a policy server ("ws://HOST:PORT"), by the package
    openpi-client; or anything with openpi's `infer(obs)`, such as an openpi_client policy. For the last two `robot`
    says what an action is, a robot's name or JSON file. `next` is for one thread, the control thread; all else may be
    called by any. Other arguments are those of openpi_runner.h's openpi_runner_options; None and 0 mean their defaults.
    """

    @checked
    def __init__(
        self,
        over: Policy | str | Any,
        *,
        robot: Path | None = None,
        api_key: str | None = None,
        rtc: str | None = None,
        rate_hz: float = 0,
        calls_per_step: int = 0,
        interpolate: bool = False,
        kind: str | None = None,
        seam: str | None = None,
        blend_steps: int = 0,
        ending: str | None = None,
        decelerate_steps: int = 0,
        ask_after: int = 0,
        max_age_ms: float = 0,
        deadline_ms: float = 0,
        retry_ms: float = 0,
        frozen_after: int = 0,
        black_allowed: bool = False,
    ):
        self._policy: Policy | None = None
        parts: dict[str, Any]
        if isinstance(over, Policy):
            if over.closed:
                raise ValueError("the policy is closed")
            if api_key is not None:
                raise ValueError("api_key is a server's, expected None over a policy")
            self._policy = over
            parts = {
                "engine": over.engine._handle,
                "transform": over._transform,
                "seed": over._seed,
                "steps": over.steps,
                "horizon": over.horizon,
                "max_prompt": over._shape["max_prompt"],
            }
        else:
            remote = _Remote(over, api_key, rtc or "off")
            parts = {"infer": remote.infer, "cancel": remote.cancel}
        self._handle = _openpi.Runner(
            **parts,
            robot=robot,
            rate_hz=rate_hz,
            calls_per_step=calls_per_step,
            interpolate=interpolate,
            kind=kind,
            seam=seam,
            blend_steps=blend_steps,
            ending=ending,
            decelerate_steps=decelerate_steps,
            ask_after=ask_after,
            rtc=rtc,
            max_age_ms=max_age_ms,
            deadline_ms=deadline_ms,
            retry_ms=retry_ms,
            frozen_after=frozen_after,
            black_allowed=black_allowed,
        )
        self._dims: int = self._handle.info()["action_dim"]
        _open.add(self)

    def observe(self, obs: Mapping[str, Any], taken_ms: float | None = None) -> None:
        """Gives an observation, which is copied; the newest wins. taken_ms: by the clock of `next`."""
        given = obs if self._policy is None else self._policy._with_prompt(obs)
        self._handle.observe(given, clock_ms() if taken_ms is None else taken_ms)

    def next(self, now_ms: float | None = None) -> Tick:
        """What the robot is to be given now. A call is a step, so it is called once a period. It waits for nothing."""
        action = np.empty(self._dims)
        told = self._handle.next_into(clock_ms() if now_ms is None else now_ms, action)
        reason, why = _REASONS[told[1]]
        return Tick(action, _MOVES[told[0]], reason, why, *told[2:])

    def stop(self) -> None:
        """Holds the robot until `resume`."""
        self._handle.stop()

    def resume(self) -> None:
        self._handle.resume()

    def cancel(self) -> None:
        """Gives up the call that runs: its chunk is not used."""
        self._handle.cancel()

    @property
    def info(self) -> dict[str, Any]:
        """What it has done so far (openpi_runner.h, openpi_runner_info). Not for the control thread."""
        return self._handle.info()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Gives up the call that runs and waits for its end."""
        self._handle.close()


# Runners that are open when the interpreter ends: their threads must not ask for it after that.
_open: weakref.WeakSet[Runner] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for runner in list(_open):
        runner.close()


# ---- a policy server, or a policy of Python ------------------------------------------------------------------


class _Remote:
    """Calls a policy on the runner's thread. One of a server's address is made with the first call and after a failure."""

    def __init__(self, over: str | Any, api_key: str | None, rtc: str):
        self._rtc = rtc
        self._what = "the server" if isinstance(over, str) else "the policy"
        self._lock = threading.Lock()  # of `_policy`, which cancel takes away on another thread
        self._policy: Any = None
        self._connect: Callable[[], Any] | None = None
        if isinstance(over, str):
            self._connect = _connector(over, api_key)
        elif callable(getattr(over, "infer", None)):
            self._policy = over
        else:
            raise TypeError(f"the runner is over {over!r}, expected a Policy, an address or an object with infer(obs)")

    def infer(
        self,
        fields: list[tuple[Any, ...]],
        follows: bool,
        executed: int,
        delay: int,
        deadline_ms: float,
        used: int,
        held_ms: float,
        reason: int,
    ) -> tuple[bool, str] | npt.NDArray[np.float64]:
        try:
            policy = self._connected()
            obs = _observation(fields)
            if self._connect is not None and deadline_ms > 0:
                obs["openpi/deadline_ms"] = deadline_ms
            if self._rtc != "off" and follows:
                obs["openpi/rtc"] = {"executed": executed, "delay": delay, "mode": self._rtc} | self._known(policy, delay)
            if self._connect is not None and _about(policy).get("runner"):
                told = {"held_ms": held_ms} | ({"executed": used} if used >= 0 else {})
                obs["openpi/runner"] = told | ({"reason": _REASONS[reason][0]} if reason else {})
            return np.ascontiguousarray(policy.infer(obs)["actions"], np.float64)
        except RuntimeError as error:  # openpi-client's: the server refuses the request, and is there
            return False, f"{self._what}: {_line(error)}"
        except Exception as error:  # noqa: BLE001  a thread of C calls it
            self._disconnect()
            return self._connect is not None, f"{self._what}: {_line(error)}"

    def cancel(self) -> None:
        """Ends the connection: a call that waits for its reply fails."""
        self._disconnect()

    @staticmethod
    def _known(policy: Any, delay: int) -> dict[str, int]:
        """A delay that the checkpoint was trained for."""
        most: int = _about(policy).get("rtc_max_delay", 0)
        return {"delay": min(delay, most)} if most else {}

    def _connected(self) -> Any:
        if self._policy is None and self._connect is not None:
            policy = self._connect()
            with self._lock:
                self._policy = policy
        return self._policy

    def _disconnect(self) -> None:
        if self._connect is None:
            return
        with self._lock:
            policy, self._policy = self._policy, None
        close = getattr(getattr(policy, "_ws", None), "close", None)  # openpi's client has no close()
        if close is not None:
            close()


def _about(policy: Any) -> Mapping[str, Any]:
    """What `openpi serve` says of itself; of another server nothing."""
    told: Mapping[str, Any] = getattr(policy, "get_server_metadata", dict)() or {}
    about: Mapping[str, Any] = told.get("openpi_server", {})
    return about


def _line(error: Exception) -> str:
    """The last line: openpi's server sends a whole traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _connector(address: str, api_key: str | None) -> Callable[[], Any]:
    import socket  # these two here, because only a runner over a server needs them
    import urllib.parse

    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"the runner is over {address!r}, expected ws://HOST:PORT")
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    host = parts.hostname
    try:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy
    except ImportError as error:
        raise ImportError(f"a runner over {address} needs the package openpi-client: {error}") from None

    def connect() -> Any:
        socket.create_connection((host, port), CONNECT_SECONDS).close()  # the client itself would try for ever
        return WebsocketClientPolicy(host if parts.scheme == "ws" else f"wss://{host}", port, api_key)

    return connect


def _observation(fields: list[tuple[Any, ...]]) -> dict[str, Any]:
    """The fields under their keys; those of "images" stand in a dict of that name, as openpi's ALOHA has them."""
    obs: dict[str, Any] = {}
    for name, *value in fields:
        place = obs
        if name.startswith("images/"):
            place, name = obs.setdefault("images", {}), name.removeprefix("images/")
        place[name] = value[0] if len(value) == 1 else np.frombuffer(value[0], value[1]).reshape(value[2])
    return obs
