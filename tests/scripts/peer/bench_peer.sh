#!/bin/bash
# openpi bench --server against openpi's own policy server: its robots are those of openpi's examples, field by field.
# SOURCE, BUILD: as the other scripts.
#
#   BENCH_PYTHON=…/bin/python   an environment where openpi.serving.websocket_policy_server can be imported
#
# Without it the script is skipped, and says so.
set -u
[ -n "${BENCH_PYTHON:-}" ] || { echo "SKIPPED: BENCH_PYTHON is not set"; exit 77; }
"$BENCH_PYTHON" -c 'import openpi.serving.websocket_policy_server' 2>/dev/null ||
    { echo "SKIPPED: $BENCH_PYTHON cannot import openpi.serving.websocket_policy_server"; exit 77; }
box=$(mktemp -d) || exit 2
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
status=0

bad() { echo "FAILED: $*"; cat "$box/out" "$box/log"; status=1; }

bench() { timeout 120 "$BUILD/openpi" bench --server "ws://127.0.0.1:$port" --robots 2 --seconds 1 "$@" >"$box/out" 2>&1; }

for env in aloha droid libero; do
    port=$("$BENCH_PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$BENCH_PYTHON" "$SOURCE/tests/scripts/peer/bench_peer.py" "$port" "$env" 2>"$box/log" &
    server=$!
    for _ in $(seq 300); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
        sleep 0.1
    done
    bench --env "$env" || bad "$env: ended with $?"
    grep -q "requests of [0-9]* bytes ($env)" "$box/out" || bad "$env: it does not say what it sent"
    other=$([ "$env" = droid ] && echo libero || echo droid)
    bench --env "$other"
    [ $? = 1 ] || bad "$env: requests of $other were no error"
    bench
    [ $? = 2 ] && grep -q 'give --env' "$box/out" || bad "$env: it should ask for --env"
    kill "$server"
    wait "$server" 2>/dev/null
    server=
done
[ $status = 0 ] && echo "openpi's own server took every request"
exit $status
