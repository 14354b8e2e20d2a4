#!/bin/bash
# labels: long no_asan cost
# Goldens of a user's own checkpoint: openpi's own results (tests/golden) written again by tools/record-golden's writing
# code for a checkpoint that `openpi synth` wrote, then judged by `openpi verify --checkpoint`; and faults, each of which
# must be found. SOURCE, BUILD: as the other scripts. Without python3 and numpy it is skipped, and says so.
set -u
python=
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "SKIPPED: no python3 with numpy"; exit 77; }
here=$SOURCE/tests/scripts
tool=$SOURCE/tools/record-golden
golden=$SOURCE/tests/golden
openpi=$BUILD/openpi
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export PYTHONDONTWRITEBYTECODE=1
cd "$box" || exit 2
status=0

bad() { echo "FAILED: $*"; status=1; }
record() { "$python" "$here/record.py" "$tool" "$@" || bad "record.py $*"; }

# judged WANT-STATUS WANT-TEXT ARGUMENTS...: verify ends so, and a line of it holds the text
judged() {
    local code=$1 text=$2
    shift 2
    "$openpi" verify "$@" >out 2>err
    local got=$?
    [ $got = "$code" ] || { bad "status $got, not $code: verify $*"; cat out err; }
    grep -qF -- "$text" out err || { bad "no \"$text\" from: verify $*"; cat out err; }
}

# faulty TEXT SOURCE TENSOR INDEX BY ARGUMENTS...: the golden with one element moved fails with the text
faulty() {
    local text=$1 source=$2 tensor=$3 index=$4 by=$5
    shift 5
    cp "$source" broken.safetensors
    record --change broken.safetensors "$tensor" "$index" "$by"
    judged 1 "$text" "$@" broken.safetensors
}

"$openpi" synth pi0 --preset tiny --variant pi0 --seed 7 >log 2>&1 || { cat log; exit 1; }
"$openpi" synth pi05 --preset tiny --variant pi05 --seed 8 >log 2>&1 || { cat log; exit 1; }
"$openpi" synth odd --preset odd --variant pi0 --seed 7 >log 2>&1 || { cat log; exit 1; }
"$openpi" synth other --preset tiny --variant pi0 --seed 9 >log 2>&1 || { cat log; exit 1; }

# ---- what openpi computed is right, at every level --------------------------------------------------------
record "$golden/model/pi0_tiny.safetensors" pi0 one.safetensors
record "$golden/model/pi0_tiny_batch.safetensors" pi0 batch.safetensors
record "$golden/model/pi05_tiny.safetensors" pi05 five.safetensors
judged 0 "4 ok, 0 FAIL, 0 skipped" --checkpoint pi0 one.safetensors batch.safetensors
judged 0 "2 ok, 0 FAIL, 0 skipped" --checkpoint pi05 five.safetensors
judged 0 "1 ok, 0 FAIL, 0 skipped" --checkpoint pi0 one.safetensors --dtype bf16 --isa avx2
judged 0 "1 ok, 0 FAIL, 0 skipped" --checkpoint pi0 one.safetensors --dtype f32 --isa reference

# What loading the checkpoint tells (here that no delay was trained) is said once, however often it is opened; its layout is LeRobot's.
"$openpi" synth told --preset tiny --variant pi05 --seed 8 >log 2>&1 || { cat log; exit 1; }
echo '{"type": "pi05", "rtc_config": {"mode": "trained"}}' >told/config.json
judged 1 "0 ok, 4 FAIL, 0 skipped" --checkpoint told five.safetensors five.safetensors
[ "$(grep -c '^openpi verify: warning: .*guided' err)" = 1 ] || { bad "not one warning"; cat err; }

policy=(--tokenizer "$golden/tokenizer.model")
droid=("${policy[@]}" --norm-stats "$golden/policy/droid_pi0/norm_stats.json")
libero=("${policy[@]}" --norm-stats "$golden/policy/libero_pi05/norm_stats.json")
aloha=("${policy[@]}" --norm-stats "$golden/policy/aloha_pi05/norm_stats.json")
record "$golden/policy/droid_pi0" pi0 droid.safetensors
record "$golden/policy/libero_pi05" pi05 libero.safetensors pi05_libero
record "$golden/policy/aloha_pi05" pi05 aloha.safetensors
echo '{"like": "aloha", "horizon": 15}' >arm.json
judged 0 "1 ok, 0 FAIL, 1 skipped" --checkpoint pi0 "${droid[@]}" --config pi0_droid droid.safetensors
judged 0 "skipped: no actions.bf16 in the golden" --checkpoint pi0 "${droid[@]}" --config pi0_droid droid.safetensors
judged 0 "1 ok, 0 FAIL, 1 skipped" --checkpoint pi05 "${libero[@]}" libero.safetensors
judged 0 "1 ok, 0 FAIL, 0 skipped" --checkpoint pi05 "${aloha[@]}" --robot arm.json --dtype f32 aloha.safetensors

