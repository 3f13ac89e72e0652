"""Two commands in one folder of results."""

from dataclasses import replace
from threading import Thread

import pytest
from filelock import FileLock

from lightning_modules.reproduce.processes import train_all
from lightning_modules.reproduce.results import read_result, results_path, run_folder, write_result
from tests.lightning_modules.reproduce.test_results import RESULT
from tests.lightning_modules.reproduce.test_train import RUN

SHORT = replace(RUN, trainer={**RUN.trainer, "max_epochs": 2})


@pytest.fixture
def taken(tmp_path):
    """The run's lock as another command holds it, and that command's checkpoint."""
    place = run_folder(tmp_path, SHORT)
    place.mkdir(parents=True)
    (place / "last.ckpt").write_text("of the other")
    return FileLock(place.with_name(f"{SHORT.name}.lock"), thread_local=False)


def test_a_run_that_another_command_trains_is_left_to_it(tmp_path, taken):
    with taken:
        assert list(train_all([SHORT], tmp_path, tmp_path, 1, seconds=8.0)) == []
    assert (run_folder(tmp_path, SHORT) / "last.ckpt").read_text() == "of the other"
    assert read_result(tmp_path, SHORT) is None


def test_the_result_of_the_other_is_taken(tmp_path, taken):
    ended = []
    with taken:
        waiting = Thread(target=lambda: ended.extend(train_all([SHORT], tmp_path, tmp_path, 1, seconds=300.0)))
        waiting.start()
        waiting.join(8.0)
        assert not ended
        write_result(tmp_path, SHORT, RESULT)
    waiting.join(120.0)
    assert ended == [(SHORT, True)]
    assert len(results_path(tmp_path, "adding").read_text().splitlines()) == 1
    assert read_result(tmp_path, SHORT).parameters == RESULT.parameters


def test_two_commands_train_each_run_once(tmp_path):
    runs = [replace(SHORT, seed=seed) for seed in range(3)]
    ended = []

    def command():
        ended.extend(train_all(runs, tmp_path, tmp_path, 2, seconds=300.0))

    threads = [Thread(target=command) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done for _, done in ended] == [True] * 6
    assert len(results_path(tmp_path, "adding").read_text().splitlines()) == 3
    assert [path.name for path in (tmp_path / "adding").iterdir()] == ["results.lock"]
