#!/bin/bash
# The admin page of `openpi serve` in headless Chromium: it draws the server's state, and nothing that it does is against
# its own policy (Content-Security-Policy). page.py does the same beside robots, and presses the buttons. SOURCE, BUILD: as
# the other scripts. Skipped where Chromium or python3 is not installed.
set -u
chromium=
for name in chromium chromium-browser google-chrome; do
    command -v $name >/dev/null && chromium=$name && break
done
[ -n "$chromium" ] || { echo "SKIPPED: Chromium is not installed"; exit 77; }
command -v python3 >/dev/null || { echo "SKIPPED: python3 is not installed"; exit 77; }
box=$(mktemp -d) || exit 2
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server"; rm -rf "$box"' EXIT

"$BUILD/openpi" serve --synthetic tiny --robot aloha --steps 1 --port 0 --admin 127.0.0.1:0 --log-format text 2>"$box/log" &
server=$!
for _ in $(seq 6000); do
    grep -q 'ready on ws' "$box/log" && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.01
done
address=$(sed -n 's|.*page and metrics on \(http://[0-9.:]*\)$|\1|p' "$box/log")
[ -n "$address" ] || { echo "the server did not start: $(cat "$box/log")"; exit 1; }

# Until the page has its first answer; Chromium may be slow to start.
for _ in $(seq 20); do
    timeout 120 $chromium --headless --no-sandbox --disable-gpu --user-data-dir="$box/home" --virtual-time-budget=3000 \
        --enable-logging=stderr --v=0 --dump-dom "$address/" >"$box/dom" 2>"$box/said"
    grep -q 'class="pill ready"' "$box/dom" && break
done
status=0
must_have() { grep -qE "$1" "$box/dom" || { echo "the page lacks \"$1\""; status=1; }; }
must_have 'class="pill ready"[^>]*>ready<'
must_have 'id="about">aloha · openpi [0-9.]+ · up '
must_have 'No robot is connected'
must_have '<meter[^>]*value'
must_have 'waiting for the device'
grep -E 'CONSOLE|Content.Security.Policy|Uncaught' "$box/said" && { echo "the browser complains"; status=1; }
[ $status = 0 ] || cat "$box/dom"

mkdir "$box/robots"
PYTHONDONTWRITEBYTECODE=1 python3 "$SOURCE/tests/scripts/peer/page.py" $chromium "$BUILD/openpi" "$BUILD/tests/openpi_host" \
    "$SOURCE/tests/golden" "$box/robots" || status=1
exit $status
