#!/bin/bash
# labels: release
# tools/amd-report and tools/amd-loops. The first reads every kernel of a code object's notes, and fails where one spills or exceeds its chip. The notes are
# made up here; those of this build are read too, where it has code objects and llvm-readelf.
set -u
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
status=0
fail() { echo "$*"; status=1; }

# kernel NAME VGPRS LDS SPILLED SCRATCH
kernel() {
    printf '  - .agpr_count:     0\n    .args:\n      - .offset:         0\n        .size:           320\n'
    printf '    .group_segment_fixed_size: %d\n    .max_flat_workgroup_size: 256\n    .name:           %s\n' "$3" "$1"
    printf '    .private_segment_fixed_size: %d\n    .sgpr_count:     47\n    .sgpr_spill_count: 0\n' "$5"
    printf '    .symbol:         %s.kd\n    .vgpr_count:     %d\n    .vgpr_spill_count: %d\n' "$1" "$2" "$4"
}
cat >"$box/readelf" <<'END'
#!/bin/bash
cat "${@: -1}"
END
chmod +x "$box/readelf"

# report EXPECTED-STATUS CHIP LINES…: of the notes on stdin
report() {
    rm -f "$box"/*.co
    cat >"$box/family_$2.co"
    LLVM_READELF=$box/readelf bash "$SOURCE/tools/amd-report" "$box" >"$box/out" 2>&1
    local got=$?
    [ $got = "$1" ] || fail "amd-report: status $got, expected $1: $(cat "$box/out")"
    shift 2
    for line; do
        tr -s ' ' <"$box/out" | grep -qxF "$line" || fail "amd-report: no line \"$line\": $(cat "$box/out")"
    done
}
{ kernel first 80 17408 0 0; kernel second 200 0 0 0; } |
    report 0 gfx942 'gfx942 first 256 80 0 47 17408 0 3' 'gfx942 second 256 200 0 47 0 0 2'
kernel first 80 17408 0 0 | report 0 gfx950 'gfx950 first 256 80 0 47 17408 0 6'
{ kernel first 80 17408 3 0; kernel second 8 0 0 0; } | report 1 gfx942 'gfx942 first 256 80 0 47 17408 3 3'
kernel first 80 0 0 16 | report 1 gfx942
kernel first 80 65537 0 0 | report 1 gfx942
kernel first 80 65537 0 0 | report 0 gfx950
rm -f "$box"/*.co
bash "$SOURCE/tools/amd-report" "$box" >/dev/null 2>&1
[ $? = 2 ] || fail "amd-report: a folder without code objects is not refused"

# tools/amd-loops: a loop of one matrix instruction and one of the vector unit, whose tail loads a single element and does not count.
if command -v python3 >/dev/null; then
    cat >"$box/objdump" <<'END'
#!/bin/bash
printf '0000000000000000 <k>:\n'
printf '\tv_mov_b32 v0, v1  // 000000000000: AA\n'
printf '\tv_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]  // 000000000004: BB\n'
printf '\tv_add_u32 v1, v1, v2  // 00000000000C: CC\n'
printf '\ts_cbranch_execz 2  // 000000000010: DD <k+0x1c>\n'
printf '\tv_add_u32 v1, v1, v2  // 000000000014: CC\n'
printf '\tglobal_load_ushort v1, v[2:3], off  // 000000000018: EE\n'
printf '\ts_cbranch_scc1 65530  // 00000000001C: FF <k+0x4>\n'
printf '\ts_endpgm  // 000000000020: AB\n'
END
    chmod +x "$box/objdump"
    touch "$box/family_gfx942.co" "$box/family_gfx950.co"
    LLVM_OBJDUMP=$box/objdump python3 "$SOURCE/tools/amd-loops" "$box" >"$box/out" 2>&1 || fail "amd-loops: $(cat "$box/out")"
    for line in 'gfx942 k 16 4 0 100 %' 'gfx950 k 16 4 0 50 %'; do
        tr -s ' ' <"$box/out" | grep -qxF "$line" || fail "amd-loops: no line \"$line\": $(cat "$box/out")"
    done
    rm -f "$box"/*.co
    python3 "$SOURCE/tools/amd-loops" "$box" >/dev/null 2>&1
    [ $? = 2 ] || fail "amd-loops: a folder without code objects is not refused"
    if compgen -G "$BUILD/hip/*_gfx*.co" >/dev/null && command -v llvm-objdump-22 >/dev/null; then
        python3 "$SOURCE/tools/amd-loops" "$BUILD/hip" >"$box/out" || fail "amd-loops: $(cat "$box/out")"
        grep -q '^gfx942  linear_bf16_64 ' "$box/out" || fail "amd-loops: $(cat "$box/out")"
    fi
fi

if compgen -G "$BUILD/hip/*_gfx*.co" >/dev/null && command -v llvm-readelf-22 >/dev/null; then
    bash "$SOURCE/tools/amd-report" "$BUILD/hip" >"$box/out" || fail "amd-report: $(cat "$box/out")"
fi
exit $status
