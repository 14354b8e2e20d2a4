"""Every policy golden through the real openpi-client: the same actions, bit for bit, as `openpi run` computes from the same
request and the same noise.

    serve_peer_goldens.py OPENPI GOLDEN BOX      the command, the folder tests/golden, a folder to write in
    serve_peer_goldens.py OPENPI GOLDEN BOX SERVER NAME      one golden's request to a server for another processor: the model odd,
                                                             in fp32, nearly the same, because it rounds otherwise
"""
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
import websockets
from openpi_client import msgpack_numpy, websocket_client_policy
from served import Server

OPENPI, GOLDEN, BOX = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
NEARLY = 1e-3                              # of actions of the size of 1; another noise changes them by as much as that


def read_expected(path):
    """The facts of a golden and its noise, of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + length])
    facts = {key: json.loads(value) for key, value in head["__metadata__"].items()}
    begin, end = head["noise"]["data_offsets"]
    noise = np.frombuffer(data[8 + length :][begin:end], "<f4").reshape(head["noise"]["shape"])
    return facts, noise


def options(folder, facts, preset):
    """What makes openpi the policy of a golden; its model is `preset`, the golden's own is tiny."""
    pi05 = facts["pi05"]
    robot = {
        "like": facts["robot"],
        "name": "golden",
        "horizon": facts["horizon"],
        "normalization": "quantile" if pi05 else "zscore",
        "prompt_state": "on" if facts.get("discrete_state", pi05) else "off",
        "delta": facts.get("delta", []),
    }
    if not facts.get("adapt_to_pi", True):
        robot["transform"] = "none"
    (BOX / "robot.json").write_text(json.dumps(robot))
    return [
        *("--synthetic", f"{preset}:{'pi05' if pi05 else 'pi0'}:{facts['seed']}", "--robot", BOX / "robot.json"),
        *("--norm-stats", folder / "norm_stats.json", "--tokenizer", GOLDEN / "tokenizer.model", "--threads", "2"),
    ]


def computed(folder, *more, preset="tiny"):
    """What `openpi run` computes, of what, and by which options."""
    facts, noise = read_expected(folder / "expected.safetensors")
    request, model = folder / "request.msgpack", [*options(folder, facts, preset), *more]
    np.save(BOX / "noise.npy", noise)
    files = ["--request", request, "--noise", BOX / "noise.npy", "--format", "npy", "--out", BOX / "actions.npy"]
    subprocess.run([OPENPI, "run", *model, *files], check=True, stdout=subprocess.DEVNULL)
    return np.load(BOX / "actions.npy"), msgpack_numpy.unpackb(request.read_bytes()), noise, model


def check(folder):
    want, observation, noise, model = computed(folder)
    with Server(OPENPI, *model) as server:
        policy = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", server.port)
        for _ in range(2):
            got = policy.infer(observation | {"openpi/noise": noise})["actions"]
            assert got.dtype == want.dtype == np.float64 and got.shape == want.shape, (got.dtype, got.shape, want.shape)
            assert got.tobytes() == want.tobytes(), f"{folder.name}: not what openpi run computes"
        other = policy.infer(observation | {"openpi/noise": -noise})["actions"]
        assert not np.array_equal(other, want), f"{folder.name}: the noise changes nothing"
        policy._ws.close()


def check_elsewhere(folder, program):
    want, observation, noise, model = computed(folder, "--dtype", "f32", "--steps", "1", preset="odd")
    with Server(program, *model) as server:
        policy = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", server.port)
        got = policy.infer(observation | {"openpi/noise": noise})["actions"]
        policy._ws.close()
    far = np.abs(got - want).max()
    assert got.shape == want.shape and far < NEARLY, f"{folder.name}: {far} from what openpi run computes here"
    print(f"{folder.name}: one request of openpi-client is answered, {far:.1e} from what openpi run computes here")


if len(sys.argv) > 4:
    check_elsewhere(GOLDEN / "policy" / sys.argv[5], sys.argv[4])
    sys.exit(0)
folders = sorted(path for path in (GOLDEN / "policy").iterdir() if path.is_dir())
assert len(folders) == 6, folders
for golden in folders:
    check(golden)
print(f"{len(folders)} policy goldens are openpi run's through the client with websockets {websockets.__version__}")
