#!/bin/bash
# labels: release
# tools/container: the same binary gives the same archive, digests and layout are right, and what is in it runs alone, as the
# image's user: the command, a small model, and the server with all that it opens at run time. The last part needs root.
set -u
command -v ldd >/dev/null || { echo "SKIPPED: there is no ldd"; exit 77; }
box=$(mktemp -d) || exit 1
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
chmod 755 "$box"
export PYTHONDONTWRITEBYTECODE=1
fail() {
    echo "FAILED: $*"
    exit 1
}

python3 "$SOURCE/tools/container" "$BUILD/openpi" "$box/one.tar" || fail "no archive"
cp "$BUILD/openpi" "$box/copy" && touch -d 2001-01-01 "$box/copy"
python3 "$SOURCE/tools/container" "$box/copy" "$box/two.tar" >/dev/null || fail "no second archive"
cmp "$box/one.tar" "$box/two.tar" || fail "the same binary gives another archive"
user=$(python3 "$SOURCE/tests/scripts/container.py" "$box/one.tar" "$box/root") || fail "the archive is not what OCI has"
python3 "$SOURCE/tools/container" "$box/none" "$box/three.tar" 2>"$box/said" && fail "made of nothing"
grep -q '^tools/container: .*none' "$box/said" || fail "without a binary: $(cat "$box/said")"
[ -e "$box/root/bin/sh" ] || [ -e "$box/root/usr/bin/sh" ] && fail "a shell is in it"

[ "$(id -u)" -eq 0 ] && command -v chroot >/dev/null || { echo "SKIPPED: a chroot needs root"; exit 77; }
cp "$SOURCE/tests/pictures/rgb.png" "$box/root/home/openpi/picture.png"
inside() { HOME=/home/openpi chroot --userspec="$user:$user" "$box/root" /usr/bin/openpi "$@"; }
inside --version >"$box/version" || fail "--version in the image: $?"
cmp <("$BUILD/openpi" --version) "$box/version" || fail "another version"
options=(run --synthetic tiny --robot none --isa reference --threads 1 --steps 1 --horizon 2 --state 0.5 --prompt go --format csv)
inside "${options[@]}" --image base=/home/openpi/picture.png >"$box/inside" || fail "run in the image: $?"
"$BUILD/openpi" "${options[@]}" --image base="$SOURCE/tests/pictures/rgb.png" >"$box/outside" || fail "run: $?"
cmp "$box/inside" "$box/outside" || fail "the image computes something else"
if "$BUILD/openpi" serve --help | grep -q -- --log-format && ldd "$BUILD/openpi" | grep -q libwebsockets; then
    # A container has /dev; libwebsockets 4.1.6 crashes where there is no /dev/urandom. A file of random bytes serves here.
    mkdir "$box/root/dev" && head -c 1000000 /dev/urandom >"$box/root/dev/urandom" || fail "no random bytes"
    : >"$box/log"
    HOME=/home/openpi chroot --userspec="$user:$user" "$box/root" /usr/bin/openpi serve --synthetic tiny --robot aloha \
        --threads 1 --port 0 --no-admin --log-format text 2>"$box/log" &
    server=$!
    until grep -q 'ready on ws' "$box/log"; do
        kill -0 "$server" 2>/dev/null || fail "serve in the image: $(cat "$box/log")"
        sleep 0.1
    done
    kill -TERM "$server"
    wait "$server" || fail "serve in the image ended with $?"
    server=
fi
echo "runs as $user"
