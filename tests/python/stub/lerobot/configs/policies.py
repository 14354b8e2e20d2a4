"""LeRobot's PreTrainedConfig, as far as a policy sees it."""

import abc
import dataclasses
import json
import pathlib


@dataclasses.dataclass
class PreTrainedConfig(abc.ABC):
    known = {}
    input_features: dict = dataclasses.field(default_factory=dict)
    output_features: dict = dataclasses.field(default_factory=dict)
    device: str | None = None
    push_to_hub: bool = True
    pretrained_path: pathlib.Path | None = None

    def __post_init__(self):
        self.device = self.device or "cpu"

    @classmethod
    def register_subclass(cls, name):
        return lambda chosen: cls.known.setdefault(name, chosen)

    def _save_pretrained(self, folder):
        (name,) = (name for name, chosen in self.known.items() if chosen is type(self))
        fields = {key: value for key, value in vars(self).items() if not key.endswith("_features")}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps({"type": name, **fields}, default=str))

    @classmethod
    def from_pretrained(cls, folder):
        fields = json.loads((pathlib.Path(folder) / "config.json").read_text())
        return cls.known[fields.pop("type")](**fields)

    @property
    @abc.abstractmethod
    def observation_delta_indices(self): ...

    @property
    @abc.abstractmethod
    def action_delta_indices(self): ...

    @property
    @abc.abstractmethod
    def reward_delta_indices(self): ...

    @abc.abstractmethod
    def get_optimizer_preset(self): ...

    @abc.abstractmethod
    def get_scheduler_preset(self): ...

    @abc.abstractmethod
    def validate_features(self): ...
