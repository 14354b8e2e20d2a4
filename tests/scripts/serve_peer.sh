#!/bin/bash
# The real openpi-client against `openpi serve`, for openpi's robots. SOURCE, BUILD: as the other scripts.
#
#   SERVE_PYTHON="…/bin/python …"   one or more environments with openpi-client: of PyPI or of openpi's source, and with
#                                   whichever websockets they shall prove
#
# Without it the script is skipped, and says so.
set -u
[ -n "${SERVE_PYTHON:-}" ] || { echo "SKIPPED: SERVE_PYTHON is not set"; exit 77; }
for python in $SERVE_PYTHON; do
    "$python" -c 'import openpi_client' 2>/dev/null || { echo "SKIPPED: $python has no openpi_client"; exit 77; }
done
box=$(mktemp -d) || exit 2
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
status=0
served=0

bad() { echo "FAILED: $*"; status=1; }

for robot in aloha droid libero; do
    "$BUILD/openpi" serve --synthetic tiny --robot "$robot" --steps 1 --horizon 10 --port 0 2>"$box/log" &
    server=$!
    port=
    for _ in $(seq 300); do
        port=$(sed -n 's/.*ready on ws:.*:\([0-9]*\)$/\1/p' "$box/log")
        [ -n "$port" ] && break
        sleep 0.1
    done
    [ -n "$port" ] || { cat "$box/log"; bad "$robot: the server is not ready"; continue; }
    for python in $SERVE_PYTHON; do
        if timeout 120 "$python" "$SOURCE/tests/scripts/serve_peer.py" "$port" "$robot"; then served=$((served + 1))
        else bad "$robot with $python"; fi
    done
    kill -TERM "$server"
    wait "$server" || bad "$robot: the server ended with $?"
    server=
done
echo "$served runs of the real client were served"
exit $status
