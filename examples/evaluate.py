"""A policy server evaluated in many simulated environments at once: one message a round with the observations of all of them.

Each environment is a process of its own. In every round those that need a chunk are asked for together, and each executes the
first rows of its own. The server computes them in batches (`openpi serve --max-block 64`).

Where gym-aloha is not installed, or with --stub, the environments are stand-ins with ALOHA's cameras and joints: they see
noise, and nothing in them can succeed. They show latency and rate only, and the table says so.

An environment of gym-aloha takes 260 MB. MuJoCo draws what the policy looks at and nothing between: one picture a chunk.

    openpi serve pi0_aloha_sim/ --config pi0_aloha_sim --max-block 64
    pip install openpi-client typing_extensions gym-aloha && MUJOCO_GL=egl evaluate.py --environments 64 --episodes 1
"""
import argparse
import importlib.util
import multiprocessing
import time

import numpy as np

MOST = 64  # observations of a message: 10 MB, where the server's --max-message is 16
PROMPT = "Transfer cube"


class Aloha:
    """gym-aloha's task, as openpi's example for this simulator has it."""

    def __init__(self, seed):
        import gym_aloha  # noqa: F401  it registers the task
        import gymnasium
        from dm_control.rl.control import PhysicsError
        from openpi_client.image_tools import resize_with_pad

        self._env = gymnasium.make("gym_aloha/AlohaTransferCube-v0", obs_type="pixels_agent_pos")
        self._seed, self._small, self._diverged = seed, resize_with_pad, PhysicsError
        physics, nothing = self._env.unwrapped._env.physics, np.zeros((480, 640, 3), np.uint8)
        self._draw = physics.render
        physics.render = lambda **of: nothing  # three cameras a step, of which the policy sees one a chunk

    def reset(self):
        self._seen, _ = self._env.reset(seed=self._seed)
        self._seed += 1000000

    def step(self, action):
        try:
            self._seen, _, over, cut, info = self._env.step(action.astype(np.float32))
        except self._diverged:  # MuJoCo's state is none any more; wild actions do that
            return True, False
        return over or cut, bool(info["is_success"])

    def observation(self):
        """Pictures of ALOHA's have their channels first. They are made small here, where there are many processes."""
        picture = self._small(self._draw(height=480, width=640, camera_id="top"), 224, 224)
        state = np.asarray(self._seen["agent_pos"], np.float64)
        return {"images": {"cam_high": np.ascontiguousarray(picture.transpose(2, 0, 1))}, "state": state, "prompt": PROMPT}


class Stub:
    """What an ALOHA sends, of noise; its arms go where they are told, and an episode ends after so many steps."""

    steps = 100

    def __init__(self, seed):
        self._random, self._step, self._state = np.random.default_rng(seed), 0, np.zeros(14)

    def reset(self):
        self._step, self._state = 0, np.zeros(14)

    def step(self, action):
        self._step, self._state = self._step + 1, np.asarray(action[:14], np.float64)
        return self._step >= self.steps, False

    def observation(self):
        picture = self._random.integers(0, 256, (3, 224, 224), np.uint8)
        return {"images": {"cam_high": picture}, "state": self._state, "prompt": PROMPT}


def live(pipe, kind, seed, episodes, most):
    """An environment's process: gives an observation and takes rows of actions, until its episodes are over."""
    environment = kind(seed)
    for _ in range(episodes):
        environment.reset()
        over, success, steps = False, False, 0
        while not over:
            pipe.send(("observation", environment.observation()))
            for action in pipe.recv():
                over, success = environment.step(action)
                steps += 1
                over = over or steps == most
                if over:
                    break
        pipe.send(("episode", success))
    pipe.send(("end", None))


def next_observation(pipe, results):
    """None: its episodes are over."""
    while True:
        try:
            kind, value = pipe.recv()
        except EOFError:
            raise SystemExit("an environment's process has ended; what it said is above") from None
        if kind == "observation":
            return value
        if kind == "end":
            return None
        results.append(value)


