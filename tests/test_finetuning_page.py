"""The code of docs/finetuning.md runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "finetuning.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "finetuning.md", "exec"), {"__name__": "finetuning"})
