#!/bin/bash
# The examples do what they say: the robot in C before a tiny server, the one in Python before a stand-in for openpi-client
# (serve_peer.sh runs it with the real one). ROBOT: the robot, where the server is built.
set -u
box=$(mktemp -d /tmp/openpi_test_XXXXXX) || exit 1
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
status=0
did=

bad() { echo "FAILED: $*"; status=1; }

lines=$(wc -l <"$SOURCE/examples/rtc_client.py")
[ "$lines" -le 120 ] || bad "examples/rtc_client.py has $lines lines, expected at most 120"
for python in python3 /usr/bin/python3; do
    "$python" -c 'import numpy' 2>/dev/null || continue
    PYTHONDONTWRITEBYTECODE=1 "$python" "$SOURCE/tests/scripts/examples.py" "$SOURCE/examples" || bad "rtc_client.py"
    did=1
    break
done

if [ -x "${ROBOT:-}" ]; then
    did=1
    "$BUILD/openpi" serve --synthetic tiny --robot droid --threads 2 --steps 1 --horizon 12 --port 0 --no-admin \
        --log-format text 2>"$box/log" &
    server=$!
    until grep -q 'ready on ws:' "$box/log"; do
        kill -0 "$server" 2>/dev/null || { cat "$box/log"; bad "the server has ended"; exit 1; }
        sleep 0.1
    done
    address=$(sed -n 's/.*ready on \(ws:.*\)$/\1/p' "$box/log")
    "$ROBOT" "$address" 50 30 >"$box/out" || bad "the robot in C ended with $?"
    # Chunks of 12 steps: 30 take 3 at least, and all but the first follow on.
    awk '{ exit !($1 == 30 && $5 >= 3 && $7 == $5 - 1) }' "$box/out" || bad "the robot says: $(cat "$box/out")"
    cat "$box/out"
    "$ROBOT" "$address" 50 >/dev/null 2>&1
    [ $? -eq 2 ] || bad "the robot took too few words"
    kill -TERM "$server"
    wait "$server" || bad "the server ended with $?"
    server=
    "$ROBOT" "$address" 50 30 >/dev/null 2>"$box/out" && bad "the robot did not mind that there is no server"
    grep -q '^robot: ' "$box/out" || bad "without a server the robot says: $(cat "$box/out")"
fi
[ -n "$did" ] || { echo "SKIPPED: neither numpy nor the server"; exit 77; }
exit $status
