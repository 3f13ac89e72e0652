"""The gallery's cards have the first picture of the page that they lead to, as the build has drawn it."""

from __future__ import annotations

import posixpath

from docutils import nodes
from sphinx.application import Sphinx

GALLERY = "gallery/index"


def _fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Looks each linked page up among those that were read."""
    if docname != GALLERY:
        return
    for card in doctree.findall(lambda node: isinstance(node, nodes.container) and "sd-card" in node["classes"]):
        link = next(iter(card.findall(nodes.reference)), None)
        if link is None:
            continue
        page = posixpath.normpath(posixpath.join(posixpath.dirname(docname), link["refuri"])).removesuffix(".html")
        picture = next(iter(app.env.get_doctree(page).findall(nodes.image)), None)
        if picture is not None:
            top = picture.deepcopy()
            top["classes"], top["alt"] = ["sd-card-img-top"], ""
            card.insert(0, top)


def setup(app: Sphinx) -> dict[str, bool]:
    """Once links are known."""
    app.connect("doctree-resolved", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
