#!/bin/bash
# labels: long release
# tools/card-check over the tests' own GPU vendor, which runs its commands as a card would: the small form passes and leaves one
# file with everything in it; every option of the whole form is one that the command knows; a command that fails is named and
# fails the script; a device that cannot be used and bad options are said. Skipped (77) where that vendor is not built.
set -u
check=$SOURCE/tools/card-check
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
fail() { echo "FAILED: $*"; cat "$box/log"; exit 1; }
export OPENPI_HOST=$BUILD/tests/openpi_host BOX=$box
[ -x "$OPENPI_HOST" ] || { echo "skipped: no openpi_host in $BUILD"; exit 77; }

# A card: the vendor's device by another name, with no graph of the same path twice.
cat >"$box/openpi" <<'END'
#!/bin/bash
echo "$*" >>"$BOX/asked"
words=()
for word; do
    case $word in cuda:0) word=host:0 ;; portable) word=plain ;; esac
    words+=("$word")
done
[ "$1" = devices ] && { echo "cuda:0  A card, compute capability 8.9  portable  25.8 GB  yes"; exit; }
exec "$OPENPI_HOST" "${words[@]}"
END
chmod +x "$box/openpi"
"$check" --command "$box/openpi" --small --out "$box/out" >"$box/log" 2>&1 || fail "the small form ends with $?"
list=$(tar -tzf "$box/out.tar.gz") || fail "no archive"
for file in card-check.md card-check.json roof.json bench-tiny.json profile.json report.html verify-portable-f32-no-graph.txt; do
    grep -qx "out/$file" <<<"$list" || fail "$file is not in the archive"
done
grep -q '"kind": "card-check"' "$box/out/card-check.json" || fail "the file does not say what it is"
grep -q '"hardware": "A card, compute capability 8.9' "$box/out/card-check.json" || fail "the file does not say what it is of"
for name in operations bench-pi0 bench-batch tune power; do
    grep -q "^| $name | skipped | 0 | only without --small" "$box/out/card-check.md" || fail "$name is not named as skipped"
done
for name in roof verify-portable-bf16 verify-portable-f32-no-graph bench-tiny profile report; do
    grep -q "^| $name | passed |" "$box/out/card-check.md" || fail "$name did not pass"
done
grep -q 'no tuning table for this card (Host, plain kernels): `openpi tune` may win 2 % of a call' "$box/out/bench-tiny.txt" ||
    fail "nothing is said of a table that is not there"
grep -q hopper "$box/asked" && fail "a card without Hopper's kernels was asked for them"

# Of the whole form, the verbs with their options: each is given --help besides, so that nothing runs but what reads them.
cat >"$box/reads" <<'END'
#!/bin/bash
echo "$*" >>"$BOX/whole"
[ "$1" = devices ] && { echo "cuda:0  A card  hopper  80.0 GB  yes"; exit; }
[ "$1" = --version ] && exec "$OPENPI_HOST" --version
for word; do [[ $word == --*=* || $word != --* ]] || "$OPENPI_HOST" "$1" --help | grep -q -- "$word\b" || { echo "$1 has no $word"; exit 1; }; done
END
printf '#!/bin/bash\n[ "$1" = -q ] || echo "1, 400 W"\n' >"$box/nvidia-smi"
chmod +x "$box/reads" "$box/nvidia-smi"
PATH=$box:$PATH "$check" --command "$box/reads" --build "$box/none" --out "$box/all" >"$box/log" 2>&1 || fail "the whole form ends with $?"
for wanted in "verify .*--path hopper --dtype f32 --no-graph" "verify .*--path portable --dtype bf16 " \
    "bench .*full:pi05 --cameras 100" "bench .*full:pi0 --cameras 110" "bench .*--horizon 50 --prompt 200" "bench .*--path portable" \
    "^tune .*table.json" "bench .*--table .*table.json" "^profile" "^roof"; do
    grep -q -- "$wanted" "$box/whole" || fail "the whole form asks for no '$wanted': $(cat "$box/whole")"
done
[ -s "$box/all/power.csv" ] || fail "nobody watched the power"

# A command whose device is there and whose every verb fails.
printf '#!/bin/bash\n[ "$1" = devices ] && echo "cuda:0   a card  portable  yes" && exit 0\necho broken >&2\nexit 1\n' >"$box/broken"
chmod +x "$box/broken"
"$check" --command "$box/broken" --small --out "$box/bad" verify bench >"$box/log" 2>&1
[ $? = 1 ] || fail "a failing command ends with another status"
grep -q '| verify-portable-bf16 | FAILED |' "$box/bad/card-check.md" || fail "verify did not fail"
grep -q '"name": "bench-tiny", "result": "FAILED"' "$box/bad/card-check.json" || fail "bench did not fail"

"$check" --command "$box/openpi" --device cuda:7 --out "$box/none" bench >"$box/log" 2>&1
[ $? = 3 ] && grep -q 'cuda:7 cannot be used' "$box/log" || fail "a device that is not there"
for bad in "--device hip:0" "--speed" "--out" "counters"; do
    # shellcheck disable=SC2086
    "$check" $bad >"$box/log" 2>&1
    [ $? = 2 ] || fail "$bad ends with another status"
done
echo passed
