"""Writes pages with the text of every marked block computed anew from JSON files. tools/figures and tools/gpu-check call it:

    python3 tools/figures.py PROJECT RESULTS FROM TO PAGE...     FROM/PAGE becomes TO/PAGE

    <!-- figure: FILE PATH FORMAT [FACTOR] -->9.60<!-- end -->      one value, anywhere in a line but at its beginning
    <!-- figures: NAME FILE... -->  lines  <!-- end -->             a table or a sentence, see BLOCKS

FILE: a JSON file without ".json", below RESULTS, or below PROJECT where it begins with best/ or tune/. PATH: device.p50_ms;
an entry of a list is named by its index from 0, by its name (stages[vision], climb[fused-qkv]) or as batches[batch=64].
FORMAT: printf's. FACTOR: the value is multiplied by it. What cannot be computed is one sentence on stderr, and status 1.
"""
import functools, json, os, re, sys

tree, results, source, target, *pages = sys.argv[1:]
failed = []


def complain(sentence):
    failed.append(sentence)
    print(f"{page}: {sentence}", file=sys.stderr)


MISSING = object()


class File:
    """A JSON file; every value is its text as it stands there, "null" where there is none."""
    def __init__(self, name):
        path = f"{tree if name.startswith(('best/', 'tune/')) else results}/{name}.json"
        self.name, self.root = name, None
        try:
            with open(path, encoding="utf-8") as text:
                self.root = json.load(text, parse_int=str, parse_float=str, parse_constant=str)
        except (OSError, ValueError):
            complain(f"{path}: missing, or not JSON")

    def find(self, path):
        at = self.root
        for key, entry in re.findall(r"([^.\[]+)(?:\[([^\]]*)\])?", path):
            at = at.get(key, MISSING) if isinstance(at, dict) else MISSING
            if entry and isinstance(at, list):
                member = {"batches": "batch", "stages": "name"}.get(key, "switch")
                named = [e for e in at if entry in (e.get(member), f"{member}={e.get(member)}")]
                at = ((at[int(entry):] if entry.isdigit() else named) or [MISSING])[0]
        return {True: "true", False: "false", None: "null"}[at] if at in (True, False, None) else at

    def entries(self, path):
        return [f"{path}[{i}]." for i in range(len(self.find(path)))] if isinstance(self.find(path), list) else []

    def text(self, path):
        """A value. "null", too, where what holds it is null, or is a rung of a ladder that does not apply."""
        value, above = self.find(path), self.find(path.rpartition(".")[0])
        if isinstance(value, str): return value
        if self.root is not None and above != "null" and not (isinstance(above, dict) and above.get("applies") is False):
            complain(f"{self.name}.json has no {path}")
        return "null"

    def number(self, path, form, factor=1):
        value = self.text(path)
        if value == "null": return "–"
        if re.fullmatch(r"-?[0-9.]+([eE][-+]?[0-9]+)?", value): return form % (float(value) * float(factor))
        complain(f'{self.name}.json: {path} is "{value}", expected a number')
        return form % 0

    def cell(self, word, at=""):
        """What a word stands for: PATH (as it is), PATH:FORMAT, PATH:FORMAT*FACTOR, PATH:%, one of WORDS."""
        path, _, form = word.partition(":")
        form, _, factor = form.partition("*")
        if path in WORDS: return WORDS[path](self)
        if not form: return self.text(at + path)
        return self.number(at + path, "%.1f %%", 100) if form == "%" else self.number(at + path, "%" + form, factor or 1)

    def say(self, text): return re.sub(r"\{(.*?)\}", lambda word: self.cell(word[1]), text)
    def rows(self, path, words): return [[self.cell(word, e) for word in words.split()] for e in self.entries(path)]


