#!/bin/bash
# The real openpi-client against `openpi serve`, for openpi's robots. SOURCE, BUILD: as the other scripts.
#
#   SERVE_PYTHON="…/bin/python …"   one or more environments with openpi-client: of PyPI or of openpi's source, and with
#                                   whichever websockets they shall prove. typing_extensions has to be there too: the client
#                                   imports it without asking for it
#   SIMPLE_CLIENT=…/examples/simple_client/main.py   openpi's own example as well, for each robot; the environments then
#                                   need polars, rich, tqdm and tyro
#
# Without SERVE_PYTHON the script is skipped, and says so. An environment takes about two minutes: the longest call is longer
# than the client waits for a pong.
set -u
[ -n "${SERVE_PYTHON:-}" ] || { echo "SKIPPED: SERVE_PYTHON is not set"; exit 77; }
[ -z "${SIMPLE_CLIENT:-}" ] || [ -f "$SIMPLE_CLIENT" ] || { echo "SKIPPED: there is no file $SIMPLE_CLIENT"; exit 77; }
for python in $SERVE_PYTHON; do
    for module in openpi_client.websocket_client_policy ${SIMPLE_CLIENT:+polars rich tqdm tyro}; do
        why=$("$python" -c "import $module" 2>&1) || { echo "SKIPPED: $python cannot import $module: ${why##*$'\n'}"; exit 77; }
    done
done
box=$(mktemp -d) || exit 2
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
status=0
served=0

bad() { echo "FAILED: $*"; status=1; }

# ROBOT OPTIONS…: a server, ready at $port.
start() {
    local robot=$1
    shift
    : >"$box/log"                # without the lines of the server before
    "$BUILD/openpi" serve --synthetic tiny --robot "$robot" --steps 1 --horizon 10 --port 0 --handshake-timeout 60 \
        --log-format text --no-admin "$@" 2>>"$box/log" &
    server=$!
    port=
    for _ in $(seq 300); do
        port=$(sed -n 's/.*ready on wss*:.*:\([0-9]*\)$/\1/p' "$box/log")
        [ -n "$port" ] && return
        sleep 0.1
    done
    cat "$box/log"
    bad "$robot: the server is not ready"
}

# PYTHON ROBOT OPTIONS…: openpi's example makes its calls and prints its table. What it uses of rich it leaves to tyro to import,
# which tyro no longer does from its version 1 on. And it never closes its connection, for which websockets 11 waits before
# Python can end.
example='
import os, runpy, sys
import rich.console, rich.table
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)'
simple_client() {
    local python=$1 robot=$2 row
    shift 2
    if ! COLUMNS=200 timeout 120 "$python" -c "$example" "$SIMPLE_CLIENT" --env "${robot^^}" --port "$port" "$@" >"$box/said" 2>&1; then
        cat "$box/said"
        bad "simple_client --env ${robot^^} with $python"
        return
    fi
    for row in client_infer_ms policy_infer_ms server_infer_ms server_prev_total_ms; do
        grep -q "$row" "$box/said" && continue
        cat "$box/said"
        bad "simple_client --env ${robot^^} with $python has no row $row in its table"
        return
    done
    echo "$robot: simple_client is served with $python"
    served=$((served + 1))
}

# ROBOT [KEY]: every client, then the server ends.
serve() {
    local to=(--host 127.0.0.1)
    [ -z "${2:-}" ] || to=(--host wss://localhost --api-key "$2")
    for python in $SERVE_PYTHON; do
        [ -n "$port" ] || break
        if timeout 120 "$python" "$SOURCE/tests/scripts/peer/serve_peer.py" "$port" "$@"; then served=$((served + 1))
        else bad "$* with $python"; fi
        [ -z "${SIMPLE_CLIENT:-}" ] || simple_client "$python" "$1" "${to[@]}"
        if [ "$1" = aloha_sim ]; then
            timeout 120 "$python" "$SOURCE/examples/evaluate.py" --stub --environments 3 --execute 50 --port "$port" \
                >"$box/said" && grep -q '^episodes  *3$' "$box/said" || bad "evaluate.py with $python"
        fi
        [ "$1" = droid ] || continue
        PYTHONPATH=$BUILD/python timeout 120 "$python" "$SOURCE/examples/rtc_client.py" --port "$port" --rate 50 --steps 60 "${to[@]}" ||
            bad "rtc_client.py with $python"
    done
    kill -TERM "$server"
    wait "$server" || bad "$1: the server ended with $?"
    server=
}

for robot in aloha aloha_sim droid libero; do
    start "$robot"
    serve "$robot"
done

# The same over TLS and with a token: the client trusts the certificate, and knows the key.
if command -v openssl >/dev/null; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$box/key" -out "$box/cert" -days 2 \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null || bad "openssl makes no certificate"
    "$BUILD/openpi" serve --new-token arm >"$box/tokens" 2>"$box/secret" || bad "no token"
    export SSL_CERT_FILE=$box/cert
    start droid --tokens "$box/tokens" --tls-cert "$box/cert" --tls-key "$box/key"
    serve droid "$(sed 's/.*: //' "$box/secret")"
else
    echo "SKIPPED: TLS, there is no openssl command"
fi
# PART ARGUMENTS…: serve_peer_PART.py for every client, with servers of its own.
own_servers() {
    local part=$1
    shift
    for python in $SERVE_PYTHON; do
        rm -rf "$box/own"
        mkdir "$box/own"
        if timeout 600 "$python" "$SOURCE/tests/scripts/peer/serve_peer_$part.py" "$@" "$box/own"; then served=$((served + 1))
        else bad "serve_peer_$part.py with $python"; fi
    done
}

own_servers goldens "$BUILD/openpi" "$SOURCE/tests/golden"
own_servers life "$BUILD/tests/openpi_host"
echo "$served runs of the real client were served"
exit $status
