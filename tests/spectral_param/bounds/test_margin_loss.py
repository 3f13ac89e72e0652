import pickle

import pytest
import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from spectral_param.bounds import MarginLoss, margin_loss


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def by_definition(logits: Tensor, target: Tensor, margin: float) -> float:
    within = [
        row[y] <= margin + max(score for j, score in enumerate(row) if j != y)
        for row, y in zip(logits.tolist(), target.tolist(), strict=True)
    ]
    return sum(within) / len(within)


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 5])
def test_definition(margin: float, dtype: torch.dtype, classes: int) -> None:
    logits, target = torch.randn(64, classes).to(dtype), torch.randint(classes, (64,))
    assert margin_loss(logits, target, margin).item() == pytest.approx(by_definition(logits, target, margin))


def test_ties_are_errors() -> None:
    logits = torch.tensor([[1.0, 1.0], [2.0, 1.0], [2.5, 1.0]])
    target = torch.zeros(3, dtype=torch.long)
    assert margin_loss(logits, target).item() == pytest.approx(1 / 3)
    assert margin_loss(logits, target, 1.0).item() == pytest.approx(2 / 3)


def test_without_margin_it_is_the_error() -> None:
    logits, target = torch.randn(100, 4), torch.randint(4, (100,))
    accuracy = MulticlassAccuracy(4, average="micro")(logits, target)
    torch.testing.assert_close(margin_loss(logits, target), 1 - accuracy)


def test_it_grows_with_the_margin_to_one() -> None:
    logits, target = torch.randn(100, 4), torch.randint(4, (100,))
    losses = [margin_loss(logits, target, margin).item() for margin in (0.0, 0.5, 1.0, 2.0, 100.0)]
    assert losses == sorted(losses)
    assert losses[-1] == 1.0


def test_more_dimensions_are_more_samples() -> None:
    logits, target = torch.randn(6, 4, 3, 2), torch.randint(4, (6, 3, 2))
    flat = logits.movedim(1, -1).reshape(-1, 4)
    assert margin_loss(logits, target, 0.2) == margin_loss(flat, target.flatten(), 0.2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_leads_by_nothing(value: float) -> None:
    logits = torch.full((2, 3), value)
    assert margin_loss(logits, torch.zeros(2, dtype=torch.long)).item() == 1.0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_targets_of_every_integer_dtype(dtype: torch.dtype) -> None:
    assert margin_loss(torch.eye(3), torch.arange(3).to(dtype), 0.5).item() == 0.0


def test_batches_and_processes_add_up() -> None:
    logits, target = torch.randn(50, 4), torch.randint(4, (50,))
    whole = margin_loss(logits, target, 0.5)
    first, second = MarginLoss(0.5), MarginLoss(0.5)
    batch = first(logits[:7], target[:7])
    torch.testing.assert_close(batch, margin_loss(logits[:7], target[:7], 0.5))
    first.update(logits[7:20], target[7:20])
    second.update(logits[20:], target[20:])
    first.merge_state(second)
    torch.testing.assert_close(first.compute(), whole)
    torch.testing.assert_close(pickle.loads(pickle.dumps(first)).compute(), whole)
    first.reset()
    first.update(logits[:7], target[:7])
    torch.testing.assert_close(first.compute(), batch)


def test_states_are_summed_over_processes() -> None:
    metric = MarginLoss()
    assert set(metric._reductions) == {"within", "total"}
    both = torch.stack([torch.tensor(2), torch.tensor(3)])
    assert all(reduce(both) == 5 for reduce in metric._reductions.values())


def test_an_empty_batch_changes_nothing() -> None:
    metric = MarginLoss()
    metric.update(torch.eye(2), torch.tensor([0, 0]))
    metric.update(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
    assert metric.compute().item() == 0.5


LOGITS, TARGET = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("logits", "target", "margin", "error", "words"),
    [
        (LOGITS.long(), TARGET, 0.0, TypeError, "logits: expected a floating dtype"),
        (LOGITS, TARGET.float(), 0.0, TypeError, "target: expected integers"),
        (LOGITS, TARGET.bool(), 0.0, TypeError, "target: expected integers"),
        (LOGITS[0], TARGET, 0.0, ValueError, "logits: expected"),
        (LOGITS[:, :1], TARGET, 0.0, ValueError, "logits: expected"),
        (LOGITS, TARGET[:1], 0.0, ValueError, "target: expected shape"),
        (LOGITS, TARGET + 3, 0.0, ValueError, "target: expected classes from 0 to 2, got 3 to 3"),
        (LOGITS, TARGET - 1, 0.0, ValueError, "target: expected classes"),
        (LOGITS, TARGET, -1.0, ValueError, "margin"),
        (LOGITS, TARGET, "1", TypeError, "margin"),
    ],
)
def test_errors(logits: Tensor, target: Tensor, margin: float, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        margin_loss(logits, target, margin)


def test_a_wrong_margin_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="margin"):
        MarginLoss(float("nan"))
    with pytest.raises(TypeError, match="margin"):
        MarginLoss(True)


def test_a_refused_batch_leaves_the_state() -> None:
    metric = MarginLoss()
    metric.update(torch.eye(2), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="target"):
        metric.update(torch.eye(2), torch.tensor([0, 2]))
    assert metric.compute().item() == 0.5
