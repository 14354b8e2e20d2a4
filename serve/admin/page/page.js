// The admin page of openpi serve: asks for /state once a second and draws it. What the server sends becomes
// text of the page, never markup.
"use strict";

const PERIOD_MS = 1000;
const WINDOW_MS = 10000;         // rates and means are of the last ten seconds
const STAGES = ["receive", "turn", "prepare_wait", "prepare", "queue", "run", "send"];
const STAGE_TEXT = {
  receive: "receiving", turn: "waiting for its turn", prepare_wait: "waiting for a thread",
  prepare: "preparing", queue: "waiting for the device", run: "computing", send: "sending",
};
const SVG = "http://www.w3.org/2000/svg";

const at = id => document.getElementById(id);
let history = [];                // states of the last WINDOW_MS, oldest first
let chosen = 0;                  // id of the robot that is shown; 0: none
let shownPictures = "", shownChunk = "", shownSend = "";
let drains = false;              // the last answer said so: who is silent then has stopped

// ---- asking ----------------------------------------------------------------------------------------

function ask(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = token ? {Authorization: "Bearer " + token} : {};
  return fetch(path, {cache: "no-store", headers, ...options});
}

async function poll() {
  let wait = PERIOD_MS;
  try {
    const answer = await ask(chosen ? "/state/" + chosen : "/state");
    if (answer.status === 401) {
      login();
      return;
    }
    if (answer.ok) show(await answer.json());
    else sayHealth("error " + answer.status, "away");
  } catch {
    if (drains) sayHealth("stopped", "stopped");
    else sayHealth("no answer", "away");
    history = [];
    wait = 2 * PERIOD_MS;
  }
  setTimeout(poll, document.hidden ? 5 * PERIOD_MS : wait);
}

// The visitor's answer goes on with the polling.
function login() {
  sayHealth("token", "away");
  text("about", "a token is needed");
  at("login").hidden = false;
  at("notes").hidden = true;
  at("unknown").hidden = !sessionStorage.getItem("token");
  at("main").hidden = true;
  at("token").focus();
}

// ---- numbers ---------------------------------------------------------------------------------------

const text = (id, value) => { at(id).textContent = value; };
const ms = value => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
const sum = object => Object.values(object).reduce((a, b) => a + b, 0);

function duration(seconds) {
  const s = Math.floor(seconds), parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => s >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2)
    .map(([size, name], i) => Math.floor((i ? s % parts[first][0] : s) / size) + " " + name).join(" ");
}

// Milliseconds of a total in the window, for each that was counted in it; 0: none was.
function mean(now, then) {
  const count = now.count - (then ? then.count : 0);
  return count > 0 ? (now.ms - (then ? then.ms : 0)) / count : 0;
}

function remember(state) {
  const last = history[history.length - 1];
  if (last && last.up_seconds > state.up_seconds) history = [];        // another server
  history.push(state);
  while (history.length > 2 && state.now_ms - history[1].now_ms >= WINDOW_MS) history.shift();
  return history[0] === state ? null : history[0];
}

// ---- parts of the page -----------------------------------------------------------------------------

function sayHealth(words, kind) {
  text("health", words);
  at("health").className = "pill " + kind;
}

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function showTiles(state, then) {
  const passed = then ? (state.now_ms - then.now_ms) / 1000 : state.up_seconds;
  const answered = s => sum(s.requests.shared) + sum(s.requests.reserved);
  const both = name => state.requests.shared[name] + state.requests.reserved[name];
  text("rate", (Math.max(0, answered(state) - (then ? answered(then) : 0)) / Math.max(passed, .001)).toFixed(1));
  const bad = ["refused", "late", "failed", "stopped", "gone"].filter(both).map(name => `${both(name)} ${name}`);
  text("results", [`${both("ok")} answered`, ...bad].join(", "));
  const {p50_ms, p99_ms, seconds: span} = state.recent;
  text("mean", p50_ms ? ms(p50_ms) : "–");
  text("percentiles", p50_ms ? `p50; p99 ${ms(p99_ms)} ms, of the last ${span} s` : `none in the last ${span} s`);
  text("connections", state.connections);
  text("reserved", `${state.reserved} of ${+state.reservable.toPrecision(3)} calls/s reserved`);
  text("waiting", sum(state.queue));
  text("queues", `reserved ${state.queue.reserved}, shared ${state.queue.shared}`);
  at("devices").replaceChildren(...state.devices.map((device, i) => {
    const busy = (device.busy_ms - (then ? then.devices[i].busy_ms : 0)) / Math.max(1, passed * 1000);
    const share = Math.min(1, Math.max(0, busy));
    return element("div", {className: "device"}, [
      element("span", {textContent: device.name}), element("span", {textContent: Math.round(100 * share) + " %"}),
      element("meter", {value: share, max: 1, low: .7, high: .9, optimum: 0}),
      element("small", {textContent: device.card})]);
  }));
}

