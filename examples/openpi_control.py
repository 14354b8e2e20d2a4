"""Arms of Physical Intelligence's openpi-control, moved by a policy: from a server, or from a checkpoint in this process.

openpi-control runs a process for each arm and talks to it by ZeroMQ on this machine: joint states in, position targets out, a
heartbeat, without which the arm stops. Its Python package is the other end of that; this is an adapter over the package, over
ArmSession, PositionCommand and an arm's latest state. The runner (docs/runner.md) asks for chunks in its own thread, gives
an action at the robot's rate, and holds the arms still where there is none. A state that is not fresh is no observation, so
that the runner holds.

    openpi_control.py --arm left:Yam:can_follower_l:E_Yam --arm right:Yam:can_follower_r:E_Yam --robot yam.json \\
        --over ws://127.0.0.1:8000 --prompt "fold the towel"

--robot: a file whose state and actions are, for each arm in this order, its joints in rad and then its effector from 0 to 1.
Not tried on an arm: a test moves stand-ins with the package's names.
"""
import argparse
import contextlib
import json
import pathlib
import time

import numpy as np

import openpi_c

FRESH_SECONDS = 0.2


def cameras():
    """Replace it by your cameras: a picture under each key of the robot."""
    return {}


def parts(arm):
    """Numbers of the arm in a state and in an action: joints, and whether an effector follows."""
    capabilities = arm.capabilities
    return capabilities.dof, bool(capabilities.has_effector)


def read(arms):
    """The state of all arms; None: one of them is not fresh."""
    numbers = []
    for arm in arms:
        state = arm.latest_state
        if state is None or not state.is_fresh(FRESH_SECONDS):
            return None
        numbers += [*state.joints.position_rad, *([state.effector.position] if parts(arm)[1] else [])]
    return np.array(numbers)


def send(arms, action, command):
    """An effector has nothing beyond 0 and 1; limits of joints are those of the robot's file."""
    at = 0
    for arm in arms:
        dof, effector = parts(arm)
        joints, at = action[at : at + dof], at + dof
        arm.command(command(joints, float(np.clip(action[at], 0, 1)) if effector else None))
        at += effector


def move(runner, arms, command, rate, steps, prompt, key, look=cameras):
    """Until so many steps are executed, or the runner has stopped. The arms hold afterwards in any case."""
    executed, reason, due = 0, "starting", time.monotonic()
    try:
        while executed < steps:
            state = read(arms)
            if state is not None:
                runner.observe({**look(), key: state, "prompt": prompt})
            tick = runner.next()
            if tick.known:
                send(arms, tick.action, command)
            executed = tick.step
            if tick.reason != reason:
                print(tick.why, runner.info["failure"])
                reason = tick.reason
            if tick.move == "stop":
                return tick.why
            due = max(due + 1 / rate, time.monotonic())
            time.sleep(max(0, due - time.monotonic()))
    finally:
        for arm in arms:
            arm.hold()
    return "done"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", action="append", required=True, metavar="NAME:MODEL:CAN[:EFFECTOR]")
    parser.add_argument("--robot", required=True, type=pathlib.Path, help="a robot's file (docs/robots.md)")
    parser.add_argument("--over", required=True, help="ws://HOST:PORT, or a checkpoint's folder")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    robot = json.loads(options.robot.read_text(encoding="utf-8"))
    (key,) = robot["state"]  # all arms under one key
    try:
        from openpi_control import ArmConfig, ArmSession, PositionCommand, SocketCanConnection
    except ImportError as error:
        raise SystemExit(f"this needs the package openpi-control, which is built from its sources: {error}") from None
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(ArmSession())
        arms = []
        for one in options.arm:
            name, model, interface, *effector = one.split(":")
            config = ArmConfig(name, model, SocketCanConnection(interface), effector_model=effector[0] if effector else None)
            arms.append(session.add_follower(config))
        session.connect()
        if "://" in options.over:
            runner = openpi_c.Runner(options.over, robot=str(options.robot))
        else:
            runner = openpi_c.Runner(stack.enter_context(openpi_c.Policy(options.over, robot=str(options.robot))))
        stack.enter_context(runner)
        print(move(runner, arms, PositionCommand, robot["rate_hz"], options.steps, options.prompt, key))


if __name__ == "__main__":
    main()
