"""Signatures as they stand in the source, where ``ArrayLike`` and ``Level`` say more than the unions behind them.

A short name in them is looked for among all objects that have a page.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import stringify_signature

OURS = ("spectral_param", "lightning_modules", "datamodules")
DOORS = (*OURS, "spectral_param.nn")


def _signature(app: Sphinx, what: str, name: str, obj: Any, *given: Any) -> tuple[str, str] | None:
    """Of functions, methods and classes; annotations are strings, since all modules postpone them."""
    if what not in ("function", "method", "class"):
        return None
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    if what == "method" and inspect.isfunction(obj) and next(iter(signature.parameters), "") == "self":
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    returned = signature.return_annotation
    kept = [p.replace(default=...) if "factory" in repr(p.default) else p for p in signature.parameters.values()]
    shown = signature.replace(parameters=kept, return_annotation=signature.empty)
    returns = what != "class" and isinstance(returned, str)
    return stringify_signature(shown, unqualified_typehints=True), returned if returns else ""


def _bases(app: Sphinx, name: str, obj: Any, options: Any, bases: list[type]) -> None:
    """In the place of a base that only the source knows, the first of its own that others know."""
    for i, base in enumerate(bases):
        if isinstance(base, type):  # and not NamedTuple, or a list of something
            bases[i] = next(cls for cls in base.__mro__ if cls.__module__.split(".")[0] not in OURS or _is_public(cls))


def _is_public(cls: type) -> bool:
    return any(getattr(sys.modules[door], cls.__name__, None) is cls for door in DOORS if door in sys.modules)


def _link(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> Any:
    if node["refdomain"] != "py" or "." in node["reftarget"]:
        return None
    domain = env.domains.python_domain
    found = {match[1].node_id: match for match in domain.find_obj(env, "", "", node["reftarget"], None, searchmode=1)}
    if len(found) != 1:
        return None
    [(name, _)] = found.values()
    node = node.copy()
    node["reftarget"] = name
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    """Comes before the table of names that are elsewhere."""
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-bases", _bases)
    app.connect("missing-reference", _link, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
