import threading
import time

import pytest

from datamodules.writing import held, written


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "file"
    with written(path) as place:
        place.write_text("half of it")
        assert not path.exists()
        place.write_text("whole")
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=type)
def test_what_fails_to_be_written_leaves_nothing_and_changes_nothing(error, tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def half():
        with written(path) as place:
            place.write_text("half of it")
            raise error

    with pytest.raises(type(error)):
        half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_two_who_write_one_file_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with written(path) as first, written(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert path.read_text() == "first"  # moved last
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("end", ["moved", "removed", "kept"])
def test_a_part_is_held_by_one_at_a_time(end, tmp_path):
    part, inside, most = tmp_path / "file.part", [], []

    def work():
        with held(part):
            inside.append(part)
            most.append(len(inside))
            time.sleep(0.01)
            part.write_bytes(b"some")
            inside.pop()  # once it has been moved or removed, the next comes in
            if end == "moved":
                part.replace(tmp_path / "file")
            elif end == "removed":
                part.unlink()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6
    assert [path.name for path in tmp_path.iterdir()] == {"moved": ["file"], "removed": [], "kept": ["file.part"]}[end]


def test_what_another_holds_since_ours_was_moved_is_left(tmp_path):
    part = tmp_path / "file.part"
    with held(part):
        part.write_bytes(b"some")
        part.replace(tmp_path / "file")
        another = part.open("ab")  # empty as yet
    assert part.exists()
    another.close()
