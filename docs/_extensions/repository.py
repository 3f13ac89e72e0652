"""Links of the documents to files of the repository that stand outside ``docs/``."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def _mend(app: Sphinx, docname: str, source: list[str]) -> None:
    """On the site the two have pages; other files are downloads."""
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"](../{file})", f"]({page})")
    source[0] = re.sub(r"\[`?([^]`]*)`?\]\(\.\./(results/[\w.-]+)\)", r"{download}`\1 <../\2>`", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Mends each page before it is read."""
    app.connect("source-read", _mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
