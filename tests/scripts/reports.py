"""reports.py OPENPI FOLDER CASE: a tiny synthetic LeRobot checkpoint with the fault of CASE, a function here."""
import json
import os
import struct
import subprocess
import sys

openpi, folder, case = sys.argv[1:]
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"


def edit(name, change):
    path = os.path.join(folder, name)
    with open(path) as file:
        value = json.load(file)
    change(value)
    with open(path, "w") as file:
        json.dump(value, file)


def step(name, registry, change):
    edit(name, lambda file: [change(s) for s in file["steps"] if s["registry_name"] == registry])


def config(**values):
    edit("config.json", lambda file: file.update(values))


def state_files(change):
    """Renames the tensors of both state files: change(name) -> name; None drops all."""
    for name in sorted(os.listdir(folder)):
        if not (name.startswith("policy_") and name.endswith(".safetensors")):
            continue
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            data = file.read()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        rest = data[8 + length :]
        header = {change(key): value for key, value in header.items()} if change else {}
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + (rest if change else b""))


def whole():
    pass


def state_step_on_pi0():
    prompt = {"registry_name": "pi05_prepare_state_tokenizer_processor_step"}
    step(BEFORE, "pi0_new_line_processor", lambda s: s.update(prompt))


def adapt():
    config(adapt_to_pi_aloha=True)


def adapt_off():
    config(adapt_to_pi_aloha=False, proj_width=1024, num_steps=10, use_cache=True, attention_implementation="eager")


def old_steps():
    edit("config.json", lambda file: file.pop("num_inference_steps"))
    config(num_steps=3)


def foreign_keys():
    state_files(lambda key: "so100.buffer." + key)


def lost():
    state_files(None)


def absent():
    for name in (BEFORE, AFTER):
        edit(name, lambda file: [s.pop("state_file", None) for s in file["steps"]])


def staircase():
    config(rtc_training_max_delay=4, rtc_training_schedule="staircase")


def my_tokenizer():
    step(BEFORE, "tokenizer_processor", lambda s: s["config"].update(tokenizer_name="my-org/my-tokenizer"))
    cache = os.path.join(folder + ".home", ".cache", "openpi", "big_vision")
    os.makedirs(cache, exist_ok=True)
    os.replace(os.path.join(folder, "tokenizer.model"), os.path.join(cache, "paligemma_tokenizer.model"))


def use_peft():
    config(use_peft=True)


def relative_half():
    step(BEFORE, "relative_actions_processor", lambda s: s["config"].update(enabled=True))


variant = "pi0" if case in ("state_step_on_pi0", "adapt", "adapt_off") else "pi05"
made = [openpi, "synth", folder, "--preset", "tiny", "--variant", variant, "--lerobot", "--threads", "1"]
subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
globals()[case]()
