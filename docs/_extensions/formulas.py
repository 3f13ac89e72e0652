"""Formulas by MathJax, from the site's own files: nothing comes from the network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

SCRIPT, FONTS = "tex-chtml.js", "output/chtml/fonts/woff-v2"


def _copy(app: Sphinx, error: Exception | None) -> None:
    """The script and its fonts, out of all that the package has."""
    package = find_spec("sphinx-mathjax-offline")
    if error is None and package is not None and package.origin is not None:
        source, target = Path(package.origin).parent / "static" / "mathjax", Path(app.outdir) / "_static" / "mathjax"
        copy_asset(source / SCRIPT, target)
        copy_asset(source / FONTS, target / FONTS)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sets where pages look for it."""
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = f"mathjax/{SCRIPT}"
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
