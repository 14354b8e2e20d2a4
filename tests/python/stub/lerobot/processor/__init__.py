"""LeRobot's pipelines: a list of steps that is written into a file."""

import json
import pathlib
from typing import Generic
from typing import TypeVar

A, B = TypeVar("A"), TypeVar("B")
PolicyAction = object


class AddBatchDimensionProcessorStep:
    pass


class PolicyProcessorPipeline(Generic[A, B]):
    def __init__(self, steps, name, to_transition=None, to_output=None):
        self.steps, self.name = steps, name

    def save_pretrained(self, folder):
        steps = [type(step).__name__ for step in self.steps]
        (pathlib.Path(folder) / f"{self.name}.json").write_text(json.dumps({"name": self.name, "steps": steps}))
