#!/bin/bash
# labels: release
# tools/gpu-check with a command and tests that only say whether they pass: parts side by side, parts of several calls on one
# page, failures named and status 1, parts of another build and unknown parts refused; and tools/counters with an ncu that only
# writes its table. What a card says is not tested here.
set -u
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
fail() { echo "FAILED: $*"; cat "$box/log"; exit 1; }
out=$box/out
page=$out/unknown.md                                                              # no nvidia-smi: no card's name
mkdir -p "$box/bin" "$box/build/tests"
printf '#!/bin/bash\nexit 1\n' >"$box/bin/nvidia-smi"
cat >"$box/build/openpi" <<'END'
#!/bin/bash
[ "$1" = devices ] && echo "cuda:0 a card hopper yes"
[ "$1" = --version ] && echo "openpi 0"
[ "$1" = profile ] && cp "$PROFILE" "${@: -1}"
[[ "$1 $*" != verify*f32*no-graph* ]]
END
printf '#!/bin/bash\n' >"$box/build/tests/openpi_ops"
printf '#!/bin/bash\nexit 77\n' >"$box/build/tests/test_gpu_none"
printf '#!/bin/bash\n' | tee "$box/build/tests/test_gpu_engine" >"$box/build/tests/test_gpu_memory"
for name in test_update test_update_adapter test_parts; do
    printf '#!/bin/bash\n[ "$OPENPI_TEST_DEVICE" = cuda:0 ]\n' >"$box/build/tests/$name"
done
chmod +x "$box"/bin/* "$box/build/openpi" "$box"/build/tests/*
export PATH=$box/bin:$PATH
check() { "$SOURCE/tools/gpu-check" "$box/build" "$out" "$@" >"$box/log" 2>&1; }
said() { grep -q "^| $1 | $2" "$page" || fail "the page does not say that $1 $2"; }

check ops+tests || fail "two parts that pass end with $?"
said ops passed
said test_gpu_none skipped
said test_update passed
grep -q test_gpu_memory "$page" && fail "memory is counted beside other parts"
check memory || fail "the part memory ends with $?"
said test_gpu_memory passed
said test_gpu_memory-portable passed
check cards || fail "the part cards ends with $?"
for name in ops-as-rtx4090 engine-as-a100 verify-as-a100-f32 bench-as-rtx4090-110 profile-as-a100; do said $name passed; done
check verify && fail "a golden that fails ends with 0"
said verify-hopper-bf16 passed
said verify-hopper-f32-no-graph FAILED
said ops passed                                                                   # from the call before
grep -q '^FAILED *verify-portable-f32-no-graph' "$box/log" || fail "the short table does not name what failed"
check ops && fail "a failure of the call before is forgotten"
[ "$(grep -c '^| ops |' "$page")" = 1 ] || fail "a part that ran again is there twice"

echo '# another build' >>"$box/build/openpi"
check ops && fail "parts of another build are taken"
grep -q 'parts of another build' "$box/log" || fail "another build is not named"
check ops+speed && fail "an unknown part is taken"
grep -q "no part 'speed'" "$box/log" || fail "an unknown part is not named"

# Counters: the mean of a kernel's launches by their time, beside the profile's share and floor; what is below 3 % is left out.
export PROFILE=$box/profile.json
out=$box/counted
page=$out/unknown.md
cat >"$PROFILE" <<'END'
{"kind": "profile", "version": "0", "revision": "1234567890abcdef", "date": "2026-01-02T03:04:05Z", "model": {"variant": "pi0"},
 "machine": {"hardware": "a card", "path": "hopper", "dtype": "bf16"}, "ops": [
 {"name": "prefix.up", "kernel": "scale + wide_gated, norm 4", "calls": 4, "time_us": 64.0, "floor_us": 45.0},
 {"name": "prefix.up", "kernel": "wide_gated", "calls": 1, "time_us": 30.0, "floor_us": 15.0},
 {"name": "vision.out", "kernel": "narrow x3", "calls": 1, "time_us": 8.0, "floor_us": null},
 {"name": "prefix.norm", "kernel": "scale", "calls": 1, "time_us": 1.0, "floor_us": 0.5},
 {"name": "prefix.text", "kernel": "copy", "calls": 1, "time_us": 1.0, "floor_us": 0.5}]}
END
cat >"$box/bin/ncu" <<'END'
#!/bin/bash
[[ " $* " = *" --kernel-name regex:^(copy|narrow|scale|wide_gated)$ "* ]] || { echo "the wrong kernels: $*"; exit 1; }
while [ "$1" != --log-file ]; do shift; done
cat >"$2" <<'TABLE'
==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"
"0","1","wide_gated","GPU Speed Of Light Throughput","Duration","ns","3,000",""
"0","1","wide_gated","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","90.00",""
"0","1","wide_gated","GPU Speed Of Light Throughput","DRAM Throughput","%","20.5",""
"0","1","wide_gated","Launch Statistics","Registers Per Thread","register/thread","168",""
"0","1","wide_gated","Occupancy","","","","A rule"
"1","1","wide_gated","GPU Speed Of Light Throughput","Duration","ns","1,000",""
"1","1","wide_gated","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","50.00",""
"1","1","wide_gated","Launch Statistics","Registers Per Thread","register/thread","168",""
"2","1","narrow","GPU Speed Of Light Throughput","Duration","ns","500",""
"3","1","scale","GPU Speed Of Light Throughput","Duration","ns","100",""
"4","1","scale","GPU Speed Of Light Throughput","Duration","ns","166.66667",""
"2","1","narrow","GPU Speed Of Light Throughput","L2 Cache Throughput","%","31.0",""
TABLE
END
chmod +x "$box/bin/ncu"
check counters || { cat "$out/counters.txt"; fail "counters end with $?"; }
row() { grep -qF "$1" "$page" || fail "the page has no $1, but: $(grep '^| `' "$page")"; }
row '| `wide_gated` | prefix.up | 3 | 86.5 % | 66.7 % | multiprocessors | 80.0 % | 20.5 % | – | – | – | 168 |'
row '| `narrow` | vision.out | 1 | 7.7 % | – | waiting | – | – | 31.0 % | – | – | – |'
row '| `scale` | prefix.up, prefix.norm | 3 | 4.8 % | – | – |'              # without a floor in prefix.up: it has none
grep -q '`copy`' "$page" && fail "a kernel of 2 % is listed"
sed -i 's/"500"/"none"/' "$box/bin/ncu"
check counters && fail "counters that are no numbers are taken"
grep -q "Duration of narrow is 'none', expected a number" "$out/counters.txt" || fail "what is no number is not named"
printf '#!/bin/bash\necho no permission; exit 7\n' >"$box/bin/ncu"
check counters && fail "an ncu that fails is taken"
grep -q 'counters: ncu ended with 7: no permission' "$out/counters.txt" || fail "what ncu said is not shown"
echo "gpu-check: ok"
