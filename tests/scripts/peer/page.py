"""The admin page of `openpi serve` beside robots, in headless Chromium: what the visitor sees is what the server and the robots
say of themselves, and the buttons do what is written on them. Only Python's own modules; Chromium is told what to do by its
DevTools protocol through a pipe.

    page.py CHROMIUM OPENPI OPENPI_HOST GOLDEN BOX     OPENPI_HOST: the command whose device a signal stalls
"""
import base64
import json
import math
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

from served import START, WAIT, Server

CHROMIUM, OPENPI, OPENPI_HOST = sys.argv[1:4]
GOLDEN, BOX = map(pathlib.Path, sys.argv[4:])
HORIZON, DIMS, SIDE = 8, 14, 224
EXECUTED, DELAY = 3, 2


# ---- a robot that asks when it is told to -----------------------------------------------------------------------------------


class Robot:
    """Two arms that ask with a golden's observation, of three cameras or of one, and with real-time chunking."""

    def __init__(self, port, golden, key=""):
        self._plain = (GOLDEN / "policy" / golden / "request.msgpack").read_bytes()
        self._socket = socket.create_connection(("127.0.0.1", port), START)
        head = ["GET / HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        head += ["Sec-WebSocket-Key: " + base64.b64encode(bytes(16)).decode(), "Authorization: Api-Key " + key, "", ""]
        self._socket.sendall("\r\n".join(head).encode())
        self._file = self._socket.makefile("rb")
        answer = self._file.readline()
        assert b" 101 " in answer, answer
        while self._file.readline().strip():
            pass
        self._receive()  # the server's metadata

    def _receive(self):
        first, length = self._file.read(2)
        if length >= 126:
            length = int.from_bytes(self._file.read(2 if length == 126 else 8), "big")
        message = self._file.read(length)
        assert first == 0x82, (first, message)
        return message

    def send(self, told=b""):
        """`told`: an entry in place of real-time chunking's."""
        more = told or b"\xaaopenpi/rtc\x82\xa8executed%c\xa5delay%c" % (EXECUTED, DELAY)
        request = bytes([self._plain[0] + 1]) + self._plain[1:] + more
        self._socket.sendall(b"\x82\xff" + struct.pack(">Q", len(request)) + bytes(4) + request)

    def close(self):
        self._file.close()
        self._socket.close()

    def take(self):
        """The actions of the reply, a list for each step."""
        reply = self._receive()
        size = HORIZON * DIMS * 8
        mark = b"data\xc5" + struct.pack(">H", size)
        begin = reply.index(mark) + len(mark)
        numbers = struct.unpack(f"<{HORIZON * DIMS}d", reply[begin : begin + size])
        return [numbers[i : i + DIMS] for i in range(0, len(numbers), DIMS)]


# ---- the browser ------------------------------------------------------------------------------------------------------------

# Before the page's own script: what the server answers to it, and what the browser minds.
HOOK = """
window.told = {state: null, statuses: [], complaints: []};
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options);
  if (path.startsWith("/state")) {
    told.statuses.push(answer.status);
    if (answer.ok) told.state = await answer.clone().json();
  }
  return answer;
};
addEventListener("securitypolicyviolation", event => told.complaints.push(event.violatedDirective + " " + event.blockedURI));
addEventListener("error", event => told.complaints.push(event.message));
addEventListener("unhandledrejection", event => told.complaints.push(String(event.reason)));
"""


class Page:
    """A tab."""

    def __init__(self):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1200,1600"]
        command = [CHROMIUM, *options, f"--user-data-dir={BOX / 'home'}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command]
        with open(BOX / "browser", "wb") as log:
            self._child = subprocess.Popen(shell, stdout=log, stderr=log, pass_fds=(to_browser, from_browser))
        os.close(to_browser)
        os.close(from_browser)
        self._count, self._bytes, self._session = 0, b"", None
        target = self._call("Target.createTarget", {"url": "about:blank"}, START)["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._call("Page.enable", {})
        self._call("Page.addScriptToEvaluateOnNewDocument", {"source": HOOK})

    def go(self, address):
        self._call("Page.navigate", {"url": address})
        self.must("the page", f"location.href === '{address}' && document.readyState === 'complete'")

    def _call(self, method, parameters, wait=WAIT):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + wait
        while True:
            while b"\0" not in self._bytes:
                ready = select.select([self._in], [], [], max(0, end - time.monotonic()))[0]
                more = os.read(self._in, 1 << 20) if ready else b""
                assert more, f"the browser does not answer {method}: {(BOX / 'browser').read_text()}"
                self._bytes += more
            answer, self._bytes = self._bytes.split(b"\0", 1)
            answer = json.loads(answer)
            if answer.get("id") == self._count:
                assert "result" in answer, answer
                return answer["result"]

    def resize(self, width, height, mobile):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._call("Emulation.setDeviceMetricsOverride", size)

    def ask(self, script):
        """The value of an expression, or of the promise that it makes."""
        parameters = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", parameters)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def must(self, what, script, fits=bool):
        """Waits until the expression has a value that fits, and returns that."""
        end = time.monotonic() + WAIT
        while True:
            value = self.ask(script)
            if fits(value):
                return value
            assert time.monotonic() < end, f"{what}: {value}\n{self.ask('document.body.outerHTML')}"
            time.sleep(0.05)

    def must_be_content(self):
        """Nothing that the page did was an error, or against its own policy (Content-Security-Policy)."""
        complaints = self.ask("told.complaints")
        assert complaints == [], complaints

    def close(self):
        self._child.terminate()
        self._child.wait(WAIT)
        os.close(self._in)
        os.close(self._out)


def text(name):
    return f"document.getElementById('{name}').textContent"


def seen(selector):
    """1 where the element takes space on the page."""
    return f"(box => +(box.width > 0 && box.height > 0))(document.querySelector('{selector}').getBoundingClientRect())"


# ---- what the visitor sees --------------------------------------------------------------------------------------------------


def log_in(page, key):
    enter = "document.getElementById('token').value = '%s'; document.querySelector('#login button').click()"
    page.must("the page asks for a token", f"{seen('#login')} && !{seen('#main')} && told.statuses.length === 1")
    page.ask(enter % "wrong")
    page.must("a wrong token is refused", f"{seen('#login')} && !{seen('#main')} && told.statuses.length === 2")
    assert page.ask("told.statuses") == [401, 401] and page.ask("told.state") is None
    assert page.ask(seen("#unknown")) and page.ask(text("unknown")) == "unknown token"
    page.ask(enter % key)
    page.must("the page is shown", f"{seen('#main')} && !{seen('#login')} && {text('health')} === 'ready'")


def near(shown, value):
    """Numbers of the page have two places, or three digits."""
    return abs(float(shown) - value) <= max(0.0051, 0.0051 * value)


def row_fits(heads, row, robot):
    cell = dict(zip(heads, row))
    calls, _, declared = cell["calls/s"].partition(" of ")
    return (
        cell["robot"].startswith(robot["name"])
        and cell["class"] == robot["class"]
        and abs(float(calls) - robot["rate"]) <= 0.051
        and (float(declared) if declared else 0) == robot["declared"]
        and near(cell["p50 ms"], robot["p50_ms"])
        and near(cell["p99 ms"], robot["p99_ms"])
        and (int(cell["queue"]), int(cell["requests"])) == (robot["queue"], robot["requests"])
        and (robot["rate"] > 0 or robot["name"] == "arm")
        and 0 < robot["p50_ms"] <= robot["p99_ms"]
    )


def robots_have_rows(page):
    """The reserved one comes first, the others as they connected; each row says what /state said."""
    cells = "[...document.querySelectorAll('%s')].map(row => [...row.children].map(cell => cell.textContent))"
    heads = page.ask(cells % "thead tr")[0]

    def fit(value):
        rows, state = value
        robots = sorted((state or {}).get("robots", []), key=lambda robot: (robot["name"] != "arm", robot["id"]))
        return len(rows) == len(robots) == 3 and all(row_fits(heads, *both) for both in zip(rows, robots))

    rows, state = page.must("the robots' rows", f"[{cells % '#robots tr'}, told.state]", fit)
    assert [row[1] for row in rows] == ["reserved", "shared", "shared"], rows
    assert page.ask(seen("#robots tr:last-child")) and page.ask(f"+{text('rate')}") > 0
    return next(robot["id"] for robot in state["robots"] if robot["name"] == "arm")


def pictures_are_shown(page, robot, admin, key):
    """Pixel by pixel those of /picture, which the C tests compare with openpi's own."""
    pixels = """(() => {
        const image = document.getElementById('picture%d');
        if (!image.src.startsWith('blob:') || !image.complete || image.naturalWidth !== 224 || !%s) return null;
        const canvas = Object.assign(document.createElement('canvas'), {width: 224, height: 224}), c = canvas.getContext('2d');
        c.drawImage(image, 0, 0);
        return btoa(Array.from(c.getImageData(0, 0, 224, 224).data, byte => String.fromCharCode(byte)).join(''));
    })()"""
    known = set()
    for slot in range(3):
        shown = base64.b64decode(page.must(f"picture {slot}", pixels % (slot, seen(f"#picture{slot}"))))
        address = f"http://127.0.0.1:{admin}/picture/{robot}/{slot}"
        asked = urllib.request.Request(address, headers={"Authorization": "Bearer " + key})
        with urllib.request.urlopen(asked, timeout=WAIT) as answer:
            picture = answer.read()
        (begin,), (height,) = struct.unpack_from("<I", picture, 10), struct.unpack_from("<i", picture, 22)
        rows = [picture[begin + 3 * SIDE * y :][: 3 * SIDE] for y in range(SIDE)]
        data = b"".join(rows if height < 0 else rows[::-1])
        assert [shown[i::4] for i in range(3)] == [data[2 - i :: 3] for i in range(3)], f"picture {slot} is another one"
        assert len(set(zip(data[::3], data[1::3], data[2::3]))) > 100, f"picture {slot} is empty"
        known.add(data)
    assert len(known) == 3, "two cameras have one picture"


def chunk_is_plotted(page, before, last):
    """A plot for each action: the new chunk from its first step on, what was left of the one before, the delay, the state."""
    shapes = """[...document.querySelectorAll('#plots svg')].map(svg => {
        const points = name => [...svg.querySelectorAll('polyline.' + name)].map(line => [...line.points].map(p => [p.x, p.y]));
        const drawn = [...svg.querySelectorAll('polyline')].every(line => getComputedStyle(line).stroke !== 'none');
        const box = svg.getBoundingClientRect(), lag = svg.querySelector('rect.lag');
        const start = svg.querySelector('path.start'), at = start && start.getPointAtLength(0);
        return {fresh: points('new'), old: points('old'), lag: lag && lag.width.baseVal.value,
                start: at && [at.x, at.y],
                seen: drawn && box.width > 0 && box.height > 0};
    })"""
    said = f"{text('chunk')}.includes('from step {EXECUTED} of') && {text('chunk')}.includes('delay of {DELAY} ')"
    page.must("what the chunk is", said)
    starts, state = page.ask("[told.state.watch.last.starts, told.state.watch.state]")
    assert all(math.isclose(*both, rel_tol=1e-3) for i, both in enumerate(zip(starts, state)) if i % 7 != 6), (starts, state)
    wanted = []
    for k in range(DIMS):
        fresh, left = [step[k] for step in last], [step[k] for step in before[EXECUTED:]]
        low, high = min(fresh + left + [starts[k]]), max(fresh + left + [starts[k]])
        lines = (fresh, left, [starts[k]])
        wanted.append([[(x, 95 - 90 * (value - low) / (high - low)) for x, value in enumerate(line)] for line in lines])

    def is_drawn(lines, points):
        if len(lines) != 1 or len(lines[0]) != len(points):
            return False
        return all(math.dist(*both) < 0.01 for both in zip(lines[0], points))

    def fit(plots):
        return len(plots) == DIMS and all(
            is_drawn(plot["fresh"], fresh) and is_drawn(plot["old"], old) and plot["lag"] == DELAY and plot["seen"]
            and plot["start"] and math.dist(plot["start"], *start) < 0.01
            for plot, (fresh, old, start) in zip(plots, wanted)
        )

    page.must(f"a plot for each action, expected {wanted}", shapes, fit)


# A runner's: it was held for 250 ms, at last because no chunk had come.
HELD = b"\xadopenpi/runner\x83\xa8executed%c\xa7held_ms\xcc\xfa\xa6reason\xaano_actions" % EXECUTED
LEAST, MOST = -2.0, 0.01


def minute_is_shown(page, first, second):
    """Actions against their limits, what the limits did, why the robot was held, where chunks meet. Of the first
    chunk EXECUTED rows were executed, of the second none is known."""
    must = f"{seen('#minute')} && told.state.watch?.trail?.held_ms.some(Boolean) && told.state.watch.trail.low.some(Boolean)"
    page.must("the last minute", must)
    said = page.must("what it comes to", text("summary"), lambda said: "2 chunks" in said and "held for 0.3 s" in said)
    trail = page.ask("told.state.watch.trail")
    assert sum(trail["limited"]) > 0 and f"{sum(trail['limited'])} numbers changed by limits" in said, (said, trail["limited"])
    rows = page.ask("[...document.querySelectorAll('#events li')].map(row => row.textContent).join(' | ')")
    assert "held for 250 ms: the next chunk is late" in rows and "limits changed" in rows, rows
    plots = page.ask("""[...document.querySelectorAll('#minutes svg')].map(svg => {
        const box = svg.getBoundingClientRect(), of = name => [...svg.querySelectorAll('path.' + name)].map(p => p.getBBox());
        const y = boxes => boxes.map(b => [b.y, b.y + b.height]);
        return {band: y(of('band')), edge: y(of('edge')), seams: of('seam').length, wide: box.width, high: box.height,
                words: svg.parentElement.textContent};
    })""")
    assert len(plots) == DIMS, plots
    shown = [second for second, row in enumerate(trail["low"]) if row]
    for k, plot in enumerate(plots):
        sent = [step[k] for step in first[:EXECUTED]]
        least, most = min(trail["low"][i][k] for i in shown), max(trail["high"][i][k] for i in shown)
        assert math.isclose(least, min(sent), abs_tol=1e-3) and math.isclose(most, max(sent), abs_tol=1e-3), (k, sent, least, most)
        low, high = min(least, LEAST), max(most, MOST)
        place = lambda value: 78 - 74 * (value - low) / (high - low)
        edges = sorted(edge[0] for edge in plot["edge"])
        assert len(edges) == 2 and math.isclose(edges[0], place(MOST), abs_tol=0.1), (k, edges, place(MOST))
        assert math.isclose(edges[1], place(LEAST), abs_tol=0.1), (k, edges)
        (top, bottom), = plot["band"]
        assert math.isclose(top, place(most) - 0.8, abs_tol=0.1) and math.isclose(bottom, place(least) + 0.8, abs_tol=0.1), (k, plot)
        assert top >= edges[0] - 0.9, f"action {k} is above its limit: {plot}"
        jump = abs(second[0][k] - first[EXECUTED][k])
        met = max(row[k] for row in trail["seam"] if row)
        assert math.isclose(met, jump, abs_tol=1e-3) and plot["seams"] == (met > 0), (k, met, jump, plot)
        assert plot["wide"] > 100 and plot["high"] > 50 and f"limits {LEAST:g} … {MOST:g}" in plot["words"], plot
    assert "tells which rows it executed" in page.ask(text("known")) and "clamp" in page.ask(text("known"))


# ---- what the visitor does --------------------------------------------------------------------------------------------------

# Both presses in one turn of the browser: the question that the first one asks is withdrawn after some seconds.
PRESS = """(button => {
    button.click();
    const asks = button.textContent;
    button.click();
    return [asks, button.textContent];
})(document.getElementById('%s'))"""


def reload_button(page, server):
    assert page.ask(PRESS % "reload") == ["Load the model again?", "Reload"]
    page.must("the reload's outcome", text("said"), lambda said: said.startswith("reloaded at "))
    assert page.ask(seen("#said"))
    server.must_say("reloaded: ")


def drain_button(page, server, robot):
    server.signal(signal.SIGUSR1)  # the device stands still, and so the drain waits for this call
    robot.send()
    page.must("the call waits", "told.state?.robots.length === 1 && told.state.robots[0].queue === 1")
    assert page.ask(PRESS % "drain") == ["Stop the server?", "Drain"]
    page.must("the drain's answer", text("said"), lambda said: said == "draining")
    page.must("the page says so", f"{text('health')} === 'draining' && document.getElementById('drain').disabled")
    server.must_say("draining: ")
    server.signal(signal.SIGUSR2)
    server.ends()
    page.must("the server has stopped", f"{text('health')} === 'stopped'")


# ---- all of it --------------------------------------------------------------------------------------------------------------


def new_token(name, *options):
    """The key; its line is in the file of tokens."""
    command = [OPENPI, "serve", "--new-token", name, *options]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    with open(BOX / "tokens", "a", encoding="utf-8") as tokens:
        # A hundredth of the rate: a call may take a second here, and what is reserved has to fit beside it.
        tokens.write(made.stdout.replace(" reserved 1 ", " reserved 0.01 "))
    return made.stderr.split(": ")[-1].strip()


ARGUMENTS = ["--synthetic", "tiny", "--robot", "aloha", "--threads", "2", "--steps", "1", "--horizon", str(HORIZON)]
for wait in ("message-timeout", "reply-timeout", "ping-interval", "drain"):
    ARGUMENTS += ["--" + wait, "3600"]


def beside_robots(page, server, arm, key):
    page.go(f"http://127.0.0.1:{server.admin}/")
    log_in(page, key)
    number = robots_have_rows(page)
    page.ask(f"document.querySelector('#robots tr[data-id=\"{number}\"]').click()")
    page.must("the robot's name", f"{seen('#watch')} && {text('who')} === 'arm' && told.state.watch?.id === {number}")
    chunks = []
    for _ in range(2):
        arm.send()
        chunks.append(arm.take())
    chunk_is_plotted(page, *chunks)
    pictures_are_shown(page, number, server.admin, key)
    reload_button(page, server)
    page.must_be_content()


def with_tokens(page):
    """An admin port that other machines reach, so it asks for a token."""
    arm_key, bench_key = new_token("arm", "--class", "reserved", "--rate", "1"), new_token("bench")
    key = new_token("me", "--class", "admin")
    tokens = ("--tokens", BOX / "tokens", "--admin", "0.0.0.0:0", "--trust-network")
    with Server(OPENPI, *ARGUMENTS, *tokens) as server:
        arm = Robot(server.port, "aloha_pi05", arm_key)
        arm.send()
        arm.take()
        options = ["--robots", "2", "--rate", "4", "--seconds", "3600", "--api-key", bench_key]
        command = [OPENPI, "bench", "--server", f"ws://127.0.0.1:{server.port}", *options]
        bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            beside_robots(page, server, arm, key)
        finally:
            bench.kill()
            bench.wait()
            arm.close()


def on_loopback(page):
    with Server(OPENPI_HOST, *ARGUMENTS, "--device", "host:0", "--admin", "127.0.0.1:0") as server:
        robot = Robot(server.port, "aloha_sim")
        page.go(f"http://127.0.0.1:{server.admin}/")
        drain_button(page, server, robot)
        page.must_be_content()
        robot.close()


def on_a_phone(page):
    """A robot with limits, whose runner tells of its holds; nothing of the page is wider than the phone."""
    limits = {"min": [LEAST] * DIMS, "max": [MOST] * DIMS, "on_violation": "clamp"}
    (BOX / "limited.json").write_text(json.dumps({"like": "aloha", "limits": limits}))
    arguments = [str(BOX / "limited.json") if word == "aloha" else word for word in ARGUMENTS]
    page.resize(390, 844, True)
    with Server(OPENPI, *arguments, "--admin", "127.0.0.1:0") as server:
        robot = Robot(server.port, "aloha_sim")
        page.go(f"http://127.0.0.1:{server.admin}/")
        page.must("the robot's row", "document.querySelectorAll('#robots tr').length === 1")
        page.ask("document.querySelector('#robots tr').click()")
        chunks = []
        for told in (b"", HELD):
            robot.send(told)
            chunks.append(robot.take())
        minute_is_shown(page, *chunks)
        assert page.ask("document.documentElement.scrollWidth") <= 390
        page.must_be_content()
        robot.close()
    page.resize(1200, 1600, False)


visitor = Page()
try:
    with_tokens(visitor)
    on_a_phone(visitor)
    on_loopback(visitor)
finally:
    visitor.close()
print("the page shows three robots, the pictures and chunks of one, the last minute of another, and does what its buttons say")
