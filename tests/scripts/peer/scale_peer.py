"""Robots before a proxy with two policy servers behind it: spread by the number of connections, moved by a drain, none refused.
Each is answered with actions, and since they all send the same noise, with the same.

    scale_peer.py PORT PID-OF-A LOG-OF-A LOG-OF-B
"""
import os
import signal
import socket
import struct
import sys
import time

PORT, PID, LOGS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:5]
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def packed(value):
    """msgpack of what a request holds."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(packed(key) + packed(item) for key, item in value.items())
    if isinstance(value, tuple):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack("!BH", 0xCD, value)
    if isinstance(value, str):
        return struct.pack("!BB", 0xD9, len(value)) + value.encode()
    return struct.pack("!BI", 0xC6, len(value)) + value


def array(dtype, *shape, data):
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


HORIZON, ACTION_DIM = 10, 14
CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
REQUEST = packed(
    {
        "state": array("<f8", ACTION_DIM, data=bytes(8 * ACTION_DIM)),
        "images": {name: array("|u1", 3, 224, 224, data=bytes(range(256)) * 588) for name in CAMERAS},
        "prompt": "do something",
        "openpi/noise": array("<f4", HORIZON, 32, data=bytes(4 * HORIZON * 32)),
    }
)  # 0.45 MB
BEFORE_ACTIONS = b"\xc4\x04data" + struct.pack("!BH", 0xC5, 8 * HORIZON * ACTION_DIM)


class Robot:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.socket.sendall(UPGRADE.encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            assert byte, f"closed after {head!r}"
            head += byte
        assert head.startswith(b"HTTP/1.1 101 "), head
        opcode, metadata = self.receive()
        assert opcode == 2 and b"openpi_server" in metadata, (opcode, metadata)

    def read(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "closed"
            data += piece
        return data

    def receive(self):
        first, length = self.read(2)
        if length == 126:
            (length,) = struct.unpack("!H", self.read(2))
        return first & 15, self.read(length)

    def ask(self):
        """A request without anything in it, which is answered with a sentence."""
        self.socket.sendall(b"\x82\x81\0\0\0\0\x80")
        opcode, answer = self.receive()
        assert opcode == 1 and answer, (opcode, answer)

    def infer(self):
        """The actions of a whole request, as bytes."""
        self.socket.sendall(struct.pack("!BBQI", 0x82, 0xFF, len(REQUEST), 0) + REQUEST)
        opcode, answer = self.receive()
        assert opcode == 2, (opcode, answer)
        _, found, rest = answer.partition(BEFORE_ACTIONS)
        actions = rest[: 8 * HORIZON * ACTION_DIM]
        assert found and len(set(struct.unpack(f"<{HORIZON * ACTION_DIM}d", actions))) > HORIZON, answer
        return actions


def connected():
    return [open(log, encoding="utf-8").read().count(" connected\n") for log in LOGS]


def status():
    with socket.create_connection(("127.0.0.1", PORT), timeout=60) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return int(plain.makefile("rb").readline().split()[1])


deadline = time.monotonic() + 600
while status() != 200:
    assert time.monotonic() < deadline, "the proxy knows of no server"
    time.sleep(0.1)
robots = [Robot() for _ in range(6)]
for robot in robots:
    robot.ask()
actions = robots[0].infer()
assert all(robot.infer() == actions for robot in robots), "not the same actions for all"
assert connected() == [3, 3], f"not spread by the number of connections: {connected()}"
os.kill(PID, signal.SIGTERM)
while "draining: " not in open(LOGS[0], encoding="utf-8").read():
    assert time.monotonic() < deadline, "the server does not drain"
    time.sleep(0.01)
moved = []
for robot in robots:
    try:
        assert robot.infer() == actions
    except (AssertionError, OSError, ValueError):
        moved.append(robot)
# The robots of B were answered all the time. Those of A were told, and connect again.
moved = [Robot() for _ in moved]
assert all(robot.infer() == actions for robot in moved), "not the same actions after the drain"
assert len(moved) == 3 and connected() == [3, 6], (len(moved), connected())
assert status() == 200
print(f"6 robots with requests of {len(REQUEST)} bytes: 3 and 3; after the drain of one server 6 before the other")