def ask(policy, observations):
    """The chunks [H][dims], in order. One observation that the server refuses ends the evaluation."""
    chunks = []
    for first in range(0, len(observations), MOST):
        reply = policy.infer(observations[first : first + MOST])
        if reply.get("openpi/errors"):
            number, sentence = sorted(reply["openpi/errors"].items())[0]
            raise RuntimeError(f"observation {first + int(number)}: {sentence}")
        chunks += list(reply["actions"])
    if len(chunks) != len(observations):
        raise RuntimeError(f"the server sent {len(chunks)} chunks, expected {len(observations)}")
    return chunks


def evaluate(policy, kind, environments, episodes, execute, seed, most):
    """What the table says. A sample is an observation with its chunk."""
    spawn = multiprocessing.get_context("spawn")
    pipes, children, results, latencies, samples = [], [], [], [], 0
    for i in range(environments):
        ours, theirs = spawn.Pipe()
        children.append(spawn.Process(target=live, args=(theirs, kind, seed + i, episodes, most), daemon=True))
        children[-1].start()
        theirs.close()  # so that the end of a process is seen
        pipes.append(ours)
    began, waiting = None, pipes
    while waiting:
        seen = [(pipe, next_observation(pipe, results)) for pipe in waiting]
        seen = [(pipe, observation) for pipe, observation in seen if observation is not None]
        waiting = [pipe for pipe, _ in seen]
        began = began or time.monotonic()  # when all environments are made
        if not seen:
            break
        asked = time.monotonic()
        chunks = ask(policy, [observation for _, observation in seen])
        latencies.append(time.monotonic() - asked)
        samples += len(seen)
        for pipe, chunk in zip(waiting, chunks):
            pipe.send(np.asarray(chunk)[:execute])
    seconds = time.monotonic() - began
    for child in children:
        child.join()
    success = f"{100 * sum(results) / len(results):.1f} %" if kind is Aloha else "none: stub environments"
    return {
        "environments": environments,
        "episodes": len(results) if most is None else f"{len(results)}, of {most} steps at most",
        "success": success,
        "messages": len(latencies),
        "samples": samples,
        "latency p50": f"{np.percentile(latencies, 50) * 1e3:.1f} ms a message",
        "latency p99": f"{np.percentile(latencies, 99) * 1e3:.1f} ms a message",
        "samples/s": f"{samples / sum(latencies):.1f} of the server, {samples / seconds:.1f} with the simulation",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="wss://HOST: over TLS")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", help="of the server's token")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=1, help="of each environment")
    parser.add_argument("--max-steps", type=int, metavar="N",
                        help="of an episode, which then ends without success (default: the simulator's, 300)")
    parser.add_argument("--execute", type=int, default=10, help="rows of a chunk that are executed before the next one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stub", action="store_true", help="environments that need no simulator")
    options = parser.parse_args()
    counts = options.environments, options.episodes, options.execute, options.max_steps
    if any(count is not None and count < 1 for count in counts):
        parser.error("--environments, --episodes, --execute and --max-steps are at least 1")
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    stub = options.stub or importlib.util.find_spec("gym_aloha") is None
    if stub and not options.stub:
        print("gym-aloha is not installed: stub environments, in which nothing can succeed")
    try:
        policy = WebsocketClientPolicy(options.host, options.port, options.api_key)
    except OSError as error:
        parser.error(f"no policy server at {options.host}:{options.port}: {error}")
    kind = Stub if stub else Aloha
    found = evaluate(
        policy, kind, options.environments, options.episodes, options.execute, options.seed, options.max_steps
    )
    policy._ws.close()  # the client has no function for it, and websockets 11 waits for it before Python can end
    for name, value in found.items():
        print(f"{name:<13} {value}")


if __name__ == "__main__":
    main()
