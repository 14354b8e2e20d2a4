#!/usr/bin/env python3
"""Prints a TrainConfig of openpi as a robot of openpi.c: the JSON that --robot takes. Run it with the Python that trains:

    python openpi_config.py pi05_droid > droid.json
    python openpi_config.py my_configs.py:pi0_my_arm > my_arm.json

The config's own transforms run on a made-up observation whose pictures and numbers all differ, and the result shows where
each went: names of classes do not count, no weights are read, nothing is downloaded. What does not show is asked: then the
file has "questions", and openpi refuses it until the answers are in it and the questions are not (docs/own-config.md)."""
import argparse, copy, difflib, importlib, itertools, json, pathlib, sys, unittest.mock

SLOTS = {"base_0_rgb": "base", "left_wrist_0_rgb": "left_wrist", "right_wrist_0_rgb": "right_wrist"}
SIZES = {"paligemma_variant": ("vlm", "gemma_2b"), "action_expert_variant": ("expert", "gemma_300m")}
HWC, CHW, PROMPT, TEXT = (224, 320, 3), (3, 224, 320), ("prompt",), "a prompt"

def find_config(name, module):
    """A TrainConfig at the top of a file or module, in a list, tuple or dict there, or of openpi's own."""
    path, _, name = name.rpartition(":")
    sys.path.insert(0, str(pathlib.Path(path or "here").resolve().parent))
    module = importlib.import_module(pathlib.Path(path).stem if path else module)
    values = [*vars(training).values(), *vars(module).values()]
    values += [x for v in values if isinstance(v, (dict, list, tuple)) for x in (v.values() if isinstance(v, dict) else v)]
    configs = {value.name: value for value in values if isinstance(value, training.TrainConfig)}
    near = ", ".join(difflib.get_close_matches(name, configs) or configs)
    return configs.get(name) or sys.exit(f"{path or module.__name__}: has no TrainConfig {name!r}; there are {near}")

class Probe:
    """Runs a config's transforms on observations {path of keys: value}; `known`: {path that may occur: shape or None}."""
    def __init__(self, data):
        self.data, self.random, self.known, self.asked, self.why = data, np.random.default_rng(7), {}, set(), None
        for transform in data.repack_transforms.inputs:
            self.known |= dict.fromkeys(flatten_dict(getattr(transform, "structure", {})))
        for module in [sys.modules[transform.__module__] for transform in data.data_transforms.inputs]:
            for make in [f for name, f in vars(module).items() if name.startswith("make_") and name.endswith("_example")]:
                self.known |= {path: np.shape(value) for path, value in flatten_dict(make()).items()}
        self.known = {path: shape for path, shape in self.known.items() if path[-1] not in ("prompt", "actions")}

    def make(self, shape):
        return self.random.integers(0, 256, shape, np.uint8) if len(shape) == 3 else np.round(self.random.random(shape) + .1, 6)

    def run(self, values):
        """The state after the data transforms, and the pictures that the model sees, by slot. None: `why` it failed."""
        out = unflatten_dict(copy.deepcopy(values))
        try:
            for transform in self.data.data_transforms.inputs:
                out = transform(out)
            state = np.copy(out["state"])
            for transform in self.data.model_transforms.inputs:
                out = transform(out)
            return state, {slot: np.asarray(v) for slot, v in out["image"].items() if np.all(out["image_mask"][slot])}
        except Exception as error:
            self.why = error

    def kinds(self, path, n):
        shape, picture = self.known[path], any(word in str(path).lower() for word in ("image", "cam", "rgb", "wrist", "view"))
        guesses = [HWC, CHW, (n,), ()] if shape or picture else [(n,), (), HWC, CHW]
        return guesses if shape is None or len(shape) == 3 else [shape]

    def observe(self):
        """An observation that the transforms take. A key that they ask for is known from then on."""
        for n in (7, *range(1, 33)):
            for shapes in itertools.islice(itertools.product(*(self.kinds(path, n) for path in self.known)), 1000):
                values = {PROMPT: TEXT} | {path: self.make(shape) for path, shape in zip(self.known, shapes)}
                if (seen := self.run(values)) and seen[0].ndim == 1 and any(len(shape) == 3 for shape in shapes):
                    return values
                self.asked |= {(key,) for key in self.why.args[:1] if isinstance(self.why, KeyError)} - set(self.known)
        if not self.asked:
            raise ValueError(f"the transforms take no made-up observation: {self.why}")
        self.known, self.asked = self.known | dict.fromkeys(self.asked), set()
        return self.observe()

