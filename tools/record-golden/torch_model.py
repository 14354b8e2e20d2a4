"""What both PyTorch implementations, openpi's and LeRobot's, have in common: their model's methods bear the
same names.

Note:
  - Stages are not computed a second time. The model's own methods are wrapped for one call of
    sample_actions, so that the golden holds what that very call handed from one method to the next.
  - A model cast to bfloat16 has its rotary table rounded as well, which moves the actions five times as
    far as bf16 arithmetic does. No other implementation does that, so the table is put back before the
    bf16 run.
"""

import contextlib
import inspect
import types

import numpy as np
import torch

import golden


def exact_arithmetic():
    """No TF32: fp32 means fp32. Call after the model was made: openpi's constructor allows TF32."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def exact_rotary(model):
    for module in model.modules():
        table = getattr(module, "inv_freq", None)
        if isinstance(table, torch.Tensor):
            half = table.numel()
            powers = torch.arange(half, dtype=torch.float64, device=table.device) / half
            module.inv_freq = (1.0 / 10000.0**powers).float()


def plain_method(model, name):
    """The method of the class, where the object has a compiled one in its place."""
    return types.MethodType(getattr(type(model), name), model)


def vision_heads(model):
    return model.paligemma_with_expert.paligemma.config.vision_config.num_attention_heads


def check_loaded(model, weights, what):
    """Both loaders can go on without some of the weights: compares each with the file's."""
    state, missing = model.state_dict(), []
    embedding = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    for name, value in state.items():
        entry = weights.get(name)
        if name == embedding and entry is None:
            entry = weights.get("paligemma_with_expert.paligemma.lm_head.weight")
        if "lm_head" in name:
            continue
        if entry is None:
            missing.append(name)
            continue
        flat = value.detach().reshape(-1)
        keep = min(flat.numel(), golden.EDGE)
        ends = [
            golden.as_bf16(part.float().cpu().numpy()) for part in (flat[:keep], flat[flat.numel() - keep :])
        ]
        if golden.edges_hash(*ends) != entry[1]:
            raise golden.Problem(f"{what} did not load tensor {name}: its values are not the file's")
    if missing:
        raise golden.Problem(
            f"the checkpoint lacks {len(missing)} tensors that {what} has, the first is {missing[0]}"
        )


def array(tensor):
    return tensor.detach().float().cpu().numpy()


def _layers(cache):
    """[(k, v)] of transformers' cache, whose form changed between its versions."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return [(cache[i][0], cache[i][1]) for i in range(len(cache))]


class Stages:
    """Filled while sample_actions runs inside `with stages.of(model):`."""

    def __init__(self):
        self.images, self.time, self.velocity, self.x_in = [], [], [], []
        self.suffix0 = self.cache = None

    @contextlib.contextmanager
    def of(self, model):
        inner = model.paligemma_with_expert
        places = (
            (inner, "embed_image", self._image),
            (model, "embed_suffix", self._suffix),
            (model, "denoise_step", self._step),
        )
        for where, name, wrap in places:
            object.__setattr__(where, name, wrap(getattr(where, name)))
        try:
            yield self
        finally:
            for where, name, _ in places:
                object.__delattr__(where, name)

    def _image(self, method):
        def call(image):
            tokens = method(image)
            self.images.append(array(tokens)[0])
            return tokens

        return call

    def _suffix(self, method):
        def call(*args, **kwargs):
            out = method(*args, **kwargs)
            if self.suffix0 is None:
                self.suffix0 = array(out[0])[0]
            return out

        return call

    def _step(self, method):
        names = inspect.signature(method)

        def call(*args, **kwargs):
            given = names.bind(*args, **kwargs).arguments
            if self.cache is None:
                layers = _layers(given["past_key_values"])
                self.cache = [np.stack([array(pair[i])[0, 0] for pair in layers]) for i in (0, 1)]
            self.time.append(float(given["timestep"].reshape(-1)[0]))
            self.x_in.append(array(given["x_t"])[0])
            v = method(*args, **kwargs)
            self.velocity.append(array(v)[0])
            return v

        return call

    def result(self, actions):
        """As Golden.add takes them; slots past the model's own are empty."""
        empty = (golden.SLOTS - len(self.images)) * golden.IMAGE_TOKENS
        at = len(self.images) * golden.IMAGE_TOKENS
        padded = lambda kv: np.concatenate(
            [kv[:, :at], np.zeros((len(kv), empty, kv.shape[2]), kv.dtype), kv[:, at:]], 1
        )
        images = self.images + [np.zeros_like(self.images[0])] * (golden.SLOTS - len(self.images))
        return {
            "image_tokens": np.stack(images),
            "k": padded(self.cache[0]),
            "v": padded(self.cache[1]),
            "suffix0": self.suffix0,
            "time": np.array(self.time, np.float32),
            "velocity": np.stack(self.velocity),
            "x": np.stack(self.x_in[1:] + [actions]),
        }
