#!/bin/bash
# tools/gpu-check with a command and tests that only say whether they pass: parts side by side, parts of several calls on one
# page, failures named and status 1, parts of another build and unknown parts refused. What a card says is not tested here.
set -u
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
fail() { echo "FAILED: $*"; cat "$box/log"; exit 1; }
page=$box/out/unknown.md                                                          # no nvidia-smi: no card's name
mkdir -p "$box/bin" "$box/build/tests"
printf '#!/bin/bash\nexit 1\n' >"$box/bin/nvidia-smi"
cat >"$box/build/openpi" <<'END'
#!/bin/bash
[ "$1" = devices ] && echo "cuda:0 a card hopper yes"
[ "$1" = --version ] && echo "openpi 0"
[[ "$1 $*" != verify*f32*no-graph* ]]
END
printf '#!/bin/bash\n' >"$box/build/tests/openpi_ops"
printf '#!/bin/bash\nexit 77\n' >"$box/build/tests/test_gpu_none"
chmod +x "$box"/bin/* "$box/build/openpi" "$box"/build/tests/*
export PATH=$box/bin:$PATH
check() { "$SOURCE/tools/gpu-check" "$box/build" "$box/out" "$@" >"$box/log" 2>&1; }
said() { grep -q "^| $1 | $2" "$page" || fail "the page does not say that $1 $2"; }

check ops+tests || fail "two parts that pass end with $?"
said ops passed
said test_gpu_none skipped
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
echo "gpu-check: ok"
