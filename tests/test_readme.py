"""The README's code runs as it stands."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_it_begins_with_the_two_commands():
    first = README.index("```bash")
    assert README[first:].splitlines()[1:3] == [
        line for line in README.splitlines() if line.startswith(("make demo ", "make test "))
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_block_runs(block, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert "parameter_groups" not in caplog.text, "the monitor advises another learning rate"
