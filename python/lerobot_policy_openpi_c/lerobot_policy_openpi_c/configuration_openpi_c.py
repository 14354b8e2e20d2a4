"""The options of the policy, --policy.NAME on LeRobot's commands."""

from dataclasses import dataclass
from dataclasses import field
import json
from pathlib import Path

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.rtc.configuration_rtc import RTCConfig

# Settings of a LeRobot checkpoint's config.json that are LeRobot's to keep: the engine gives whole chunks of numbers.
KEPT = ("action_feature_names", "n_action_steps")


def checkpoint_config(checkpoint: Path, adapter: str | None = None) -> dict:
    """The config.json of LeRobot's beside the adapter or the weights; {} of openpi's, which has none or one without a type."""
    for place in filter(None, (adapter and Path(adapter), checkpoint)):
        file = (place if place.is_dir() else place.parent) / "config.json"
        found = json.loads(file.read_text()) if file.is_file() else None
        if isinstance(found, dict) and "type" in found:
            return found
    return {}


@PreTrainedConfig.register_subclass("openpi_c")
@dataclass
class OpenpiCConfig(PreTrainedConfig):
    # A checkpoint folder of openpi or LeRobot; relative ones are looked for in the pretrained folder first.
    checkpoint: str = ""
    # Who knows the observations: LeRobot's own processors where the checkpoint has them, else one of these.
    robot: str | None = None
    openpi_config: str | None = None
    # The engine's device, "cpu" or "cuda:0". `device`, LeRobot's own, is where torch's tensors are.
    engine_device: str = "cpu"
    dtype: str | None = None
    steps: int = 0
    threads: int = 0
    seed: int = 0
    # A folder with a PEFT adapter of the checkpoint; without_lora: LoRA and adapters are not applied.
    adapter: str | None = None
    without_lora: bool = False
    # Actions of a chunk that are executed before the next call; None: as the checkpoint's config.json says, else all.
    n_action_steps: int | None = None
    # Names of the actions in their order, which LeRobot maps to the robot's joints; None: the checkpoint's.
    action_feature_names: list[str] | None = None
    # The engine's key for a key of LeRobot's: {"observation.images.top": "images/cam_high"}.
    rename: dict[str, str] = field(default_factory=dict)
    # Real-time chunking; lerobot-rollout sets it (LeRobot's RTCConfig). None, or not enabled: ordinary chunks.
    rtc_config: RTCConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.n_action_steps
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"n_action_steps is {steps!r}, expected 1 or more")

    def keep(self, of: dict) -> None:
        """Takes what is not given here from a checkpoint's config.json."""
        for key in KEPT:
            if getattr(self, key) is None and of.get(key) is not None:
                setattr(self, key, of[key])
        self.__post_init__()

    def validate_features(self) -> None:
        """Nothing to check here: the engine names what an observation lacks."""

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> None:
        return None

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self) -> None:
        raise NotImplementedError("policy openpi_c runs checkpoints and does not train them")

    def get_scheduler_preset(self) -> None:
        return None
