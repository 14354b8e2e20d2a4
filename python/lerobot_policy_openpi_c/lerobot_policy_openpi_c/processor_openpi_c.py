"""The processors around the policy: a batch dimension before, nothing after. The engine works on raw data."""

from typing import Any

from lerobot.processor import AddBatchDimensionProcessorStep
from lerobot.processor import PolicyAction
from lerobot.processor import PolicyProcessorPipeline
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
        steps=[AddBatchDimensionProcessorStep()], name=POLICY_PREPROCESSOR_DEFAULT_NAME
    )
    after = PolicyProcessorPipeline[PolicyAction, PolicyAction](
        steps=[],
        name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, after
