#!/bin/bash
# labels: release
# tools/trace-analyze: the sums of a hand-made trace of another engine are those that were added by hand (tests/trace), openpi's own
# trace beside it, plain and gzipped, a page of `openpi report` from the file; bad words, bad files, damage. Skipped (77) without python3.
set -u
command -v python3 >/dev/null || { echo "SKIPPED: no python3"; exit 77; }
tool=$SOURCE/tools/trace-analyze
traces=$SOURCE/tests/trace
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
cd "$box" || exit 2
status=0

bad() { echo "FAILED: $*"; status=1; }

# sums FILE: its traces, without the head
sums() { python3 -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))["files"], indent=1))' "$1"; }

# refused TEXT ARGUMENTS...: status 2 and a sentence that holds the text
refused() {
    local text=$1
    shift
    "$tool" "$@" >out 2>err
    local got=$?
    [ $got = 2 ] || bad "status $got, not 2: trace-analyze $*"
    grep -qF -- "$text" err && ! grep -q Traceback err || { bad "no \"$text\" from: trace-analyze $*"; cat err; }
}

cp "$traces/torch.json" .
"$tool" torch.json --json torch.out >torch.txt || bad "torch.json"
"$tool" torch.json --calls 2 --steps 5 --top 1 --json torch_2_calls.out >torch_2_calls.txt || bad "torch.json in two calls"
for name in torch torch_2_calls; do
    cmp "$name.txt" "$traces/$name.txt" || bad "$name: another table"
    sums "$name.out" | cmp - "$traces/$name.sums.json" || bad "$name: another file"
done
python3 - torch.out <<'PYTHON' || bad "the head"
import json, re, sys
root = json.load(open(sys.argv[1]))
assert (root["kind"], root["format"]) == ("breakdown", 1), root
assert re.fullmatch(r"\d+\.\d+\.\d+", root["version"]) and root["revision"], root
assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", root["date"]), root
PYTHON

# ---- openpi's own trace -------------------------------------------------------------------------------------
"$BUILD/openpi" trace own.json.gz --synthetic tiny --steps 2 --horizon 4 --warmup 1 --calls 2 >log 2>&1 || { cat log; exit 1; }
gzip -dc own.json.gz >own.json
"$tool" own.json.gz torch.json --json two.out >two.txt || bad "two files"
grep -qF "; 2 calls of 2 denoising steps" two.txt && grep -q "^A own.json.gz: openpi [0-9.]*, synthetic tiny" two.txt &&
    grep -q "^B torch.json: a PyTorch" two.txt && grep -qF "B ms/step" two.txt || { bad "two files:"; cat two.txt; }
python3 - two.out own.json <<'PYTHON' || bad "the sums of openpi's own trace"
import json, sys
files, own = (json.load(open(path)) for path in sys.argv[1:])
sums, torch = files["files"]
totals = own["otherData"]["totals"]
stages = {row["name"]: row for row in sums["stages"]}
kinds = {row["name"]: row for row in sums["kinds"]}
assert abs(sums["total_ms"] * 2 - totals["kernel_ms"]) < 1e-6 * totals["kernel_ms"], (sums["total_ms"], totals)
assert sum(row["calls"] for row in sums["stages"]) * 2 == totals["kernels"]
assert stages["other"]["calls"] == 0 and all(stages[name]["time_ms"] > 0 for name in ("ViT", "prefill", "diffusion"))
assert kinds["GEMM"]["time_ms"] > 0 and kinds["attention"]["time_ms"] > 0
assert torch["total_ms"] == 0.151 and torch["steps"] == 10
PYTHON
for name in own.json own.json.gz -; do
    "$tool" "$name" --json one.out <own.json.gz >/dev/null || bad "$name"
    sums one.out | sed "s|\"file\": .*|\"file\"|" >"${name#-}.sums"
done
cmp own.json.sums own.json.gz.sums && cmp own.json.sums .sums || bad "gzipped, plain and standard input differ"

# ---- a page -------------------------------------------------------------------------------------------------
"$BUILD/openpi" report two.out --out page.html >log 2>&1 || { bad "report"; cat log; }
grep -qF 'data-from="1:/files/1/total_ms"' page.html && grep -qF 'data-from="1:/files/0/stages/2/step_ms"' page.html ||
    bad "the page does not show the sums"
"$BUILD/openpi" trace --help | grep -qF tools/trace-analyze || bad "openpi trace --help does not name the tool"

# ---- what is refused ----------------------------------------------------------------------------------------
head -c "$(($(stat -c %s own.json.gz) / 2))" own.json.gz >cut.json.gz
{ head -c 300 own.json.gz; printf '%040d' 5; tail -c +341 own.json.gz; } >bad.json.gz
for name in cut bad; do refused "$name.json.gz: its gzip data is damaged or cut off, expected a whole file" $name.json.gz; done
refused "absent.json: cannot be read: No such file or directory" absent.json
refused "the following arguments are required: TRACE"
refused "3 traces, expected one or two" a b c
refused "two inputs are '-', but standard input can be read once" - -
refused "argument --calls: is '0', expected a whole number from 1 on" torch.json --calls 0
refused "argument --top: is '-1', expected a whole number from 0 on" torch.json --top=-1
refused "none/x.json: cannot be written: No such file or directory" torch.json --json none/x.json
"$tool" torch.json >/dev/full 2>err
[ $? = 2 ] && [ "$(cat err)" = "tools/trace-analyze: standard output cannot be written: No space left on device" ] ||
    { bad "a full disk"; cat err; }
"$tool" --help >out && grep -qF "openpi report" out && grep -qF "record_function" out || bad "--help"
python3 "$SOURCE/tests/scripts/trace_analyze.py" "$tool" "$traces/torch.json" || status=1
exit $status
