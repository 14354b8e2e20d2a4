"""A plan of 8-bit weights: opened, told of, refused."""

import os
import subprocess

import pytest

import openpi_c

COMMAND = os.environ.get("OPENPI_COMMAND")
pytestmark = pytest.mark.skipif(not COMMAND, reason="OPENPI_COMMAND names no openpi command")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint with a plan beside it, and one of too much error in bad.json."""
    folder = tmp_path_factory.mktemp("w8") / "ck"
    subprocess.run([COMMAND, "synth", folder, "--preset", "odd"], check=True, capture_output=True)
    quantize = [COMMAND, "quantize", folder, "--robot", "none", "--synthetic", "1", "--steps", "1", "--horizon", "2"]
    subprocess.run([*quantize, "--weights", "expert=int8", "--bound", "0.5"], check=True, capture_output=True)
    bad = [*quantize, "--weights", "e4m3", "--bound", "0.001", "--out", folder / "bad.json"]
    assert subprocess.run(bad, capture_output=True).returncode == 1
    return folder


def test_a_plan_opens(checkpoint):
    with openpi_c.Engine(checkpoint, weights="w8") as engine:
        w8 = engine.info["w8"]
        assert engine.info["formats"] == "bf16,expert=int8"
        assert 0 < w8["error"] <= w8["bound"] and w8["error_accepted"] is False
        assert any("made-up observation" in text for _, text in engine.notes)
    with openpi_c.Engine(checkpoint) as engine:
        assert engine.info["w8"] is None and engine.info["formats"] == "bf16"


def test_too_much_error_needs_a_word(checkpoint):
    weights = f"w8={checkpoint}/bad.json"
    with pytest.raises(ValueError, match="above its bound of .* which only accept_error lets pass; run: openpi"):
        openpi_c.Engine(checkpoint, weights=weights)
    with openpi_c.Policy(checkpoint, robot="none", weights=weights, accept_error=True) as policy:
        assert policy.engine.info["w8"]["error_accepted"] is True
        assert any(warning and "was accepted" in text for warning, text in policy.engine.notes)


def test_no_plan(checkpoint):
    with pytest.raises(FileNotFoundError, match="its plan .*nowhere.json is not there; run: openpi quantize"):
        openpi_c.Engine(checkpoint, weights=f"w8={checkpoint}/nowhere.json")
    with pytest.raises(ValueError, match="expected w8=FILE"):
        openpi_c.Engine(synthetic="odd", weights="w8")
