#!/usr/bin/env python3
"""The robots of openpi's and of a user's TrainConfigs against the configs themselves: what openpi's transforms make of an
observation and of model actions, and what the engine makes of them, with the robot that tools/openpi_config.py printed and,
for openpi's configs, with --config. In openpi's environment with build/python on the path (tests/scripts/peer/config_peer.sh).

    compare.py CONFIGS"""
import copy
import dataclasses
import json
import os
import pathlib
import sys
import tempfile

import numpy as np
from openpi import transforms
from openpi.shared import download, normalize
from openpi.training import config as training
import openpi_c

configs = pathlib.Path(sys.argv[1])
golden = configs.parent / "golden"
sys.path.insert(0, str(configs))
import own  # noqa: E402

# What a user writes for the questions about lengths; configs with other questions are not run.
ANSWERS = {
    "pi0_ur5_low_mem": {"state": {"joints": 6, "gripper": 1}},
    "pi0_no_names": {"state": {"joints": 7}},
    "pi05_hand": {"state": {"hand/wrist": 2, "hand/fingers": 12}},
}
FLAT = ("observation/",)                    # openpi's clients send these keys flat, the others as dictionaries
# openpi's own loading, without its downloads: the tokenizer is the one of the goldens, statistics are made up.
download.maybe_download = lambda url, **_: (
    golden / "tokenizer.model" if "paligemma_tokenizer" in str(url) else pathlib.Path(url).resolve(strict=True))


def statistics(rng, dims):
    mean, std = rng.normal(0, 0.3, dims), rng.uniform(0.5, 2, dims)
    return normalize.NormStats(mean=mean, std=std, q01=mean - 2 * std, q99=mean + 2 * std)


def observation(rng, robot, prompt, size):
    """By path: pictures of different sizes, a state, maybe a prompt; cameras that may be absent sometimes are."""
    found = {}
    for i, (key, entry) in enumerate(robot["cameras"].items()):
        optional = entry is None or isinstance(entry, dict)
        if optional and rng.random() < 0.3:
            continue
        picture = rng.integers(0, 256, (180 + 40 * i, 320, 3), np.uint8)
        found[key] = picture.transpose(2, 0, 1) if robot["layout"] == "chw" else picture
    found |= {key: size * rng.uniform(0 if size == 1 else -1, 1, length) for key, length in robot["state"].items()}
    if prompt:
        found["prompt"] = prompt
    out = {}
    for key, value in found.items():
        parts = [key] if key.startswith(FLAT) else key.split("/")
        inner = out
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        inner[parts[-1]] = value
    return out


def openpis(config, stats, obs, model_actions):
    """The lists of transforms of openpi's create_trained_policy."""
    data = config.data.create(config.assets_dirs, config.model)
    quantiles, copied = data.use_quantile_norm, copy.deepcopy(obs)
    for step in (*data.data_transforms.inputs, transforms.Normalize(stats, use_quantiles=quantiles), *data.model_transforms.inputs):
        copied = step(copied)
    out = {"state": np.asarray(copied["state"]), "actions": model_actions.copy()}
    for step in (*data.model_transforms.outputs, transforms.Unnormalize(stats, use_quantiles=quantiles), *data.data_transforms.outputs):
        out = step(out)
    return copied, out["actions"]


def compare(name, config, printed, arguments):
    rng = np.random.default_rng(len(name))
    lengths = {"state": sum(printed["state"].values()), "actions": printed["actions"]}
    stats = {key: statistics(rng, dims) for key, dims in lengths.items()}
    given = {key: dataclasses.asdict(value) for key, value in stats.items()}
    size = 8 if "limits" in printed else 1        # beyond the limits, too
    variant = "pi05" if config.model.pi05 else "pi0"
    with openpi_c.Policy(synthetic=f"tiny:{variant}:7", norm_stats=given, tokenizer=golden / "tokenizer.model",
                         steps=1, progress=None, **arguments) as policy:
        assert policy.horizon == config.model.action_horizon, "horizon"
        request = policy.request()
        for prompt in ("wipe the table", "wipe_the table\n twice ", None if "prompt" in printed else "go"):
            obs = observation(rng, printed, prompt, size)
            model_actions = size * rng.normal(0, 0.7, (policy.horizon, 32)).astype(np.float32)
            want, want_actions = openpis(config, stats, obs, model_actions)
            request.prepare(obs)
            sample = request.sample()
            for picture, slot in zip(sample.images, ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"), strict=True):
                assert bool(want["image_mask"][slot]) == (picture is not None), f"{slot}: masked"
                assert picture is None or (picture == want["image"][slot]).all(), f"{slot}: another picture"
            tokens = np.asarray(want["tokenized_prompt"])[np.asarray(want["tokenized_prompt_mask"], bool)]
            assert list(sample.tokens) == list(tokens), "prompt"
            assert len(want["tokenized_prompt"]) == policy.info["max_prompt"], "prompt length"
            np.testing.assert_allclose(np.pad(request.state, (0, 32 - len(request.state))), want["state"], rtol=0,
                                       atol=1e-6 if name == "pi0_cast" else 1e-9)
            np.testing.assert_allclose(request.finish(model_actions), want_actions, rtol=0, atol=1e-6)
        request.close()


def main():
    recorded = {kind: json.loads((configs / f"{kind}.json").read_text()) for kind in ("openpi", "own")}
    all_configs = {config.name: config for config in [*training._CONFIGS, *own.CONFIGS]}
    count = 0
    for kind, robots in recorded.items():
        for name, printed in robots.items():
            answered = {**printed, **ANSWERS.get(name, {})}
            questions = answered.pop("questions", [])
            if "refused" in answered or (questions and name not in ANSWERS):
                continue
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "robot.json")
                pathlib.Path(file).write_text(json.dumps(answered))
                ways = [{"robot": file}] + [{"config": name}] * (kind == "openpi")
                for arguments in ways:
                    try:
                        compare(name, all_configs[name], answered, arguments)
                    except AssertionError as error:
                        sys.exit(f"{name} with {next(iter(arguments))}: {error}")
                    count += 1
    print(f"{count} policies prepare and finish as openpi's own transforms")
    assert count == 2 * 17 + 7


main()
