"""The code of the documents runs as it stands, block by block; that of notebooks runs when the site is built."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")]
BLOCKS = [
    pytest.param(page.name, block, id=f"{page.stem}-{i}")
    for page in sorted(PAGES)
    for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_block_runs(page, block, tmp_path, monkeypatch):
    if "save_adapter" in block:
        pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page, "exec"), {"__name__": "page"})