def run_name(f):
    """Which run: "π0, 1 camera, horizon 50", only what differs from the published workload."""
    cameras, changing = f.text("workload.cameras").count("1"), f.text("workload.changing_prompts") == "true"
    text = "{variant}"
    if cameras != 3: text += ", " + plural(cameras, "camera")
    if f.text("workload.horizon") != "10": text += ", horizon {workload.horizon}"
    if changing: text += ", {runs} calls of 1 to {workload.prompt} prompt tokens"
    elif f.text("workload.prompt") != "20": text += ", {workload.prompt} prompt tokens"
    if f.text("machine.path") == "portable": text += ", portable kernels"
    if f.text("machine.without"): text += ", without {machine.without}"
    return f.say(text)


WORDS = {"variant": lambda f: "π0.5" if f.text("model.variant") == "pi05" else "π0", "run": run_name,
         "revision": lambda f: f.text("revision")[:12], "date": lambda f: f.text("date")[:10],
         "machine": lambda f: f.say("{machine.hardware}, {machine.path} kernels, {machine.dtype}. "
                                    "openpi {version} at revision {revision}, {date}.")}
load = functools.cache(File)
def plural(count, word): return f"{count} {word}{'' if str(count) == '1' else 's'}"


def table(head, rows):
    return f"| {head} |\n|{'---|' * (head.count(' | ') + 1)}\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def bench(f):
    times = [f"{ms}_ms:.3f" for ms in "mean std min max p50 p95 p99".split()] + ["p99_p50_ratio:.3f", "roof_ratio:%"]
    stages = f.rows("stages", "name p50_ms:.3f floor_ms:.3f tflops:.1f gbs:.1f roof_ratio:% bound")
    return f.say("{variant} on {machine}\n{warmup} warm-up and {runs} measured runs; roofs of the same run: "
                 "{roofs.bf16_tflops:.0f} TFLOP/s, read {roofs.read_gbs:.0f} GB/s.\n\n"
                 + table("ms | mean | std | min | max | p50 | p95 | p99 | p99/p50 | of the roof",
                         [[side, *(f.cell(word, side + ".") for word in times)] for side in ("host", "device")])
                 + "\n" + table("stage | p50 ms | floor ms | TFLOP/s | GB/s | of the roof | bound",
                                [row for row in stages if row[2] != "–"])
                 + "\nMemory asked for: {memory.asked_bytes:.2f*1e-9} GB (weights {memory.weight_bytes:.2f*1e-9}, session "
                 "{memory.session_bytes:.3f*1e-9}). Energy: {energy.inference_j:.2f} J an inference, {energy.average_w:.0f} W.\n")


def rate(f, e, side="device"): return float(f.text(e + "batch")) * 1000 / float(f.text(f"{e}{side}.p50_ms"))


def batches(f):
    rows = f.rows("batches", "batch device.p50_ms:.3f host.p50_ms:.3f")
    rates = [rate(f, e) for e in f.entries("batches")]
    return f.say("{run} on {machine}\n\n") + table(
        "batch | device p50 ms | host p50 ms | ms a sample | samples/s on the device | gain",
        [row + ["%.3f" % (1000 / r), "%.1f" % r, "%.2f" % (r / rates[0])] for row, r in zip(rows, rates)])


def runs(*files):
    """A row a run and batch. Clock, watts and joules are those of back-to-back calls."""
    words = "device.p50_ms:.3f host.p50_ms:.3f energy.core_mhz:.0f energy.average_w:.0f energy.inference_j:.2f"
    return table("what | device p50, ms | samples/s | host p50, ms | samples/s | MHz | W | J an inference", [
        [f"{run_name(f)}, batch {f.text(e + 'batch')}", row[0], "%.1f" % rate(f, e), row[1], "%.1f" % rate(f, e, "host"), *row[2:]]
        for f in files for e, row in zip(f.entries("batches"), f.rows("batches", words))])


def rungs(f, path, sign, words):
    words += " deviation_max:.1e operations nodes weight_bytes:.1f*1e-6 session_bytes:.1f*1e-6"
    for e in f.entries(path):
        foot = f.text(e + "switch") == "null"
        name = "all off" if foot else f"{sign}`{f.text(e + 'switch')}`"
        if f.text(e + "applies") == "false":
            yield [name, f"n/a: {f.text(e + 'reason')}", "| | | | | |"]
            continue
        row = [f.cell(word, e) for word in words.split()]
        if foot: row[1] = "–"
        if row[5] in ("0", "null"): row[5] = "–"
        yield [name, *row]


