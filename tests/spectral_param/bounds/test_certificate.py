import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spectral_param import Bounded
from spectral_param.bounds import certified_hinge_loss, certified_radius, lipschitz_bound, margin_loss
from spectral_param.nn import Centering, MaxMin, SVDConv2d, SVDLinear


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.floats(0.1, 4.0), st.integers(0, 10_000))
def test_at_unit_constant_the_hinge_is_torchs(classes: int, radius: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(5, classes, dtype=torch.float64)
    target = torch.randint(classes, (5,))
    expected = nn.MultiMarginLoss(margin=math.sqrt(2) * radius)(logits, target)
    torch.testing.assert_close(certified_hinge_loss(logits, target, radius), expected)
    torch.testing.assert_close(certified_hinge_loss(3 * logits, target, radius, 3.0), 3 * expected)


def test_the_hinge_is_zero_where_all_are_certified() -> None:
    logits, target = torch.tensor([[4.0, 1.0, 0.0], [0.0, 1.0, 5.0]]), torch.tensor([0, 2])
    radius = certified_radius(logits, target, 2.0).min().item()
    assert certified_hinge_loss(logits, target, radius - 1e-4, 2.0) == 0
    assert certified_hinge_loss(logits, target, radius + 1e-3, 2.0) > 0


def test_a_gradient_goes_through_the_constant() -> None:
    lipschitz = torch.tensor(2.0, requires_grad=True)
    certified_hinge_loss(torch.zeros(1, 2), torch.tensor([0]), 1.0, lipschitz).backward()
    torch.testing.assert_close(lipschitz.grad, torch.tensor(math.sqrt(2) / 2))


def test_the_share_without_certificate_is_the_margin_loss() -> None:
    logits, target = torch.randn(200, 5), torch.randint(5, (200,))
    share = (certified_radius(logits, target, 1.5) <= 0.2).float().mean()
    torch.testing.assert_close(margin_loss(logits, target, math.sqrt(2) * 1.5 * 0.2), share)


def test_no_move_within_the_radius_changes_an_answer() -> None:
    model = nn.Sequential(
        SVDConv2d(1, 4, 3, sigma=Bounded(1.0)),
        MaxMin(),
        Centering(),
        nn.Flatten(),
        SVDLinear(64, 3, sigma=Bounded(1.0)),
    ).double()
    x = torch.randn(20, 1, 4, 4, dtype=torch.float64)
    target = model(x).argmax(1)
    radius = certified_radius(model(x), target, lipschitz_bound(model))
    moved = x.clone().requires_grad_()
    for _ in range(20):  # against the answer, and back to where the certificate ends
        logits = model(moved)
        [against] = torch.autograd.grad(certified_radius(logits, target).sum(), moved)
        step = moved.detach() - against - x
        length = step.flatten(1).norm(dim=1)
        moved = (x + step * (0.999 * radius / length.clamp_min(1e-12)).view(-1, 1, 1, 1)).requires_grad_()
    assert torch.equal(model(moved).argmax(1), target)


def test_a_wrong_answer_has_no_radius() -> None:
    assert certified_radius(torch.tensor([[0.0, 1.0]]), torch.tensor([0])) == 0


@pytest.mark.parametrize(
    ("logits", "target", "options", "words"),
    [
        (torch.ones(2, 3), torch.tensor([0, 3]), {}, "target: expected classes from 0 to 2"),
        (torch.ones(2, 3), torch.tensor([0]), {}, "target: expected shape"),
        (torch.ones(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64), {}, r"logits: expected \(N, C\)"),
        (torch.ones(2, 3), torch.tensor([0, 1]), {"lipschitz": 0.0}, "lipschitz: expected a finite number above 0"),
        (torch.ones(2, 3), torch.tensor([0, 1]), {"lipschitz": math.inf}, "lipschitz: expected a finite number"),
        (torch.ones(2, 3), torch.tensor([0, 1]), {"lipschitz": torch.ones(2)}, "lipschitz: expected a finite number"),
    ],
)
def test_values_out_of_range(logits: Tensor, target: Tensor, options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        certified_radius(logits, target, **options)
    with pytest.raises(ValueError, match=words):
        certified_hinge_loss(logits, target, 1.0, **options)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_is_above_zero(radius: float) -> None:
    with pytest.raises(ValueError, match="radius: expected a finite number above 0"):
        certified_hinge_loss(torch.ones(1, 2), torch.tensor([0]), radius)
