"""LeRobot policy "openpi_c": π0 and π0.5 checkpoints of openpi and of LeRobot, run by the C engine openpi.c.

LeRobot imports this package by itself (register_third_party_plugins); importing it registers the policy's name.
"""

from lerobot_policy_openpi_c.configuration_openpi_c import OpenpiCConfig
from lerobot_policy_openpi_c.modeling_openpi_c import OpenpiCPolicy
from lerobot_policy_openpi_c.processor_openpi_c import make_openpi_c_pre_post_processors

__all__ = ["OpenpiCConfig", "OpenpiCPolicy", "make_openpi_c_pre_post_processors"]
