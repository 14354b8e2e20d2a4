"""The blocks of the package's pages run as they stand: ```python in this process, ```sh in a shell.

Both run in a folder that has the checkpoints which the pages name, as tiny models. A block of commands that are not
installed here is skipped, by their names: tests/scripts/peer/lerobot_peer.sh and ray_peer.sh run those.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from golden import GOLDEN
import openpi_c

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("python.md", "lerobot.md", "ray.md")
TEXTS = {page: (ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES}
BLOCKS = {
    kind: [
        pytest.param(text, id=f"{page}-{number}")
        for page in PAGES
        for number, text in enumerate(re.findall(rf"^```{kind}\n(.*?)^```$", TEXTS[page], re.M | re.S))
    ]
    for kind in ("python", "sh")
}
# What a small machine without a GPU and a robot does in the place of what is written.
FITS = {
    "cuda:0": "cpu",
    "measure.py": "measure.py --calls 4 --only overhead --only memory",
    "gpus=1 replicas=2": "gpus=0 replicas=1",
    "--env.type=aloha": "--env.type=aloha --env.episode_length=20 --eval.n_episodes=2 --eval.batch_size=2"
    " --eval.use_async_envs=false",
    "--robot.type=so101_follower --robot.port=/dev/ttyACM0": "--robot.type=standin",
    '--robot.cameras="{top: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}}"': "",
    "--duration=60": "--duration=3 --fps=10",
}
# Commands that go on until they are ended, and the port that they then listen to.
SERVERS = {"python -m lerobot_policy_openpi_c.server --port=8080": 8080, "serve run": 8000}
SECONDS = 600


def fitted(text):
    for written, here in FITS.items():
        text = text.replace(written, here)
    return text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the pages' checkpoints and this checkout's tests."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "tests").symlink_to(ROOT / "tests")
    for name, spec, assets, stats in (
        ("pi05_droid", "tiny:pi05:8", "droid", "droid_jointpos"),
        ("pi0_aloha_sim", "tiny:pi0:7", "lerobot/aloha_sim_transfer_cube_human", "aloha_sim"),
    ):
        openpi_c.write_synthetic(spec, folder / name)
        (folder / name / "assets" / assets).mkdir(parents=True)
        shutil.copy(GOLDEN / "policy" / stats / "norm_stats.json", folder / name / "assets" / assets)
        shutil.copy(GOLDEN / "tokenizer.model", folder / name)
    run = folder / "outputs/train/my_run/checkpoints/last/pretrained_model"
    run.parent.mkdir(parents=True)
    openpi_c.write_synthetic("tiny:pi0:7", run, lerobot=True)
    shutil.copytree(GOLDEN / "lerobot/pi0/checkpoint", run, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "lerobot/pi05/checkpoint/tokenizer", run / "tokenizer", dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("text", BLOCKS["python"])
def test_python(text, place, monkeypatch):
    monkeypatch.chdir(place)
    exec(compile(fitted(text), "page", "exec"), {"__name__": "page"})


def test_there_are_blocks():
    assert len(BLOCKS["python"]) >= 7 and len(BLOCKS["sh"]) >= 6


def test_every_block_has_its_kind():
    for page, text in TEXTS.items():
        fences = re.findall(r"^```(.*)$", text, re.M)
        assert set(fences[::2]) <= {"python", "sh"} and set(fences[1::2]) <= {""}, page


# ---- the shell ----------------------------------------------------------------------------------------------------


def path():
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])


def lacking(command):
    """Why a command cannot run here; None: it can."""
    words = command.split()
    if words[:2] == ["pip", "install"]:
        return "pip install, which tools/wheels and the peers' scripts do"
    if words[:2] == ["python", "-m"]:
        module = words[2].partition(".")[0]
        return None if importlib.util.find_spec(module) else f"no {module} here"
    if words[0] == "lerobot-rollout" and not is_installed("lerobot_robot_standin"):
        return "no robot of LeRobot here, lerobot_peer.sh has one"
    return None if shutil.which(words[0], path=path()) else f"no {words[0]} here"


def is_installed(distribution):
    try:
        return importlib.metadata.distribution(distribution) is not None
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize("text", BLOCKS["sh"])
def test_shell(text, place):
    commands = re.sub(r" *(#.*)?$", "", re.sub(r"\\\n", " ", text), flags=re.M).splitlines()
    for command in commands:
        if lacking(command):
            pytest.skip(lacking(command))
    for command in commands:
        port = next((port for start, port in SERVERS.items() if command.startswith(start)), None)
        (serves if port else works)(fitted(command), place, port)


def works(command, place, _):
    ran = subprocess.run(command, shell=True, cwd=place, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def serves(command, place, port):
    """The server listens to its port, on this machine's own address."""
    with (place / "log").open("w") as log:
        server = subprocess.Popen(command, shell=True, cwd=place, env=environment(), stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + SECONDS
        while not listens(port):
            assert server.poll() is None and time.monotonic() < until, (place / "log").read_text()
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def environment():
    package = pathlib.Path(openpi_c.__file__).absolute().parents[1]
    found = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PATH": path(), "PYTHONPATH": found, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}


def listens(port):
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))