function showStages(state, then) {
  const means = state.stages.map((stage, i) => mean(stage, then && then.stages[i]));
  const bar = at("bar"), list = at("stages");
  if (!bar.children.length) {
    bar.append(...STAGES.map((_, i) => element("div", {className: "s" + i})));
    list.append(...state.stages.map((stage, i) => element("li", {}, [
      element("i", {className: "s" + i}), element("span", {textContent: STAGE_TEXT[stage.name]}), element("b")])));
  }
  means.forEach((value, i) => {
    bar.children[i].style.flexGrow = value;
    bar.children[i].title = `${STAGE_TEXT[state.stages[i].name]}: ${ms(value)} ms`;
    list.children[i].lastChild.textContent = ms(value) + " ms";
  });
}

// Bars of requests, and a line of their p99; each has its own scale, which the corners say.
function showHistory(state) {
  const {answered, bad, p99_ms} = state.history, count = answered.length;
  const most = Math.max(1, ...answered.map((n, i) => n + bad[i])), slowest = Math.max(...p99_ms);
  const svg = shape("svg", {viewBox: `0 0 ${count} 100`, preserveAspectRatio: "none"});
  const bar = (i, from, to, name) => shape("rect", {x: i + .1, width: .8, y: 100 - 95 * to / most,
    height: 95 * (to - from) / most, class: name});
  answered.forEach((n, i) => {
    if (n) svg.append(bar(i, 0, n, "ok"));
    if (bad[i]) svg.append(bar(i, n, n + bad[i], "bad"));
  });
  let run = [];
  const draw = () => { if (run.length) svg.append(shape("polyline", {class: "slow", points: run.join(" ")})); run = []; };
  p99_ms.forEach((value, i) => {
    if (!value) draw();
    else run.push(`${i},${100 - 95 * value / slowest}`, `${i + 1},${100 - 95 * value / slowest}`);
  });
  draw();
  at("history").replaceChildren(
    element("p", {}, [element("span", {textContent: `up to ${most} a second`}),
      element("span", {textContent: slowest ? `p99 up to ${ms(slowest)} ms` : ""})]), svg,
    element("p", {}, [element("span", {textContent: `${count} s ago`}), element("span", {textContent: "now"})]));
}

// Which weights robots are served with, where they are no longer the checkpoint's.
function showUpdate(state) {
  const {update} = state.model;
  at("update").hidden = !update;
  text("update", update ? `weights: ${update.name} since ${update.when}, ${update.tensors} tensors` : "");
}

function showNotes(state) {
  at("notes").hidden = !state.notes.length;
  at("notes").replaceChildren(...state.notes.map(note => element("p", {className: note.level}, [
    element("b", {textContent: note.level}), " " + note.text])));
}

function showWarnings(state) {
  at("trouble").hidden = !state.warnings.length;
  at("warnings").replaceChildren(...state.warnings.map(one => {
    const who = [one.robot, one.id && "#" + one.id, one.address].filter(Boolean).join(" · ") || "the server";
    const when = duration(one.seconds_ago) + " ago" + (one.times > 1 ? `, ${one.times} times` : "");
    return element("li", {}, [element("p", {className: "small"}, [
      element("span", {textContent: who}), element("span", {textContent: when})]), element("p", {textContent: one.text})]);
  }));
}

