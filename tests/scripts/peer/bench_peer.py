"""openpi's own policy server with a policy that checks every observation of one of openpi's examples.

    bench_peer.py PORT ENV      ENV is aloha, droid or libero
"""
import sys

import numpy as np
from openpi.serving.websocket_policy_server import WebsocketPolicyServer

PORT, ENV = int(sys.argv[1]), sys.argv[2]
PICTURE = (np.uint8, (224, 224, 3))
FIELDS = {  # examples/simple_client/main.py, _random_observation_ENV
    "aloha": {"state": (np.float64, (14,)), "images": dict.fromkeys(
        ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"), (np.uint8, (3, 224, 224)))},
    "droid": {"observation/exterior_image_1_left": PICTURE, "observation/wrist_image_left": PICTURE,
              "observation/joint_position": (np.float64, (7,)), "observation/gripper_position": (np.float64, (1,))},
    "libero": {"observation/state": (np.float64, (8,)), "observation/image": PICTURE, "observation/wrist_image": PICTURE},
}


def check(fields, observation):
    assert set(observation) - {"prompt"} == set(fields), sorted(observation)
    for name, expected in fields.items():
        value = observation[name]
        if isinstance(expected, dict):
            check(expected, value)
        else:
            assert (value.dtype, value.shape) == expected, (name, value.dtype, value.shape)


class Policy:
    def infer(self, observation):
        check(FIELDS[ENV], observation)
        assert observation["prompt"] == "do something"
        return {"actions": np.zeros((10, 7)), "policy_timing": {"infer_ms": 1.0}}


WebsocketPolicyServer(Policy(), host="127.0.0.1", port=PORT).serve_forever()
