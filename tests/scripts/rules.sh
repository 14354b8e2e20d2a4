#!/bin/bash
# labels: release
# tools/include-check and tools/form-check find what they are there for: each planted offence is reported, and the tree as it
# is passes.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
status=0

bash "$SOURCE/tools/include-check" "$SOURCE" || status=1

# plant FILE LINE EXPECTED: into a tree that holds this file alone
plant() {
    rm -rf "$box/tree"
    mkdir -p "$box/tree/include" "$box/tree/src" "$box/tree/cli" "$box/tree/$(dirname "$1")"
    cp "$SOURCE/$1" "$box/tree/$1"
    printf '%s\n' "$2" >>"$box/tree/$1"
    local said
    if said=$(bash "$SOURCE/tools/include-check" "$box/tree"); then
        echo "include-check did not mind '$2' in $1"
        status=1
    elif ! grep -q "$1:[0-9]*:.*$3" <<<"$said"; then
        echo "include-check said: $said"
        status=1
    fi
}
plant src/base/json.c '#include "ops/ops.h"' 'may not include ops/ops.h'
plant src/ops/reference.c '#include "model/plan.h"' 'may not include model/plan.h'
plant src/model/plan.c '#include "backend/cpu/isa.h"' 'may not include backend/cpu/isa.h'
plant src/checkpoint/tensors.c '#include "model/plan.h"' 'may not include model/plan.h'
plant client/client_socket.c '#include "openpi.h"' 'may not include openpi.h'
plant src/model/plan.c '#include "policy/pictures/image.h"' 'may not include policy/pictures/image.h'
plant src/checkpoint/tensors.c '#include "checkpoint/jax/orbax.h"' 'may not include checkpoint/jax/orbax.h'
plant src/checkpoint/source.h '#include "checkpoint/checkpoint.h"' 'may not include checkpoint/checkpoint.h'
plant src/checkpoint/safetensors/safetensors.c '#include "checkpoint/jax/orbax_folder.h"' 'may not include checkpoint/jax/orbax_folder.h'
plant src/checkpoint/jax/orbax.c '#include "checkpoint/safetensors/safetensors.h"' 'may not include checkpoint/safetensors/safetensors.h'
plant src/checkpoint/adapter/adapter.c '#include "checkpoint/jax/lora.h"' 'may not include checkpoint/jax/lora.h'
plant src/checkpoint/adapter/adapter.c '#include "checkpoint/open.h"' 'may not include checkpoint/open.h'
plant src/checkpoint/synthetic/synth.c '#include "checkpoint/checkpoint.h"' 'may not include checkpoint/checkpoint.h'
plant src/model/packing.c '#include "checkpoint/synthetic/synth.h"' 'may not include checkpoint/synthetic/synth.h'
plant src/backend/cpu/cpu.c '#include "model/plan.h"' 'may not include model/plan.h'
plant src/backend/cpu/arm/levels.c '#include "backend/cpu/x86/cpuid.h"' 'may not include backend/cpu/x86/cpuid.h'
plant src/backend/cpu/gemm.c '#include "backend/cpu/x86/kernels.h"' 'names an instruction set outside'
plant src/backend/cpu/gemm.c 'static __m256 f(void) { return _mm256_setzero_ps(); }' 'names an instruction set outside'
plant src/policy/pictures/image.c '#include "backend/backend.h"' 'may not include backend/backend.h'
plant src/session.c '#include "lab/measure/bench.h"' 'may not include lab/measure/bench.h'
plant cli/run.c '#include "openpi_internal.h"' 'may not include openpi_internal.h'
plant lab/draw/chart.c '#include "lab/measure/bench.h"' 'may not include lab/measure/bench.h'
plant lab/verbs/tune.c '#include "report/report.h"' 'may not include report/report.h'
plant include/openpi.h '#include "base/dtype.h"' 'may not include base/dtype.h'
plant src/model/plan.c '#include "openpi_runner.h"' 'may not include openpi_runner.h'
plant src/backend/gpu/cuda/counter.c '#include "lab/measure/power.h"' 'may not include lab/measure/power.h'
plant lab/measure/power.c '/* as NVML says */' 'names a vendor of GPUs outside of its folder'
plant lab/measure/power.c '/* as ROCm says */' 'names a vendor of GPUs outside of its folder'
plant src/policy/pictures/image.c 'void f(void) { const char *e = getenv("HOME"); (void)e; }' 'not in a library'
plant src/base/file.c 'void f(void) { exit(1); }' 'not in a library'
plant src/base/file.c 'void f(void) { fputs("x", stderr); }' 'not in a library'
plant cli/run.c 'void f(void) { json_t *t = json_loads("{}", 0, NULL); (void)t; }' "expected json_parse of base/json.h"
plant lab/measure/bench.c 'void f(void) { json_t *t = json_load_file("x", 0, NULL); (void)t; }' "expected json_parse of base/json.h"

