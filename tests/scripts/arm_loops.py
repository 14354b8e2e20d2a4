"""Counts instructions in the inner loops of ARM's products and compares them with the design that the heads of
src/backend/cpu/arm/kernels_neon.c, int8_neon.c, int8_neondot.c and pairs.h state.

    arm_loops.py OBJDUMP OBJECT...
"""
import collections
import re
import subprocess
import sys

KINDS = {"fmla": "fma", "bfmmla": "mma", "smmla": "mma", "sdot": "fma", "zip1": "zip", "zip2": "zip", "shl": "widen", "and": "widen",
         "sxtl": "widen", "sxtl2": "widen", "scvtf": "widen", "smull": "multiply", "smull2": "multiply", "addp": "add", "sadalp": "fma", "dup": "spread",
         "mov": "move", "fmov": "move", "prfm": "fetch"}
MOST_MOVES = 6                             # register to register, of rows that fill no whole block


def loads_of_rows(rows):
    return rows // 4 + (rows % 4) // 2 + rows % 2


def design(kernel, rows):
    """What one turn of the loop has: a k of floats or codes, two of bf16 pairs, four of int8, eight bytes of k for pairs of rows by
    BFMMLA and SMMLA."""
    if kernel in ("mmla", "smmla"):
        width = 8 if rows == 1 else 4 if rows <= 3 else 2
        return {"load": rows + 2 * width, "zip": 2 * width, "mma": 2 * rows * width}
    sums = 20 if kernel == "pair" else 24
    width = 8 if rows * 8 <= sums else 4 if rows * 4 <= sums else 2
    turns = 2 if kernel == "bf16" else 1
    counts = {"load": turns * (width + loads_of_rows(rows)), "fma": turns * rows * width}
    if kernel == "bf16":
        counts["widen"] = 2 * width
    if kernel == "codes":
        counts |= {"load": width // 2 + loads_of_rows(rows), "widen": 5 * width // 2}
    if kernel == "pair":
        counts |= {"multiply": 2 * rows * width, "add": rows * width, "spread": rows}
    return counts


def functions(objdump, path):
    """name: [(address, mnemonic, operands)]"""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:", line)
        code = re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line)
        if head:
            name = head[1]
            found[name] = []
        elif code and name:
            found[name].append((int(code[1], 16), code[2], code[3]))
    return found


def inner_loops(code):
    """Loops without a loop in them: from where a branch leads back to the branch."""
    places = {address for address, _, _ in code}
    spans = []
    for address, name, operands in code:
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if re.match(r"(b|b\..*|cbn?z|tbn?z)$", name) and target and int(target[1], 16) <= address and int(target[1], 16) in places:
            spans.append((int(target[1], 16), address))
    for first, last in spans:
        if not any(span != (first, last) and first <= span[0] and span[1] <= last for span in spans):
            yield [line for line in code if first <= line[0] <= last]


def count(loop):
    counts = collections.Counter()
    for _, name, operands in loop:
        if re.search(r"\bw?sp\b", operands):
            counts["stack"] += 1
        if name.startswith("ld"):
            counts["load"] += 2 if name == "ldp" else 1
        elif name.startswith("st"):
            counts["store"] += 1
        elif name in KINDS and (name not in ("and", "mov") or operands.startswith("v")):
            counts[KINDS[name]] += 1
    return counts


def faults(kernel, rows, counts):
    expected = design(kernel, rows)
    whole = rows == {"mmla": 6, "smmla": 6, "pair": 8}.get(kernel, 12)
    for kind in ("load", "fma", "mma", "zip", "widen", "multiply", "add", "spread", "stack", "store"):
        if counts[kind] != expected.get(kind, 0):
            yield f"{counts[kind]} {kind}, expected {expected.get(kind, 0)}"
    if counts["move"] > (0 if whole else MOST_MOVES):
        yield f"{counts['move']} moves between registers, expected at most {0 if whole else MOST_MOVES}"


def main():
    seen, wrong = collections.Counter(), 0
    for path in sys.argv[2:]:
        for name, code in functions(sys.argv[1], path).items():
            kernel = re.fullmatch(r"(f32|bf16|codes|pair|dot|mmla|smmla)_tile_([0-9]+)", name)
            if not kernel:
                continue
            for loop in inner_loops(code):
                counts = count(loop)
                if not counts["fma"] + counts["mma"]:
                    continue
                seen[kernel[1]] += 1
                found = list(faults(kernel[1], int(kernel[2]), counts))
                wrong += bool(found)
                print(f"{name}: {dict(sorted(counts.items()))}", *(f"FAIL: {fault}" for fault in found), sep="\n  ")
    for kernel, least in (("f32", 12), ("bf16", 12), ("codes", 12), ("pair", 8), ("dot", 12), ("mmla", 6), ("smmla", 6)):
        if seen[kernel] < least:
            wrong += 1
            print(f"FAIL: {seen[kernel]} loops of {kernel}, expected {least} or more")
    sys.exit(1 if wrong else 0)


main()
