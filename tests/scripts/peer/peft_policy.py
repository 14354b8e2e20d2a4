"""Has LeRobot and peft adapt a policy of small size: random factors, saved as training saves them, and merged.

    peft_policy.py CHECKPOINT OUT OVERRIDES

CHECKPOINT is LeRobot's layout of `openpi synth`. LeRobot's own wrap_with_peft makes the adapter, from its default
targets and OVERRIDES, a JSON object of its options (r, lora_alpha, target_modules, full_training_modules ...).
OUT/adapter is what its save_checkpoint would write of it, OUT/merged peft's merge_and_unload in fp32.
"""

import json
import os
import pathlib
import shutil
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
sys.dont_write_bytecode = True

import torch  # noqa: E402
from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.policies.factory import get_policy_class  # noqa: E402
from lerobot.policies.pi0 import modeling_pi0  # noqa: E402
from lerobot.policies.pi05 import modeling_pi05  # noqa: E402
from safetensors import safe_open  # noqa: E402

MODEL = "model.paligemma_with_expert."
LANGUAGE, EXPERT = MODEL + "paligemma.model.language_model.layers.", MODEL + "gemma_expert.model.layers."
TOWER = MODEL + "paligemma.model.vision_tower.vision_model.encoder.layers."


def sizes(path):
    """{name: shape} of the checkpoint, for the sizes that LeRobot's code has as constants."""
    with safe_open(path / "model.safetensors", "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}


def build_at(shapes):
    """LeRobot's modeling files build their models at these sizes instead of the released ones."""
    depth = 1 + max(int(name[len(LANGUAGE) :].split(".")[0]) for name in shapes if name.startswith(LANGUAGE))
    tower = 1 + max(int(name[len(TOWER) :].split(".")[0]) for name in shapes if name.startswith(TOWER))
    mlp, width = shapes[LANGUAGE + "0.mlp.gate_proj.weight"]
    small = tuple(reversed(shapes[EXPERT + "0.mlp.gate_proj.weight"]))
    vision_mlp, vision = shapes[TOWER + "0.mlp.fc1.weight"]
    head = shapes[LANGUAGE + "0.self_attn.k_proj.weight"][0]
    heads = shapes[LANGUAGE + "0.self_attn.q_proj.weight"][0] // head
    vocab = shapes[MODEL + "paligemma.lm_head.weight"][0]
    for module in (modeling_pi0, modeling_pi05):
        language, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM

        def gemma(variant, module=module):
            w, m = small if "300m" in variant else (width, mlp)
            return module.GemmaConfig(
                width=w, depth=depth, mlp_dim=m, num_heads=heads, num_kv_heads=1, head_dim=head
            )

        def paligemma(config, make=language):
            v = config.vision_config
            v.hidden_size, v.num_hidden_layers, v.num_attention_heads = vision, tower, vision // 72
            v.intermediate_size = vision_mlp
            v.projection_dim = config.projection_dim = config.hidden_size = width
            config.text_config.vocab_size = config._vocab_size = vocab
            return make(config=config)

        def causal(config, make=expert):
            config.vocab_size = vocab
            return make(config=config)

        module.get_gemma_config = gemma
        module.PaliGemmaForConditionalGenerationWithPiGemma = paligemma
        module.PiGemmaForCausalLM = causal


def main():
    base, out, overrides = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    build_at(sizes(base))
    config = PreTrainedConfig.from_pretrained(str(base))
    config.device, config.dtype, config.pretrained_path = "cpu", "float32", base
    policy = get_policy_class(config.type).from_pretrained(str(base), config=config, strict=False)
    policy.config.pretrained_path = str(base)
    wrapped = policy.wrap_with_peft(peft_cli_overrides=overrides)
    torch.manual_seed(3)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data = torch.randn_like(parameter) * 0.05
    wrapped.save_pretrained(out / "adapter")
    wrapped.config.save_pretrained(out / "adapter")
    merged = wrapped.merge_and_unload()
    merged.config.use_peft = False
    merged.save_pretrained(out / "merged")
    for name in base.iterdir():
        if name.name.startswith("policy_") or name.name == "tokenizer.model":
            for folder in ("adapter", "merged"):
                shutil.copy(name, out / folder)


main()
