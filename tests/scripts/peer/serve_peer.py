"""The real openpi-client against a running `openpi serve`: every kind of request of openpi's simple_client, sentences,
two clients at once, ActionChunkBroker, Runtime. Prints what it checked; an exception is a failure.

    serve_peer.py PORT ROBOT [KEY]      ROBOT is aloha, aloha_sim, droid or libero; with the KEY of a token: over TLS
"""
import sys
import threading

import numpy as np
import websockets
from openpi_client import action_chunk_broker, websocket_client_policy
from openpi_client.runtime import environment, runtime, subscriber
from openpi_client.runtime.agents import policy_agent

PORT, ROBOT = int(sys.argv[1]), sys.argv[2]
KEY = sys.argv[3] if len(sys.argv) > 3 else None
random = np.random.default_rng(5)


def picture(*shape):
    return random.integers(256, size=shape, dtype=np.uint8)


def observation():
    if ROBOT in ("aloha", "aloha_sim"):
        names = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")
        return {"state": np.ones((14,)), "images": {name: picture(3, 224, 224) for name in names}, "prompt": "do something"}
    if ROBOT == "droid":
        return {
            "observation/exterior_image_1_left": picture(480, 640, 3),
            "observation/wrist_image_left": picture(224, 224, 3),
            "observation/joint_position": random.random(7),
            "observation/gripper_position": random.random(1),
            "prompt": "do something",
        }
    return {
        "observation/state": random.random(8),
        "observation/image": picture(224, 224, 3),
        "observation/wrist_image": picture(224, 224, 3),
        "prompt": "do something",
    }


def connect():
    if KEY:
        return websocket_client_policy.WebsocketClientPolicy(f"wss://localhost:{PORT}", None, api_key=KEY)
    return websocket_client_policy.WebsocketClientPolicy("127.0.0.1", PORT)


policy = connect()
about = policy.get_server_metadata()["openpi_server"]
shape = (about["horizon"], about["action_dim"])
for turn in range(3):
    reply = policy.infer(observation())
    assert list(reply) == ["actions", "policy_timing", "server_timing"], list(reply)
    assert reply["actions"].dtype == np.float64 and reply["actions"].shape == shape, reply["actions"].shape
    assert ("prev_total_ms" in reply["server_timing"]) == (turn > 0), reply["server_timing"]

# The same noise gives the same actions, whoever asks.
noise = random.standard_normal((shape[0], 32)).astype(np.float32)
fixed = observation() | {"openpi/noise": noise}
expected = policy.infer(fixed)["actions"]
results = []


def robot():
    own = connect()
    for _ in range(5):
        own.infer(observation())
        results.append(np.array_equal(own.infer(fixed)["actions"], expected))
    own._ws.close()  # websockets 11 waits for it before Python can end


threads = [threading.Thread(target=robot) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert results == [True] * 15, results

# A sentence, and the connection lives on.
for broken in ({}, {"prompt": "no picture"}, observation() | {"openpi/noise": noise[:, :5]}):
    try:
        policy.infer(broken)
    except RuntimeError as error:
        assert str(error).startswith("Error in inference server:\n") and "Traceback" not in str(error), error
    else:
        raise AssertionError("a broken request was answered")
assert np.array_equal(policy.infer(fixed)["actions"], expected)

# Real-time chunking: the first chunk has nothing to follow on from, the second one has.
own = connect()
rtc = {"openpi/rtc": {"executed": np.int64(2), "delay": 1}}
first, second = own.infer(fixed | rtc), own.infer(fixed | rtc)
assert list(second) == ["actions", "policy_timing", "server_timing", "rtc"], list(second)
followed = {"applied": True, "delay": 1, "max_weight": 1}  # as large as the server's one step allows
assert first["rtc"] == {"applied": False, "delay": 0} and second["rtc"] == followed
assert np.array_equal(first["actions"], expected) and not np.array_equal(second["actions"], expected)
own._ws.close()

# Several chunks of one observation, and several observations of one message: those of requests one by one.
several = policy.infer(fixed | {"openpi/samples": 3, "openpi/noise": np.stack([noise, -noise, noise])})["actions"]
assert several.shape == (3, *shape) and np.array_equal(several[0], expected) and np.array_equal(several[2], expected)
assert np.array_equal(several[1], policy.infer(fixed | {"openpi/noise": -noise})["actions"])
others = [fixed, observation() | {"openpi/noise": noise}, fixed | {"openpi/noise": -noise}]
alone = np.stack([policy.infer(one)["actions"] for one in others])
assert np.array_equal(policy.infer(others)["actions"], alone)


def stack(maps):
    first = maps[0]
    if isinstance(first, dict):
        return {key: stack([one[key] for one in maps]) for key in first}
    return np.stack(maps) if isinstance(first, np.ndarray) else list(maps)


assert np.array_equal(policy.infer(stack(others) | {"openpi/batch": np.int64(3)})["actions"], alone)
reply = policy.infer([fixed, {"prompt": "no picture"}, others[2]])
assert reply["actions"][1] is None and list(reply["openpi/errors"]) == ["1"], reply["openpi/errors"]
assert np.array_equal(reply["actions"][0], expected) and np.array_equal(reply["actions"][2], alone[2])
assert np.array_equal(policy.infer(fixed)["actions"], expected)  # what the next chunk follows on from

# A chunk, action by action; the reply to real-time chunking has no other array.
broker = action_chunk_broker.ActionChunkBroker(policy, action_horizon=shape[0])
for step in range(shape[0]):
    assert broker.infer(fixed | rtc)["rtc"] == followed, step
broker = action_chunk_broker.ActionChunkBroker(policy, action_horizon=shape[0])
for step in range(shape[0]):
    assert np.array_equal(broker.infer(fixed)["actions"], expected[step]), step


# Runtime: episodes of a few steps more than a chunk has, each with a chunk of its own from the first step on.
class Arm(environment.Environment):
    def __init__(self, steps):
        self.steps, self.episodes = steps, []

    def reset(self):
        self.episodes.append([])

    def is_episode_complete(self):
        return len(self.episodes[-1]) == self.steps

    def get_observation(self):
        return fixed

    def apply_action(self, action):
        self.episodes[-1].append(action["actions"])


class Witness(subscriber.Subscriber):
    told = ()

    def on_episode_start(self):
        self.told += ("start",)

    def on_step(self, observation, action):
        self.told += ("step",)

    def on_episode_end(self):
        self.told += ("end",)


arm, witness = Arm(shape[0] + 3), Witness()
agent = policy_agent.PolicyAgent(action_chunk_broker.ActionChunkBroker(policy, action_horizon=shape[0]))
runtime.Runtime(arm, agent, [witness], num_episodes=2).run()
assert len(arm.episodes) == 3 and not arm.episodes.pop(), "a reset before each episode, and one after all"
for episode in arm.episodes:
    assert np.array_equal(episode, np.concatenate([expected, expected[:3]])), len(episode)
assert witness.told == ("start", *["step"] * arm.steps, "end") * 2, witness.told
policy._ws.close()
print(f"{ROBOT}: the client with websockets {websockets.__version__} is served{' over TLS' if KEY else ''}")
