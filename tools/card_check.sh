# What tools/amd-check and tools/card-check share, which read it: options, steps, the table and the file to send.
#
# Set before: tool, the script's name; kind, of its devices ("cuda"); all, its parts in order. A part NAME is a function part_NAME;
# run_parts ends the script.
root=$(cd "$(dirname "$0")/.." && pwd)
device=$kind:0 build=$root/build out= command= small=
parts=()
usage() { echo "$tool: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --device|--build|--out|--command)
        [ $# -gt 1 ] || usage "$1 has no value, see the script's head"
        declare "${1#--}=$2"
        shift ;;
    --small) small=yes ;;
    *)
        [[ " ${all[*]} " == *" $1 "* ]] || usage "'$1' is no option and no part, see the script's head"
        parts+=("$1") ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
[[ $device =~ ^$kind:[0-9]+$ ]] || usage "--device is '$device', expected $kind:N"
out=${out:-$build/$tool}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
openpi=${command:-$build/openpi}
status=0
rows=()

# step NAME COMMAND...: runs it, keeps its output, notes whether it passed and how long it took
step() {
    local name=$1 began=$SECONDS result=passed code
    shift
    echo "$ $*" >"$out/$name.txt"
    "$@" >>"$out/$name.txt" 2>&1
    code=$?
    [ $code = 0 ] || { result=FAILED status=1; tail -5 "$out/$name.txt"; }
    rows+=("$name|$result|$((SECONDS - began))|")
    return $code
}
# skip NAME REASON
skip() { rows+=("$1|skipped|0|$2"); }

# bench NAME OPTION...
bench() { step "bench-$1" "$openpi" bench --device "$device" --json "$out/bench-$1.json" "${@:2}"; }

# ---- the file to send ----
text() { printf '%s' "$1" | tr '\n' ' ' | sed 's/[\\"]/\\&/g'; }
hardware() { sed -n "s/^$device  *//p" "$out/devices.txt" 2>/dev/null | head -1; }

write_page() {
    local row
    echo "# openpi on $(hardware)"
    echo
    echo "$("$openpi" --version 2>/dev/null), $device, $(date -u +%Y-%m-%dT%H:%M:%SZ)${small:+, --small: a tiny model, no measurement of anything}"
    echo
    echo "| step | result | s | |"
    echo "|---|---|---|---|"
    for row in "${rows[@]}"; do echo "| ${row//|/ | } |"; done
}

write_json() {
    local row name result seconds why comma=
    printf '{\n "kind": "%s",\n "format": 1,\n "version": "%s",\n "date": "%s",\n' \
        "$tool" "$(text "$("$openpi" --version 2>/dev/null)")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    printf ' "device": "%s",\n "hardware": "%s",\n "small": %s,\n "steps": [' \
        "$device" "$(text "$(hardware)")" "$([ $small ] && echo true || echo false)"
    for row in "${rows[@]}"; do
        IFS='|' read -r name result seconds why <<<"$row"
        printf '%s\n  {"name": "%s", "result": "%s", "wall_s": %d, "why": "%s"}' "$comma" "$name" "$result" "$seconds" "$(text "$why")"
        comma=,
    done
    printf '\n ]\n}\n'
}

finish() {
    write_page >"$out/$tool.md"
    write_json >"$out/$tool.json"
    tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")" || status=1
}

check_device() {
    [ -x "$openpi" ] || { echo "$tool: there is no command $openpi: name the part build first" >&2; exit 2; }
    "$openpi" devices >"$out/devices.txt" 2>&1
    grep -q "^$device .* yes" "$out/devices.txt" && return
    cat "$out/devices.txt"
    echo "$tool: $device cannot be used, see above"
    exit 3
}

run_parts() {
    local part
    for part in "${parts[@]}"; do
        [ "$part" = build ] || check_device
        "part_$part"
        finish                                                                      # after every part: a crash loses one
        [ "$part" = build ] && [ $status != 0 ] && break
    done
    cat "$out/$tool.md"
    echo
    echo "the file to send: $out.tar.gz"
    exit $status
}
