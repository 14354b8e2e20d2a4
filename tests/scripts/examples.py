"""examples/rtc_client.py against a stand-in for openpi-client, whose chunks count steps: whatever the latencies are, the robot
executes the steps 0, 1, 2, … once each.

    examples.py EXAMPLES
"""
import random
import socket
import sys
import threading
import time
import types

import numpy as np

HORIZON, STEPS, RATE = 12, 120, 500
sleeps = random.Random(7)


def look(step):
    """The step is the angle of the first joint."""
    return rtc_client.observe() | {"observation/joint_position": np.array([step] + [0.0] * 6)}


class Policy:
    """Row k of a chunk is the number of the step that it is for, as the observation and `executed` say it."""

    def __init__(self, max_delay=0):
        self.base, self.asked, self.max_delay = None, [], max_delay

    def get_server_metadata(self):
        return {"openpi_server": {"horizon": HORIZON, "rtc_max_delay": self.max_delay}}

    def infer(self, request):
        rtc, now = request.get("openpi/rtc"), request["observation/joint_position"][0]
        if rtc:
            assert 0 <= rtc["delay"] <= (self.max_delay or HORIZON), rtc
            assert now == self.base + rtc["executed"], (now, self.base, rtc)
            self.asked.append(rtc)
        self.base = now
        time.sleep(sleeps.choice([0, 0, 0.001, 0.02]))
        return {"actions": np.tile(now + np.arange(HORIZON)[:, None], 8)}


class Arm:
    """Executes; an action that is held has its velocities at 0, and the gripper where it was."""

    def __init__(self):
        self.done, self.held = [], 0

    def look(self):
        return look(len(self.done))

    def execute(self, action):
        if self.done and action[7] == self.done[-1]:
            assert (action[:7] == 0).all(), action
            self.held += 1
        else:
            assert (action == len(self.done)).all(), (action, self.done)
            self.done.append(action[7])


sys.path.insert(0, sys.argv[1])
import openpi_c  # noqa: E402
import rtc_client  # noqa: E402  pylint: disable=wrong-import-position


def runner_over(over, **options):
    return openpi_c.Runner(over, robot="droid", rtc="guided", rate_hz=RATE, frozen_after=-1, deadline_ms=1e6, max_age_ms=1e6,
                           **options)


for every, max_delay in ((1, 0), (5, 0), (5, 2), (HORIZON, 0), (HORIZON + 5, 0)):
    policy, arm = Policy(max_delay), Arm()
    with runner_over(policy, ask_after=every) as runner:
        rtc_client.move(runner, RATE, STEPS, arm.look, arm.execute)
        assert runner.info["steps"] == STEPS == len(arm.done), runner.info
        assert runner.info["failed"] == 0, runner.info
    assert threading.active_count() == 1
    # Of the newest observation, which may be older than the step that made the next chunk due.
    assert policy.asked and all(rtc["executed"] >= min(every, HORIZON) - 1 for rtc in policy.asked), policy.asked


class Broken(Policy):
    def infer(self, request):
        raise RuntimeError("Error in inference server:\nno such robot")


try:
    with runner_over(Broken()) as runner:
        rtc_client.move(runner, RATE, STEPS)
    raise SystemExit("a server that refuses was not told")
except RuntimeError as error:
    assert "no such robot" in str(error), error

# A server that drains, is away for a while and comes back.
listener, made = socket.socket(), []
listener.bind(("127.0.0.1", 0))
listener.listen()


class Client(Policy):
    def __init__(self, *where):
        super().__init__()
        made.append(where)

    def infer(self, request):
        if len(made) == 1 and self.base is not None:
            raise ConnectionError("1001")
        return super().infer({key: value for key, value in request.items() if self.base is not None or key != "openpi/rtc"})


stub = types.ModuleType("openpi_client.websocket_client_policy")
stub.WebsocketClientPolicy = Client
sys.modules |= {"openpi_client": types.ModuleType("openpi_client"), stub.__name__: stub}
arm, port = Arm(), listener.getsockname()[1]
with runner_over(f"ws://127.0.0.1:{port}", retry_ms=1, api_key="key") as runner:
    rtc_client.move(runner, RATE, STEPS, arm.look, arm.execute)
    assert runner.info["failed"] == 1, runner.info
assert made == [("127.0.0.1", port, "key")] * 2 and len(arm.done) == STEPS
print("every step was executed once")
