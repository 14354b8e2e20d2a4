"""Has orbax-checkpoint write a checkpoint of openpi's PyTorch layout (bf16) as openpi's JAX tree.

    orbax_tree.py CHECKPOINT OUT [--devices N] [--value] [--low-bits]

Names and axes are the inverse of openpi's examples/convert_jax_model_to_pytorch.py. Arrays are F32.
--devices: matrices are cut along the largest axis that N divides, as openpi's fsdp_sharding does; jax must have
that many devices (XLA_FLAGS=--xla_force_host_platform_device_count=N). --value: the tree that training saves,
where each path ends in "value". --low-bits: the 16 bits that bf16 lacks are drawn at random so that rounding
gives the same bf16; such a file compresses as a trained one does.
"""

import argparse
import json
import pathlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "record-golden"))
import golden  # noqa: E402

PART = "paligemma_with_expert."
VISION = PART + "paligemma.model.vision_tower.vision_model."
PROJECTOR = PART + "paligemma.model.multi_modal_projector.linear."
LANGUAGE, EXPERT = PART + "paligemma.model.language_model.", PART + "gemma_expert.model."


def read_tensors(folder):
    """{name: float32 array}"""
    out = {}
    for path in golden.checkpoint_files(folder):
        data = np.memmap(path, np.uint8, "r")
        lead = 8 + int.from_bytes(data[:8].tobytes(), "little")
        for name, entry in json.loads(data[8:lead].tobytes()).items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                assert entry["dtype"] == "BF16", (name, entry["dtype"])
                bits = data[lead + first : lead + end].view(np.uint16).astype(np.uint32) << 16
                out[name] = bits.view(np.float32).reshape(entry["shape"])
    return out


def stack(tensors, name, layers, change):
    return np.stack([change(tensors[name % layer]) for layer in range(layers)])