def ladder(f):
    end = " | deviation | operations | nodes | weights MB | session MB"
    return f.say("{variant} on {machine}\nMedian of {runs} calls from host to host.\n\nFrom all off to all on, "
                 "{foot_ms:.3f} → {top_ms:.3f} ms, {total_ratio:.2f} times:\n\n"
                 + table("rung | ms | gain ms | so far" + end,
                         rungs(f, "climb", "+ ", "p50_ms:.3f gain_ms:.3f total_ratio:.2f"))
                 + "\nAll on but one:\n\n"
                 + table("without | ms | cost ms | slower" + end,
                         rungs(f, "leave_one_out", "", "p50_ms:.3f cost_ms:.3f cost_ratio:.2f"))
                 + "\nDeviation: the largest distance of an action from the last rung's; bound {bound_max:.1e}, "
                 + plural(f.text("failed"), "rung") + " beyond it.\n")


def roof(f):
    return f.say("{machine}\n\n" + table("ceiling | measured", [
        ["multiply, bf16", "{roofs.bf16_tflops:.1f} TFLOP/s"], ["multiply, f32", "{roofs.f32_tflops:.1f} TFLOP/s"],
        ["read", "{roofs.read_gbs:.1f} GB/s"], ["copy, reading and writing counted", "{roofs.copy_gbs:.1f} GB/s"],
        ["core clock while multiplying", "{roofs.core_mhz:.1f} MHz"]]))


def profile(f):
    return f.say("{variant} on {machine}\n\n") + table(
        "stage | launches | ms | share | GFLOP | MB | TFLOP/s | of the roof | floor ms | bound",
        f.rows("stages", "name calls time_us:.3f*1e-3 share_ratio:% gflop:.1f mb:.0f tflops:.1f roof_ratio:% "
               "floor_us:.3f*1e-3 bound"))


def counters(f):
    """What tools/counters says of each kernel."""
    rows = f.rows("kernels", "name ops launches share_ratio:% roof_ratio:% bound sm_ratio:% dram_ratio:% l2_ratio:% "
                  "l1_ratio:% occupancy_ratio:% registers:.0f")
    return f.say("{variant} on {machine}\n\n") + table(
        "kernel | computes | launches | share | of the roof | busiest | multiprocessors | memory | L2 | L1 | occupancy | registers",
        [[f"`{row[0]}`", *row[1:5], row[5].replace("null", "–"), *row[6:]] for row in rows])


def served(f):
    """The rows of tools/serve-check."""
    return table("what | must | measured | holds", f.rows("rows", "what must measured holds"))


def tune(f, rows=10):
    """The shapes where the table's choice wins most, and what the table holds altogether."""
    entries = f.root["entries"]
    def gain(e): return 1 - float(e["time_us"]) / float(e["heuristic_us"])
    def shape(e):
        if "heads" not in e: return " x ".join(e[axis] for axis in "mnk" if axis in e)
        return f"{e['m']}, {e['heads']} heads" + (f", {e['keys']} places" if "keys" in e else "")
    won = sorted((e for e in entries if e.get("confirmed") is True), key=gain, reverse=True)
    return table("operation | rows x outputs x inputs | cameras | heuristic's choice | µs | table's choice | µs | gain", [
        [e["op"], shape(e), e.get("cameras", "any"), f"`{e['heuristic']}`", "%.2f" % float(e["heuristic_us"]),
         f"`{e['choice']}`", "%.2f" % float(e["time_us"]), "%.1f %%" % (100 * gain(e))] for e in won[:int(rows)]
    ]) + (f"\n{plural(len(entries), 'shape')} in all; {len(won)} choices were confirmed in place, "
          "for the others the heuristic's choice stays.\n")


def cards(f):
    words = "name title capability multiprocessors block_kb cache_mb memory_gbs bf16_tflops int8_tops memory_gb watts source"
    return table("`--as` | card | capability | multiprocessors | KB a block | L2, MB | GB/s | bf16, TFLOP/s | int8, TOP/s | GB | W | from",
                 [[f"`{name}`", *more] for name, *more in f.rows("cards", words)])


