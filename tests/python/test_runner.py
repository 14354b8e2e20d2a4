"""Runner: a policy, a policy of Python or a server behind it, an action at every call in front."""

import socket
import sys
import threading
import time
import types

import numpy as np
import pytest

import openpi_c

ARM = '{"name": "arm", "cameras": {"front": "base"}, "state": {"joints": 2}, "actions": 2, "rate_hz": 50, ' \
    '"kinds": ["position", "velocity"]}'
HORIZON = 6


def seen(step=0):
    """An observation of ARM; each picture is another one."""
    return {"front": np.full((4, 4, 3), 100 + step % 50, np.uint8), "joints": np.array([0.25, step]), "prompt": "go"}


def moved(runner, now_ms):
    """The next action that is of a chunk."""
    while (tick := runner.next(now_ms)).move != "action":
        assert tick.reason == "starting", tick
        time.sleep(0.001)
    return tick


def held(runner, reason, observe=lambda: None):
    """Until the robot is held for this reason."""
    while (tick := runner.next(1)).reason != reason:
        observe()
        time.sleep(0.001)
    return tick


class Counting:
    """Row k of a chunk is the number of its call and k."""

    def __init__(self):
        self.seen, self.failure = [], None

    def infer(self, obs):
        self.seen.append(obs)
        if self.failure is not None:
            raise self.failure
        return {"actions": np.stack([np.full(HORIZON, len(self.seen)), np.arange(HORIZON)], 1).tolist()}


def test_over_a_policy(none):
    robot = '{"like": "none", "rate_hz": 50}'
    _, obs = none
    with openpi_c.Policy(synthetic="odd:pi0:7", robot=robot, steps=2, horizon=HORIZON, seed=5) as policy:
        expected = policy.infer(obs)["actions"]
        with openpi_c.Runner(policy, kind="position") as runner:
            first = runner.next(0)
            assert (first.move, first.reason, first.known) == ("hold", "starting", False)
            assert first.why == "no chunk has come yet" and np.isnan(first.action).all()
            runner.observe(obs, 0)
            for row in range(HORIZON):
                tick = moved(runner, row)
                assert tick.row == row and tick.fresh and tick.known
                assert (tick.action == expected[row]).all()
            last = runner.next(HORIZON)
            assert (last.move, last.reason) == ("hold", "no_actions") and (last.action == expected[-1]).all()
            info = runner.info
            assert (info["steps"], info["ticks"], info["calls"], info["rate_hz"]) == (HORIZON, info["ticks"], 1, 50)
            runner.stop()
            assert runner.next(HORIZON).move == "stop"
            runner.resume()
            assert runner.next(HORIZON).move == "hold"
    assert runner.closed
    for call in (runner.next, lambda: runner.observe(obs), lambda: runner.info, runner.stop):
        with pytest.raises(ValueError, match="the runner is closed"):
            call()
    runner.close()


def test_nested_pictures(aloha):
    """ALOHA's dict of pictures, channels first: the same chunk as infer's."""
    policy, obs, _, _ = aloha
    noise = openpi_c.noise((policy.horizon, 32))
    expected = policy.infer(obs, noise=noise)["actions"]
    with openpi_c.Runner(policy) as runner:
        runner.observe(obs, 0)
        assert (moved(runner, 0).action == expected[0]).all()


def test_guided(none):
    """With real-time chunking the next chunk follows on."""
    _, obs = none
    with openpi_c.Policy(synthetic="odd:pi0:7", robot='{"like": "none", "rate_hz": 50}', steps=2, horizon=HORIZON) as policy:
        with openpi_c.Runner(policy, kind="position", rtc="guided", ask_after=2, frozen_after=-1) as runner:
            runner.observe(obs, 0)
            for now in range(2):
                moved(runner, now)
            runner.observe(obs, 1.5)
            while (tick := runner.next(2)).chunk < 2:
                assert tick.row < HORIZON
                time.sleep(0.001)
            assert tick.chunk == 2


def test_an_open_runner_keeps_the_model(none):
    _, obs = none
    policy = openpi_c.Policy(synthetic="odd:pi0:7", robot='{"like": "none", "rate_hz": 50}', steps=1, horizon=HORIZON)
    with openpi_c.Runner(policy, kind="position") as runner:
        policy.close()
        runner.observe(obs, 0)
        assert moved(runner, 0).chunk == 1
    with pytest.raises(ValueError, match="the policy is closed"):
        openpi_c.Runner(policy, kind="position")


def test_over_an_object():
    policy = Counting()
    with openpi_c.Runner(policy, robot=ARM) as runner:
        runner.observe(seen(), 0)
        assert moved(runner, 0).action.tolist() == [1, 0]
        assert moved(runner, 1).action.tolist() == [1, 1]
        obs = policy.seen[0]
        assert obs["prompt"] == "go" and obs["joints"].tolist() == [0.25, 0]
        assert (obs["front"] == seen()["front"]).all() and obs["front"].dtype == np.uint8
        policy.failure = ValueError("a traceback\nno such robot")
        step = 1

        def observe():
            nonlocal step
            step += 1
            runner.observe(seen(step), step)

        held(runner, "failed", observe)
        assert runner.info["failure"] == "the policy: no such robot"
        policy.failure = None
        while runner.next(step).move != "action":
            observe()
            time.sleep(0.001)
        assert runner.info["failure"] == ""
        assert runner.info["failed"] >= 1


def test_wrong_chunks():
    class Narrow:
        def infer(self, obs):
            return {"actions": [1.0, 2.0, 3.0]}

    with openpi_c.Runner(Narrow(), robot=ARM) as runner:
        runner.observe(seen(), 0)
        held(runner, "failed")
        assert runner.info["failure"] == '"actions" has 3 numbers, expected 1 to 64 rows of 2'


