#!/usr/bin/env python3
"""Prints a TrainConfig of openpi as a robot of openpi.c: the JSON that --robot takes. Run it with the Python that trains:

    python openpi_config.py pi05_droid > droid.json
    python openpi_config.py my_configs.py:pi0_my_arm > my_arm.json

The config's own transforms run on made-up observations whose pictures and numbers all differ, of every size and sign, and the
results show where each went: names of classes do not count, no weights are read, nothing is downloaded. What does not show
is asked: then the file has "questions", and openpi refuses it until the answers are in it and the questions are not
(docs/own-config.md)."""
import argparse, contextlib, copy, difflib, importlib, itertools, json, pathlib, sys, unittest.mock

SLOTS = {"base_0_rgb": "base", "left_wrist_0_rgb": "left_wrist", "right_wrist_0_rgb": "right_wrist"}
SIZES = {"paligemma_variant": ("vlm", "gemma_2b"), "action_expert_variant": ("expert", "gemma_300m")}
HWC, CHW, PROMPT, TEXT = (224, 320, 3), (3, 224, 320), ("prompt",), "a prompt"
LONG_TEXT = " Pick_up the RED cup,\nthen:  " + 60 * "wait, "
MOST = {"action_dim": 32, "action_horizon": 64, "max_token_len": 4096}          # of openpi.c
HUGE = 1e9
# Ten steps a decade from 0.0001 to a million: where a transform begins to do something else is between two of them.
STEPS = [float(f"{m}e{e}") for e in range(-4, 6) for m in (1, 1.3, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)]

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
        """Pictures of bytes; numbers between 0.05 and 0.45, which a float32 holds exactly."""
        if len(shape) == 3:
            return self.random.integers(0, 256, shape, np.uint8)
        return self.random.integers(52429, 471859, shape) / 2**20

    def state(self, values):
        """The state after the data transforms; None: they fail."""
        out = unflatten_dict(copy.deepcopy(values))
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            for transform in self.data.data_transforms.inputs:
                out = transform(out)
            return np.asarray(out["state"], np.float64)

    def actions(self, state, actions):
        """What the output transforms make of model actions, whole."""
        out = {"state": state.copy(), "actions": actions.copy()}
        with np.errstate(all="ignore"):
            for transform in (*self.data.model_transforms.outputs, *self.data.data_transforms.outputs):
                out = transform(out)
        return out

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

    def order(self, values, parts):
        """The parts in the order of the state where limits hide their numbers: by the first that the other sign changes."""
        first = {}
        for path in parts:
            pair = [self.state(values | {path: sign * np.asarray(values[path])}) for sign in (1, -1)]
            moved = [] if any(s is None for s in pair) or pair[0].shape != pair[1].shape else np.flatnonzero(pair[0] != pair[1])
            first[path] = int(moved[0]) if len(moved) else len(first) + 1e3
        return sorted(parts, key=first.get)

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

def sizes(shape, random):
    """Numbers of every size and sign: all of them, a column, a row or one number beside small ones, and each of its own size."""
    small = lambda: random.integers(52429, 471859, shape) / 2**20
    for size, sign in itertools.product(STEPS, (1, -1)):
        near = sign * size * (1 + random.random(shape) / 64)
        yield from (near, near * random.choice([-1, 1], shape))
        for i in range(shape[-1]):
            alone = small()
            alone[..., i] = near[..., i]
            yield alone
        if len(shape) == 2:
            row, number, at, i = small(), small(), random.integers(shape[0]), random.integers(shape[1])
            row[at], number[at, i] = near[at], near[at, i]
            yield from (row, number)
    for _ in range(200):
        yield random.choice([-1, 1], shape) * 10 ** random.uniform(-4, 6, shape)

def limits(run, count):
    """[low, high] of each number, null at an end without a limit, or None: what all huge ones come out as, whatever is beside them."""
    def of(i):
        ends, pair = {sign: [run(i, sign * huge) for huge in (HUGE, HUGE / 8)] for sign in (-1, 1)}, [None, None]
        for sign, (end, nearer) in ends.items():
            if end == nearer and np.isfinite(end) and end != ends[-sign][0]:
                pair[int(end > ends[-sign][0])] = end
        return pair if pair != [None, None] else None
    return [of(i) for i in range(count)]

def within(values, pairs):
    ends = [[(2 * i - 1) * np.inf if pair is None or pair[i] is None else pair[i] for pair in pairs] for i in (0, 1)]
    return np.clip(values, *ends)

