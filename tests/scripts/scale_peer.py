"""Robots before a proxy with two policy servers behind it: spread by the number of connections, moved by a drain, none refused.

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
assert connected() == [3, 3], f"not spread by the number of connections: {connected()}"
os.kill(PID, signal.SIGTERM)
while "draining: " not in open(LOGS[0], encoding="utf-8").read():
    assert time.monotonic() < deadline, "the server does not drain"
    time.sleep(0.01)
moved = []
for robot in robots:
    try:
        robot.ask()
    except (AssertionError, OSError, ValueError):
        moved.append(robot)
# The robots of B were answered all the time. Those of A were told, and connect again.
moved = [Robot() for _ in moved]
for robot in moved:
    robot.ask()
assert len(moved) == 3 and connected() == [3, 6], (len(moved), connected())
assert status() == 200
print("6 robots: 3 and 3; after the drain of one server 6 before the other")
