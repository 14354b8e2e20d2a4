"""The Python of the package's pages runs as it stands: every ```python block, in the checkout."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = [
    (page.name, text)
    for page in (ROOT / "docs" / name for name in ("python.md", "lerobot.md"))
    for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
]


@pytest.mark.parametrize("page,text", BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_block(page, text, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(text, page, "exec"), {"__name__": "page"})


def test_there_are_blocks():
    assert sum(page == "python.md" for page, _ in BLOCKS) >= 5