def vision_tree(t, dims):
    width, depth, heads, _ = dims["vision"]
    split, block = (heads, width // heads), "PaliGemma/img/Transformer/encoderblock/"
    tree = {
        "PaliGemma/img/embedding/kernel": t[VISION + "embeddings.patch_embedding.weight"].transpose(2, 3, 1, 0),
        "PaliGemma/img/embedding/bias": t[VISION + "embeddings.patch_embedding.bias"],
        "PaliGemma/img/pos_embedding": t[VISION + "embeddings.position_embedding.weight"][None],
        "PaliGemma/img/Transformer/encoder_norm/scale": t[VISION + "post_layernorm.weight"],
        "PaliGemma/img/Transformer/encoder_norm/bias": t[VISION + "post_layernorm.bias"],
        "PaliGemma/img/head/kernel": t[PROJECTOR + "weight"].T,
        "PaliGemma/img/head/bias": t[PROJECTOR + "bias"],
    }

    def put(path, name, change=lambda w: w):
        tree[block + path] = stack(t, VISION + "encoder.layers.%d." + name, depth, change)

    for i in (0, 1):
        put(f"LayerNorm_{i}/scale", f"layer_norm{i + 1}.weight")
        put(f"LayerNorm_{i}/bias", f"layer_norm{i + 1}.bias")
        put(f"MlpBlock_0/Dense_{i}/kernel", f"mlp.fc{i + 1}.weight", np.transpose)
        put(f"MlpBlock_0/Dense_{i}/bias", f"mlp.fc{i + 1}.bias")
    attention = "MultiHeadDotProductAttention_0/"
    for p in ("query", "key", "value"):
        put(f"{attention}{p}/kernel", f"self_attn.{p[0]}_proj.weight", lambda w: w.T.reshape(width, *split))
        put(f"{attention}{p}/bias", f"self_attn.{p[0]}_proj.bias", lambda w: w.reshape(split))
    put(attention + "out/kernel", "self_attn.out_proj.weight", lambda w: w.T.reshape(*split, width))
    put(attention + "out/bias", "self_attn.out_proj.bias")
    return tree


def gemma_tree(t, dims, x, lead):
    """One stack: x is "" or "_1"."""
    _, depth, heads, dim, _ = dims["vlm"]
    layer, path, tree = lead + "layers.%d.", "PaliGemma/llm/layers/", {}

    def both(a, b):
        one, two = (stack(t, layer + n, depth, np.transpose) for n in (a, b))
        return np.stack([one, two], axis=1)

    tree[f"{path}attn/q_einsum{x}/w"] = stack(
        t, layer + "self_attn.q_proj.weight", depth, lambda w: w.reshape(heads, dim, -1).transpose(0, 2, 1)
    )
    tree[f"{path}attn/kv_einsum{x}/w"] = both("self_attn.k_proj.weight", "self_attn.v_proj.weight")[:, :, None]
    tree[f"{path}attn/attn_vec_einsum{x}/w"] = stack(
        t, layer + "self_attn.o_proj.weight", depth, lambda w: w.T.reshape(heads, dim, -1)
    )
    tree[f"{path}mlp{x}/gating_einsum"] = both("mlp.gate_proj.weight", "mlp.up_proj.weight")
    tree[f"{path}mlp{x}/linear"] = stack(t, layer + "mlp.down_proj.weight", depth, np.transpose)
    for name, tensor in (("pre_attention_norm", "input_layernorm"), ("pre_ffw_norm", "post_attention_layernorm")):
        for end, change in (("weight", lambda w: w), ("dense.weight", np.transpose), ("dense.bias", lambda w: w)):
            if f"{layer}{tensor}.{end}" % 0 in t:
                tree[f"{path}{name}{x}/{ENDS[end]}"] = stack(t, f"{layer}{tensor}.{end}", depth, change)
    for end in ENDS:
        if f"{lead}norm.{end}" in t:
            tree[f"PaliGemma/llm/final_norm{x}/{ENDS[end]}"] = t[f"{lead}norm.{end}"].T
    return tree


ENDS = {"weight": "scale", "dense.weight": "Dense_0/kernel", "dense.bias": "Dense_0/bias"}


def openpi_tree(t, dims):
    tree = vision_tree(t, dims) | gemma_tree(t, dims, "", LANGUAGE) | gemma_tree(t, dims, "_1", EXPERT)
    tree["PaliGemma/llm/embedder/input_embedding"] = t[PART + "paligemma.lm_head.weight"]
    for name in t:
        if name.count(".") == 1:
            module, end = name.split(".")
            tree[f"{module}/{'kernel' if end == 'weight' else end}"] = t[name].T
    return tree


def draw_low_bits(tree, seed=0):
    """Less than half of bf16's last place is added: rounding takes it off again."""
    rng = np.random.default_rng(seed)
    for path, array in tree.items():
        bits = np.ascontiguousarray(array).view(np.uint32)
        tree[path] = (bits | rng.integers(0, 0x8000, bits.shape, np.uint32)).view(np.float32)


def placed(array, mesh, devices):
    spec = [None] * array.ndim
    for axis in np.argsort(array.shape)[::-1] if devices > 1 and array.ndim > 1 else []:
        if array.shape[axis] % devices == 0:
            spec[axis] = "fsdp"
            break
    return jax.device_put(np.ascontiguousarray(array), NamedSharding(mesh, PartitionSpec(*spec)))


def nested(tree, value):
    root = {}
    for path, array in tree.items():
        *folders, last = path.split("/") + (["value"] if value else [])
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = array
    return root


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--value", action="store_true")
    parser.add_argument("--low-bits", action="store_true")
    args = parser.parse_args()
    tensors = read_tensors(args.checkpoint)
    dims = golden.checkpoint_dims({name: [list(array.shape)] for name, array in tensors.items()})
    tree = openpi_tree(tensors, dims)
    assert sum(a.size for a in tree.values()) == sum(a.size for a in tensors.values()), "a tensor was left out"
    if args.low_bits:
        draw_low_bits(tree)
    mesh = Mesh(np.array(jax.devices()[: args.devices]), ("fsdp",))
    tree = {path: placed(array, mesh, args.devices) for path, array in tree.items()}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(args.out.resolve() / "params", {"params": nested(tree, args.value)})
    print(f"orbax-checkpoint {ocp.__version__}, jax {jax.__version__}: {len(tree)} arrays on {args.devices} device(s)")


if __name__ == "__main__":
    main()
