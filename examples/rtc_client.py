"""Real-time chunking over openpi-client: the robot moves at its rate while the next chunk is computed.

A thread asks for chunks, always with the newest observation. Each reply replaces the queue of actions, without the steps that
the robot has executed meanwhile. The server (openpi serve) makes each chunk follow on from the one before; the client states
the delay, from the latencies measured so far. A server that knows no "openpi/rtc" ignores it: chunks then replace each other.

    pip install openpi-client typing_extensions           # the package does not name the second, which it imports
    rtc_client.py --rate 50 --steps 500 [--host wss://robots.example --api-key KEY]
"""
import argparse
import collections
import functools
import math
import threading
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy


class RealTimeChunks:
    """Call step() at the robot's rate. `every`: a new chunk is asked for after so many steps of the one before. `connect`
    makes a new policy where a server that is restarted has closed the connection."""

    def __init__(self, policy, rate, every=5, connect=None):
        self._policy, self._rate, self._every, self._connect = policy, rate, every, connect
        about = policy.get_server_metadata().get("openpi_server", {})
        self._most_delay = about.get("rtc_max_delay") or about.get("horizon", 50) - 1
        self._changed = threading.Condition()
        self._newest = None  # (observation, step of the chunk that is next), not yet sent
        self._chunk, self._next = None, 0  # actions [horizon][dims], and which of them is next
        self._latencies = collections.deque([1 / rate], maxlen=20)  # seconds
        self._stopped, self._error = False, None
        self.chunks, self.delays = 0, []  # real delays, in steps
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, observation):
        """The action of this step; None where the robot has to hold still, because no chunk is left."""
        with self._changed:
            if self._error:
                raise self._error
            self._newest = (observation, self._next)
            action = None
            if self._chunk is not None and self._next < len(self._chunk):
                action = self._chunk[self._next]
                self._next += 1
            self._changed.notify()
            return action

    def close(self):
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()
        if hasattr(self._policy, "_ws"):
            self._policy._ws.close()  # openpi's client has no close(); at exit websockets 11 waits for one

    def _due(self):
        return self._newest and (self._chunk is None or self._newest[1] >= min(self._every, len(self._chunk)))

    def _ask(self):
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._due())
            if self._stopped:
                return False
            observation, executed = self._newest
            self._newest = None
            delay = min(self._most_delay, max(1, math.ceil(max(self._latencies) * self._rate)))
        began = time.monotonic()
        reply = self._policy.infer(observation | {"openpi/rtc": {"executed": executed, "delay": delay}})
        with self._changed:
            self._latencies.append(time.monotonic() - began)
            real_delay = self._next - executed  # steps that were executed since the observation
            self._chunk, self._next = np.array(reply["actions"]), real_delay
            self._newest = None  # it counts in the chunk before
            self.delays.append(real_delay)
            self.chunks += 1
        return True

    def _again(self):
        while not self._stopped:
            try:
                self._policy = self._connect()
                return
            except OSError:
                time.sleep(1)

    def _run(self):
        more = True
        while more:
            try:
                more = self._ask()
            except Exception as error:  # pylint: disable=broad-except
                if self._connect and type(error).__name__.startswith("ConnectionClosed"):
                    self._again()
                    continue
                with self._changed:
                    self._error = error
                    return


def observe():
    """The robot's cameras and joints; here a DROID arm that sees grey and does not move."""
    grey = np.full((224, 224, 3), 127, np.uint8)
    return {
        "observation/exterior_image_1_left": grey,
        "observation/wrist_image_left": grey,
        "observation/joint_position": np.zeros(7),
        "observation/gripper_position": np.zeros(1),
        "prompt": "pick up the fork",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="wss://HOST: over TLS")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", help="of the server's token")
    parser.add_argument("--rate", type=float, default=15, help="steps a second, 10 to 50")
    parser.add_argument("--steps", type=int, default=300, help="steps to execute")
    options = parser.parse_args()
    connect = functools.partial(WebsocketClientPolicy, options.host, options.port, options.api_key)
    chunks = RealTimeChunks(connect(), options.rate, connect=connect)
    executed, held, due = 0, 0, time.monotonic()
    while executed < options.steps:
        action = chunks.step(observe())
        held += action is None
        executed += action is not None  # here the robot is given the action
        due = max(due + 1 / options.rate, time.monotonic() - 1 / options.rate)
        time.sleep(max(0, due - time.monotonic()))
    chunks.close()
    print(f"{executed} steps, {held} held, {chunks.chunks} chunks, delays of up to {max(chunks.delays)} steps")


if __name__ == "__main__":
    main()
