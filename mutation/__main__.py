"""``python -m mutation``: changes the core at one place at a time, and looks whether a test notices.

cosmic-ray knows the places and what can be changed there. A seed draws the order in which they are tried, and the run
ends when its time is up, so that a slow machine tries fewer of the same ones. Each change is made in a copy of the
tracked files and meets the doctests of its file, the tests of its room and those that cut across.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import ndiff
from pathlib import Path
from queue import SimpleQueue
from random import Random

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).parents[1]
ROOMS = ("torch_state", "sigma", "functional", "parametrization", "registration", "spectrum")
LEFT_OUT = ("native", "triton")  # compiled
NOT_TRIED = "not tried"
SLOW = ("compile", "clip_shards", "group", "torchvision", "terminal")  # words in names of tests
ACROSS = [f"tests/behaviour/test_{name}.py" for name in ("habits", "unusual_modules", "every_layer", "perturbation")]


def main() -> int:
    """Runs the command line; answers 1 if the tests fail as they are."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws the places (default: 0)")
    parser.add_argument("--minutes", type=float, default=30, help="when no further change is tried (default: 30)")
    parser.add_argument("--workers", type=int, default=2, help="changes tried at once (default: 2)")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    mutants, killed, survived = drawn(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.workers) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(options.workers):
            copies.put(copy_of_tracked_files(Path(scratch) / str(i)))

        def passes(tests: list[str], seconds: float | None = None, mutant: MutationSpec | None = None) -> str | None:
            """The change that passed, or an empty one."""
            copy = copies.get()
            try:
                with changed(copy, mutant) as change:
                    return change if tests_pass(copy, tests, seconds) else None
            finally:
                copies.put(copy)

        start = time.monotonic()
        parts = [*([*mirrors(f"spectral_param/{room}"), f"spectral_param/{room}"] for room in ROOMS), ACROSS]
        failing = [part for part, passed in zip(parts, pool.map(passes, parts), strict=True) if passed is None]
        if failing:
            print(f"Tests fail without any change, in {failing}.")
            return 1
        seconds = time.monotonic() - start
        print(f"All tests pass without a change, in {seconds:.0f} s.", flush=True)

        def survives(mutant: MutationSpec) -> str | None:
            if time.monotonic() > end:
                return NOT_TRIED
            return passes(tests_of(mutant.module_path), seconds, mutant)

        for mutant, change in zip(mutants, pool.map(survives, mutants), strict=True):
            if change is None:
                killed += 1
            elif change != NOT_TRIED:
                survived += 1
                place = f"{mutant.module_path}:{mutant.start_pos[0]}"
                print(f"{place} survived {mutant.operator_name}, after {killed} killed\n{change}", flush=True)
    tried = killed + survived
    share = f"{killed / max(tried, 1):.0%}"
    print(f"{killed} of {tried} killed, {share}; {tried} of {len(mutants)} places were tried, seed {options.seed}.")
    return 0


def drawn(seed: int) -> list[MutationSpec]:
    """One change for each place of the core, in the order of the seed."""
    paths = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / "spectral_param" / room).rglob("*.py")]
    paths = sorted(path for path in paths if not any(word in str(path) for word in LEFT_OUT))
    with use_db(":memory:", WorkDB.Mode.create) as db:
        init(paths, db, {})
        found = [item.mutations[0] for item in db.work_items]
    annotated = {str(path): set(annotated_places(ROOT / path)) for path in paths}
    places = defaultdict(list)
    for mutant in sorted(found, key=lambda m: (str(m.module_path), m.start_pos, m.operator_name, m.occurrence)):
        path = str(mutant.module_path)
        if mutant.start_pos not in annotated[path] and mutant.operator_name != "core/NoOp":
            places[path, mutant.start_pos].append(mutant)
    random = Random(seed)
    chosen = [random.choice(changes) for changes in places.values()]
    random.shuffle(chosen)
    return chosen


def annotated_places(path: Path) -> Iterator[tuple[int, int]]:
    """Lines and columns of the types, which are never evaluated."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        for field in ("annotation", "returns"):
            note = getattr(node, field, None)
            if note is not None:
                for line in range(note.lineno, note.end_lineno + 1):
                    first = note.col_offset if line == note.lineno else 0
                    last = note.end_col_offset if line == note.end_lineno else len(lines[line - 1])
                    yield from ((line, column) for column in range(first, last))


def tests_of(path: Path) -> list[str]:
    """The tests of the folder that mirrors a file's own, of its whole room, those across, and the file's doctests.

    Doctests last: pytest would import their file a second time, beside the one that the others change for a while.
    """
    return [*mirrors(str(path.parent)), *mirrors("/".join(path.parts[:2])), *ACROSS, str(path)]


def mirrors(folder: str) -> list[str]:
    """The folder of tests, if there is one."""
    return [f"tests/{folder}"] if (ROOT / "tests" / folder).is_dir() else []


def copy_of_tracked_files(folder: Path) -> Path:
    """A checkout without what git does not track."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def changed(copy: Path, mutant: MutationSpec | None) -> Iterator[str]:
    """Makes a change for as long as it lasts; gives the lines that it is about."""
    if mutant is None:
        yield ""
        return
    path = copy / mutant.module_path
    source = path.read_text("utf-8")
    mutated = mutate_code(source, get_operator(mutant.operator_name)(), mutant.occurrence)
    path.write_text(mutated, "utf-8")
    try:
        lines = ndiff(source.splitlines(), mutated.splitlines())
        yield "\n".join(f"  {line}" for line in lines if line[0] in "+-")
    finally:
        path.write_text(source, "utf-8")


def tests_pass(copy: Path, tests: list[str], timeout: float | None) -> bool:
    """Whether all pass, in time, with what the copy holds."""
    chosen = " and ".join(f"not {word}" for word in (*LEFT_OUT, *SLOW))
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", chosen, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, timeout=timeout, capture_output=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
