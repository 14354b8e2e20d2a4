#!/bin/bash
# The examples do what they say: the robot in C before a tiny server, the one in Python before a stand-in for openpi-client
# (serve_peer.sh runs it with the real one), where the Python package is built. ROBOT: the robot, where the server is built.
set -u
box=$(mktemp -d) || exit 1
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
status=0
did=

bad() { echo "FAILED: $*"; status=1; }

for example in rtc_client.py:80 robot.c:130; do
    lines=$(wc -l <"$SOURCE/examples/${example%:*}")
    [ "$lines" -le "${example#*:}" ] || bad "examples/${example%:*} has $lines lines, expected at most ${example#*:}"
done
for python in python3 /usr/bin/python3; do
    [ -e "$BUILD/python/openpi_c/_openpi.abi3.so" ] || break
    "$python" -c 'import sys, numpy; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$BUILD/python "$python" "$SOURCE/tests/scripts/examples.py" "$SOURCE/examples" || bad "rtc_client.py"
    did=1
    break
done

# OPTIONS…: a server for a DROID arm with chunks of 12 steps, at $address. Its address is its own: where it comes back on the same
# port, no other test has taken that meanwhile.
start() {
    : >"$box/log"                # without the lines of the server before
    "$BUILD/openpi" serve --host 127.0.0.12 --port "${port:-0}" "$@" --robot droid --threads 2 --steps 1 --horizon 12 --admin 127.0.0.1:0 --log-format text \
        2>>"$box/log" &
    server=$!
    until grep -q 'ready on ws:' "$box/log"; do
        kill -0 "$server" 2>/dev/null || { cat "$box/log"; bad "the server has ended"; exit 1; }
        sleep 0.1
    done
    address=$(sed -n 's/.*ready on \(ws:.*\)$/\1/p' "$box/log")
    admin=$(sed -n 's/.*metrics on http.*:\([0-9]*\)$/\1/p' "$box/log")
}

stop() {
    kill -TERM "$server"
    wait "$server" || bad "the server ended with $?"
    server=
}

# How many chunks followed on from the one before, by the server's own count.
followed() {
    exec 3<>"/dev/tcp/127.0.0.1/$admin" && printf 'GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
    sed -n 's/^openpi_rtc_delay_steps_count \([0-9]*\).*/\1/p' <&3
    exec 3>&-
}

# RATE [trained]: the robot executes 30 steps, which takes 3 chunks at least, and all but the first follow on.
must_move() {
    "$ROBOT" "$address" "$1" 30 "${@:2}" >"$box/out" 2>"$box/said" || bad "the robot in C ended with $?"
    awk -v followed="$(followed)" '{ exit !($1 == 30 && $5 >= 3 && followed >= $5 - 1 && followed <= $5) }' "$box/out" ||
        bad "$(followed) chunks follow on; the robot says: $(cat "$box/out" "$box/said")"
    cat "$box/out"
}

if [ -x "${ROBOT:-}" ]; then
    did=1
    start --synthetic tiny --log-requests
    must_move 50
    # A server that drains and comes back on the same port: the robot connects again.
    port=${address##*:} answered=$(grep -c 'request answered' "$box/log")
    "$ROBOT" "$address" 50 150 >"$box/out" 2>"$box/said" &
    robot=$!
    until [ "$(grep -c 'request answered' "$box/log")" -gt "$answered" ]; do
        kill -0 "$robot" 2>/dev/null || { bad "the robot has ended: $(cat "$box/said")"; exit 1; }
        sleep 0.1
    done
    stop
    start --synthetic tiny
    port=
    wait "$robot" || bad "the robot did not connect again: $(cat "$box/said")"
    grep -q 'the policy server cannot be reached' "$box/said" || bad "the robot did not notice: $(cat "$box/said")"
    "$ROBOT" "$address" 50 >/dev/null 2>&1
    [ $? -eq 2 ] || bad "the robot took too few words"
    stop
    "$ROBOT" "$address" 50 30 >/dev/null 2>"$box/out" && bad "the robot did not mind that there is no server"
    grep -q '^robot: ' "$box/out" || bad "without a server the robot says: $(cat "$box/out")"

    # A checkpoint that was trained for a delay of one step: the server refuses any longer one, and each call takes several
    # steps of this robot.
    "$BUILD/openpi" synth "$box/trained" --preset tiny --variant pi05 >/dev/null || bad "no checkpoint"
    echo '{"type": "pi05", "rtc_training_max_delay": 1, "rtc_config": {"mode": "trained"}}' >"$box/trained/config.json"
    start "$box/trained"
    must_move 1000 trained
    stop
fi
[ -n "$did" ] || { echo "SKIPPED: neither numpy nor the server"; exit 77; }
exit $status
