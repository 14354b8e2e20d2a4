"""The processors around the policy: a batch dimension, and no change of a number. The engine works on raw data.

Note: LeRobot's commands give the steps "rename_observations_processor" and "device_processor" of a saved pipeline other
values and refuse a pipeline that lacks them, so they are there.
"""

from typing import Any

from lerobot.processor import AddBatchDimensionProcessorStep
from lerobot.processor import DeviceProcessorStep
from lerobot.processor import PolicyAction
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor import RenameObservationsProcessorStep
from lerobot.processor.converters import policy_action_to_transition
from lerobot.processor.converters import transition_to_policy_action
from lerobot.utils.constants import POLICY_POSTPROCESSOR_DEFAULT_NAME
from lerobot.utils.constants import POLICY_PREPROCESSOR_DEFAULT_NAME

from lerobot_policy_openpi_c.configuration_openpi_c import OpenpiCConfig


def make_openpi_c_pre_post_processors(
    config: OpenpiCConfig, dataset_stats: dict | None = None
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]], PolicyProcessorPipeline[PolicyAction, PolicyAction]
]:
    before = PolicyProcessorPipeline[dict[str, Any], dict[str, Any]](
        steps=[
            RenameObservationsProcessorStep(rename_map={}),
            AddBatchDimensionProcessorStep(),
            DeviceProcessorStep(device=config.device or "cpu"),
        ],
        name=POLICY_PREPROCESSOR_DEFAULT_NAME,
    )
    after = PolicyProcessorPipeline[PolicyAction, PolicyAction](
        steps=[DeviceProcessorStep(device="cpu")],
        name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, after
