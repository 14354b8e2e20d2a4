"""Runs openpi's own converter on a small JAX checkpoint, and compares its files with those of `openpi convert`.

    convert_peer.py CHECKOUT CHECKPOINT DIMS PRECISION OUT           converts; CHECKPOINT has "pi05" in its path or not
    convert_peer.py --compare OPENPI OURS                            compares two folders

The converter and the model that it fills hold the released sizes as numbers. They are run from their source with
those numbers replaced by DIMS ({"vision": [...], "vlm": [...], "expert": [...], "vocab": n}, as `openpi synth` takes
them); nothing else of them is changed.
"""

import json
import pathlib
import re
import sys
import types

HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"  # random numbers of openpi's, zeros of ours


def replaced(text, *pairs):
    for old, new in pairs:
        assert re.search(old, text), f"openpi's source has no {old}"
        text = re.sub(old, new, text)
    return text


def load(name, path, *pairs):
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(replaced(path.read_text(), *pairs), path, "exec"), module.__dict__)
    return module


def convert(checkout, checkpoint, dims, precision, out):
    vision, depth, heads, mlp = dims["vision"]
    width, layers, language_heads, head_dim, language_mlp = dims["vlm"]
    expert, expert_mlp = dims["expert"]
    sys.path[:0] = [str(checkout / "src"), str(checkout / "packages/openpi-client/src")]
    import openpi.models.gemma
    import openpi.models.pi0_config
    import openpi.models_pytorch.pi0_pytorch

    sizes = {"gemma_2b": (width, language_mlp), "gemma_300m": (expert, expert_mlp)}
    openpi.models.gemma.get_config = lambda name: openpi.models.gemma.Config(
        width=sizes[name][0], depth=layers, mlp_dim=sizes[name][1], num_heads=language_heads, num_kv_heads=1,
        head_dim=head_dim,
    )
    set_vision = (f"vlm_config_hf.vision_config.hidden_size = {vision}\n        "
                  f"vlm_config_hf.vision_config.num_hidden_layers = {depth}\n        "
                  f"vlm_config_hf.vision_config.num_attention_heads = {heads}\n        vlm_config_hf._vocab_size")
    model = load("gemma_pytorch", checkout / "src/openpi/models_pytorch/gemma_pytorch.py",
                 ("257152", str(dims["vocab"])), (r"intermediate_size = 4304", f"intermediate_size = {mlp}"),
                 (r"projection_dim = 2048", f"projection_dim = {width}"), (r"vlm_config_hf\._vocab_size", set_vision))
    openpi.models_pytorch.pi0_pytorch.PaliGemmaWithExpertModel = model.PaliGemmaWithExpertModel
    script = load("converter", checkout / "examples/convert_jax_model_to_pytorch.py",
                  ('"hidden_size": 1152', f'"hidden_size": {vision}'), ('"num_hidden_layers": 27', f'"num_hidden_layers": {depth}'),
                  ('"hidden_size": 2048', f'"hidden_size": {width}'), ('"num_hidden_layers": 18', f'"num_hidden_layers": {layers}'),
                  ('"num_attention_heads": 8', f'"num_attention_heads": {language_heads}'), ('"head_dim": 256', f'"head_dim": {head_dim}'))
    config = openpi.models.pi0_config.Pi0Config(pi05="pi05" in str(checkpoint), dtype=precision, pytorch_compile_mode=None)
    script.convert_pi0_checkpoint(str(checkpoint), precision, str(out), config)


def read(folder):
    data = (folder / "model.safetensors").read_bytes()
    lead = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:lead])
    metadata = header.pop("__metadata__", {})
    return metadata, {n: (e["dtype"], e["shape"], data[lead + e["data_offsets"][0] : lead + e["data_offsets"][1]])
                      for n, e in header.items()}


def compare(theirs, ours):
    (metadata, want), (told, got) = read(theirs), read(ours)
    told.pop("openpi_dims", None)  # of sizes whose vision heads are in no shape
    wrong = []
    if metadata != told:
        wrong.append(f"metadata: {metadata} and {told}")
    if list(want) != list(got):
        wrong.append(f"names, or their order: {sorted(want.keys() ^ got.keys())[:4]}")
    for name in want.keys() & got.keys():
        if want[name][:2] != got[name][:2]:
            wrong.append(f"{name}: {want[name][:2]} and {got[name][:2]}")
        elif name != HEAD and want[name][2] != got[name][2]:
            wrong.append(f"{name}: other values")
    configs = [json.loads((f / "config.json").read_text()) for f in (theirs, ours)]
    for key in ("action_dim", "action_horizon", "precision"):
        if configs[0][key] != configs[1][key]:
            wrong.append(f"config.json: {key}")
    print("\n".join(sorted(wrong)[:8]) or f"{len(want)} tensors are equal")
    return bool(wrong)


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])))
    convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve(), json.loads(sys.argv[3]), sys.argv[4],
            pathlib.Path(sys.argv[5]))
