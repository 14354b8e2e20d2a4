#!/bin/bash
# labels: release
# A recording of a DROID arm is what the packages mcap and mcap-ros2-support read. RECORDING_PYTHON names an environment that has
# them, and openpi-client; without it the script is skipped. tools/record-golden reads the observations that were sent from it.
set -u
python=${RECORDING_PYTHON:-}
[ -n "$python" ] || { echo "SKIPPED: RECORDING_PYTHON is not set"; exit 77; }
for module in mcap.reader mcap_ros2.decoder openpi_client.websocket_client_policy; do
    "$python" -c "import $module" 2>/dev/null || { echo "SKIPPED: $python cannot import $module"; exit 77; }
done
box=$(mktemp -d) || exit 2
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$box"' EXIT
"$BUILD/openpi" serve --synthetic tiny --robot droid --steps 1 --seed 5 --port 0 --no-admin --log-format text --record "$box/logs" 2>"$box/log" &
server=$!
for _ in $(seq 600); do
    port=$(sed -n 's/.*ready on ws:.*:\([0-9]*\)$/\1/p' "$box/log")
    [ -n "$port" ] && break
    sleep 0.1
done
[ -n "$port" ] || { cat "$box/log"; exit 1; }
"$python" - "$port" <<'EOF' || exit 1
import sys
import numpy
from openpi_client import websocket_client_policy
policy = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]))
numbers = numpy.random.default_rng(1)
for _ in range(3):
    policy.infer({"observation/exterior_image_1_left": numbers.integers(256, size=(180, 320, 3), dtype=numpy.uint8),
                  "observation/wrist_image_left": numbers.integers(256, size=(224, 224, 3), dtype=numpy.uint8),
                  "observation/joint_position": numbers.random(7), "observation/gripper_position": numbers.random(1),
                  "prompt": "pick up the fork"})
EOF
kill "$server"
wait "$server"
server=
found=$("$python" "$(dirname "$0")/recording_peer.py" "$box"/logs/*.mcap) || exit 1
echo "$found"
cameras="('/camera/observation/exterior_image_1_left', 3), ('/camera/observation/wrist_image_left', 3)"
expected="[$cameras, ('/openpi/call', 3), ('/openpi/exact', 3)] [('rgb8', 180, 320), ('rgb8', 224, 224)]"
[ "$found" = "$expected" ] || { echo "expected $expected"; exit 1; }
"$python" - "$SOURCE/tools/record-golden" "$box" "$box"/logs/*.mcap <<'EOF' || exit 1
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import numpy
import golden, observations
numbers = numpy.random.default_rng(1)
sent = [{"observation/exterior_image_1_left": numbers.integers(256, size=(180, 320, 3), dtype=numpy.uint8),
         "observation/wrist_image_left": numbers.integers(256, size=(224, 224, 3), dtype=numpy.uint8),
         "observation/joint_position": numbers.random(7), "observation/gripper_position": numbers.random(1),
         "prompt": "pick up the fork"} for _ in range(3)]
for most, which in ((64, (0, 1, 2)), (2, (0, 1)), (1, (0,))):
    read = observations.read(sys.argv[3], most)
    assert len(read) == len(which), len(read)
    for found, wanted in zip(read, (sent[i] for i in which)):
        assert found.keys() == wanted.keys() and all(numpy.array_equal(found[key], wanted[key]) for key in wanted), found
whole, wrong = open(sys.argv[3], "rb").read(), sys.argv[2] + "/wrong.mcap"
for text, sentence in ((b"no" + whole[2:], "does not begin as an MCAP file does"), (whole[:300], "has no call that was answered")):
    open(wrong, "wb").write(text)
    try:
        observations.read(wrong, 1)
    except golden.Problem as problem:
        assert sentence in str(problem), problem
    else:
        raise AssertionError(sentence)
EOF
"$BUILD/openpi" replay "$box"/logs/*.mcap --synthetic tiny --threads 2 | tail -1 | grep -q "3 calls: 3 equal to the bit"
