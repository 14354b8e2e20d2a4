#!/bin/bash
# openpi_c.ray under Ray Serve itself, as docs/ray.md starts it, and openpi's own WebsocketClientPolicy against it: metadata,
# actions equal to the package's own, two clients at once, a wrong request; the page's own commands. SOURCE, BUILD: as the other scripts.
#
#   RAY_PYTHON=…/bin/python   an environment with ray[serve], msgpack, openpi-client and pytest
#
# Without it the script is skipped, and says so.
set -u
[ -n "${RAY_PYTHON:-}" ] || { echo "SKIPPED: RAY_PYTHON is not set"; exit 77; }
"$RAY_PYTHON" -c 'import ray.serve, msgpack, openpi_client, pytest' 2>/dev/null ||
    { echo "SKIPPED: $RAY_PYTHON has no ray[serve], msgpack, openpi_client and pytest"; exit 77; }
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$BUILD/python:$SOURCE/tests/python RAY_USAGE_STATS_ENABLED=0
export PATH=$(dirname "$RAY_PYTHON"):$PATH
status=0
"$RAY_PYTHON" "$SOURCE/tests/scripts/peer/ray_peer.py" || { echo "FAILED: ray_peer.py ended with $?"; status=1; }
"$RAY_PYTHON" -m pytest -q -rs -p no:cacheprovider "$SOURCE/tests/python/test_docs.py" -k ray || { echo "FAILED: docs/ray.md"; status=1; }
exit $status
