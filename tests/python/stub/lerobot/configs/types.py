import dataclasses
import enum


class FeatureType(enum.Enum):
    STATE = "STATE"
    VISUAL = "VISUAL"
    ACTION = "ACTION"


@dataclasses.dataclass
class PolicyFeature:
    type: FeatureType
    shape: tuple
