"""What torch and Lightning do not promise is asked for in one file each, where a new version of them is met."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("spectral_param", "lightning_modules", "datamodules")
DOORS = {"torch": "spectral_param/torch_state/private.py"}
FILES = {str(path.relative_to(ROOT)): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def is_private(dotted):
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


def private_names(tree, library):
    """Dotted names of a library that have a part with an underscore first: imported, or attributes of what is."""
    bound = {library}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {name.asname for name in node.names if name.asname and name.name.split(".")[0] == library}
            yield from (n.name for n in node.names if n.name.split(".")[0] == library and is_private(n.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == library:
            for name in node.names:
                bound.add(name.asname or name.name)
                if is_private(f"{node.module}.{name.name}"):
                    yield f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.split(".")[0] in bound and dotted.replace(".", "").isidentifier() and is_private(dotted):
                yield dotted


@pytest.mark.parametrize("library", DOORS)
def test_private_names_are_behind_one_door(library):
    found = {
        name: sorted(set(private_names(ast.parse(path.read_text()), library)))
        for name, path in FILES.items()
        if name != DOORS[library]
    }
    assert {name: names for name, names in found.items() if names} == {}


def test_the_test_sees_them():
    lines = ("import torch", "from torch import nn", "from torch.utils._pytree import tree_map")
    code = "\n".join([*lines, "torch._C._f()", "nn.Linear.__init__", "nn._x.y"])
    found = {"torch.utils._pytree.tree_map", "torch._C._f", "torch._C", "nn._x", "nn._x.y"}
    assert set(private_names(ast.parse(code), "torch")) == found