def test_the_control_thread_does_not_wait():
    """A call of Python that stands still: next goes on, and close gives the call up."""
    stands, let = threading.Event(), threading.Event()

    class Standing:
        def infer(self, obs):
            stands.set()
            let.wait()
            return {"actions": np.zeros((HORIZON, 2))}

    runner = openpi_c.Runner(Standing(), robot=ARM)
    runner.observe(seen(), 0)
    stands.wait()
    for now in range(100):
        assert runner.next(now).reason == "starting"
    closing = threading.Thread(target=runner.close)
    closing.start()
    let.set()
    closing.join()
    assert runner.closed


@pytest.fixture
def client(monkeypatch):
    """openpi_client as a stand-in: what it connects to is a socket that listens, or nothing."""
    made = []

    class Client(Counting):
        def __init__(self, host, port, key):
            super().__init__()
            self.where, self.closed = (host, port, key), threading.Event()
            self._ws = types.SimpleNamespace(close=self.closed.set)
            self.stands = False
            made.append(self)

        def get_server_metadata(self):
            return {"openpi_server": {"rtc_max_delay": 1, "runner": 1}}

        def infer(self, obs):
            if len(self.seen) == 1 and len(made) == 1:
                self.closed.wait()  # a reply that does not come
                raise ConnectionError("closed")
            return super().infer(obs)

    module = types.ModuleType("openpi_client.websocket_client_policy")
    module.WebsocketClientPolicy = Client
    monkeypatch.setitem(sys.modules, "openpi_client", types.ModuleType("openpi_client"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_over_an_address(client):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        address = f"ws://127.0.0.1:{port}"
        with openpi_c.Runner(address, robot=ARM, api_key="key", rtc="guided", retry_ms=1, ask_after=1) as runner:
            runner.observe(seen(), 0)
            held(runner, "lost")
            assert runner.info["failure"].startswith("the server: ")
            now = 0

            def go_on():
                nonlocal now
                now += 1
                runner.observe(seen(now), now)
                return runner.next(now)

            go_on()
            failed = runner.info["failed"]  # whatever is asked for after two more began with the robot held since 0
            while runner.info["failed"] < failed + 2:
                go_on()
                time.sleep(0.001)
            listener.listen()
            while go_on().move != "action":
                time.sleep(0.001)
            assert client[0].where == ("127.0.0.1", port, "key")
            while runner.info["calls"] - runner.info["failed"] < 1 or len(client[0].seen) < 1:
                time.sleep(0.001)
            first = client[0].seen[0]
            assert "openpi/rtc" not in first and first["openpi/deadline_ms"] > 0
            told = first["openpi/runner"]
            assert told["held_ms"] >= 1 and told["reason"] in ("starting", "lost") and "executed" not in told
            while not client[0].closed.is_set():  # the second call waits for a reply until it is given up
                go_on()
                runner.cancel()
                time.sleep(0.001)
            while len(client) < 2 or not any("openpi/rtc" in obs for obs in client[-1].seen):
                go_on()
                time.sleep(0.001)
            rtc = next(obs["openpi/rtc"] for obs in client[-1].seen if "openpi/rtc" in obs)
            # `executed` is 0 where the observation is older than the step that made the next chunk due.
            assert rtc["mode"] == "guided" and rtc["executed"] >= 0 and rtc["delay"] <= 1
            last = next(obs for obs in client[-1].seen if "openpi/rtc" in obs)
            assert last["openpi/runner"]["executed"] == rtc["executed"]


def test_what_is_refused(client):
    with pytest.raises(ValueError, match="expected ws://HOST:PORT"):
        openpi_c.Runner("http://host", robot=ARM)
    with pytest.raises(TypeError, match="expected a Policy, an address or an object"):
        openpi_c.Runner(7, robot=ARM)
    with pytest.raises(ValueError, match="the runner's option robot is NULL"):
        openpi_c.Runner(Counting())
    with pytest.raises(ValueError, match='seam is "glue", expected "replace"'):
        openpi_c.Runner(Counting(), robot=ARM, seam="glue")
    with pytest.raises(TypeError, match='did you mean "ask_after"'):
        openpi_c.Runner(Counting(), robot=ARM, ask_aftr=3)
    with pytest.raises(ValueError, match="ask_after is 65, expected 1 to 64"):
        openpi_c.Runner(Counting(), robot=ARM, ask_after=65)
    with openpi_c.Runner(Counting(), robot=ARM) as runner:
        with pytest.raises(ValueError, match='no "joints"'):
            runner.observe({"front": np.zeros((4, 4, 3), np.uint8)})
        with pytest.raises(TypeError, match="expected a dict"):
            runner.observe(b"bytes")
        with pytest.raises(ValueError, match="finite"):
            runner.observe(seen(), float("nan"))


def test_an_interpreter_that_ends():
    """A runner that is open at the end, with a call that runs, keeps nobody waiting."""
    import subprocess

    code = f"""
import openpi_c, numpy as np, threading
asked = threading.Event()
class Slow:
    def infer(self, obs):
        asked.set()
        threading.Event().wait(0.05)
        return {{"actions": np.zeros((3, 2))}}
runner = openpi_c.Runner(Slow(), robot='''{ARM}''')
runner.observe({{"front": np.zeros((4, 4, 3), np.uint8), "joints": [0, 0], "prompt": "go"}})
asked.wait()
"""
    code = code.replace("np.zeros((4, 4, 3), np.uint8)", "np.full((4, 4, 3), 9, np.uint8)")
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
