#!/bin/bash
# labels: long release
# tools/amd-check on the emulated card: its small form passes and leaves one file with everything in it; a command that fails is
# named and fails the script; a device that cannot be used and bad options are said. Skipped (77) where the emulated card is not built.
set -u
check=$SOURCE/tools/amd-check
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
[ -x "$BUILD/tests/openpi_hip" ] || { echo "skipped: no emulated card in $BUILD"; exit 77; }
export LD_LIBRARY_PATH=$BUILD/tests/gpu/hip${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

"$check" --command "$BUILD/tests/openpi_hip" --small --build "$BUILD" --out "$box/out" build verify bench profile tune >"$box/log" 2>&1 ||
    { cat "$box/log"; fail "the small form ends with $?"; }
list=$(tar -tzf "$box/out.tar.gz") || fail "no archive"
for file in amd-check.md amd-check.json bench-tiny.json profile.json report.html verify-bf16.txt predicted-mi300x.json; do
    grep -qx "out/$file" <<<"$list" || fail "$file is not in the archive"
done
grep -q '"hardware": "Emulated GPU' "$box/out/amd-check.json" || fail "the file does not say what it is of"
for name in verify-f32 verify-all operations bench-pi0 bench-batch tune; do
    grep -q "^| $name | skipped | 0 | only on a card" "$box/out/amd-check.md" || fail "$name is not named as skipped"
done
[ "$(grep -c '| passed |' "$box/out/amd-check.md")" -ge 6 ] || fail "too few steps passed"
grep -q 'small form\|--small' "$box/out/amd-check.md" || fail "the page does not say that it is of a tiny model"

# A command whose device is there and whose every verb fails.
printf '#!/bin/bash\n[ "$1" = devices ] && echo "hip:0   a card  mfma  yes" && exit 0\necho broken >&2\nexit 1\n' >"$box/broken"
chmod +x "$box/broken"
"$check" --command "$box/broken" --small --out "$box/bad" verify bench >"$box/log" 2>&1
[ $? = 1 ] || fail "a failing command ends with $?"
grep -q '| verify-bf16 | FAILED |' "$box/bad/amd-check.md" || fail "verify did not fail"
grep -q '"name": "bench-tiny", "result": "FAILED"' "$box/bad/amd-check.json" || fail "bench did not fail"

"$check" --command "$BUILD/tests/openpi_hip" --device hip:7 --out "$box/none" bench >"$box/log" 2>&1
[ $? = 3 ] && grep -q 'hip:7 cannot be used' "$box/log" || fail "a device that is not there: $(cat "$box/log")"
for bad in "--device cuda:0" "--speed" "--out"; do
    # shellcheck disable=SC2086
    "$check" $bad >"$box/log" 2>&1
    [ $? = 2 ] || fail "$bad ends with another status"
done
echo passed