class Numbers:
    """What the transforms do to the numbers of the state and to model actions, and what a robot of openpi.c would do."""
    def __init__(self, probe, values, order, model):
        self.probe, self.values, self.order = probe, values, order
        self.joined = np.concatenate([np.atleast_1d(values[path]) for path in order])
        self.cuts = np.cumsum([np.size(values[path]) for path in order])[:-1]
        self.shape, self.out = (model.action_horizon, model.action_dim), None
        self.transform, self.held, self.ends = "none", [None] * self.joined.size, []

    def state(self, numbers):
        parts = zip(self.order, np.split(numbers, self.cuts))
        return self.probe.state(self.values | {path: part.reshape(np.shape(self.values[path])) for path, part in parts})

    def into(self, numbers):
        held = within(numbers, self.held)
        pictures = {"cam_high": np.zeros(CHW)}
        return held if self.transform == "none" else AlohaInputs(adapt_to_pi=True)({"state": held, "images": pictures})["state"]

    def outof(self, state, actions, moved):
        moved = actions + np.where(moved, state, 0)
        return within(AlohaOutputs()({"actions": moved})["actions"] if self.transform == "aloha" else moved[:, : len(self.ends)], self.ends)

    def one_state(self, i, value):
        numbers = self.probe.make(self.joined.shape)
        numbers[i] = value
        return float(out[i]) if (out := self.state(numbers)) is not None and out.shape == numbers.shape else np.nan

    def one_action(self, i, value):
        state, actions = self.probe.make(self.shape[1:]), self.probe.make(self.shape)
        actions[:, i] = value
        column = self.probe.actions(state, actions)["actions"][:, i]
        return float(column[0]) if len(set(column)) == 1 else np.nan

    def find(self, out):
        """What of a robot's file says the same for small numbers; None: nothing does."""
        rows, count = out.shape
        if rows != self.shape[0] or count > self.shape[1]:
            return None
        state, actions = self.probe.make(self.shape[1:]), self.probe.make(self.shape)
        out, self.ends = self.probe.actions(state, actions)["actions"], limits(self.one_action, count)
        for self.transform in ["none", "aloha"][: 1 + (count == self.joined.size == 14)]:
            self.held = limits(self.one_state, self.joined.size) if self.transform == "none" else [None] * self.joined.size
            fixed, moved = (np.isclose(self.outof(state, actions, on), out).all(0) for on in (False, True))
            seen, expected = self.state(self.joined), self.into(self.joined)
            if np.shape(seen) == expected.shape and np.allclose(seen, expected, rtol=1e-6, atol=1e-9) and np.all(fixed | moved):
                runs = [(2 * on - 1) * len(list(run)) for on, run in itertools.groupby((moved & ~fixed).tolist())]
                self.moved = np.pad(moved & ~fixed, (0, self.shape[1] - count))
                return {"transform": self.transform, "delta": runs if any(self.moved) else []}

    def differs(self):
        """Numbers that come out otherwise: ("state" or "actions", index, what came in, what comes out)."""
        random, small, (rows, dims) = self.probe.random, self.probe.make, self.shape
        states = ((s, self.state(s), self.into(s), s, abs(s)) for s in sizes(self.joined.shape, random))
        pairs = itertools.chain(((small((dims,)), a) for a in sizes(self.shape, random)),
                                ((s, small(self.shape)) for s in sizes((dims,), random)),
                                ((s[0], a) for s, a in zip(*[itertools.islice(sizes(x, random), 400) for x in ((1, dims), self.shape)])))
        reach = lambda s, a: (abs(a) + abs(s))[:, : len(self.ends)]
        actions = ((a[:, : len(self.ends)], self.probe.actions(s, a)["actions"], self.outof(s, a, self.moved),
                    self.outof(s, a, self.moved), reach(s, a)) for s, a in pairs)
        for what, cases in ("state", states), ("actions", actions):
            for given, got, expected, shown, scale in cases:
                with np.errstate(all="ignore"):
                    same = got is not None and got.shape == expected.shape and \
                        (np.isclose(got, expected, rtol=1e-6, atol=0, equal_nan=True) | (abs(got - expected) <= 1e-6 * (scale + 1e-3)))
                if not np.all(same):
                    at = tuple(np.argwhere(~same)[0]) if np.ndim(same) else (0,) * expected.ndim
                    yield what, int(at[-1]), float(shown[at]), float(got[at]) if np.ndim(same) else None
                    break

    def describe(self, questions, lengths):
        """The keys of a robot's file; what they cannot say is asked."""
        state, actions = self.probe.make(self.shape[1:]), self.probe.make(self.shape)
        out = self.probe.actions(state, actions)
        more = sorted(str(key) for key in out if key not in ("state", "actions"))
        if np.ndim(out.get("actions")) != 2 or np.shape(out["actions"])[1] > MOST["action_dim"]:
            came = ", ".join(f"{key} {np.shape(value)}" for key, value in out.items() if key != "state")
            raise ValueError(f"the outputs are {came}; openpi.c gives actions, steps times 1 to {MOST['action_dim']}")
        questions += [f"outputs: who makes {', '.join(more)}? openpi gives actions only"] * bool(more)
        count = np.shape(out["actions"])[1]
        if not (found := self.find(out["actions"])):
            questions += ["transform: what does the config do to the state or the actions?"]
            return {"actions": count}
        for what, i, given, got in self.differs():
            name = f"action {i}" if what == "actions" else self.order[int(np.searchsorted(self.cuts, i, "right"))][-1]
            end = "is refused" if got is None else f"becomes {got:.6g}"
            questions += [f"{what}: {given:.6g} of {name} {end}, and smaller numbers stay: what does the config do there?"]
        return found | self.limits(questions, lengths) | {"actions": count}

    def limits(self, questions, lengths):
        one = lambda pairs: pairs[0] if pairs and pairs[0] and all(pair == pairs[0] for pair in pairs) else pairs
        parts = {path: one(list(self.held[end - np.size(self.values[path]) : end]))
                 for path, end in zip(self.order, [*self.cuts, self.joined.size])}
        parts = {"/".join(path): pairs for path, pairs in parts.items() if pairs and any(pairs)}
        questions += [f"limits: which numbers of {key.split('/')[-1]} have which limits? Their number is not known"
                      for key, pairs in parts.items() if lengths[key] is None and np.ndim(pairs[0]) + (pairs[0] is None)]
        found = {"state": parts} if parts else {}
        found |= {"actions": one(self.ends)} if any(self.ends) else {}
        return {"limits": found} if found else {}

