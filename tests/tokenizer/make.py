"""Makes hugging_face.json: texts and the ids that Hugging Face's `tokenizers` gives them, for LeRobot's saved
tokenizer.json (the goldens' small one) and for small tokenizers with other settings. Only whoever makes the file anew
needs Python:  pip install tokenizers==0.22.2 && python make.py"""
import json
import os
import random

import tokenizers

here = os.path.dirname(os.path.abspath(__file__))
saved = json.load(open(os.path.join(here, "../golden/lerobot/pi05/checkpoint/tokenizer/tokenizer.json"), encoding="utf-8"))
rng = random.Random(20)


def any_text(pieces):
    parts = {
        "piece": lambda: rng.choice(pieces), "spaced": lambda: rng.choice(pieces).replace("\u2581", " "),
        "spaces": lambda: " " * rng.randrange(1, 40), "lines": lambda: "\n" * rng.randrange(1, 12),
        "ascii": lambda: chr(rng.randrange(0, 127)), "digits": lambda: str(rng.randrange(10 ** rng.randrange(1, 9))),
        "two": lambda: chr(rng.randrange(0x80, 0x800)), "three": lambda: chr(rng.randrange(0x3000, 0xA000)),
        "emoji": lambda: chr(rng.choice([0x1F642, 0x1F600 + rng.randrange(80), 0x300 + rng.randrange(100), 0x200D, 0xFE0F])),
        "control": lambda: rng.choice(["<bos>", "<pad>", "<unk>", "<eos>", "</s>", "<b>", "</b>", "<loc00", "<loc0001>", "<seg003>"]),
        "marks": lambda: "\u2581" * rng.randrange(1, 40), "run": lambda: rng.choice("aeiou tn") * rng.randrange(1, 30),
        "words": lambda: rng.choice(["pick", "up", "the", "Task: ", "State: ", " "]),
    }
    return "".join(parts[rng.choice(list(parts))]() for _ in range(rng.randrange(0, 16)))


def few_text(alphabet, added):
    return "".join(rng.choice(added) if added and rng.random() < 0.1 else rng.choice(alphabet) for _ in range(rng.randrange(0, 24)))


WHOLE = ["bdbd", "ecec", "\u2581ee", "ddd\u2581", "aeaea"]      # pieces that no merge need lead to


def small(byte_fallback=True, fuse_unk=True, ignore_merges=False, legacy=False, added=(), normalized=False):
    """A tokenizer with random merges, their order unrelated to length."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>"] + ([f"<0x{i:02X}>" for i in range(256)] if byte_fallback else [])
    words += list("abcde\u2581\u00e9")
    known = list("abcde\u2581\u00e9")
    merges = []
    while len(known) < 60:
        a, b = rng.choice(known), rng.choice(known)
        if len(a + b) > 8 or (a, b) in merges:
            continue
        merges.append((a, b))
        if a + b not in known:
            known.append(a + b)
            words.append(a + b)
    rng.shuffle(merges)
    if ignore_merges:
        words += [w for w in WHOLE if w not in words]
    pair = [f"{a} {b}" for a, b in merges] if legacy else [list(m) for m in merges]
    tokens = [(t, False) for t in words[:4]] + [(t, normalized) for t in added]
    vocab = {w: i for i, w in enumerate(words)}
    ids = {w: i for i, w in enumerate(words + [t for t in added if t not in words])}
    made = dict(saved)
    made["added_tokens"] = [{"id": ids[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                             "normalized": n, "special": i < 4} for i, (t, n) in enumerate(tokens)]
    made["model"] = dict(saved["model"], byte_fallback=byte_fallback, fuse_unk=fuse_unk, ignore_merges=ignore_merges, vocab=vocab,
                         merges=(["#version: 0.2"] if legacy else []) + pair)
    return made


def case(name, tokenizer, texts):
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer if tokenizer else saved))
    return {"name": name, "tokenizer": tokenizer, "texts": [[t, made.encode(t, add_special_tokens=False).ids] for t in texts]}


cases = [case("saved", None, [any_text(list(saved["model"]["vocab"])) for _ in range(1000)])]
for name, extra, settings in [
        ("bytes", [], {}), ("bytes_legacy", [], {"legacy": True}),
        ("unknown_fused", [], {"byte_fallback": False}), ("unknown_single", [], {"byte_fallback": False, "fuse_unk": False}),
        ("whole_words", ["|"], {"ignore_merges": True, "added": ["|"]}),
        ("added", ["a", "aba", "ab", "\u2581\u2581", "bb cc", "<bos>"], {"added": ["a", "aba", "ab", "\u2581\u2581", "bb cc"]}),
        ("added_normalized", ["aba", "ab", "\u2581a", "<bos>"], {"added": ["aba", "ab", "\u2581a"], "normalized": True})]:
    alphabet = list("aaabbbccde    \u2581\u00e9") + ["f", "\u4e2d", "\U0001F642"]
    texts = [few_text(alphabet, extra) for _ in range(120)]
    if name == "whole_words":
        texts += ["|".join(rng.choice(WHOLE).replace("\u2581", " ") + rng.choice(["", "", "a"]) for _ in range(4)) for _ in range(40)]
    cases.append(case(name, small(**settings), texts))

with open(os.path.join(here, "hugging_face.json"), "w", encoding="utf-8") as out:
    out.write('{"made_by": "tokenizers %s", "cases": [\n' % tokenizers.__version__)
    for i, c in enumerate(cases):
        out.write('{"name": %s, "tokenizer": %s, "texts": [\n' % (json.dumps(c["name"]), json.dumps(c["tokenizer"], separators=(",", ":"))))
        out.write(",\n".join(json.dumps(t, separators=(",", ":")) for t in c["texts"]))
        out.write("]}" + ("," if i + 1 < len(cases) else "") + "\n")
    out.write("]}\n")
