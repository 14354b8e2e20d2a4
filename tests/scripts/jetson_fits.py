"""The table of docs/jetson.md that says which model fits where, from the sizes that inspect computes.

    jetson_fits.py OPENPI_HOST PAGE [--write]      status 1 where the page's table is another; --write mends it

OPENPI_HOST is the command over the tests' vendor, whose weights have the layout of a GPU's. Formats that GPUs
do not multiply yet have the processor's size.
"""
import json
import subprocess
import sys

BEGIN, END = "<!-- fits: tests/scripts/jetson_fits.py -->\n", "<!-- fits end -->"
# What Linux sees of a board's memory, in MiB, as tegrastats prints it on boards of others; None: 95 % of the name's GB.
BOARDS = [("Orin 8 GB", 7607, 8), ("Orin 16 GB", 15388, 16), ("Orin 32 GB", 30536, 32), ("Orin 64 GB", 62801, 64),
          ("Thor 128 GB", None, 128), ("Spark 128 GB", None, 128)]
FORMATS = [("bf16", None), ("int8 in `ffn` and `expert`", "expert=int8,ffn=int8"), ("int8", "int8")]
SLOTS = 24 << 20
BARE, DESKTOP = 1.0e9, 2.5e9                # of the system with the driver's context; with a desktop


def rows_of(command, model, weights):
    call = [command, "inspect", "--synthetic", f"full:{model}", "--json"] + (["--weights", weights] if weights else [])
    return json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)["memory"]


def needed(command, model, weights):
    rows = [r for r in rows_of(command, model, weights) if r.get("dtype") == "bf16"]
    on_gpu = next(r for r in rows if r["device"] == "host:0" and "weights" not in r)
    if not weights:
        return on_gpu["weight_bytes"] + on_gpu["session_bytes"] + SLOTS
    kept = next(r for r in rows if r["device"] == "cpu" and "weights" in r)
    return kept["weight_bytes"] + on_gpu["session_bytes"] + SLOTS


def verdict(bytes_, mebibytes, name_gb):
    left = (mebibytes << 20 if mebibytes else name_gb * 0.95e9) - bytes_
    return "yes" if left >= DESKTOP else "without a desktop" if left >= BARE else "no"


def table(command):
    lines = ["| model | weights | needed, GB | " + " | ".join(b[0] for b in BOARDS) + " |",
             "|---|---|---|" + "---|" * len(BOARDS)]
    for model, name in (("pi0", "π0"), ("pi05", "π0.5")):
        for text, weights in FORMATS:
            bytes_ = needed(command, model, weights)
            cells = [verdict(bytes_, b[1], b[2]) for b in BOARDS]
            lines.append(f"| {name} | {text} | {bytes_ / 1e9:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def same(one, other):
    """Whether tables differ in the last digit at most: levels of CPU instructions pad their panels differently."""
    lines = [[[c.strip() for c in line.split("|")] for line in text.splitlines()] for text in (one, other)]
    if len(lines[0]) != len(lines[1]):
        return False
    for a, b in zip(*lines):
        if a != b and (a[:3] + a[4:] != b[:3] + b[4:] or abs(float(a[3]) - float(b[3])) > 0.011):
            return False
    return True


def main():
    command, page = sys.argv[1:3]
    text = open(page, encoding="utf-8").read()
    at = text.index(BEGIN) + len(BEGIN)
    end = text.index(END, at)
    new = table(command)
    if sys.argv[3:] == ["--write"]:
        open(page, "w", encoding="utf-8").write(text[:at] + new + text[end:])
    elif not same(text[at:end], new):
        print(f"{page}: the table of what fits is another than the sizes that are computed:\n{new}")
        return 1
    return 0


sys.exit(main())
