#!/bin/bash
# labels: cost
# The Python package: tests/python, run from the build tree. BUILD, SOURCE: as the other scripts. Without the extension, or
# without a Python from 3.11 on with numpy and pytest, it is skipped, and says so.
#
#   python.sh [PYTEST-OPTION...]
set -u
[ -e "$BUILD/python/openpi_c/_openpi.abi3.so" ] || { echo "SKIPPED: the extension is not built: no Python 3.11 headers"; exit 77; }
python=
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import sys, numpy, pytest; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "SKIPPED: no python3 from 3.11 on with numpy and pytest"; exit 77; }
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$BUILD/python OPENPI_COMMAND=$BUILD/openpi
exec "$python" -X dev -m pytest -q -p no:cacheprovider "$@" "$SOURCE/tests/python"
