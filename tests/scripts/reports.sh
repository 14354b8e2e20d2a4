#!/bin/bash
# labels: release
# What people reported of LeRobot checkpoints, through the command: refused by name, or told on stderr and by
# inspect. reports.py makes the folders, a function a case; here is a line a case. Skipped (77) without python3.
set -u
command -v python3 > /dev/null || exit 77
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
status=0
printf '%s' "$(printf '0.1,%.0s' {1..31})0.1" > state
python3 - << 'P'
import struct, zlib
def chunk(t, d): return struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\x40\x80\xc0" * 4) * 4))
open("p.png", "wb").write(b"\x89PNG\r\n\x1a\n" + head + rows + chunk(b"IEND", b""))
P

run() {
    HOME=$work/$1.home "$BUILD/openpi" run "$1" --image base_0_rgb=p.png --state "$(cat state)" --prompt x --steps 1 \
        --horizon 2 --dtype f32 --threads 1 "${@:2}"
}
make() { python3 "$here/reports.py" "$BUILD/openpi" "$1" "$1" || status=1; }
says() { # CASE WANTED_STATUS WORDS...: run ends so, and stderr has the words
    local case=$1 wanted=$2 got
    shift 2
    [ -d "$case" ] || make "$case"
    run "$case" > out 2> err
    got=$?
    [ $((got != 0)) = "$wanted" ] || { echo "$case: status $got"; cat err; status=1; }
    [ -n "$*" ] || [ ! -s err ] || { echo "$case: silent runs only, but it says:"; cat err; status=1; }
    [ -z "$*" ] || grep -qF -- "$*" err || { echo "$case: \"$*\" is not in:"; cat err; status=1; }
}
inspects() { # CASE WORDS
    "$BUILD/openpi" inspect "$1" > out 2>&1
    grep -qF -- "$2" out || { echo "inspect $1: \"$2\" is not in:"; cat out; status=1; }
}

says whole 0
inspects whole "state    policy_preprocessor_step_3_normalizer_processor.safetensors by QUANTILES"
says adapt 1 'adapt/config.json: "adapt_to_pi_aloha" is true, expected'
says adapt_off 0
says old_steps 0
inspects old_steps "steps              3"
says staircase 1 '"rtc_training_schedule" is "staircase", expected'
says state_step_on_pi0 0 "its steps write the state into the prompt"
inspects state_step_on_pi0 "prompt state   yes"
says foreign_keys 0 'warning: foreign_keys/policy_postprocessor.json: the actions are not unnormalised, since'
inspects foreign_keys 'actions  none: policy_postprocessor_step_0_unnormalizer_processor.safetensors has "so100.buffer.action'
says lost 0 "warning: lost/policy_preprocessor.json: the state is not normalised, since"
inspects lost "holds no tensor"
says absent 0 "absent: neither state nor actions have statistics, as in a base model"
inspects absent "state    none: the step names no state file"
says my_tokenizer 1 '"tokenizer_name" is "my-org/my-tokenizer", which is not PaliGemma'
says use_peft 1 '"use_peft" is true, but no adapter is there (adapter_config.json): give --adapter'
run use_peft --without-lora > out 2> err || { echo "use_peft --without-lora:"; cat err; status=1; }
says relative_half 0 "absolute_actions_processor is not enabled in policy_postprocessor.json: actions leave relative"
exit $status