# 8 bits: the bound is wider, and made of actions.f32.
judged 0 "2 ok, 0 FAIL, 0 skipped" --checkpoint pi0 --weights expert=int8,ffn=int8x8 one.safetensors
judged 0 "skipped: no actions.f32 in the golden, of which the bound for 8-bit weights is made" \
    --checkpoint pi0 --weights expert=int8 --dtype f32 "${droid[@]}" --config pi0_droid droid.safetensors

# ---- another checkpoint, another file ---------------------------------------------------------------------
judged 1 "recorded from other weights: the hash of tensor " --checkpoint other one.safetensors
judged 1 "recorded from another checkpoint: " --checkpoint odd one.safetensors
judged 1 "recorded from a checkpoint of its own: give --checkpoint DIR" one.safetensors
judged 1 "not recorded by tools/record-golden" --checkpoint pi0 "$golden/model/pi0_tiny.safetensors"
judged 1 "not recorded by tools/record-golden" --checkpoint pi0 "$golden/policy/droid_pi0"
judged 1 "nowhere" --checkpoint nowhere one.safetensors
judged 2 "--robot has no effect without --checkpoint" --robot arm.json one.safetensors
head -c 300000 one.safetensors >cut.safetensors
judged 1 "cut.safetensors" --checkpoint pi0 cut.safetensors
sed 's/openpi golden 1/openpi golden 9/' one.safetensors >later.safetensors
judged 1 'metadata format is "openpi golden 9", this program reads "openpi golden 1"' --checkpoint pi0 later.safetensors

# ---- one number moved -------------------------------------------------------------------------------------
at0=(--dtype f32 --checkpoint pi0)
faulty "actions.f32" one.safetensors actions.f32 100 1e-3 "${at0[@]}"
faulty "off by" one.safetensors in.image_mask 1 -1 "${at0[@]}"
faulty "k of layer" one.safetensors in.tokens 3 1 "${at0[@]}"
faulty "the padding has id" one.safetensors in.token_mask 19 -1 "${at0[@]}"
faulty "image_tokens of camera 1" one.safetensors stage.image_tokens 1500 0.1 "${at0[@]}"
faulty "k of layer 2" one.safetensors stage.k 20000 0.1 "${at0[@]}"
faulty "v of layer 0" one.safetensors stage.v 300 0.1 "${at0[@]}"
faulty "suffix0" one.safetensors stage.suffix0 70 0.1 "${at0[@]}"
faulty "stage.velocity" one.safetensors stage.velocity 400 1e-3 "${at0[@]}"
faulty "time of step 3" one.safetensors stage.time 3 1e-4 "${at0[@]}"
faulty "off by" one.safetensors in.state 5 0.2 "${at0[@]}"
faulty "rms" one.safetensors in.state 5 2 --dtype bf16 --checkpoint pi0
at5=(--dtype f32 --checkpoint pi05 "${libero[@]}")
faulty "picture of slot base" libero.safetensors in.images 100000 1 "${at5[@]}"
faulty "tokens, observation 0" libero.safetensors in.tokens 4 1 "${at5[@]}"
faulty "normalised state, observation 0: element 2" libero.safetensors policy.state 2 1e-6 "${at5[@]}"
faulty "image_mask, observation 0" libero.safetensors in.image_mask 2 1 "${at5[@]}"
faulty "robot actions" libero.safetensors policy.actions 30 0.05 "${at5[@]}"
faulty "robot actions" libero.safetensors in.noise 40 0.05 "${at5[@]}"
echo '{"like": "libero", "prompt_state": "off", "max_prompt": 48}' >arm.json
judged 1 "the policy's prompts have up to 48 tokens, those recorded 200" "${at5[@]}" --robot arm.json libero.safetensors
echo '{"like": "libero", "prompt_state": "off", "horizon": 12}' >arm.json
judged 1 "the policy's chunk has 12 steps, the one recorded 10" "${at5[@]}" --robot arm.json libero.safetensors
echo '{"like": "libero", "prompt_state": "on", "horizon": 10}' >arm.json
judged 1 "tokens, observation 0" "${at5[@]}" --robot arm.json libero.safetensors

# ---- the recorder -----------------------------------------------------------------------------------------
standin() { "$python" "$here/record_standin.py" "$tool" "$openpi" "$golden/steps.json" "$@" >out 2>err; }

# recorded ARGUMENTS...: the recorder with the stand-in writes its file
recorded() { standin "" "$@" || { bad "record-golden $*"; cat err; }; }

# refused TEXT FAULT ARGUMENTS...: status 2 with a sentence, no file
refused() {
    local text=$1 fault=$2
    shift 2
    rm -f made.safetensors
    standin "$fault" "$@"
    local got=$?
    [ $got = 2 ] || { bad "status $got, not 2: record-golden $*"; cat err; }
    grep -qF -- "$text" err || { bad "no \"$text\" from: record-golden $*"; cat err; }
    grep -q Traceback err && bad "a traceback from: record-golden $*"
    [ -e made.safetensors ] || [ -e made.safetensors.part ] && bad "a file from: record-golden $*"
}

