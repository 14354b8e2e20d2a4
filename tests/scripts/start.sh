#!/bin/bash
# labels: release
# The script that starts the program of a release archive (packaging/start.sh.in): one sentence and status 126 on the wrong machine,
# on a system without such programs, on an older glibc; else the program with all its arguments, also through links.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
mkdir -p "$box"/{tools,openpi-1/bin,openpi-1/lib/openpi,links} && touch "$box/loader"
sed -e 's/@MACHINE@/aarch64/g; s/@VERSION@/1/g; s/@GLIBC@/2.28/g; s/@GLIBC_MINOR@/28/g' -e "s|@LOADER@|$box/loader|g" \
    "$SOURCE/packaging/start.sh.in" >"$box/openpi-1/bin/openpi"
grep -n '@[A-Z_]*@' "$box/openpi-1/bin/openpi" && fail "a value that tools/release does not fill in"
printf '#!/bin/sh\nprintf "<%%s>" "$@"\n' >"$box/openpi-1/lib/openpi/openpi"
tool() { printf '#!/bin/sh\n%s\n' "$2" >"$box/tools/$1"; }
tool uname 'echo aarch64'
tool getconf 'echo glibc 2.28'
chmod +x "$box"/tools/* "$box"/openpi-1/{bin,lib/openpi}/openpi
start() { PATH=$box/tools:$PATH "$@"; }

# refused SENTENCE
refused() {
    local said status=0
    said=$(start "$box/openpi-1/bin/openpi" --version 2>&1) || status=$?
    [ "$status" = 126 ] && [ "$said" = "openpi: $1" ] || fail "expected \"$1\", it ends with $status: $said"
}
started() {
    local said
    said=$(start "$1" "a b" '' '*') || fail "$1 ended with $?"
    [ "$said" = '<a b><><*>' ] || fail "$1 passed on $said"
}

started "$box/openpi-1/bin/openpi"
ln -s "$box/openpi-1/bin/openpi" "$box/links/absolute"
ln -s ../links/absolute "$box/links/openpi"
started "$box/links/openpi"
(cd "$box/links" && started ./openpi) || exit 1
for glibc in "glibc 2.28" "glibc 2.100" "glibc 3.1" "glibc 2.31.9000" ""; do
    tool getconf "echo $glibc"
    started "$box/openpi-1/bin/openpi"
done
tool getconf 'echo glibc 2.27'
refused "this system's glibc 2.27 is too old, expected glibc 2.28 or newer"
rm "$box/loader"
refused "the system's programs are not aarch64 with glibc (there is no $box/loader), expected glibc 2.28 or newer"
tool uname 'echo x86_64'
refused "this archive is for aarch64 and this machine is x86_64: take openpi-1-x86_64-linux.tar.gz where there is one"
echo "starts, or says why not"
