#!/bin/bash
# The configurations of docs/scale.md, HAProxy's and nginx's, before two tiny servers. Each is skipped, by name, where the proxy is
# not installed. SOURCE, BUILD: as the other scripts.
set -u
PATH=$PATH:/usr/sbin
box=$(mktemp -d) || exit 2
started=()
stop() {
    [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null
    wait 2>/dev/null
    started=()
}
trap 'stop; rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
ran=
status=0

bad() { echo "FAILED: $*"; status=1; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# serve NAME: a server; its process and port are in the variables NAME and NAME_port
serve() {
    : >"$box/$1.log"
    "$BUILD/openpi" serve --synthetic tiny --robot aloha --horizon 10 --threads 1 --steps 1 --port 0 --no-admin --log-format text \
        --max-per-address 1024 --handshake-timeout 60 2>"$box/$1.log" &
    started+=($!)
    declare -g "$1=$!"
    until grep -q 'ready on ws:' "$box/$1.log"; do
        kill -0 "${!1}" 2>/dev/null || { bad "a server has ended: $(cat "$box/$1.log")"; return 1; }
        sleep 0.1
    done
    declare -g "$1_port=$(sed -n 's/.*ready on ws:.*:\([0-9]*\)$/\1/p' "$box/$1.log")"
}

# proxy NAME CONFIGURATION COMMAND…: starts it, with the ports of this test in the configuration of the page
proxy() {
    local name=$1 configuration=$2 port
    shift 2
    command -v "$1" >/dev/null || { echo "SKIPPED: there is no $1"; return; }
    serve a && serve b || return
    port=$(free_port)
    sed "s/127.0.0.1:8000/127.0.0.1:$port/; s/127.0.0.1:8001/127.0.0.1:$a_port/; s/127.0.0.1:8002/127.0.0.1:$b_port/" \
        "$SOURCE/examples/scale/$configuration" >"$box/$configuration"
    "$@" >"$box/$name.log" 2>&1 &
    local process=$!
    started+=("$process")
    until python3 -c "import socket; socket.create_connection(('127.0.0.1', $port), 60)" 2>/dev/null; do
        kill -0 "$process" 2>/dev/null || { bad "$name has ended: $(cat "$box/$name.log")"; stop; return; }
        sleep 0.1
    done
    if python3 "$SOURCE/tests/scripts/peer/scale_peer.py" "$port" "$a" "$box/a.log" "$box/b.log"; then echo "$name: served"
    else bad "$name: $(cat "$box/$name.log" "$box/a.log" "$box/b.log")"; fi
    ran=1
    stop
}

proxy HAProxy haproxy.cfg haproxy -db -f "$box/haproxy.cfg"
proxy nginx nginx.conf nginx -e stderr -p "$box" -c "$box/nginx.conf" -g "daemon off; master_process off; pid $box/nginx.pid;"
[ -n "$ran" ] || [ $status -ne 0 ] || exit 77
exit $status
