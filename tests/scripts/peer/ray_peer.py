"""Run by ray_peer.sh: `serve run openpi_c.ray:app` with a tiny model, and openpi's client."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import golden
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

import openpi_c

SECONDS = 300


def is_ready():
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/healthz", timeout=5) as answer:
            return answer.read() == b"OK\n"
    except OSError:
        return False


def check(folder, obs):
    client = WebsocketClientPolicy("127.0.0.1", 8000)
    metadata = client.get_server_metadata()
    with openpi_c.Policy(folder, config="pi0_libero", dtype="f32", steps=2, progress=None) as own:
        assert metadata["action_dim"] == own.metadata["action_dim"] == 7 and metadata["robot"] == own.metadata["robot"]
        for _ in range(3):  # drawn noise: the same numbers in the same order of calls
            answer = client.infer(obs)
            assert np.array_equal(answer["actions"], own.infer(obs)["actions"]), "actions differ from the package's own"
    assert answer["policy_timing"]["infer_ms"] > 0
    print(f"metadata and 3 answers {answer['actions'].shape}, equal to the package's own")
    shapes = []
    others = [WebsocketClientPolicy("127.0.0.1", 8000) for _ in range(2)]
    threads = [threading.Thread(target=lambda c=c: shapes.extend(c.infer(obs)["actions"].shape for _ in range(3))) for c in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == [(50, 7)] * 6, shapes
    print("two clients at once: 6 answers")
    try:
        client.infer({**obs, "observation/state": np.zeros(40)})
        raise SystemExit("a state of 40 numbers was accepted")
    except RuntimeError as error:
        assert "observation/state" in str(error), error
    assert others[0].infer(obs)["actions"].shape == (50, 7)
    print("a wrong request: a sentence; the other client is answered")


def main():
    arguments, data, _ = golden.policy_case("libero_pi0")
    with tempfile.TemporaryDirectory() as box:
        folder = pathlib.Path(box) / "pi0_libero"
        openpi_c.write_synthetic("tiny:pi0:7", folder)
        assets = folder / "assets" / "physical-intelligence" / "libero"
        assets.mkdir(parents=True)
        shutil.copy(arguments["norm_stats"], assets)
        shutil.copy(golden.GOLDEN / "tokenizer.model", folder)
        given = [f"checkpoint={folder}", "config=pi0_libero", "dtype=f32", "steps=2", "batch=4", "threads=1"]
        with open(pathlib.Path(box) / "log", "w+") as log:
            server = subprocess.Popen(["serve", "run", "openpi_c.ray:app", *given], stdout=log, stderr=log, cwd=box)
            try:
                until = time.monotonic() + SECONDS
                while not is_ready():
                    if server.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        raise SystemExit(f"serve run is not ready: {log.read()[-4000:]}")
                    time.sleep(0.5)
                check(folder, golden.message(data))
            finally:
                server.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(60)
                if server.poll() is None:
                    server.kill()
                subprocess.run(["ray", "stop"], capture_output=True, check=False)


if __name__ == "__main__":
    main()
