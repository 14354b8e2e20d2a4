"""LeRobot's RTCConfig."""

import dataclasses
import enum


class RTCAttentionSchedule(enum.StrEnum):
    ZEROS = "ZEROS"
    ONES = "ONES"
    LINEAR = "LINEAR"
    EXP = "EXP"


@dataclasses.dataclass
class RTCConfig:
    enabled: bool = True
    prefix_attention_schedule: RTCAttentionSchedule = RTCAttentionSchedule.LINEAR
    max_guidance_weight: float = 10.0
    execution_horizon: int = 10
