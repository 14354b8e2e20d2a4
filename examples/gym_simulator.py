"""A policy in a simulator through the runner: gym-aloha, in the simulator's own time.

The simulator stands still while an action is computed, so every step is given one: this shows that the parts fit and how long
each takes. Whether the task succeeds is another question; with made-up weights (`--synthetic`) it does not.

    pip install gym-aloha && MUJOCO_GL=egl gym_simulator.py --synthetic tiny --steps 500
    gym_simulator.py pi0_aloha_sim/ --robot pi0_aloha_sim --steps 400
"""
import argparse
import json
import time

import numpy as np

import openpi_c


class Aloha:
    """gym-aloha's two arms: the top camera and 14 joints, as openpi's example for this simulator has them."""

    robot, prompt, task = "aloha_sim", "Transfer cube", "gym_aloha/AlohaTransferCube-v0"

    def __init__(self):
        import gym_aloha  # noqa: F401  it registers the task
        import gymnasium

        self._env = gymnasium.make(self.task, obs_type="pixels_agent_pos")
        self._seen, _ = self._env.reset(seed=0)

    def observation(self):
        """Pictures of ALOHA's have their channels first."""
        return {
            "images": {"cam_high": np.ascontiguousarray(self._seen["pixels"]["top"].transpose(2, 0, 1))},
            "state": np.asarray(self._seen["agent_pos"], np.float64),
            "prompt": self.prompt,
        }

    def step(self, action):
        self._seen, _, over, cut, _ = self._env.step(action.astype(np.float32))
        if over or cut:
            self._seen, _ = self._env.reset(seed=0)

    def close(self):
        self._env.close()


def middle(times):
    """Milliseconds: median, and the longest."""
    return {"p50": round(float(np.median(times)) * 1e3, 3), "longest": round(max(times) * 1e3, 3)}


def run(runner, simulator, rate, steps):
    """Steps of the simulator; between two of them the runner's clock goes on by a period."""
    took = {"observe": [], "next": [], "simulate": []}
    executed, tick = 0, 0

    def timed(name, call, *arguments):
        began = time.perf_counter()
        value = call(*arguments)
        took[name].append(time.perf_counter() - began)
        return value

    while executed < steps:
        now = tick * 1000 / rate
        timed("observe", runner.observe, simulator.observation(), now)
        given = timed("next", runner.next, now)
        while given.move != "action":        # the simulator waits for the chunk
            time.sleep(0.001)
            given = runner.next(now)
            if given.reason == "failed":
                raise RuntimeError(runner.info["failure"])
        timed("simulate", simulator.step, given.action)
        executed, tick = given.step, tick + 1
    return {name: middle(times) for name, times in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--synthetic", help="a made-up model instead, such as tiny")
    parser.add_argument("--robot", help="default: the simulator's")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    simulator = Aloha()
    robot = options.robot or simulator.robot
    with openpi_c.Policy(options.checkpoint, synthetic=options.synthetic, robot=robot) as policy:
        rate = policy.info.get("rate_hz") or 50
        with openpi_c.Runner(policy, rate_hz=rate, frozen_after=-1, max_age_ms=1e9, black_allowed=True) as runner:
            found = run(runner, simulator, rate, options.steps)
            info = runner.info
    simulator.close()
    print(json.dumps({name: info[name] for name in ("steps", "calls", "failed", "call_ms")} | found))


if __name__ == "__main__":
    main()
