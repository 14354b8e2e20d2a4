#!/bin/bash
# tools/amd-report: it reads every kernel of a code object's notes, and fails where one spills or exceeds its chip. The notes are
# made up here; those of this build are read too, where it has code objects and llvm-readelf.
set -u
box=$(mktemp -d)
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

if compgen -G "$BUILD/hip/*_gfx*.co" >/dev/null && command -v llvm-readelf-22 >/dev/null; then
    bash "$SOURCE/tools/amd-report" "$BUILD/hip" >"$box/out" || fail "amd-report: $(cat "$box/out")"
fi
exit $status
