import dataclasses


@dataclasses.dataclass
class Pi0Config:
    pi05: bool = False
    action_horizon: int = 50
    dtype: str = "float32"
