"""`openpi-c lerobot FOLDER OUT`: a pretrained_model folder of type openpi_c around a checkpoint, for --policy.path=OUT."""

import argparse
from pathlib import Path

from lerobot.configs.types import FeatureType
from lerobot.configs.types import PolicyFeature

from lerobot_policy_openpi_c.configuration_openpi_c import OpenpiCConfig
from lerobot_policy_openpi_c.configuration_openpi_c import checkpoint_config
from lerobot_policy_openpi_c.processor_openpi_c import make_openpi_c_pre_post_processors

WEIGHTS = "weights"


def features(of: dict, name: str) -> dict[str, PolicyFeature]:
    """The features that a LeRobot checkpoint's config.json lists; none of others: LeRobot then asks the environment."""
    return {
        key: PolicyFeature(type=FeatureType(value["type"]), shape=tuple(value["shape"]))
        for key, value in (of.get(name) or {}).items()
    }


def convert(checkpoint: Path, out: Path, **options) -> None:
    """Writes config.json, the processors and a link to the checkpoint."""
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"{checkpoint}: no such folder, expected a checkpoint of openpi or LeRobot")
    of = checkpoint_config(checkpoint)
    config = OpenpiCConfig(
        checkpoint=WEIGHTS,
        input_features=features(of, "input_features"),
        output_features=features(of, "output_features"),
        push_to_hub=False,
        **options,
    )
    config.keep(of)
    out.mkdir(parents=True)
    (out / WEIGHTS).symlink_to(checkpoint.resolve(), target_is_directory=True)
    config._save_pretrained(out)
    for processor in make_openpi_c_pre_post_processors(config):
        processor.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="openpi-c", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("lerobot", help="write a folder that LeRobot loads as policy openpi_c")
    verb.add_argument("checkpoint", type=Path, help="a checkpoint folder of openpi or LeRobot")
    verb.add_argument("out", type=Path, help="the new folder")
    verb.add_argument("--robot", help="a robot of openpi, or a robot's JSON file")
    verb.add_argument("--openpi-config", help="a training config of openpi, such as pi05_droid")
    verb.add_argument("--engine-device", default="cpu", help="where the engine runs: cpu, cuda:0")
    given = vars(parser.parse_args())
    del given["verb"]
    checkpoint, out = given.pop("checkpoint"), given.pop("out")
    try:
        convert(checkpoint, out, **given)
    except (OSError, ValueError) as error:
        parser.exit(2, f"openpi-c: {error}\n")