def describe(config):
    model, robot, questions = config.model, {"name": config.name}, []
    kind = getattr(model.model_type, "value", model.model_type)
    if kind not in ("pi0", "pi05"):
        sys.exit(f"{config.name}: is a {kind} model; openpi.c runs pi0 and pi05")
    for key, (part, size) in SIZES.items():
        variant = getattr(model, key)
        lora = variant == f"{size}_lora" and gemma.get_config(variant).lora_configs["attn"]
        if variant != size and (not lora or lora.scaling_value != 1):
            sys.exit(f"{config.name}: {key} is {variant}; openpi.c runs {size}, and LoRA of it where alpha is the rank")
        robot |= {"lora": robot.get("lora", {}) | {part: lora.rank}} if lora else {}
    (tokenize := unittest.mock.Mock(return_value=(0, 0)))("")
    tokenizer.PaligemmaTokenizer = lambda *_, **__: unittest.mock.Mock(tokenize=tokenize)
    download.maybe_download = lambda url, **_: pathlib.Path(url).resolve(strict=True)
    probe = Probe(data := config.data.create(config.assets_dirs, model))
    values = probe.observe()
    state, shown = probe.run(values)
    cameras = [path for path, value in values.items() if np.ndim(value) == 3]
    other = probe.run(values | {(*cameras[0][:-1], "a_picture_of_no_camera"): values[cameras[0]]})
    robot |= {"cameras": {}, "layout": "chw" if values[cameras[0]].shape == CHW else "auto",
              "other_pictures": "ignore" if other else "refuse", "state": {}}
    for path in cameras:
        picture, rest = values[path], probe.run({p: v for p, v in values.items() if p != path})
        small = image_tools.resize_with_pad(picture.transpose(1, 2, 0) if picture.shape == CHW else picture, 224, 224)
        slot = next((slot for slot in SLOTS if np.array_equal(shown.get(slot), small)), None)
        if slot or not other:
            optional = slot and rest and slot not in rest[1]
            robot["cameras"]["/".join(path)] = {"slot": SLOTS[slot], "required": False} if optional else SLOTS.get(slot)
        shown.pop(slot, None)
    questions += [f"cameras: {slot} shows no camera's picture as it came: what does it show?" for slot in shown]
    parts = {path: np.atleast_1d(v) for path, v in values.items() if np.ndim(v) < 2 and path != PROMPT}
    owner, stats = {x: path for path, part in parts.items() for x in part}, (data.norm_stats or {}).get("state")
    order = list(dict.fromkeys(owner[x] for x in state)) if set(state) <= set(owner) else list(parts)
    for path in order:
        lengths = [n for n in range(1, 33) if probe.run(values | {path: probe.make((n,))})]
        told = np.shape(stats.mean) if stats is not None and len(order) == 1 else probe.known.get(path)
        size = len(parts[path]) if len(lengths) < 2 else None if told is None else int(np.prod(told))
        robot["state"]["/".join(path)] = size
        questions += [f"state: how many numbers has {path[-1]}? The answer goes in the place of null"] * (size is None)
    moves, actions = probe.make((32,)), probe.make((model.action_horizon, 32))
    out, joined = {"state": moves.copy(), "actions": actions.copy()}, np.concatenate([parts[path] for path in order])
    for transform in (*data.model_transforms.outputs, *data.data_transforms.outputs):
        out = transform(out)
    rows, count = np.shape(out["actions"])
    for name in ["none", "aloha"][: (rows == len(actions)) * (1 + (count == joined.size == 14))]:
        into = AlohaInputs(adapt_to_pi=name == "aloha")({"state": joined, "images": {"cam_high": np.zeros(CHW)}})["state"]
        both = [x[:, :count] if name == "none" else AlohaOutputs()({"actions": x})["actions"] for x in (actions, actions + moves)]
        fixed, moved = (np.isclose(x, out["actions"]).all(0) for x in both)
        if np.array_equal(into, state) and np.all(fixed | moved):
            runs = [(2 * on - 1) * len(list(run)) for on, run in itertools.groupby(moved.tolist())]
            robot |= {"transform": name, "delta": runs if any(moved) else []}
    questions += ["transform: what does the config do to the state or the actions?"] * ("transform" not in robot)
    prompt, in_prompt, *_ = *tokenize.call_args.args, None
    if probe.run({path: value for path, value in values.items() if path != PROMPT}):
        robot["prompt"] = str(tokenize.call_args.args[0])
    questions += [f"prompt: why does {TEXT!r} become {str(prompt)!r}?"] * (str(prompt) != TEXT)
    questions += ["assets: whose statistics? The config has no asset id"] * (not data.asset_id)
    either = ("normalization", data.use_quantile_norm, "quantile", "zscore"), ("prompt_state", in_prompt is not None, "on", "off")
    robot |= {key: yes if on else no for key, on, yes, no in either if on != (kind == "pi05")}
    robot |= {"actions": count, "assets": data.asset_id or "", "variant": kind, "horizon": model.action_horizon}
    return robot | {"max_prompt": model.max_token_len} | ({"questions": questions} if questions else {})

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("name", metavar="[FILE.py:]NAME", help="name of a TrainConfig: one of openpi's, or one in a Python file")
parser.add_argument("--config-module", metavar="MODULE", default="openpi.training.config", help="a module with NAME")
args = parser.parse_args()
try:
    from flax.traverse_util import flatten_dict, unflatten_dict
    import numpy as np
    from openpi.models import gemma, tokenizer
    from openpi.policies.aloha_policy import AlohaInputs, AlohaOutputs
    from openpi.shared import download
    import openpi.training.config as training
    from openpi_client import image_tools
    robot = describe(find_config(args.name, args.config_module))
except Exception as error:
    sys.exit(" ".join(f"{args.name}: {type(error).__name__}: {error} (is this the Python that trains?)".split()))
print(json.dumps(robot, indent=4, ensure_ascii=False))
print("".join(f"question: {question}\n" for question in robot.get("questions", [])), end="", file=sys.stderr)
