"""What the peers' scripts share: the options, the workload, the clock, and the JSON that `openpi report` reads.

A peer is another program that runs the same policy. It is imported from the user's own checkout; nothing of it lives here.
A script makes two calls per batch, without arguments: `device` (inputs and outputs resident on the device) and `host` (uint8
pictures, state and tokens in host memory to float actions in host memory). Both return when the actions are there.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import time

CAMERAS = 3
PIXELS = 224
ACTION_DIM = 32
BEGAN = time.perf_counter()
VOCABULARY = 257152


class Refusal(Exception):
    """One sentence for the user; ends with status 2."""


# ---- the options ------------------------------------------------------------------------------------------


def whole(low, high):
    def read(text):
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"is '{text}', expected a whole number from {low} to {high}")
        return int(text)

    return read


def batch_list(text):
    batches = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(batches) < 1 or max(batches) > 1024:
        raise argparse.ArgumentTypeError(f"is '{text}', expected numbers from 1 to 1024 such as 1,2,4")
    return batches


def parser(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--checkout", required=True, metavar="DIR", help="the peer's repository on this machine")
    p.add_argument("--variant", choices=["pi0", "pi05"], default="pi0")
    p.add_argument("--batch", type=batch_list, default=[1], metavar="LIST", help="samples of a call, such as 1,2,4 (default: 1)")
    p.add_argument("--prompt", type=whole(1, 200), default=20, metavar="N", help="prompt tokens (default: 20)")
    p.add_argument("--horizon", type=whole(1, 64), default=10, metavar="N", help="actions of the chunk (default: 10)")
    p.add_argument("--steps", type=whole(1, 100), default=10, metavar="N", help="denoising steps (default: 10)")
    p.add_argument("--seed", type=whole(0, 2**63 - 1), default=0, metavar="N", help="of weights, pictures, tokens, noise (default: 0)")
    p.add_argument("--warmup", type=whole(0, 100000), default=10, metavar="N", help="runs that do not count (default: 10)")
    p.add_argument("--runs", type=whole(1, 100000), default=30, metavar="N", help="runs that count (default: 30)")
    p.add_argument("--device", default="cuda:0", metavar="NAME", help="as PyTorch names it (default: cuda:0)")
    p.add_argument("--json", required=True, metavar="FILE", help="write the figures here")
    return p


def checkout_folder(args, needed):
    """The checkout, which must hold the file `needed`."""
    if not os.path.isdir(args.checkout):
        raise Refusal(f"--checkout {args.checkout}: there is no such folder")
    if not os.path.isfile(os.path.join(args.checkout, needed)):
        raise Refusal(f"--checkout {args.checkout}: holds no {needed}, expected a checkout of the peer's repository")
    return os.path.abspath(args.checkout)


def import_torch(device):
    try:
        import torch
    except ImportError as error:
        raise Refusal(f"PyTorch is missing ({error}), expected this to run in the peer's own environment") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Refusal(f"--device {device}: PyTorch {torch.__version__} sees no GPU here")
    return torch


def revision(folder):
    """What the checkout is, "" where git cannot tell."""
    try:
        done = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                              text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ---- the workload ---------------------------------------------------------------------------------------


class Workload:
    """One call's inputs in host memory: seeded bytes and numbers, the same for every peer."""

    def __init__(self, args, batch):
        draw = random.Random(args.seed)
        self.batch = batch
        self.picture_shape = (batch, PIXELS, PIXELS, 3)
        self.pictures = [bytearray(draw.randbytes(math.prod(self.picture_shape))) for _ in range(CAMERAS)]
        self.tokens = [[draw.randrange(1, VOCABULARY) for _ in range(args.prompt)] for _ in range(batch)]
        self.state = [[draw.uniform(-1, 1) for _ in range(ACTION_DIM)] for _ in range(batch)]
        self.noise = [[[draw.gauss(0, 1) for _ in range(ACTION_DIM)] for _ in range(args.horizon)] for _ in range(batch)]


# ---- the clock ------------------------------------------------------------------------------------------


def percentile(ordered, part):
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def figures(times_ms, batch):
    """As openpi bench has them."""
    ordered = sorted(times_ms)
    mean = sum(ordered) / len(ordered)
    spread = math.sqrt(sum((t - mean) ** 2 for t in ordered) / (len(ordered) - 1)) if len(ordered) > 1 else 0.0
    p50 = percentile(ordered, 0.5)
    return {"p50_ms": p50, "p95_ms": percentile(ordered, 0.95), "p99_ms": percentile(ordered, 0.99), "mean_ms": mean,
            "std_ms": spread, "min_ms": ordered[0], "max_ms": ordered[-1], "hz": 1e3 / p50, "samples_per_s": batch * 1e3 / p50}


def measure(call, wait, args, batch):
    """`wait` returns when the device is done."""
    times = []
    for run in range(args.warmup + args.runs):
        wait()
        start = time.perf_counter()
        call()
        wait()
        if run >= args.warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return figures(times, batch)


# ---- the result -----------------------------------------------------------------------------------------


def run(main):
    """Runs a script: a Refusal is one sentence and status 2."""
    try:
        main()
    except Refusal as refusal:
        print(f"{os.path.basename(sys.argv[0])}: {refusal}", file=sys.stderr)
        sys.exit(2)


def report(args, torch, system, parameters, make_calls, batches):
    """Measures every batch and writes the file. make_calls(workload) -> (device, host)."""
    check_writable(args.json)
    results = []
    on_gpu = args.device.startswith("cuda")
    wait = (lambda: torch.cuda.synchronize()) if on_gpu else (lambda: None)
    ready_s = None
    for batch in batches:
        device_call, host_call = make_calls(Workload(args, batch))
        device_call()                      # compiles, captures
        wait()
        ready_s = time.perf_counter() - BEGAN if ready_s is None else ready_s
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        one = {"batch": batch, "host": measure(host_call, wait, args, batch), "device": measure(device_call, wait, args, batch)}
        if on_gpu:
            one["memory"] = {"device_used_bytes": int(torch.cuda.max_memory_allocated())}
        results.append(one)
        print(f"{system['name']}, batch {batch}: device p50 {one['device']['p50_ms']:.3f} ms, host p50 {one['host']['p50_ms']:.3f} ms")
    head = {
        "kind": "peer", "format": 1, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "system": system,
        "model": {"source": "random weights", "variant": args.variant, "parameters": parameters},
        "machine": {"device": args.device, "hardware": torch.cuda.get_device_name() if on_gpu else "CPU", "dtype": "bf16",
                    "torch": str(torch.__version__)},
        "workload": {"cameras": "1" * CAMERAS, "prompt": args.prompt, "horizon": args.horizon, "steps": args.steps, "seed": args.seed},
        "warmup": args.warmup, "runs": args.runs, "ready_ms": ready_s * 1e3,
    }
    head.update(results[0])
    head["batches"] = results
    try:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(head, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise Refusal(f"{args.json}: cannot be written: {error.strerror}") from None


def check_writable(path):
    """Before minutes of work, not after."""
    there = os.path.exists(path)
    try:
        open(path, "a", encoding="utf-8").close()
    except OSError as error:
        raise Refusal(f"{path}: cannot be written: {error.strerror}") from None
    if not there:
        os.remove(path)
