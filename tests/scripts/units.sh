#!/bin/bash
# labels: release
# The units of an installed tree are what systemd takes, and its own measure of their sandbox is good. Skipped without
# systemd-analyze, and where the server is not built.
set -u
command -v systemd-analyze >/dev/null || { echo "SKIPPED: there is no systemd-analyze"; exit 77; }
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
status=0

bad() { echo "FAILED: $*"; status=1; }

cmake --install "$BUILD" --prefix "$box/tree" >"$box/log" 2>&1 || { cat "$box/log"; exit 1; }
units=$box/tree/lib/systemd/system
[ -e "$units/openpi.socket" ] || { echo "SKIPPED: this build has no server"; exit 77; }
unit=$units/openpi@.service
instance=$box/units/openpi@default.service
mkdir "$box/units" && cp "$units/openpi.socket" "$box/units/" && cp "$unit" "$instance" || exit 1

grep -q "^ExecStart=$box/tree/bin/openpi serve " "$unit" || bad "the unit starts $(grep ^ExecStart= "$unit")"

# verify UNIT: systemd-analyze has nothing to say. Units of this machine that are not ours may be odd.
verify() {
    local said
    said=$(SYSTEMD_UNIT_PATH=$box/units: systemd-analyze verify --man=no --recursive-errors=no "$1" 2>&1) || bad "verify $1: $said"
    said=$(grep -F openpi <<<"$said") && bad "verify $1: $said"
}
verify "$instance"
verify "$box/units/openpi.socket"

# What must be noticed is noticed.
sed 's/^DynamicUser=.*/DynamicUzer=yes/' "$unit" >"$instance"
SYSTEMD_UNIT_PATH=$box/units: systemd-analyze verify --man=no "$instance" 2>&1 | grep -q DynamicUzer || bad "verify did not mind DynamicUzer="
cp "$unit" "$instance"

# The drop-in of docs/serve.md for a unit that computes on a CPU.
mkdir "$instance.d"
printf '[Service]\nMemoryDenyWriteExecute=yes\n' >"$instance.d/cpu.conf"
verify "$instance"
SYSTEMD_UNIT_PATH=$box/units: systemd-analyze security --offline=true "$instance" 2>&1 | grep -q '✓ MemoryDenyWriteExecute=' ||
    bad "the drop-in does not forbid memory that is written and run"
rm -r "$instance.d"

# Its drop-in for AMD's GPUs is added to the unit's devices.
mkdir "$instance.d"
awk '/^  ```$/ { on = !on; if (text ~ /kfd/) printf "%s", text; text = ""; next }
    on { text = text substr($0, 3) "\n" }' "$SOURCE/docs/serve.md" >"$instance.d/amd.conf"
grep -q '^DeviceAllow=/dev/kfd rw$' "$instance.d/amd.conf" || bad "docs/serve.md has no drop-in for /dev/kfd"
verify "$instance"
rm -r "$instance.d"

# A Jetson's, of docs/jetson.md: its GPU's nodes, and no others.
mkdir "$instance.d"
awk '/^```$/ { on = !on; if (text ~ /nvmap/) printf "%s", text; text = ""; next } on { text = text $0 "\n" }' \
    "$SOURCE/docs/jetson.md" >"$instance.d/jetson.conf"
for node in char-drm /dev/nvmap /dev/nvhost-ctrl-gpu /dev/nvgpu/igpu0/ctrl; do
    grep -q "^DeviceAllow=$node rw\$" "$instance.d/jetson.conf" || bad "docs/jetson.md has no drop-in for $node"
done
grep -E '^(DevicePolicy|PrivateDevices)=|^DeviceAllow=$' "$instance.d/jetson.conf" && bad "the drop-in of docs/jetson.md opens more"
sed -i '/nvpmodel.service/d' "$instance.d/jetson.conf"      # a unit of that board
verify "$instance"
SYSTEMD_UNIT_PATH=$box/units: systemd-analyze security --offline=true --threshold=25 "$instance" >"$box/security" 2>&1 ||
    bad "security with docs/jetson.md's drop-in: $(tail -1 "$box/security")"
rm -r "$instance.d"

# 0 is all shut, 100 all open. Of what is open most is the network and the GPU.
systemd-analyze security --offline=true --threshold=25 "$instance" >"$box/security" 2>&1 || bad "security: $(grep -v '✓' "$box/security")"
sed 's/^ProtectSystem=.*//; s/^CapabilityBoundingSet=.*//; s/^SystemCallFilter=.*//' "$unit" >"$instance"
systemd-analyze security --offline=true --threshold=25 "$instance" >/dev/null 2>&1 && bad "security did not mind an open sandbox"
tail -1 "$box/security"
exit $status
