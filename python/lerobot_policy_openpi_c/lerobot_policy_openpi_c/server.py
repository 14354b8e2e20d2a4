"""LeRobot's asynchronous policy server with this policy allowed: python -m lerobot_policy_openpi_c.server --port=8080

LeRobot's server has a fixed list of policies and its messages are pickles: who reaches its port can run any code here.
So it is bound to this machine unless --host says otherwise.
"""

import logging
import sys

from lerobot.async_inference import constants
from lerobot.async_inference import policy_server

import lerobot_policy_openpi_c  # noqa: F401  registers the policy


def main() -> None:
    if "openpi_c" not in constants.SUPPORTED_POLICIES:
        constants.SUPPORTED_POLICIES.append("openpi_c")
    if not any(argument.startswith("--host") for argument in sys.argv[1:]):
        sys.argv.append("--host=127.0.0.1")
    logging.basicConfig(level=logging.INFO)
    logging.warning("LeRobot's transport is pickle: whoever reaches this port can run code as you. Keep it on 127.0.0.1.")
    policy_server.serve()


if __name__ == "__main__":
    main()