const lasting = (steps, rate) => rate ? +(steps / rate).toPrecision(3) + " s" : steps + " steps";
const unit = name => name ? " " + name : "";

// The client is for this page's machine where the server is on loopback: the robot's needs its own address.
function showSend(state) {
  const {pictures, state: parts, prompt, python} = state.send, {actions} = state;
  const key = JSON.stringify([state.send, actions]);
  if (key === shownSend) return;
  shownSend = key;
  const size = shape => `[${shape.join(", ")}]`;
  const row = (name, about) => element("li", {}, [element("code", {textContent: name}), element("span", {textContent: about})]);
  const labels = actions.names.map((name, i) => (name || "action " + i) + (actions.units[i] ? ` (${actions.units[i]})` : ""));
  at("keys").replaceChildren(
    ...pictures.map(one => row(one.key, `picture, ${one.type} ${size(one.shape)}, ${one.slot.replace("_", " ")}, ${one.required ? "required" : "optional"}`)),
    ...parts.map(one => row(one.key, `state, ${one.type} ${size(one.shape)}, in the robot's units`)),
    row(prompt.key, prompt.required ? "text, required" : `text; where it is absent: “${prompt.default}”`),
    row("→ actions", `${actions.type} ${size(actions.shape)}` + (actions.rate_hz ? `, ${actions.rate_hz} steps a second` : "") +
      `: ${labels.join(", ")}`));
  text("client", python);
}

function robotRow(robot) {
  const name = robot.name || "robot " + robot.id;
  const cells = [
    element("td", {}, [name, element("small", {textContent: `#${robot.id} · ${robot.address}`})]),
    element("td", {}, [element("span", {className: "class " + robot.class, textContent: robot.class})]),
  ];
  const calls = robot.rate.toFixed(1) + (robot.declared ? " of " + robot.declared : "");
  const numbers = [["calls/s", calls], ["p50 ms", ms(robot.p50_ms)], ["p99 ms", ms(robot.p99_ms)],
    ["queue", robot.queue], ["requests", robot.requests]];
  for (const [head, value] of numbers) {
    const cell = element("td", {className: "n", textContent: value});
    cell.dataset.head = head;
    cells.push(cell);
  }
  const row = element("tr", {tabIndex: 0, className: robot.id === chosen ? "chosen" : ""}, cells);
  row.dataset.id = robot.id;
  return row;
}

function showRobots(state) {
  const focused = document.activeElement && document.activeElement.dataset.id;
  const robots = [...state.robots].sort((a, b) => (b.class === "reserved") - (a.class === "reserved") || a.id - b.id);
  at("robots").replaceChildren(...robots.map(robotRow));
  if (focused) [...at("robots").children].find(row => row.dataset.id === focused)?.focus();
  const hidden = state.connections - robots.length;
  text("more", !state.connections ? "No robot is connected." : hidden > 0 ? `and ${hidden} more` :
    chosen ? "" : "Choose a robot to see what it shows the model.");
}

// ---- the chosen robot ------------------------------------------------------------------------------

