#!/bin/bash
# examples/cameras.c: JPEG files stand in for devices; made-up V4L2 devices (fake_camera.c) must give the actions of the same
# pictures as files, and every failure its sentence. CAMERAS, FAKED: the example, and over such devices. Where the kernel has
# v4l2loopback, LOOPBACK names its device.
set -u
[ -x "${CAMERAS:-}" ] || { echo "SKIPPED: no cameras"; exit 77; }
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
status=0

bad() { echo "FAILED: $*"; status=1; }
ask() { timeout 120 "$@" --steps 1 >"$box/out" 2>"$box/said"; }

# PROGRAM ROBOT CAMERA…: the actions, without names, sizes and time
actions() {
    local program=$1
    shift
    ask "$program" tiny "$@" || bad "$*: $(cat "$box/said")"
    sed 's/.*ms: //' "$box/out"
}

# PART PROGRAM WORD…: it refuses with one sentence that has this part
refused() {
    local part=$1
    shift
    ask "$@" && bad "$*: was not refused"
    [ "$(wc -l <"$box/said")" = 1 ] && grep -qF -- "$part" "$box/said" || bad "$*: expected \"$part\", it says: $(cat "$box/said")"
}

pictures=$SOURCE/tests/pictures
front=observation/exterior_image_1_left wrist=observation/wrist_image_left
mkdir "$box"/{frames,empty}
JPEG=$pictures/full.jpg OTHER=$pictures/gray.jpg
cp "$JPEG" "$box/frames/1.jpg" && cp "$OTHER" "$box/frames/2.JPEG" && cp "$pictures/rgb.png" "$box/frames/3.png"
head -c $(($(stat -c %s "$JPEG") - 60)) "$JPEG" >"$box/cut.jpg"
# 32x24, white.
base64 -d <<'END' | gunzip >"$box/white.jpg"
H4sIACl9C2sCA/t/4/8DBgEvN083BkZGBgZGIGT4f5vBmUGAm4ePh0uAj5dPSFBAWEJDSkJMTMJQWVVWw8rY1sbS2MLcwSPG
z8El3NXcIiA3MDw+KT0j3c63sLIgpSImNT35/wEGbg4GCQYFRkZBhv9HGOSBhrMyggEDFDAyMbOwsrFzcHJxAxVsFWBgYmRm
ZmJhZmVlYQHK1gLlGVgEWYUUDR3ZhAMT2ZUKRYwaJy7kUHbaeFA06OIHFeOkoiZOLjFxCUkpVTV1DU0tE1MzcwtLK2cXVzd3
D0+v4JDQsPCIyKjklNS09IzMrOKS0rLyisqq5pbWtvaOzq5Jk6dMnTZ9xsxZixYvWbps+YqVqzZt3rJ12/YdO3cdOnzk6LHj
J06eunT5ytVr12/cvPXw0eMnT589f/Hy1cdPn798/fb9x89f/28xcID8Y8/whUtjURcY7f9/EwCrthAYVQEAAA==
END

# A folder's files in order, again and again; each call has a noise of its own.
actions "$CAMERAS" none base="$JPEG" --calls 3 >"$box/of-one"
actions "$CAMERAS" none base="$OTHER" --calls 3 >"$box/of-other"
actions "$CAMERAS" none base="$box/frames" --calls 3 >"$box/of-both"
cmp -s "$box/of-one" "$box/of-other" && bad "the picture changes nothing"
cmp <(sed -n 1p "$box/of-one" && sed -n 2p "$box/of-other" && sed -n 3p "$box/of-one") "$box/of-both" || bad "a folder's order"
first=$(head -1 "$box/of-one")
[ -n "$first" ] || bad "no actions"

# The same pictures from devices: one, two, with rows that are farther apart than they are long.
export FAKE_CAMERA=mjpeg FAKE_FRAME=$JPEG
[ "$(actions "$FAKED" none base=/dev/null)" = "$first" ] || bad "MJPEG: $(cat "$box/out")"
[ "$(actions "$FAKED" droid $front=/dev/null $wrist=/dev/null)" = "$(actions "$CAMERAS" droid $front="$JPEG" $wrist="$JPEG")" ] || bad "two cameras"
FAKE_CAMERA=yuyv
[ "$(actions "$FAKED" none base=/dev/null --format yuyv)" = "$(actions "$CAMERAS" none base="$box/white.jpg")" ] || bad "YUYV: $(cat "$box/out")"

refused "offers YUYV in place of MJPG" "$FAKED" tiny none base=/dev/null
FAKE_CAMERA=silent
refused "/dev/null has given no frame in time" "$FAKED" tiny none base=/dev/null --silent 50
FAKE_CAMERA=none
refused "/dev/null is no camera" "$FAKED" tiny none base=/dev/null
FAKE_CAMERA=gone
refused "it was unplugged" "$FAKED" tiny none base=/dev/null
refused "is no camera" "$CAMERAS" tiny none base=/dev/null
refused "there is no /dev/video99, expected a device" "$CAMERAS" tiny none base=/dev/video99
refused "has given no frame in time" "$CAMERAS" tiny none base="$box/empty" --silent 20
refused "is no whole JPEG" "$CAMERAS" tiny none base="$box/cut.jpg"
refused "--silent is soon, expected 1 to 60000" "$CAMERAS" tiny none base="$JPEG" --silent soon
refused "--size is big" "$CAMERAS" tiny none base="$JPEG" --size big
refused "expected mjpeg or yuyv" "$CAMERAS" tiny none base="$JPEG" --format h264
refused "there is no option --speed" "$CAMERAS" tiny none base="$JPEG" --speed 3
refused "expected NAME=DEVICE" "$CAMERAS" tiny droid /dev/video0
refused "one camera too many" "$CAMERAS" tiny droid a=1 b=2 c=3 d=4
refused "up to 32 numbers" "$CAMERAS" tiny none base="$JPEG" --state 1,x
"$CAMERAS" --help | grep -q 'v4l2-ctl --list-devices' || bad "--help does not teach"
"$CAMERAS" 2>/dev/null
[ $? = 2 ] || bad "it took too few words"

if [ -c "${LOOPBACK:-}" ]; then
    ask "$CAMERAS" tiny none base="$LOOPBACK" || bad "$LOOPBACK: $(cat "$box/said")"
else
    echo "without v4l2loopback: LOOPBACK names no device"
fi
exit $status