def fits(config, model):
    for key, most in MOST.items():
        if not 1 <= getattr(model, key) <= most:
            sys.exit(f"{config.name}: {key} is {getattr(model, key)}; openpi.c runs 1 to {most}")

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
    fits(config, model)
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
    order = list(dict.fromkeys(owner[x] for x in state)) if set(state) <= set(owner) else probe.order(values, parts)
    for path in order:
        lengths = [n for n in range(1, 33) if probe.run(values | {path: probe.make((n,))})]
        told = np.shape(stats.mean) if stats is not None and len(order) == 1 else probe.known.get(path)
        size = len(parts[path]) if len(lengths) < 2 else None if told is None else int(np.prod(told))
        robot["state"]["/".join(path)] = size
        questions += [f"state: how many numbers has {path[-1]}? The answer goes in the place of null"] * (size is None)
        values[path] = values[path] if size in (None, np.size(values[path])) else probe.make((size,))
    for what, many, most in ("cameras", len(robot["cameras"]), 8), ("state", len(order), 8), \
            ("state", sum(filter(None, robot["state"].values())), MOST["action_dim"]):
        if many > most:
            raise ValueError(f"{what}: {many} of them or of their numbers; openpi.c takes {most}")
    robot |= Numbers(probe, values, order, model).describe(questions, robot["state"])
    prompt, in_prompt, *_ = *tokenize.call_args.args, None
    if probe.run({path: value for path, value in values.items() if path != PROMPT}):
        robot["prompt"] = str(tokenize.call_args.args[0])
    probe.run(values | {PROMPT: LONG_TEXT})
    changed = str(tokenize.call_args.args[0])
    if str(prompt) != TEXT or changed != LONG_TEXT:
        short = [f"{text[:30]!r} … ({len(text)} characters)" for text in (LONG_TEXT, changed)]
        before, after = (repr(TEXT), repr(str(prompt))) if str(prompt) != TEXT else short
        questions += [f"prompt: why does {before} become {after}?"]
    questions += ["assets: whose statistics? The config has no asset id"] * (not data.asset_id)
    either = ("normalization", data.use_quantile_norm, "quantile", "zscore"), ("prompt_state", in_prompt is not None, "on", "off")
    robot |= {key: yes if on else no for key, on, yes, no in either if on != (kind == "pi05")}
    robot |= {"actions": robot.pop("actions"), "assets": data.asset_id or "", "variant": kind, "horizon": model.action_horizon}
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