def stage_times(f, bf16_tflops, read_gbs):
    """Of each stage its floor on such a card, and its time here and floor here."""
    def floor(at, tflops, gbs): return max(float(f.text(at + "flops")) / float(tflops) * 1e-9,
                                           float(f.text(at + "weight_bytes")) / float(gbs) * 1e-6)
    here = f.text("measured.bf16_tflops"), f.text("measured.read_gbs")
    return [(floor(at, bf16_tflops, read_gbs), float(f.text(at + "p50_ms")), floor(at, *here)) for at in f.entries("measured.stages")]


def predicted(f):
    """PREDICTED times of a card: what its floor lacks here comes on top, from; or the share of the roof is kept, to."""
    rows = []
    for at in f.entries("cards"):
        if f.text(at + "capability") == "9.0": continue        # measured
        stages = stage_times(f, f.text(at + "bf16_tflops"), f.text(at + "memory_gbs"))
        ranges = [(there + here - floor, there * here / floor) for there, here, floor in stages]
        total = [sum(r[end] for r in ranges) for end in (0, 1)]
        best = [e["ms"] + (f" ({e['who']})" if e["who"] else " (cameras not known)") for e in f.root["published"]
                if e["card"] == f.text(at + "name") and e["variant"] == "pi0" and e["cameras"] in ("0", "3")]
        rows.append([f.text(at + "title"), *("%.1f – %.1f" % tuple(sorted(r)) for r in [*ranges, total]), "; ".join(best) or "–"])
    return table("card | PREDICTED vision, ms | PREDICTED prefix, ms | PREDICTED denoise, ms | PREDICTED call, ms | published, ms", rows)


def published(f):
    return table("card | variant | cameras | ms | who | where", [
        [e["card"], "π0.5" if e["variant"] == "pi05" else "π0", e["cameras"] if e["cameras"] != "0" else "not known",
         e["ms"], e["who"] or "–", e["source"]] for e in f.root["published"]])


BLOCKS = {"bench": bench, "batches": batches, "results": runs, "ladder": ladder, "roof": roof, "profile": profile,
          "counters": counters, "served": served, "tune": tune, "cards": cards, "predicted": predicted, "published": published}


def block(name, *files):
    if not files: complain(f'a block "figures: {name}" names no file')
    elif name not in BLOCKS: complain(f'there is no block "figures: {name}"')
    elif all([load(file).root is not None for file in files[:1 if name == "tune" else None]]):
        try:
            return tune(load(files[0]), *files[1:2]) if name == "tune" else BLOCKS[name](*map(load, files))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            complain(f'"figures: {" ".join((name, *files))}" has a value that cannot be computed with: {error!r}')
    return ""


def rewrite(text):
    out, at = [], 0
    for mark in re.finditer(r"<!-- (figures?): (.*?) -->", text):
        kind, parts, end = mark[1], mark[2].split(), text.find("<!-- end -->", mark.end())
        if kind == "figure" and text[:mark.start()][-1:] in ("", "\n"): complain(f'a line begins with "{mark[0]}"')
        if end < 0 or re.search("<!-- figures?: ", text[mark.end():end]):
            complain(f'"{mark[0]}" has no "<!-- end -->"')
            break
        out.append(text[at:mark.end()])
        if kind == "figures": out.append("\n" + block(*parts))
        elif len(parts) in (3, 4): out.append(load(parts[0]).number(*parts[1:]))
        else: complain(f'"{mark[0]}": expected FILE PATH FORMAT [FACTOR]')
        at = end
    return "".join(out) + text[at:]


for page in pages:
    load.cache_clear()      # so that each page that wants a file which is missing says so
    with open(f"{source}/{page}", encoding="utf-8") as old: text = rewrite(old.read())
    os.makedirs(os.path.dirname(f"{target}/{page}"), exist_ok=True)
    with open(f"{target}/{page}", "w", encoding="utf-8") as new: new.write(text)
sys.exit(bool(failed))
