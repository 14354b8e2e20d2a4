#!/bin/bash
# labels: release
# tools/figures: the pages say what their JSON files say, and a number that differs is found, wherever it is changed.
# Skipped (77) without python3.
set -u
command -v python3 >/dev/null || { echo "SKIPPED: there is no python3"; exit 77; }
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
status=0
fail() { echo "$*"; status=1; }

bash "$SOURCE/tools/figures" --tree "$SOURCE" --check || fail "a page differs from its JSON files: run tools/figures"

fresh() {
    rm -rf "$box/tree"
    mkdir -p "$box/tree"
    cp -r "$SOURCE/README.md" "$SOURCE/docs" "$SOURCE/best" "$SOURCE/tune" "$box/tree/"
}
figures() { bash "$SOURCE/tools/figures" --tree "$box/tree" "$@" >"$box/said" 2>&1; }

# plant FILE SED-EXPRESSION EXPECTED: after the change --check fails and says EXPECTED
plant() {
    fresh
    sed -i "$2" "$box/tree/$1"
    cmp -s "$SOURCE/$1" "$box/tree/$1" && fail "'$2' changes nothing in $1"
    figures --check && fail "'$2' in $1 was not found"
    grep -q "$3" "$box/said" || fail "'$2' in $1: expected '$3', not: $(cat "$box/said")"
}
h200=docs/results/h200
# A page's number, in a line and in a table; the JSON's number.
plant README.md 's/\(device.p50_ms %.2f -->\)[0-9.]*/\11.23/' '^README.md differs'
plant docs/ladder.md 's/^| all off | [0-9.]*/| all off | 1.234/' '^< | all off | 1.234'
plant docs/bench.md 's/^| prefix | [0-9.]*/| prefix | 1.234/' '^docs/bench.md differs'
plant $h200/bench-pi0.json 's/"p50_ms": [0-9.]*/"p50_ms": 77.77/' '^docs/results/h200.md differs'
plant $h200/ladder.json 's/"cost_ms": -*[0-9]/"cost_ms": 77/' '^docs/best-known.md differs'
plant tune/nvidia-h200.json 's/"time_us": [0-9.]*/"time_us": 0.01/' '^docs/tune.md differs'
# What cannot be computed.
plant $h200/bench-batch.json '$d' 'bench-batch.json: missing, or not JSON'
plant $h200/bench-batch.json 's/"batch": 64/"batch": 63/' 'bench-batch.json has no batches\[batch=64\]'
plant $h200/bench-pi0.json 's/"weight_bytes": [0-9.e+-]*/"weight_bytes": "many"/' 'is "many", expected a number'
plant docs/gpu.md 's/<!-- end -->//' 'has no "<!-- end -->"'
plant docs/bench.md 's/figures: bench h200/figures: bunch h200/' 'there is no block "figures: bunch"'
plant docs/bench.md 's/^[^|<]*\(<!-- figure: [^|]*\)$/\1/' 'a line begins with'

# Rewriting mends a page, and a second time there is nothing to do.
fresh
sed -i 's/-->[0-9.]*<!-- end -->/-->0.12<!-- end -->/' "$box/tree/README.md" "$box/tree/docs/bench.md"
figures || fail "rewriting failed: $(cat "$box/said")"
figures --check || fail "what was written is not what is checked: $(cat "$box/said")"
cmp -s "$SOURCE/README.md" "$box/tree/README.md" || fail "README.md is not as it was"

# The archive of a later run: its JSON files and page are taken, every page follows, the notes stay.
fresh
mkdir -p "$box/run/h200"
cp "$SOURCE"/$h200/*.json "$box/run/h200/"
sed -i 's/"p50_ms": [0-9.]*/"p50_ms": 5.004/' "$box/run/h200/bench-pi0.json"
printf '# NVIDIA H200, another day\n\n<!-- notes -->\n<!-- end notes -->\n' >"$box/run/h200.md"
tar -C "$box/run" -cf "$box/h200.tar" h200.md h200
figures "$box/h200.tar" || fail "the archive was not taken: $(cat "$box/said")"
grep -q '5.00<!-- end --> ms a call' "$box/tree/README.md" || fail "README.md does not follow the archive"
grep -q 'another day' "$box/tree/$h200.md" || fail "the page of the archive was not taken"
notes() { sed -n '/^<!-- notes -->$/,/^<!-- end notes -->$/p' "$1/$h200.md"; }
[ "$(notes "$SOURCE")" = "$(notes "$box/tree")" ] || fail "the notes are not as they were"
figures --check || fail "after the archive: $(cat "$box/said")"
figures "$box/said" && fail "what is no archive was taken"
exit $status
