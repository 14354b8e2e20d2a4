"""Runs tools/record-golden with the real openpi or LeRobot on a small checkpoint, whose sizes neither can
build by itself.

    record_tiny.py openpi|lerobot TOOL CHECKPOINT TOKENIZER ARGUMENTS-OF-RECORD-GOLDEN...

What is replaced is only what names sizes or leads to the network: the two projects' size tables, the
vocabulary, and where the tokenizer comes from. Models, transforms and processors are theirs.
"""

import importlib
import json
import pathlib
import sys
import types

who, tool, checkpoint, tokenizer = sys.argv[1:5]
sys.dont_write_bytecode = True
sys.path.insert(0, tool)
import golden  # noqa: E402

weights = golden.checkpoint_weights(checkpoint)
DIMS = golden.checkpoint_dims(weights)
VISION, VLM, EXPERT = DIMS["vision"], DIMS["vlm"], DIMS["expert"]


def small_paligemma(make):
    def paligemma(config):
        v, t = config.vision_config, config.text_config
        v.hidden_size, v.num_hidden_layers, v.num_attention_heads, v.intermediate_size = VISION
        v.image_size, v.patch_size = 224, 14
        v.projection_dim = config.projection_dim = config.hidden_size = VLM[0]
        t.vocab_size = config._vocab_size = DIMS["vocab"]
        config.image_token_index = DIMS["vocab"] - 1
        return make(config=config)

    return paligemma


def small_expert(make, vocab):
    def expert(config):
        config.vocab_size = vocab
        return make(config=config)

    return expert


def small_gemma(config_class):
    def sizes(variant):
        width, mlp = EXPERT if "300m" in variant else (VLM[0], VLM[4])
        return config_class(
            width=width, depth=VLM[1], mlp_dim=mlp, num_heads=VLM[2], num_kv_heads=1, head_dim=VLM[3]
        )

    return sizes


def add_head(path, name, rows):
    """openpi's loader wants the expert's unused head, which a synthetic checkpoint leaves off."""
    from safetensors.torch import load_file, save_file
    import torch

    tensors = load_file(path)
    tensors.setdefault(name, torch.zeros(rows, EXPERT[0], dtype=torch.bfloat16))
    save_file(tensors, path)


def openpi():
    try:  # openpi imports LeRobot's data sets, which only training reads
        importlib.import_module("lerobot.common.datasets.lerobot_dataset")
    except ImportError:
        for name in (
            "lerobot",
            "lerobot.common",
            "lerobot.common.datasets",
            "lerobot.common.datasets.lerobot_dataset",
        ):
            sys.modules[name] = types.ModuleType(name)
    import openpi.models.gemma as gemma
    import openpi.models_pytorch.gemma_pytorch as port
    import openpi.shared.download as download

    gemma.get_config = small_gemma(gemma.Config)
    port.PaliGemmaForConditionalGeneration = small_paligemma(port.PaliGemmaForConditionalGeneration)
    port.GemmaForCausalLM = small_expert(port.GemmaForCausalLM, 16)
    real = download.maybe_download
    download.maybe_download = lambda url, **k: (
        pathlib.Path(tokenizer) if "tokenizer" in str(url) else real(url, **k)
    )
    add_head(f"{checkpoint}/model.safetensors", "paligemma_with_expert.gemma_expert.lm_head.weight", 16)


def lerobot():
    import lerobot.processor.tokenizer_processor as processor

    for name in ("pi0", "pi05"):
        m = importlib.import_module(f"lerobot.policies.{name}.modeling_{name}")
        m.get_gemma_config = small_gemma(m.GemmaConfig)
        m.PaliGemmaForConditionalGenerationWithPiGemma = small_paligemma(
            m.PaliGemmaForConditionalGenerationWithPiGemma
        )
        m.PiGemmaForCausalLM = small_expert(m.PiGemmaForCausalLM, DIMS["vocab"])
    real = processor.AutoTokenizer.from_pretrained

    class Local:
        @staticmethod
        def from_pretrained(name, **kwargs):
            return real(tokenizer if str(name).startswith("google/") else name, **kwargs)

    processor.AutoTokenizer = Local


{"openpi": openpi, "lerobot": lerobot}[who]()
main = importlib.util.spec_from_file_location("record_golden", f"{tool}/__main__.py")
module = importlib.util.module_from_spec(main)
main.loader.exec_module(module)
sys.exit(module.main(sys.argv[5:]))
