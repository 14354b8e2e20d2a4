"""trace_analyze.py TOOL TRACE: places, bad files and damage, asked of tools/trace-analyze in one process."""
import contextlib
import importlib.machinery
import io
import random
import sys
import types

tool, trace = sys.argv[1:]
loader = importlib.machinery.SourceFileLoader("trace_analyze", tool)
analyze = types.ModuleType(loader.name)
sys.modules[loader.name] = analyze
loader.exec_module(analyze)
wrong = 0


def fail(text):
    global wrong
    wrong += 1
    print("FAILED:", text)


def read(data, calls=0):
    with open("f.json", "wb") as file:
        file.write(data)
    return analyze.Trace("f.json", calls, 10)


def refusal_of(data):
    try:
        made = read(data)
        with contextlib.redirect_stdout(io.StringIO()):
            analyze.put_analysis([made], 20)
        analyze.json.dumps(analyze.file_json(made), ensure_ascii=False).encode()
        return None
    except analyze.Refusal as refusal:
        return str(refusal)


def kernel(**more):
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "pid": 0, "tid": 0, **more}
    return analyze.json.dumps(event).encode()


KINDS = {
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn": "GEMM",
    "triton_mm_kernel": "GEMM",
    "triton_tem_fused_mm_7": "GEMM",
    "Cijk_Alik_Bljk_BBS_BH_MT128x128x64": "GEMM",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
    "softmax_warp_forward": "attention",
    "triton_red_fused_add_mean_mul_pow_rsqrt_2": "norm",
    "vectorized_layer_norm_kernel": "norm",
    "GeluCUDAKernelImpl": "activation",
    "apply_rope": "RoPE",
    "copy_properties": "other",
    "Memcpy DtoD (Device -> Device)": "other",
    "normalize": "other",
    "": "other",
}
STAGES = {"ViT": "ViT", "run_vit_3": "ViT", "SigLIP": "ViT", "embed_prefix": "prefill", "Denoising": "diffusion",
          "action_expert": "diffusion", "activity": "other", "ProfilerStep#3": "other", "": "other"}
BAD = (
    (b"", "f.json: is no JSON in line 1, column 1, expected a trace: {\"traceEvents\": […]} or […]"),
    (b"hello", "is no JSON in line 1, column 1"),
    (b"{}", 'there is no "traceEvents" in it'),
    (b'{"traceEvents": 3}', 'there is no "traceEvents" in it'),
    (b'{"ph": "X", "traceEvents": []}', 'there is no "traceEvents" in it'),
    (b'{"traceEvents": []}', "none of its 0 events is a kernel with a duration"),
    (b'{"traceEvents": [{"ph": "X"}, {"ph": "M"}]}', "none of its 2 events is a kernel"),
    (b"[%s]" % kernel(dur=0), "none of its 1 events is a kernel with a duration"),
    (b'{"traceEvents": [{"ph": "X"}, 3]}', "event 1 is 3, expected an object"),
    (b'{"traceEvents": [{"ph": "X"}\n\n{"ph": "X"}]}', "is no JSON in line 3, column 1"),
    (b'{"traceEvents": [{"ph": "X", "ca', "ends inside of a value of line 1, column 30"),
    (b'{"traceEvents": [{"ph": "X"', "ends inside of a value of line 1, column 28"),
    (b"[", "ends inside of a value of line 1, column 2"),
    (b'{"traceEvents": [\n {"ph": "X",\n  "ts":  01}]}', "is no JSON in line 3, column 11"),
    (b"[%s]" % kernel(dur=-1), "f.json: a complete event of category kernel needs a name, a ts and a dur of at least 0, found "),
    (b"[%s]" % kernel(name=4), "needs a name, a ts and a dur"),
    (b"[%s]" % kernel(ts=True), "needs a name, a ts and a dur"),
    (b"[%s]" % kernel(ts="1"), "needs a name, a ts and a dur"),
    (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999, "dur": 1}]', "needs a name, a ts and a dur"),
    (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]', "NaN is no number of JSON"),
    (b"[" * 100000, "is nested too deep"),
    (b"[%s]" % (b"9" * 5000), "f.json: "),
    (b'["\xff"]', "byte 2 is no UTF-8"),
)
for name, kind in KINDS.items():
    if analyze.kind_of(name) != kind:
        fail(f"{name} is {analyze.kind_of(name)}, expected {kind}")
for name, stage in STAGES.items():
    if analyze.stage_of(name) != stage:
        fail(f"{name} is {analyze.stage_of(name)}, expected {stage}")
for data, sentence in BAD:
    said = refusal_of(data)
    if said is None or sentence not in said:
        fail(f"{data[:80]}: {said}, expected {sentence}")

# A list that was cut off after an event is a trace all the same: the format allows it. So is a name of half a surrogate pair.
for data in (b"[%s" % kernel(), b"[%s,\n" % kernel(), b"[%s]" % kernel(name="\ud800\0"), b"[%s]" % kernel(args=[]),
             b"[%s]" % kernel(args={"stage": ["vision"], "group": {}, "correlation": True, "ph": {"ph": 3}})):
    if refusal_of(data):
        fail(f"{data}: {refusal_of(data)}")

# Times since 1970 in µs leave little for a duration: it is taken as it stands, not as a difference of two times.
if abs(read(b"[%s]" % kernel(ts=1764338697000000.25, dur=0.01)).all.ms - 1e-5) > 1e-12:
    fail("a short kernel late in time")


# Where no kernel has a stage, none is listed for that alone.
if read(b"[%s]" % kernel()).strays or len(read(b"[%s, %s]" % (kernel(), kernel(args={"stage": "vision"}))).strays) != 1:
    fail("kernels without a stage")

# How many calls: the file's own head, the option, the profiler's marks, one.
MARKS = b", ".join(kernel(cat="user_annotation", name=f"ProfilerStep#{i}") for i in range(3))
OWN = b'{"otherData": {"kind": "trace", "calls": 4, "workload": {"steps": 5}}, "traceEvents": [%s, %s]}' % (kernel(), MARKS)
MARKED = b"[%s, %s]" % (kernel(), MARKS)
for data, calls, expected in ((OWN, 2, (4, 5)), (MARKED, 2, (2, 10)), (MARKED, 0, (3, 10)), (b"[%s]" % kernel(), 0, (1, 10))):
    made = read(data, calls)
    if (made.calls, made.steps) != expected:
        fail(f"{made.calls} calls of {made.steps} steps, expected {expected}")

# Any damage ends in a sentence or in numbers.
dice = random.Random(12345)
with open(trace, "rb") as file:
    text = file.read()
for i in range(400):
    spoiled = bytearray(text)
    for _ in range(i % 3 + 1):
        at = dice.randrange(len(text))
        if i % 4:
            spoiled[at] = dice.choice(b'{}[]",:\\') if i % 4 == 1 else dice.randrange(256)
        else:
            del spoiled[at:]
    said = refusal_of(bytes(spoiled))
    if said is not None and (not said.startswith("f.json: ") or "\n" in said):
        fail(f"damage {i}: {said}")
sys.exit(wrong > 0)
