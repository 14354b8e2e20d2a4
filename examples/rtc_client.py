"""Real-time chunking over a policy server: the robot moves at its rate while the next chunk is computed.

The runner (docs/runner.md, docs/python.md) asks for chunks in a thread of its own, always with the newest observation, goes on
with the row of the measured delay, holds the arm still where no action is there, and connects again where a server is
restarted. A server that knows no "openpi/rtc" ignores it: chunks then replace each other.

Needs the packages openpi_c, whose runner it uses, and openpi-client:

    pip install . openpi-client typing_extensions         # in a checkout; openpi-client imports the third without naming it
    rtc_client.py --rate 50 --steps 500 [--host wss://robots.example --api-key KEY]
"""
import argparse
import time

import numpy as np

try:
    import openpi_c
except ImportError as error:
    raise SystemExit(f"rtc_client.py uses the runner of the package openpi_c (pip install . in a checkout): {error}") from None


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


def move(runner, rate, steps, observe=observe, execute=lambda action: None):
    """Until so many steps are executed. A request that the server refuses is raised; a server that is away is waited for."""
    executed, reason, due = 0, "starting", time.monotonic()
    while executed < steps:
        runner.observe(observe())
        tick = runner.next()
        if tick.known:
            execute(tick.action)  # also where it holds still
        executed = tick.step
        if tick.reason != reason:
            print(tick.why, runner.info["failure"])
            reason = tick.reason
        if reason == "failed":
            raise RuntimeError(runner.info["failure"])
        due = max(due + 1 / rate, time.monotonic())
        time.sleep(max(0, due - time.monotonic()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="wss://HOST: over TLS")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", help="of the server's token")
    parser.add_argument("--rate", type=float, default=15, help="steps a second, 10 to 50")
    parser.add_argument("--steps", type=int, default=300, help="steps to execute")
    options = parser.parse_args()
    address = f"{options.host if '://' in options.host else 'ws://' + options.host}:{options.port}"
    # frozen_after=-1: this arm's pictures do not change; leave it out where yours do.
    with openpi_c.Runner(
        address, api_key=options.api_key, robot="droid", rtc="guided", rate_hz=options.rate, frozen_after=-1
    ) as runner:
        move(runner, options.rate, options.steps)
        info = runner.info
    print(f"{info['steps']} steps, {info['held']} held, {info['calls'] - info['failed']} chunks")


if __name__ == "__main__":
    main()
