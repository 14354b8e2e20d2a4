"""record-golden's whole way with a stand-in for openpi: words, observations, noise, both precisions, the
file.

    record_standin.py TOOL OPENPI STEPS-JSON FAULT ARGUMENTS-OF-RECORD-GOLDEN...

The stand-in prepares the synthetic robot "none" by the definitions (nothing is normalised, pictures have
their size, the prompt's tokens are openpi's own from steps.json) and asks the engine for the actions. So
it proves the recorder, not the engine: what openpi itself computes is in record.sh and record_peers.sh.
FAULT: "" or what the stand-in gets wrong.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

tool, openpi, steps_json, fault = sys.argv[1:5]
sys.dont_write_bytecode = True
sys.path.insert(0, tool)
import golden  # noqa: E402
import observations  # noqa: E402

CAMERAS = ("base", "left_wrist", "right_wrist")
PROMPTS = {
    row["prompt"]: row["pi0"]
    for row in json.loads(pathlib.Path(steps_json).read_text())["tokenize"]
    if "pi0" in row
}


class Source:
    layout, bf16_notes, pi05, horizon, max_tokens = "openpi", "a stand-in", False, 6, 48

    def __init__(self, args):
        self.checkpoint, self.steps = args.checkpoint, args.steps or 3
        self.weights = golden.checkpoint_weights(args.checkpoint)
        self.dims = golden.checkpoint_dims(self.weights)
        self.notes = {"oracle": "a stand-in"}

    def load(self, kind):
        self.kind = kind

    def example(self, rng, i):
        prompts = [p for p in PROMPTS if 0 < len(PROMPTS[p]) <= 48 and p.isascii() and p]
        seen = CAMERAS[: 2 + i % 2]
        return {name: observations.picture(rng, 224, 224) for name in seen} | {
            "state": observations.numbers(rng, 32),
            "prompt": prompts[i % len(prompts)],
        }

    def prepare(self, o):
        images = np.zeros((3, 224, 224, 3), np.uint8)
        for i, name in enumerate(CAMERAS):
            images[i] = o.get(name, images[i])
        tokens = np.array(PROMPTS[o["prompt"]], np.int32)
        mask = np.array([name in o for name in CAMERAS], np.uint8)
        if fault == "mask":
            mask[0] = 0
        if fault == "shape":
            tokens = tokens[:47]
        state = np.asarray(o["state"], np.float64)
        return {
            "images": images,
            "image_mask": mask,
            "tokens": tokens,
            "token_mask": (tokens != 0).astype(np.uint8),
            "state": state.astype(np.float32),
            "policy_state": state,
        }

    def run(self, o, noise, want_stages):
        with tempfile.TemporaryDirectory() as box:
            pathlib.Path(box, "o.msgpack").write_bytes(observations.pack(o))
            np.save(f"{box}/noise.npy", noise * (1.1 if fault == "noise" else 1))
            subprocess.run(
                [
                    openpi,
                    "run",
                    self.checkpoint,
                    "--robot",
                    "none",
                    "--request",
                    f"{box}/o.msgpack",
                    "--noise",
                    f"{box}/noise.npy",
                    "--horizon",
                    "6",
                    "--steps",
                    str(self.steps),
                    "--dtype",
                    self.kind,
                    "--format",
                    "npy",
                    "--out",
                    f"{box}/actions.npy",
                ],
                check=True,
                capture_output=True,
            )
            actions = np.load(f"{box}/actions.npy")
        if fault == "nan":
            actions[0, 0] = np.nan
        return actions.astype(np.float32), actions, None


spec = importlib.util.spec_from_file_location("record_golden", f"{tool}/__main__.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.open_source = Source
sys.exit(module.main(sys.argv[5:]))
