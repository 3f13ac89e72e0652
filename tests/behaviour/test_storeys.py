"""Imports point down: a file imports from its own room and from storeys below it, and no chain of files is a circle."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("spectral_param", "lightning_modules", "datamodules")
STOREYS = (
    {"spectral_param.torch_state", "spectral_param.sizes", "spectral_param.user_cache", "spectral_param.extras"},
    {"spectral_param.sigma", "spectral_param.functional", "datamodules"},
    {"spectral_param.parametrization", "spectral_param.native", "spectral_param.show_config"},
    {"spectral_param.registration", "spectral_param.spectrum"},
    {"spectral_param.nn", "spectral_param.optimizers", "spectral_param.report"},
    {"spectral_param.bounds", "spectral_param", "spectral_param.callbacks"},
    {"lightning_modules"},
    {"spectral_param.__main__"},
)
ROOMS = {room: storey for storey, rooms in enumerate(STOREYS) for room in rooms}
WITHIN = {  # rooms within a room, from below
    "lightning_modules": ("networks", "tasks", "reproduce"),
    "spectral_param.functional": ("native", "", "convolution", "scan"),
    "spectral_param.registration": ("injection", ""),
    "spectral_param.spectrum": ("dense", ""),
    "spectral_param.report": ("", "checkpoints"),
    "spectral_param.bounds": ("", "lipschitz"),
    "spectral_param.callbacks": ("private", "through_time", ""),
}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def imports(module, *, at_run_time=True):
    """The modules of ours that one imports, at its head or, at run time, anywhere."""
    tree = ast.parse(FILES[module].read_text())
    for node in ast.walk(tree) if at_run_time else tree.body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in FILES else node.module


def room_of(module):
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def test_every_file_has_a_room():
    assert {room_of(module) for module in FILES} == set(ROOMS)


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module):
    room = room_of(module)
    for imported in imports(module):
        other = room_of(imported)
        assert other == room or ROOMS[other] < ROOMS[room], f"{module} imports {imported}"


@pytest.mark.parametrize("module", [m for m in FILES if room_of(m) in WITHIN])
def test_imports_point_down_within_a_room(module):
    room = room_of(module)
    inner = WITHIN[room]

    def place(name):
        part = name.removeprefix(room).lstrip(".").split(".")[0]
        return inner.index(part) if part in inner else inner.index("") if "" in inner else len(inner)

    for imported in imports(module):
        if room_of(imported) == room and imported != room and module != room:
            assert place(imported) <= place(module), f"{module} imports {imported}"


def test_no_circle():
    """Packages' faces are left out: they import what they show."""
    seen, path = set(), []

    def visit(module):
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in seen:
            path.append(module)
            for imported in imports(module):
                if imported in FILES and FILES[imported].name != "__init__.py":
                    visit(imported)
            path.pop()
            seen.add(module)

    for module in FILES:
        visit(module)


def test_what_the_listing_shows():
    shown = [path for path in (ROOT / "spectral_param").iterdir() if not path.name.startswith("__pycache__")]
    assert sum(path.is_dir() for path in shown) <= 10
    assert sum(path.suffix == ".py" for path in shown) <= 8
    assert len(STOREYS) <= 8


def test_nothing_writes_into_the_dictionary_of_another_object():
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                written = isinstance(target, ast.Subscript) and ast.unparse(target.value).endswith("__dict__")
                assert not written, f"{module}, line {node.lineno}"
