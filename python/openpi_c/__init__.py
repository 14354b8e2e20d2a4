"""The π0 and π0.5 robot policies, by the C engine openpi.c.

    policy = openpi_c.Policy("pi05_droid", config="pi05_droid", device="cuda:0")
    actions = policy.infer(obs)["actions"]
"""

from openpi_c._openpi import Error
from openpi_c._openpi import devices
from openpi_c._openpi import switches
from openpi_c._openpi import version as _version
from openpi_c.model import Engine
from openpi_c.model import Rtc
from openpi_c.model import Sample
from openpi_c.model import Session
from openpi_c.model import inspect
from openpi_c.model import noise
from openpi_c.model import write_synthetic
from openpi_c.policy import Policy
from openpi_c.policy import Request
from openpi_c.policy import create_trained_policy
from openpi_c.runner import Runner
from openpi_c.runner import Tick
from openpi_c.verification import Check
from openpi_c.verification import verify

__version__ = _version()
__all__ = [
    "Check",
    "Engine",
    "Error",
    "Policy",
    "Request",
    "Rtc",
    "Runner",
    "Sample",
    "Session",
    "Tick",
    "create_trained_policy",
    "devices",
    "inspect",
    "noise",
    "switches",
    "verify",
    "write_synthetic",
]
