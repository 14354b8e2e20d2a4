#!/bin/bash
# labels: release
# tools/chip-check over a compiler that is made up here: spills, stacks, registers of two kernels together, a chip that it does
# not know, a file that does not compile, and that nothing is compiled twice.
set -u
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
status=0
fail() { echo "$*"; status=1; }

# The compiler: every family is one kernel of its name, but few_mma is the two of a denoising step.
cat >"$box/nvcc" <<'END'
#!/bin/bash
box=$(dirname "$0")
[ "$1" = --list-gpu-code ] && { printf 'sm_80\nsm_90\nsm_120\n'; exit; }
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
family=$(basename "$1" .cu) chip=${out%.fatbin} chip=${chip##*.}
echo "$family.$chip" >>"$box/compiled"
grep -qx "$family.$chip" "$box/broken" 2>/dev/null && { echo "error: $family"; exit 1; }
head -c 1000 /dev/zero >"$out"
kernel() { # NAME REGISTERS STACK SPILLED
    echo "ptxas info    : Compiling entry function '$1' for 'sm_$chip'"
    echo "    $3 bytes stack frame, $4 bytes spill stores, $4 bytes spill loads"
    echo "ptxas info    : Used $2 registers, used 1 barriers"
}
if [ "$family" = few_mma ]; then
    kernel few_residual_8_8 132 0 0
    kernel few_gated_64_2 "$(cat "$box/gate_up")" 0 0
else
    [ $family.$chip = guide.90 ] && kernel skinny_16_16 64 16 "$(cat "$box/known" 2>/dev/null || echo 12)"
    [ $family = gemm_mma_int8 ] && kernel gemm_mma_int8_64_64_half_coded 96 48 "$(cat "$box/coded" 2>/dev/null || echo 0)"
    spilled=$(grep -sx "$family.$chip" "$box/spills")
    [ "$family.$chip" = "$(cat "$box/stack" 2>/dev/null)" ] && kernel "$family"_512 40 16 0
    if [ -n "$spilled" ]; then kernel "$family" 40 16 12; else kernel "$family" 40 0 0; fi
fi
END
chmod +x "$box/nvcc"
echo 115 >"$box/gate_up"
families=$(find "$SOURCE/src/backend/gpu/cuda" -name '*.cu' ! -name '*_hopper.cu' | wc -l)

# check EXPECTED-STATUS WHAT [ARGUMENT...]
check() {
    local expected=$1 what=$2
    shift 2
    : >"$box/compiled"
    bash "$SOURCE/tools/chip-check" --nvcc "$box/nvcc" --out "$box/out" "$@" >"$box/said" 2>&1
    local got=$?
    [ $got = "$expected" ] || fail "$what: status $got, expected $expected: $(cat "$box/said")"
}
says() { grep -qF "$1" "$box/said" || fail "expected '$1', not: $(cat "$box/said")"; }

check 0 "all is well"
says "sm_121: skipped"
says "sm_120  $(printf %3d $((families + 2))) kernels, at most 132 registers (few_residual_8_8), 0.0"
[ "$(wc -l <"$box/compiled")" = $((3 * families)) ] || fail "of $families families for 3 chips $(wc -l <"$box/compiled") were compiled"
check 0 "a second time"
[ -s "$box/compiled" ] && fail "a second time something was compiled: $(cat "$box/compiled")"

says "sm_90: skinny_16_16 spills 12 bytes, as is known"
rm -rf "$box/out"
echo 16 >"$box/known"
check 1 "more than what is known" 90
says "sm_90: skinny_16_16 has 16 bytes of stack, 16 bytes of spilled registers"
rm -rf "$box/out" "$box/known"
echo 4 >"$box/coded"
check 1 "a kernel that puts numbers aside and spills" 80
says "sm_80: gemm_mma_int8_64_64_half_coded has 48 bytes of stack, 4 bytes of spilled registers"
rm -rf "$box/out" "$box/coded"
echo simt.80 >"$box/stack"
check 1 "a kernel that has no reason for a stack" 80
says "sm_80: simt_512 has 16 bytes of stack, 0 bytes of spilled registers"
rm -rf "$box/out" "$box/stack"
echo simt.80 >"$box/spills"
check 1 "a kernel that spills"
says "sm_80: simt has 16 bytes of stack, 12 bytes of spilled registers"
rm -rf "$box/out" "$box/spills"
echo 121 >"$box/gate_up"
check 1 "registers of two kernels"
says "sm_90: few_residual_8_8 and few_gated_64_2 have 264 registers a thread together, 256 fit"
grep -q "^sm_80: " "$box/said" && fail "a chip where they do not run together is held to it"
check 0 "the chips without that" 80 120
rm -rf "$box/out"
echo 115 >"$box/gate_up"
echo guide.120 >"$box/broken"
check 1 "a file that does not compile"
says "guide.cu for sm_120 does not compile: $box/out/guide.120.log"
check 2 "a word that is no chip" --fast
bash "$SOURCE/tools/chip-check" --nvcc "$box/none" >/dev/null 2>&1
[ $? = 2 ] || fail "a compiler that is not there is not refused"
[ $status = 0 ] && echo "chip-check: as it should be"
exit $status
