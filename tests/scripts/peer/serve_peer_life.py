"""The real openpi-client while the server changes: the checkpoint is loaded again and the server drained, between calls and
during one, and a call lasts longer than the client waits for a pong. Every answer comes, and is a checkpoint's.

    serve_peer_life.py OPENPI_HOST BOX      the command whose device a signal stalls; a folder to write in
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import websockets
from openpi_client import msgpack_numpy, websocket_client_policy
from served import WAIT, Server

OPENPI, BOX = sys.argv[1], pathlib.Path(sys.argv[2])
HORIZON = 5
PING_INTERVAL, PINGS = 20, 2  # of websockets 15 and later: the call is as long with every version
random = np.random.default_rng(5)
REQUEST = {
    "state": np.ones((14,)),
    "images": {"cam_high": random.integers(256, size=(3, 224, 224), dtype=np.uint8)},
    "prompt": "do something",
    "openpi/noise": random.standard_normal((HORIZON, 32)).astype(np.float32),
}
OPTIONS = ("--robot", BOX / "robot.json", "--threads", "2", "--steps", "1", "--device", "host:0")


def use(checkpoint):
    """The folder that the server loads leads to this checkpoint from now on."""
    os.symlink(checkpoint, BOX / "fresh")
    os.replace(BOX / "fresh", BOX / "link")


def make(checkpoint, seed):
    """A checkpoint, and what `openpi run` answers with it."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([OPENPI, "synth", BOX / checkpoint, "--preset", "tiny", "--seed", str(seed)], **quiet)
    files = ["--request", BOX / "request", "--noise", BOX / "noise.npy", "--format", "npy", "--out", BOX / "actions.npy"]
    subprocess.run([OPENPI, "run", BOX / checkpoint, *OPTIONS, *files], **quiet)
    return np.load(BOX / "actions.npy")


def connect(server):
    return websocket_client_policy.WebsocketClientPolicy("127.0.0.1", server.port)


def actions_of(policy):
    return policy.infer(REQUEST)["actions"]


def must_be_closed(policy):
    try:
        policy._ws.recv(timeout=WAIT)
    except websockets.exceptions.ConnectionClosed as error:
        assert error.rcvd.code == 1001, error
    else:
        raise AssertionError("a message that nobody asked for")


class Call(threading.Thread):
    """A call of a policy that waits for the device, which stands still. The request has come whole when it is made: the
    server answers a ping that was sent after it."""

    def __init__(self, policy):
        super().__init__(daemon=True)
        self._policy, self._actions, sent, send = policy, None, threading.Event(), policy._ws.send

        def tell(*arguments):
            send(*arguments)
            sent.set()

        policy._ws.send = tell
        self.start()
        assert sent.wait(WAIT)
        policy._ws.send = send
        assert policy._ws.ping().wait(WAIT), "no pong during a call"
        self.must_run()

    def run(self):
        self._actions = actions_of(self._policy)

    def must_run(self):
        assert self.is_alive(), "the call ended although the device stands still"

    def actions(self):
        self.join(WAIT)
        assert self._actions is not None, "the call has no answer"
        return self._actions


def reload_the_checkpoint(one, two):
    use("one")
    with Server(OPENPI, BOX / "link", *OPTIONS) as server:
        policy = connect(server)
        assert np.array_equal(actions_of(policy), one)
        use("two")
        server.signal(signal.SIGHUP)
        server.must_say("reloaded: ")
        assert np.array_equal(actions_of(policy), two)

        server.signal(signal.SIGUSR1)  # the device stands still
        call = Call(policy)
        use("one")
        server.signal(signal.SIGHUP)
        server.must_say(" reloading", 2)
        call.must_run()
        server.signal(signal.SIGUSR2)  # it runs
        actions = call.actions()
        assert np.array_equal(actions, one) or np.array_equal(actions, two)
        server.must_say("reloaded: ", 2)
        assert np.array_equal(actions_of(policy), one)
        policy._ws.close()


def drain_between_calls(one):
    with Server(OPENPI, BOX / "link", *OPTIONS, "--drain", "3600") as server:
        policy = connect(server)
        assert np.array_equal(actions_of(policy), one)
        server.signal(signal.SIGTERM)
        must_be_closed(policy)
        server.ends()


def drain_during_a_call(one):
    with Server(OPENPI, BOX / "link", *OPTIONS, "--drain", "3600") as server:
        idle, busy = connect(server), connect(server)
        server.signal(signal.SIGUSR1)
        call = Call(busy)
        server.signal(signal.SIGTERM)
        must_be_closed(idle)
        call.must_run()
        server.signal(signal.SIGUSR2)
        assert np.array_equal(call.actions(), one)
        must_be_closed(busy)
        server.ends()


def own_pings(socket):
    """The client's pings, as they come: the second one is sent when the time for the first one's pong is over, and closes the
    connection where there was none."""
    pings, more, ping = [], threading.Semaphore(0), socket.ping

    def tell(*arguments, **named):
        pings.append(ping(*arguments, **named))
        more.release()
        return pings[-1]

    socket.ping = tell
    for turn in range(1 + -(-socket.ping_timeout // socket.ping_interval)):
        assert more.acquire(timeout=socket.ping_interval + WAIT), "the client does not ping"
        assert pings[turn].wait(WAIT), "no pong during a long call"
    return len(pings)


def pings_by_hand(socket, call):
    """The same of a client that never pings by itself, at the times at which later versions do."""
    for _ in range(PINGS):
        call.join(PING_INTERVAL)  # nothing but time has to pass
        call.must_run()
        assert socket.ping().wait(WAIT), "no pong during a long call"
    return PINGS


def call_longer_than_a_ping(one):
    """How many pings were answered while a call ran."""
    with Server(OPENPI, BOX / "link", *OPTIONS) as server:
        policy = connect(server)
        server.signal(signal.SIGUSR1)
        call = Call(policy)
        by_itself = getattr(policy._ws, "ping_interval", None)
        answered = own_pings(policy._ws) if by_itself else pings_by_hand(policy._ws, call)
        call.must_run()
        server.signal(signal.SIGUSR2)
        assert np.array_equal(call.actions(), one)
        assert np.array_equal(actions_of(policy), one)
        policy._ws.close()
        return answered


(BOX / "robot.json").write_text(json.dumps({"like": "aloha", "name": "arms", "horizon": HORIZON, "assets": "synthetic"}))
(BOX / "request").write_bytes(msgpack_numpy.packb(REQUEST))
np.save(BOX / "noise.npy", REQUEST["openpi/noise"])
first, second = make("one", 1), make("two", 2)
assert not np.array_equal(first, second)
reload_the_checkpoint(first, second)
drain_between_calls(first)
drain_during_a_call(first)
answered = call_longer_than_a_ping(first)
print(f"reload, drain and a call of {answered} pings with websockets {websockets.__version__}")
