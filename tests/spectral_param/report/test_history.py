import io

import pytest
import torch

from spectral_param.report.history import History


def filled(cap, steps, k=3):
    history = History(cap)
    for step in steps:
        history.record(step, {"sigma": torch.arange(k) + float(step), "loss": torch.tensor(step)})
    return history


def test_keeps_what_it_is_given():
    history = filled(10, [0, 2, 4])
    assert history.steps == [0, 2, 4]
    assert history.names == ["sigma", "loss"]
    assert history["sigma"].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert history["loss"].tolist() == [[0], [2], [4]]


def test_a_history_that_begins_again_is_as_fine_as_a_new_one():
    history = filled(4, range(40))
    for step in (0, 4, 8):
        history.record(step, {"sigma": torch.ones(3)})
    assert history.steps == [0, 4, 8]


def test_missing_vectors_are_nan():
    history = History()
    history.record(0, {"a": torch.ones(2)})
    history.record(1, {"b": torch.ones(1)})
    assert torch.equal(history["a"].isnan(), torch.tensor([[False, False], [True, True]]))


def test_a_vector_that_changes_its_length_has_nan_behind_its_end():
    history = History()
    for step, length in enumerate((3, 2, 4)):
        history.record(step, {"sigma": torch.ones(length)})
    assert history["sigma"].isnan().sum(1).tolist() == [1, 2, 0]
    again = History()
    again.load_state_dict(history.state_dict())
    assert torch.equal(again["sigma"].isnan(), history["sigma"].isnan())
    assert [reading.numel() for reading in again.readings("sigma")] == [3, 2, 4]


def test_a_number_that_is_none_at_the_end_of_a_vector_is_of_it():
    history = History()
    history.record(0, {"sigma": torch.tensor([1.0, 1.0, torch.nan])})
    again = History()
    again.load_state_dict(history.state_dict())
    assert [reading.numel() for reading in again.readings("sigma")] == [3]
    older = history.state_dict()
    del older["lengths"]
    again.load_state_dict(older)
    assert [reading.numel() for reading in again.readings("sigma")] == [3]


def test_a_name_without_readings_is_told_those_that_have_some():
    with pytest.raises(KeyError, match="'sgima': expected one of sigma, loss"):
        filled(10, [0])["sgima"]
    with pytest.raises(KeyError, match="nothing was read yet"):
        History()["sigma"]


def test_rows_stay_evenly_spaced_below_the_cap():
    for count in range(1, 100):
        history = filled(8, range(0, 5 * count, 5))
        gaps = {b - a for a, b in zip(history.steps, history.steps[1:], strict=False)}
        assert len(history) < 8
        assert len(gaps) <= 1
        assert history.steps[0] == 0
        assert history["sigma"][:, 0].tolist() == history.steps


def test_holds_four_bytes_a_value_on_the_cpu_in_memory_of_its_own():
    big = torch.zeros(1000, dtype=torch.float64)
    history = History()
    history.record(0, {"sigma": big[:4]})
    big += 1
    values = history.state_dict()["values"]["sigma"]
    assert values.dtype == torch.float32
    assert values.device.type == "cpu"
    assert values.untyped_storage().nbytes() == 16
    assert values.tolist() == [[0, 0, 0, 0]]


def test_resumes_as_if_uninterrupted():
    for stop in range(1, 40):
        before = filled(8, range(stop))
        buffer = io.BytesIO()
        torch.save(before.state_dict(), buffer)
        buffer.seek(0)
        after = History(8)
        after.load_state_dict(torch.load(buffer, weights_only=True))
        for step in range(stop, 45):
            after.record(step, {"sigma": torch.arange(3) + float(step), "loss": torch.tensor(step)})
        whole = filled(8, range(45))
        assert after.steps == whole.steps
        assert torch.equal(after["sigma"], whole["sigma"])


def test_an_earlier_step_replaces_what_comes_after_it():
    history = filled(10, [0, 2, 4, 6])
    history.record(3, {"sigma": torch.zeros(3)})
    assert history.steps == [0, 2, 3]
    history.record(3, {"sigma": torch.ones(3)})
    assert history["sigma"][-1].tolist() == [1, 1, 1]
    assert history.steps == [0, 2, 3]
    history.rewind(0)
    assert len(history) == 0


def test_cap_too_small():
    with pytest.raises(ValueError, match="cap: expected at least 2 readings, got 1"):
        History(1)
