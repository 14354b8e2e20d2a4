"""examples/rtc_client.py against a stand-in for openpi-client, whose chunks count steps: whatever the latencies are, the robot
executes the steps 0, 1, 2, … once each.

    examples.py EXAMPLES
"""
import random
import sys
import threading
import time
import types

import numpy as np

HORIZON, STEPS = 12, 120
sleeps = random.Random(7)


class Policy:
    """Row k of a chunk is the number of the step that it is for, as the observation and `executed` say it."""

    def __init__(self, max_delay=0):
        self.base, self.asked, self.max_delay = None, [], max_delay

    def get_server_metadata(self):
        return {"openpi_server": {"horizon": HORIZON, "rtc_max_delay": self.max_delay}}

    def infer(self, request):
        rtc, now = request["openpi/rtc"], request["step"]
        assert 1 <= rtc["delay"] <= (self.max_delay or HORIZON - 1), rtc
        if self.base is not None:
            assert now == self.base + rtc["executed"], (now, self.base, rtc)
        self.base = now
        self.asked.append(rtc)
        time.sleep(sleeps.choice([0, 0, 0.001, 0.02]))
        return {"actions": now + np.arange(HORIZON, dtype=np.float64)[:, None], "rtc": {}}


class Broken(Policy):
    def infer(self, request):
        raise RuntimeError("Error in inference server:\nno such robot")


stub = types.ModuleType("openpi_client.websocket_client_policy")
stub.WebsocketClientPolicy = Policy
sys.modules |= {"openpi_client": types.ModuleType("openpi_client"), stub.__name__: stub}
sys.path.insert(0, sys.argv[1])
import rtc_client  # noqa: E402  pylint: disable=wrong-import-position

for every, max_delay in ((1, 0), (5, 0), (5, 2), (HORIZON, 0), (HORIZON + 5, 0)):
    policy = Policy(max_delay)
    chunks = rtc_client.RealTimeChunks(policy, rate=50, every=every)
    executed = 0
    while executed < STEPS:
        action = chunks.step({"step": executed})
        if action is not None:
            assert action[0] == executed, (every, action, executed)
            executed += 1
        time.sleep(0.0005)
    chunks.close()
    assert not chunks._thread.is_alive() and threading.active_count() == 1
    assert chunks.chunks == len(policy.asked) > 1
    assert all(rtc["executed"] >= min(every, HORIZON) for rtc in policy.asked[1:]), policy.asked
chunks = rtc_client.RealTimeChunks(Broken(), rate=50)
try:
    while True:
        chunks.step({"step": 0})
        time.sleep(0.0005)
except RuntimeError as error:
    assert "no such robot" in str(error)
chunks.close()


class ConnectionClosedOK(Exception):
    """As websockets raises it, by its name."""


class Drains(Policy):
    def infer(self, request):
        raise ConnectionClosedOK("1001")


tries = []


def connect():
    tries.append(1)
    if len(tries) == 1:
        raise ConnectionRefusedError
    return Policy(0)


chunks = rtc_client.RealTimeChunks(Drains(0), rate=50, connect=connect)
while chunks.step({"step": 0}) is None:
    time.sleep(0.0005)
chunks.close()
assert len(tries) == 2
print("every step was executed once")