async function showPictures(watch) {
  const key = watch.id + "/" + watch.pictures;
  if (key === shownPictures) return;
  shownPictures = key;
  for (let slot = 0; slot < 3; slot++) {
    const image = at("picture" + slot), seen = watch.mask[slot];
    image.parentElement.className = seen ? "" : "masked";
    if (image.src) URL.revokeObjectURL(image.src);
    image.removeAttribute("src");
    if (!seen) continue;
    const answer = await ask(`/picture/${watch.id}/${slot}`);
    if (answer.ok) image.src = URL.createObjectURL(await answer.blob());
  }
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const column = (chunk, dims, k) => chunk.actions.filter((_, i) => i % dims === k).map(x => x ?? NaN);

function line(values, first, scale, name) {
  const points = values.map((value, i) => [first + i, scale(value)]).filter(([x]) => x >= 0);
  return shape("polyline", {class: name, points: points.map(point => point.join(",")).join(" ")});
}

// Step 0 is the new chunk's first; the chunk before it is moved so that the steps of both are under another.
function plot(k, dims, last, before, actions) {
  const fresh = column(last, dims, k), old = before && last.executed >= 0 ? column(before, dims, k) : [];
  const left = old.slice(last.executed), start = last.starts[k] ?? NaN;
  const all = [...fresh, ...left, start].filter(Number.isFinite);
  const low = Math.min(...all), high = Math.max(...all), span = high - low || 1;
  const scale = value => 95 - 90 * (value - low) / span;
  const svg = shape("svg", {viewBox: `0 0 ${Math.max(1, fresh.length - 1)} 100`, preserveAspectRatio: "none"});
  if (last.applied && last.delay) svg.append(shape("rect", {class: "lag", width: last.delay, height: 100}));
  if (left.length) svg.append(line(left, 0, scale, "old"));
  svg.append(line(fresh, 0, scale, "new"));
  // A line without a length, whose round ends keep their shape where the picture is stretched.
  if (Number.isFinite(start)) svg.append(shape("path", {class: "start", d: `M0 ${scale(start)}h0`}));
  return element("div", {}, [element("p", {}, [
    element("span", {textContent: actions.names[k] || "action " + k}),
    element("span", {textContent: `${low.toPrecision(3)} … ${high.toPrecision(3)}${unit(actions.units[k])}`})]), svg,
    element("p", {}, ["0", lasting(fresh.length - 1, actions.rate_hz)].map(x => element("span", {textContent: x})))]);
}

function showChunk(state, watch) {
  const {last, before} = watch, key = watch.id + "/" + watch.replies;
  if (!last) text("chunk", "No reply since you look at it.");
  if (!last || key === shownChunk) {
    if (!last) at("plots").replaceChildren();
    return;
  }
  shownChunk = key;
  const rtc = last.executed < 0 ? "without real-time chunking" : !last.applied ? "nothing to follow on from" :
    `follows on from step ${last.executed} of the one before, computed for a delay of ${last.delay} steps`;
  const {actions} = state, rate = actions.rate_hz;
  const time = rate ? `, ${lasting(state.horizon, rate)} at ${rate} steps a second` : "";
  text("chunk", `${state.horizon} steps${time}, of ${state.action_dim} actions, ${rtc}`);
  text("prompt", watch.prompt + (watch.truncated ? " (longer than the model reads: cut)" : ""));
  text("state", watch.state.length ? watch.state.map(x => +x.toPrecision(4)).join(", ") : "none");
  at("plots").replaceChildren(...Array.from({length: state.action_dim}, (_, k) => plot(k, state.action_dim, last, before, actions)));
}

// ---- its last minute: what the server sent, and what the robot tells of it ------------------------------

const SILENT_MS = 1500;          // so long without a request is worth a line

// What is worth a line in second i.
function happened(trail, i) {
  const why = trail.why.filter((_, reason) => reason && trail.reasons[i] >> reason & 1).join(", ");
  return [
    trail.stopped[i] && `${trail.stopped[i]} chunks not sent: an action is beyond a limit`,
    trail.failed[i] && `${trail.failed[i]} requests refused or failed`,
    trail.limited[i] && `limits changed ${trail.limited[i]} numbers` + (trail.held[i] ? `, ${trail.held[i]} rows repeat the one before` : ""),
    trail.held_ms[i] && `held for ${ms(trail.held_ms[i])} ms` + (why ? ": " + why : ""),
    trail.gap_ms[i] > SILENT_MS && `no request for ${(trail.gap_ms[i] / 1000).toFixed(1)} s`,
  ].filter(Boolean);
}

// Newest first; seconds of the same words are one line.
function lines(trail) {
  const found = [];
  if (trail.silent_ms > SILENT_MS) found.push({from: 0, until: 0, said: `no request for ${(trail.silent_ms / 1000).toFixed(0)} s`});
  for (let i = trail.seconds - 1; i >= 0; i--) {
    const said = happened(trail, i).join("; "), ago = trail.seconds - i, last = found[found.length - 1];
    if (said && last && last.said === said && last.from === ago - 1) last.from = ago;
    else if (said) found.push({from: ago, until: ago, said});
  }
  return found;
}

function showLines(trail) {
  const when = one => !one.from ? "now" : one.from === one.until ? `${one.from} s ago` : `${one.from} to ${one.until} s ago`;
  at("events").replaceChildren(...lines(trail).map(one => element("li", {}, [
    element("p", {className: "small"}, [element("span", {textContent: when(one)})]), element("p", {textContent: one.said})])));
}

function showSummary(trail) {
  const all = name => trail[name].reduce((a, b) => a + b, 0), held = all("held_ms");
  const longest = Math.max(trail.silent_ms, ...trail.gap_ms);
  text("summary", [`${all("answered")} chunks`, `${all("limited")} numbers changed by limits`,
    all("stopped") ? `${all("stopped")} chunks not sent` : "", held ? `held for ${(held / 1000).toFixed(1)} s` : "no hold told",
    longest > SILENT_MS ? `up to ${(longest / 1000).toFixed(1)} s without a request` : ""].filter(Boolean).join(" · "));
}

const box = (x, y, height) => `M${x} ${y}h1v${height}h-1z`;

function showStrip(trail) {
  const most = Math.max(1, ...trail.answered), bars = {ok: "", limit: "", hold: ""};
  const svg = shape("svg", {viewBox: `0 0 ${trail.seconds} 100`, preserveAspectRatio: "none"});
  trail.answered.forEach((count, i) => {
    const height = 90 * count / most;
    if (count) bars[trail.limited[i] || trail.held[i] ? "limit" : "ok"] += box(i, 100 - height, height);
    if (trail.held_ms[i] || trail.stopped[i]) bars.hold += box(i, 0, 100);
  });
  for (const [name, d] of Object.entries(bars)) if (d) svg.append(shape("path", {class: name, d}));
  at("strip").replaceChildren(svg, element("p", {}, [element("span", {textContent: `${trail.seconds} s ago`}),
    element("span", {textContent: `up to ${most} a second`}), element("span", {textContent: "now"})]));
}

function minutePlot(k, trail, {names, units, limits}) {
  const pick = (name, i) => trail[name][i]?.[k], seconds = [...Array(trail.seconds).keys()];
  const edges = limits ? [limits.min[k], limits.max[k]].filter(Number.isFinite) : [];
  const sent = seconds.flatMap(i => trail.low[i] ? [pick("low", i), pick("high", i)] : []);
  const all = [...sent, ...edges], low = Math.min(...all), high = Math.max(...all), span = high - low || 1;
  const scale = value => 78 - 74 * (value - low) / span, jump = Math.max(0, ...seconds.map(i => pick("seam", i) ?? 0));
  const svg = shape("svg", {viewBox: `0 0 ${trail.seconds} 100`, preserveAspectRatio: "none"});
  const path = (name, d) => { if (d) svg.append(shape("path", {class: name, d})); };
  path("band", seconds.map(i => trail.low[i] ? box(i, scale(pick("high", i)) - .8, scale(pick("low", i)) - scale(pick("high", i)) + 1.6) : "").join(""));
  path("seam", seconds.map(i => pick("seam", i) ? box(i, 100 - 16 * pick("seam", i) / jump, 16 * pick("seam", i) / jump) : "").join(""));
  for (const edge of edges) path("edge", `M0 ${scale(edge)}h${trail.seconds}`);
  const range = sent.length ? `${Math.min(...sent).toPrecision(3)} … ${Math.max(...sent).toPrecision(3)}${unit(units[k])}` : "no action";
  const bounds = limits ? `${limits.min[k] ?? "–"} … ${limits.max[k] ?? "–"}` : "none";
  return element("div", {}, [
    element("p", {}, [element("span", {textContent: names[k] || "action " + k}), element("span", {textContent: range})]), svg,
    element("p", {}, [`limits ${bounds}`, `jump ≤ ${jump.toPrecision(2)}`].map(x => element("span", {textContent: x})))]);
}

// What is known and what is not.
function showKnown(trail, {limits, rate_hz}) {
  const told = trail.told.some(Boolean);
  text("known", (told ? "This robot tells which rows it executed; actions are those. " :
    "This robot does not tell what it executed: actions are the rows of each chunk from its first until the next chunk came" +
      (rate_hz ? `, at ${rate_hz} a second. ` : ". ")) +
    "Holds are known from a runner that tells them. " +
    (limits ? `Beyond a limit: ${limits.on_violation}.` : "The robot's file has no limits."));
}

function showMinute(state, watch) {
  const {trail} = watch, {actions} = state;
  if (!trail) {
    text("summary", "No request was answered yet.");
    for (const id of ["strip", "events", "minutes"]) at(id).replaceChildren();
    text("known", "");
    return;
  }
  showSummary(trail);
  showStrip(trail);
  showLines(trail);
  at("minutes").replaceChildren(...Array.from({length: state.action_dim}, (_, k) => minutePlot(k, trail, actions)));
  showKnown(trail, actions);
}

function showWatch(state) {
  const watch = state.watch, robot = state.robots.find(one => one.id === chosen);
  at("watch").hidden = at("minute").hidden = !chosen;
  if (!chosen || !watch || watch.id !== chosen) return;
  if (!watch.open) {
    text("chunk", "This robot has left.");
    text("summary", "This robot has left, and its last minute with it.");
    return;
  }
  const slots = ["base", "left_wrist", "right_wrist"];
  slots.forEach((slot, i) => {
    const camera = state.send.pictures.find(one => one.slot === slot);
    text("camera" + i, slot.replace("_", " ") + (camera ? ": " + camera.key : ""));
  });
  if (robot) for (const id of ["who", "whose"]) text(id, robot.name || "robot " + robot.id);
  showMinute(state, watch);
  showPictures(watch).catch(() => { shownPictures = ""; });
  showChunk(state, watch);
}

function show(state) {
  const then = remember(state);
  sayHealth(state.draining ? "draining" : "ready", state.draining ? "draining" : "ready");
  drains = state.draining;
  at("drain").disabled = state.draining;
  const {checkpoint, variant} = state.model;
  text("about", `${state.robot} · openpi ${state.version} · up ${duration(state.up_seconds)} · ${checkpoint} (${variant})`);
  showUpdate(state);
  showNotes(state);
  showHistory(state);
  showWarnings(state);
  showSend(state);
  showTiles(state, then);
  showStages(state, then);
  showRobots(state);
  showWatch(state);
}

// ---- what the visitor does -------------------------------------------------------------------------

function choose(row) {
  if (!row) return;
  chosen = chosen === +row.dataset.id ? 0 : +row.dataset.id;
  shownPictures = shownChunk = "";
  for (const other of at("robots").children) other.className = +other.dataset.id === chosen ? "chosen" : "";
  at("watch").hidden = at("minute").hidden = !chosen;
}

function say(sentence) {
  text("said", sentence.trim());
  at("said").hidden = false;
}

// Loading takes as long as it takes; the last answer says what became of it.
async function followReload() {
  let said = "reloading";
  while (said.startsWith("reloading")) {
    await new Promise(resume => setTimeout(resume, PERIOD_MS));
    said = await (await ask("/reload")).text();
  }
  say(said);
}

// The first press asks, the second one does it.
function command(button) {
  const word = button.textContent;
  let timer = 0;
  const reset = () => { clearTimeout(timer); timer = 0; button.textContent = word; button.classList.remove("sure"); };
  button.addEventListener("click", async () => {
    if (!timer) {
      button.textContent = button.dataset.ask;
      button.classList.add("sure");
      timer = setTimeout(reset, 4000);
      return;
    }
    reset();
    try {
      const answer = await ask(button.dataset.path, {method: "POST"});
      say(await answer.text());
      if (answer.ok && button === at("drain")) drains = true;
      if (answer.ok && button === at("reload")) await followReload();
    } catch {
      say("the server does not answer");
    }
  });
}

at("robots").addEventListener("click", event => choose(event.target.closest("tr")));
at("robots").addEventListener("keydown", event => { if (event.key === "Enter") choose(event.target.closest("tr")); });
at("login").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
  at("token").value = "";
  at("login").hidden = true;
  at("main").hidden = false;
  poll();
});
at("copy").addEventListener("click", () => {
  const range = document.createRange();
  range.selectNodeContents(at("client"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  navigator.clipboard?.writeText(at("client").textContent).catch(() => {});
});
command(at("drain"));
command(at("reload"));
poll();
