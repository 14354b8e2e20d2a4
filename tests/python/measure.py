"""What Python adds to a call, measured: python tests/python/measure.py [--calls N] [--only NAME]...

    overhead   Policy.infer minus the engine's own total of the same call (µs): three pictures of 224², three of 720p
    progress   how fast another thread of Python is while calls run, in parts of its speed alone; the engine has one
               thread, and each of the two is pinned to a processor of its own where there are two
    import     processor time of `import openpi_c` beyond that of numpy (ms), in fresh processes
    memory     growth of the resident memory over the calls (KiB)

On a machine with other work only the smallest numbers mean something: the load is printed, each line has quartiles, and
that of `overhead` the 10th percentile too.
The model is the tiny one. No test asks for these numbers.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

import openpi_c

PR_SET_THP_DISABLE = 41                  # linux/prctl.h
MODEL = {"synthetic": "tiny:pi0:7", "device": "cpu"}
GOALS = {"224": 60, "720p": 100}
SIZES = {"224": (224, 224), "720p": (720, 1280)}


def observation(size):
    picture = np.random.default_rng(1).integers(0, 256, (*SIZES[size], 3), np.uint8)
    return {
        "base": picture, "left_wrist": picture.copy(), "right_wrist": picture.copy(),
        "state": np.zeros(32), "prompt": "pick up the fork",
    }


def policy(**options):
    return openpi_c.Policy(**MODEL, robot="none", horizon=10, progress=None, **options)


def overhead(calls):
    with policy() as under_test:
        for size, goal in GOALS.items():
            obs, added, totals = observation(size), [], []
            for call in range(calls + 20):
                answer = None            # an answer is freed here, not while the next call is timed
                start = time.perf_counter()
                answer = under_test.infer(obs)
                taken = (time.perf_counter() - start) * 1e6
                total = answer["policy_timing"]["total_ms"] * 1e3
                if call >= 20:
                    added.append(taken - total)
                    totals.append(total)
            tenth, (low, middle, high) = statistics.quantiles(added, n=10)[0], statistics.quantiles(added, n=4)
            print(f"overhead, three pictures of {size}: p10 {tenth:.0f}, p25 {low:.0f}, p50 {middle:.0f}, p75 {high:.0f} µs "
                  f"(p50 of at most {goal} wanted); "
                  f"the engine's own total: p50 {statistics.median(totals):.0f} µs")


def counted(seconds, until=None):
    """Steps of a Python loop per second."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds if until is None else not until.is_set():
        for _ in range(1000):
            steps += 1
    return steps / (time.perf_counter() - start)


def progress(calls):
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[0]})     # this thread, and no other
    done = threading.Event()

    def work():
        os.sched_setaffinity(0, {processors[-1]})
        with policy(threads=1) as other:
            obs = observation("224")
            ready.set()
            go.wait()
            for _ in range(rounds):
                other.infer(obs)
        done.set()

    parts = []
    rounds = max(5, calls // 20)
    for _ in range(7):
        ready, go = threading.Event(), threading.Event()
        done.clear()
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        alone = counted(0.5)
        go.set()
        parts.append(counted(None, done) / alone)
        thread.join()
    os.sched_setaffinity(0, processors)
    low, middle, high = statistics.quantiles(parts, n=4)
    where = "a processor each" if len(processors) > 1 else "one processor for both"
    print(f"progress of another thread ({where}, threads=1): p25 {low:.0%}, p50 {middle:.0%}, p75 {high:.0%} of alone (at least 70 % wanted)")


def imports(_):
    def cost(statement):
        program = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
        return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout) * 1e3

    added = []
    for _ in range(25):
        without = cost("import numpy")
        added.append(cost("import numpy, openpi_c") - without)
    low, middle, high = statistics.quantiles(added, n=4)
    print(f"import beyond numpy: p25 {low:.1f}, p50 {middle:.1f}, p75 {high:.1f} ms of processor time (at most 30 wanted)")


def resident_kib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def memory(calls):
    # Where the kernel joins pages to a huge one, 511 that nobody has touched become resident: that is no growth.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    obs = observation("224")
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", horizon=2, steps=1, progress=None) as small:
        for _ in range(100):
            small.infer(obs)
        before = resident_kib()
        for _ in range(10 * calls):
            small.infer(obs)
        print(f"resident memory after {10 * calls} calls more: {resident_kib() - before:+} KiB (at most 1024 wanted)")


MEASURES = {"overhead": overhead, "progress": progress, "import": imports, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--only", action="append", choices=MEASURES, default=[])
    for name, default in MODEL.items():
        parser.add_argument(f"--{name}", default=default)
    options = parser.parse_args()
    MODEL.update((name, getattr(options, name)) for name in MODEL)
    for name in options.only or MEASURES:
        MEASURES[name](options.calls)
        print(f"    load: {' '.join(f'{load:.1f}' for load in os.getloadavg())}, {len(os.sched_getaffinity(0))} processors", flush=True)


if __name__ == "__main__":
    main()
