"""LeRobot's pipelines: a list of steps that is written into a file."""

import json
import pathlib
from typing import Generic
from typing import TypeVar

A, B = TypeVar("A"), TypeVar("B")
PolicyAction = object


class AddBatchDimensionProcessorStep:
    name = "to_batch_processor"


class RenameObservationsProcessorStep:
    name = "rename_observations_processor"

    def __init__(self, rename_map):
        assert rename_map == {}


class DeviceProcessorStep:
    name = "device_processor"

    def __init__(self, device):
        assert device == "cpu"


class PolicyProcessorPipeline(Generic[A, B]):
    def __init__(self, steps, name, to_transition=None, to_output=None):
        self.steps, self.name = steps, name

    def save_pretrained(self, folder):
        steps = [step.name for step in self.steps]
        (pathlib.Path(folder) / f"{self.name}.json").write_text(json.dumps({"name": self.name, "steps": steps}))
