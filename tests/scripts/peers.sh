#!/bin/bash
# labels: release
# The peers' scripts against stand-ins for PyTorch and for the peers: words, workload, calls, files, sentences. Without
# python3 it is skipped, and says so. SOURCE, BUILD: as the other scripts.
set -u
command -v python3 >/dev/null || { echo "SKIPPED: no python3"; exit 77; }
here=$SOURCE/tests/scripts/peers
peers=$SOURCE/tools/peers
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
cd "$box" || exit 2
status=0

bad() { echo "FAILED: $*"; status=1; }

# refuses SENTENCE COMMAND...: status 2, and a line with SENTENCE
refuses() {
    local want=$1
    shift
    "$@" >out 2>err
    local got=$?
    [ $got = 2 ] || bad "status $got, not 2: $*"
    grep -qF -- "$want" err || { bad "no \"$want\" from: $*"; cat err; }
    grep -q Traceback err && bad "a traceback from: $*"
}

# holds FILE EXPRESSION: true of the JSON, which is `d`
holds() { python3 -c "import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not ($2))" "$1" || { bad "$1: not $2"; cat "$1"; }; }

fake() { PYTHONPATH=$here/modules "$@"; }

openpi="$peers/openpi-pytorch --checkout $here/openpi --device cpu --json a.json"
realtime="$peers/realtime-vla --checkout $here/realtime --device cpu --json b.json"

fake $openpi --mode eager --batch 1,3 --runs 4 --warmup 2 --prompt 7 --steps 5 --horizon 6 >out 2>err || { bad "$openpi"; cat err; }
[ "$(grep -c '^sampled 1 7 5 False' out)" = 13 ] || bad "eager: not 1 + 2 * (2 + 4) calls of one sample"
[ "$(grep -c '^sampled 3 7 5 False' out)" = 13 ] || bad "eager: not 1 + 2 * (2 + 4) calls of three samples"
holds a.json 'd["kind"] == "peer" and d["format"] == 1 and d["system"]["name"] == "openpi, PyTorch, eager"'
holds a.json 'd["system"]["note"].startswith("correct masks") and d["model"] == {"source": "random weights", "variant": "pi0", "parameters": 3501372176}'
holds a.json 'd["workload"] == {"cameras": "111", "prompt": 7, "horizon": 6, "steps": 5, "seed": 0}'
holds a.json '[b["batch"] for b in d["batches"]] == [1, 3] and d["batch"] == 1 and d["host"] == d["batches"][0]["host"]'
holds a.json 'all(abs(s["samples_per_s"] * s["p50_ms"] / 1e3 - b["batch"]) < 1e-9 and s["min_ms"] <= s["p50_ms"] <= s["p95_ms"] <= s["p99_ms"] <= s["max_ms"] for b in d["batches"] for s in (b["host"], b["device"]))'
holds a.json 'd["warmup"] == 2 and d["runs"] == 4 and d["ready_ms"] > 0 and d["machine"]["hardware"] == "CPU"'

fake $openpi --runs 2 --warmup 0 >out 2>err || { bad "$openpi"; cat err; }
[ "$(grep -c '^sampled 1 20 10 True' out)" = 5 ] || bad "compiled: the compiled function was not called, or not with the published workload"
fake $realtime --runs 3 --warmup 0 >out 2>err || { bad "$realtime"; cat err; }
holds b.json 'd["system"]["name"] == "realtime-vla, Triton" and d["model"]["parameters"] == 200 + 20 * 2048'
FAKE_CHIP=sm80 fake $realtime --instructions sm80 --runs 1 --warmup 0 >out 2>err || { bad "held to a chip"; cat err; }
holds b.json 'd["system"]["name"] == "realtime-vla, Triton, held to sm80"'

# The percentiles are those of openpi bench: between the two neighbours.
(cd "$peers" && python3 -c "
import peer
f = peer.figures([4.0, 1.0, 3.0, 2.0], 2)
assert f['p50_ms'] == 2.5 and abs(f['p95_ms'] - 3.85) < 1e-12 and f['min_ms'] == 1 and f['max_ms'] == 4, f
assert abs(f['std_ms'] - 1.2909944487) < 1e-9 and f['hz'] == 400 and f['samples_per_s'] == 800, f
class A: seed, prompt, horizon = 5, 20, 10
a, b = peer.Workload(A, 2), peer.Workload(A, 2)
assert a.pictures == b.pictures and a.noise == b.noise and len(a.tokens[0]) == 20 and len(a.noise[1]) == 10
A.seed = 6
assert peer.Workload(A, 2).pictures != a.pictures") || bad "figures or workload"

refuses "PyTorch is missing" $openpi
refuses "sees no GPU here" env PYTHONPATH="$here/modules" $peers/openpi-pytorch --checkout "$here/openpi" --json a.json
refuses "transformers is not patched" env FAKE_UNPATCHED=1 PYTHONPATH="$here/modules" $openpi
refuses "there is no such folder" $peers/openpi-pytorch --checkout absent --json a.json
refuses "holds no src/openpi/models_pytorch/pi0_pytorch.py" $peers/openpi-pytorch --checkout "$here/realtime" --json a.json
refuses "holds no pi0_infer.py" $peers/realtime-vla --checkout "$here/openpi" --json a.json
refuses "holds no pi05_infer.py" $realtime --variant pi05
refuses "expected 10: its graph holds that many" $realtime --steps 9
refuses "expected a chip as Triton names it, such as sm80" $realtime --instructions 8.0
refuses "it computes one sample" $realtime --batch 1,2
refuses "such as 1,2,4" $openpi --batch 1,x
refuses "such as 1,2,4" $openpi --batch 0
refuses "expected a whole number from 1 to 64" $openpi --horizon 65
refuses "cannot be written" $peers/realtime-vla --checkout "$here/realtime" --json absent/x.json
mkdir -p broken/src/openpi/models_pytorch
touch broken/src/openpi/models_pytorch/pi0_pytorch.py
refuses "cannot be imported" env PYTHONPATH="$here/modules" $peers/openpi-pytorch --checkout broken --device cpu --json a.json

# compare: one command says how many times faster
cat >bench.json <<'END'
{"kind": "bench", "format": 1, "model": {"variant": "pi0"}, "machine": {"hardware": "CPU"},
 "workload": {"cameras": "111", "prompt": 20, "horizon": 10, "steps": 10}, "batch": 1, "host": {"p50_ms": 20}, "device": {"p50_ms": 16}}
END
sed 's/"bench"/"peer", "system": {"name": "other"}/; s/"p50_ms": 20/"p50_ms": 50/; s/"p50_ms": 16/"p50_ms": 24/' bench.json >peer.json
$peers/compare bench.json peer.json >out 2>err || bad "compare"
grep -qx "batch 1, device: 16.000 ms, other 24.000 ms: 1.50 times" out && grep -qx "batch 1, host: 20.000 ms, other 50.000 ms: 2.50 times" out || { bad "compare"; cat out; }
sed 's/"steps": 10/"steps": 5/' peer.json >steps.json
refuses "not the same workload" $peers/compare bench.json steps.json
refuses "its kind is peer, expected bench or best" $peers/compare peer.json peer.json
refuses "is not JSON" $peers/compare bench.json err
refuses "cannot be read" $peers/compare bench.json absent.json
refuses "usage" $peers/compare bench.json
sed 's/"p50_ms": 24/"p50_ms": null/' peer.json >null.json
refuses "has no device.p50_ms" $peers/compare bench.json null.json
exit $status
