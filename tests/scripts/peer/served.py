"""`openpi serve` as a child of a script: started on a free port, its lines read as they come, ended by a signal."""
import os
import re
import signal
import subprocess
import threading

WAIT = 60  # seconds that any event may take; a wait ends with its event
START = 600  # the same for what a sanitizer's build makes long: a start, an end


class Server:
    """Ready when it is made. At the end of a `with` it is drained, where the script has not done so."""

    def __init__(self, program, *arguments):
        always = ["--port", "0", "--log-format", "text", "--handshake-timeout", "60"]
        if "--admin" not in arguments:
            always.append("--no-admin")
        self._child = subprocess.Popen([program, "serve", *arguments, *always], stderr=subprocess.PIPE, text=True)
        self._changed, self._lines, self._over = threading.Condition(), [], False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.port = self._port_of("ready on ws")
            self.admin = self._port_of("page and metrics on") if "--admin" in arguments else 0
        except BaseException:
            self._child.kill()
            raise

    def _read(self):
        for line in self._child.stderr:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _port_of(self, part):
        return int(re.search(r":(\d+)$", self.must_say(part, wait=START))[1])

    def _find(self, part):
        return [line for line in self._lines if part in line]

    def must_say(self, part, times=1, wait=WAIT):
        """Waits for so many lines with this part. Returns the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._find(part)) >= times, wait)
            found = self._find(part)
            assert len(found) >= times, f'expected {times} times "{part}" in\n' + "\n".join(self._lines)
            return found[times - 1]

    def signal(self, number):
        os.kill(self._child.pid, number)

    def ends(self):
        """Waits for its end, which must be a good one."""
        status = self._child.wait(START)
        self._reader.join(WAIT)
        assert status == 0, f"the server ended with {status}:\n" + "\n".join(self._lines)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self._child.kill()
            self._child.wait()
        elif self._child.poll() is None:
            self.signal(signal.SIGTERM)
            self.ends()
        self._child.stderr.close()
