"""The options of the policy, --policy.NAME on LeRobot's commands."""

from dataclasses import dataclass
from dataclasses import field

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.rtc.configuration_rtc import RTCConfig


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
    # Actions of a chunk that are executed before the next call; None: all of them.
    n_action_steps: int | None = None
    # The engine's key for a key of LeRobot's: {"observation.images.top": "images/cam_high"}.
    rename: dict[str, str] = field(default_factory=dict)
    # Real-time chunking; lerobot-rollout sets it (LeRobot's RTCConfig). None, or not enabled: ordinary chunks.
    rtc_config: RTCConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps is not None and self.n_action_steps < 1:
            raise ValueError(f"n_action_steps is {self.n_action_steps}, expected 1 or more")

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