made=(--config none --checkpoint pi0 --out made.safetensors)
none=(--checkpoint pi0 --robot none)
recorded "${made[@]}" --example --count 3
judged 0 "4 ok, 0 FAIL, 0 skipped" "${none[@]}" made.safetensors
grep -q "made.safetensors: 3 observations" err && bad "progress on the wrong stream"
recorded "${made[@]}" --example --count 1 --no-bf16 --steps 2 --seed 5
judged 0 "2 ok, 0 FAIL, 2 skipped" "${none[@]}" made.safetensors
"$python" - "$tool" <<'PYTHON' || bad "observations"
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, observations as o
rng = np.random.default_rng(3)
pictures = np.stack([o.picture(rng, 224, 224) for _ in range(2)])
state = rng.uniform(-1, 1, (2, 32))
prompts = np.array(["pick up the red cup", "Transfer cube"])
np.savez("two.npz", base=pictures, state=state, prompt=prompts)
np.savez("ragged.npz", base=pictures, state=state[:1], prompt=prompts)
np.savez("pickled.npz", base=np.array([object(), None]))
np.savez("aloha.npz", **{"images/cam_high": pictures, "state": state})
read = o.read("two.npz", 64)
assert len(read) == 2 and read[1]["prompt"] == "Transfer cube" and (read[1]["base"] == pictures[1]).all()
assert (o.read("aloha.npz", 64)[0]["images"]["cam_high"] == pictures[0]).all()
# The bytes of openpi-client for {"a": float32 [1, 2]}, and every head that msgpack has for a length.
want = "81a16184c40b5f5f6e6461727261795f5fc3c40464617461c4080000803f00000040c4056474797065a33c6634c40573686170659102"
assert o.pack({"a": np.array([1, 2], np.float32)}).hex() == want
for n in (31, 32, 255, 256, 65535, 65536):
    assert len(o.pack("x" * n)) == n + (1 if n < 32 else 2 if n < 256 else 3 if n < 65536 else 5)
PYTHON
recorded "${made[@]}" --observations two.npz
judged 0 "4 ok, 0 FAIL, 0 skipped" "${none[@]}" made.safetensors
# The tokenizer that openpi downloaded, as in `openpi run`.
mkdir -p home/.cache/openpi/big_vision
mv pi0/tokenizer.model home/.cache/openpi/big_vision/paligemma_tokenizer.model
HOME=$box/home judged 0 "4 ok, 0 FAIL, 0 skipped" "${none[@]}" made.safetensors
HOME=$box judged 1 "no tokenizer" "${none[@]}" made.safetensors
mv home/.cache/openpi/big_vision/paligemma_tokenizer.model pi0/tokenizer.model
standin mask "${made[@]}" --observations two.npz || bad "record-golden with a wrong mask"
judged 1 "image_mask, observation 0" "${none[@]}" made.safetensors
standin noise "${made[@]}" --observations two.npz || bad "record-golden with other noise"
judged 1 "actions: element" "${none[@]}" made.safetensors
refused "tokens has shape [47], expected [48]" shape "${made[@]}" --example
refused "actions_f32 of observation 0 is not finite" nan "${made[@]}" --example
refused "ragged.npz: every array needs the same first axis, the observation; found base: 2, state: 1, prompt: 2" "" \
    "${made[@]}" --observations ragged.npz
refused "pickled.npz: " "" "${made[@]}" --observations pickled.npz
refused "two.npz: 2 observations, --count asks for 3" "" "${made[@]}" --observations two.npz --count 3
refused 'obs.pkl: ends in ".pkl", expected .npz, .msgpack or .mcap' "" "${made[@]}" --observations obs.pkl
refused "none.npz: no such file" "" "${made[@]}" --observations none.npz
refused "holds no model.safetensors" "" --config none --checkpoint . --out made.safetensors --example
refused "no folder" "" --config none --checkpoint pi0 --out nowhere/made.safetensors --example
refused "the name must end in .safetensors" "" --config none --checkpoint pi0 --out made.npz --example
refused "give --observations FILE or --example" "" "${made[@]}"
refused "--config and --checkpoint go together" "" --config none --out made.safetensors --example
refused "give --config and --checkpoint (openpi), or --policy (LeRobot)" "" "${made[@]}" --policy pi0 --example
for lines in "openpi cannot be imported here|--config pi05_droid --checkpoint pi05" "LeRobot cannot be imported here|--policy pi0"; do
    "$python" "$tool" ${lines#*|} --example --out made.safetensors >out 2>err && bad "recorded without ${lines%%|*}"
    grep -qF "${lines%%|*}" err && ! grep -q Traceback err || { bad "no \"${lines%%|*}\""; cat err; }
done
"$python" "$tool" --help | grep -qF "openpi verify --checkpoint" || bad "record-golden --help"
exit $status