rm -rf "$box/tree"
mkdir -p "$box/tree/src/base" "$box/tree/include" "$box/tree/cli"
touch "$box/tree/src/base/"{1..46}.c
bash "$SOURCE/tools/include-check" "$box/tree" | grep -q '^src/base: 46 files, at most 45$' ||
    { echo "include-check did not mind a folder of 46 files"; status=1; }

bash "$SOURCE/tools/form-check" "$SOURCE" || status=1

# form FILE TEXT EXPECTED: a file with this text alone; without EXPECTED the form is right
form() {
    rm -rf "$box/tree"
    mkdir -p "$box/tree/$(dirname "$1")"
    printf '%b\n' "$2" >"$box/tree/$1"
    local said
    said=$(bash "$SOURCE/tools/form-check" "$box/tree")
    if [ -z "${3:-}" ] && [ -n "$said" ]; then
        echo "form-check minds '$2': $said"
        status=1
    elif ! grep -q "^$1:.*${3:-}" <<<"${said:-$1:}"; then
        echo "form-check did not mind '$2' in $1: $said"
        status=1
    fi
}
hundred=$(printf 'a word %.0s' {1..16})
form docs/page.md "$hundred" 'more than 110 columns'
form docs/page.md "| $hundred |"
form docs/page.md "\140\140\140\n$hundred\n\140\140\140"
form docs/page.md "as SPEC §4.2 says" 'cites a SPEC'
form tests/some/a.c "int a; /* SPEC 5.1 */" 'cites a SPEC'
form src/some/a.c "int a;\t" 'a tab, or a space'
form src/some/a.c "int a; " 'a tab, or a space'
form src/some/a.c "/* $hundred $hundred */" 'columns'
form src/some/a.c "    {\"$hundred\", \"$hundred\"},"
locale='follows the locale'
form src/some/a.c "int a = tolower(b);" "$locale"
form serve/a.c "double a = strtod(text, &end);" "$locale"
form cli/a.c "    if (!strcasecmp(a, b)) return;" "$locale"
form python/src/a.c "setlocale(LC_ALL, \"\");" "$locale"
form src/some/a.c "sscanf(text, \"%lf\", &a);" "$locale"
form src/some/a.c "text = strerror(errno);" "$locale"
form src/some/a.c "snprintf(text, bytes,\n    \"%.3f ms\", ms);" "the locale's point"
form src/some/a.c "ascii_print(text, bytes, \"%.3f ms\", ms);"
form tests/some/a.c "double a = strtod(text, &end);"
form src/some/a.c "        \"$hundred $hundred\\\\n\""

# habits TIMES LINE EXPECTED: a file with that line as often; without EXPECTED the form is right
habits() {
    rm -rf "$box/tree"
    mkdir -p "$box/tree/src"
    yes "$2" | head -n "$1" >"$box/tree/src/a.c"
    local said
    said=$(bash "$SOURCE/tools/form-check" "$box/tree")
    if [ "${said%%:*}" != "${3:-}" ]; then
        echo "form-check said of $1 times '$2': '$said', expected: '${3:-}'"
        status=1
    fi
}
habits 68 "int a; /* of b */"
habits 69 "int a; /* of b */" 'comments that begin with "of"'
habits 200 "int a; /* a of b */"
habits 200 "/* Of all a the b. */" 'comments that begin with "Of"'
habits 200 "/* so many bytes */" '"so many"'
habits 200 "/* nobody waits */" '"nobody", "somebody", "whoever"'
exit $status
