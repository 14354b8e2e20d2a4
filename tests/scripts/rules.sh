#!/bin/bash
# tools/include-check finds what it is there for: each planted offence is reported, and the tree as it is passes.
set -u
box=$(mktemp -d /tmp/openpi_test_XXXXXX) || exit 1
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
plant src/model/plan.c '#include "policy/image.h"' 'may not include policy/image.h'
plant src/backend/cpu/cpu.c '#include "model/plan.h"' 'may not include model/plan.h'
plant src/policy/image.c '#include "backend/backend.h"' 'may not include backend/backend.h'
plant src/session.c '#include "measure/bench.h"' 'may not include measure/bench.h'
plant cli/run.c '#include "openpi_internal.h"' 'may not include openpi_internal.h'
plant cli/draw/chart.c '#include "measure/bench.h"' 'may not include measure/bench.h'
plant cli/instruments/tune.c '#include "report/report.h"' 'may not include report/report.h'
plant include/openpi.h '#include "base/dtype.h"' 'may not include base/dtype.h'
plant src/policy/image.c 'void f(void) { const char *e = getenv("HOME"); (void)e; }' 'not in a library'
plant src/base/file.c 'void f(void) { exit(1); }' 'not in a library'
plant src/base/file.c 'void f(void) { fputs("x", stderr); }' 'not in a library'
exit $status
