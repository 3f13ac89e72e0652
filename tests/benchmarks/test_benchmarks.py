"""The machinery of the benchmarks; nothing here is timed."""

from benchmarks.race import Race
from benchmarks.table import Table
from benchmarks.targets import TARGETS, held_against


def test_a_table_is_saved_and_loaded(tmp_path):
    table = Table("Title", "Note.", ["n", "ms"], [["1", "2"]], {"a": 0.5})
    table.point("curve", 128, 2e-3)
    table.save(tmp_path / "table.json")
    assert Table.load(tmp_path / "table.json") == table
    assert table.curves == {"curve": {128: 2.0}}


def test_a_race_runs_everybody_and_compares():
    calls = []
    race = Race({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0, rounds=3)
    assert len(race.times["a"]) == len(race.times["b"]) == 3
    assert set(calls) == {"a", "b"}
    race.times = {"a": [1.0, 2.0, 9.0], "b": [2.0, 4.0, 3.0]}
    assert race.seconds("a") == 2.0
    assert race.ratio("a", "b") == 0.5


def test_targets_are_held_against_what_was_measured():
    work, name, figure, bound = TARGETS[0]
    lines = held_against({name: Table("", "", [], figures={figure: bound / 2})})
    assert lines[2:] == [f"| {work} | {bound:g} | {bound / 2:.3g} | reached |"]
    lines = held_against({name: Table("", "", [], figures={figure: bound * 2})})
    assert lines[2].endswith("| missed |")
    at_least = next(target for target in TARGETS if target[3] < 0)
    lines = held_against({at_least[1]: Table("", "", [], figures={at_least[2]: 1.0})})
    assert lines[2].endswith("| reached |")
