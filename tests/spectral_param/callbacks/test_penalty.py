import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from spectral_param import Band, Fixed, spectral_penalty
from spectral_param.callbacks import SpectralPenalty
from spectral_param.callbacks.penalty import penalty_gradient
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors


class InTheLoss(Regression):
    """The same penalty as a term of the loss."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + 0.5 * spectral_penalty(self, center=0.8)


def close(a, b):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


class FloatPrecision(MixedPrecision):
    """Scaling as for half precision, computing in float32."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))

    def forward_context(self):
        return torch.autocast("cpu", enabled=False)


@pytest.mark.parametrize("sigma", [None, Band(0.5)])
@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"plugins": [FloatPrecision()]}],
    ids=["plain", "accumulated", "clipped", "scaled"],
)
def test_equals_a_term_of_the_loss(tmp_path, sigma, options):
    models = Regression(sigma), InTheLoss(sigma)
    for model, callbacks in zip(models, ([SpectralPenalty(0.5, center=0.8)], []), strict=True):
        trainer(tmp_path, *callbacks, **options).fit(model, vectors())
    close(*models)
    twin = Regression(sigma)
    trainer(tmp_path, **options).fit(twin, vectors())
    assert not torch.allclose(twin.first.weight, models[0].first.weight, atol=1e-4)


def test_optimizers_that_unscale_by_themselves_get_a_scaled_gradient(tmp_path):
    def fused(kind):
        class Fused(kind):
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1, fused=True)

        return Fused()

    models = fused(Regression), fused(InTheLoss)
    for model, callbacks in zip(models, ([SpectralPenalty(0.5, center=0.8)], []), strict=True):
        trainer(tmp_path, *callbacks, plugins=[FloatPrecision()]).fit(model, vectors())
    close(*models)


def test_each_weight_once_with_two_optimizers(tmp_path):
    def two(kind):
        class Manual(kind):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                    self.manual_backward(super().training_step(batch, batch_idx))
                    optimizer.step()

            def configure_optimizers(self):
                return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.first, self.second)]

        return Manual()

    models = two(Regression), two(InTheLoss)
    for model, callbacks in zip(models, ([SpectralPenalty(0.5, center=0.8)], []), strict=True):
        trainer(tmp_path, *callbacks).fit(model, vectors())
    close(*models)


def test_is_logged(tmp_path):
    model = Regression()
    run = trainer(tmp_path, SpectralPenalty(0.5, center=0.8), log_every_n_steps=1, max_steps=1)
    expected = 0.5 * spectral_penalty(model, center=0.8).item()
    run.fit(model, vectors())
    assert run.callback_metrics["spectral_penalty"].item() == pytest.approx(expected)


def test_gradient_against_autograd():
    raw = torch.randn(7, dtype=torch.float64, requires_grad=True)
    for sigma_map in (Band(0.3, center=0.1), nn.Identity()):
        (expected,) = torch.autograd.grad((sigma_map(raw).abs() - 0.7).square().sum(), raw)
        torch.testing.assert_close(penalty_gradient(sigma_map, raw, 0.7), expected)


def test_gradient_of_half_precision_is_that_of_the_same_numbers_in_full():
    raw, band = torch.tensor([-0.5, 0.1, 0.6]).bfloat16(), Band(0.01)
    expected = penalty_gradient(band, raw.float(), 1.0).bfloat16()
    assert torch.equal(penalty_gradient(band, raw, 1.0), expected)


def test_passes_over_what_is_not_trained_or_not_chosen(tmp_path):
    for sigma, weights in ((Fixed(), "*"), (None, ())):
        alone, model = Regression(sigma), Regression(sigma)
        trainer(tmp_path, SpectralPenalty(0.5, weights=weights)).fit(model, vectors())
        trainer(tmp_path).fit(alone, vectors())
        assert torch.equal(alone.first.weight, model.first.weight)


def test_bad_options(tmp_path):
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="weight: expected a positive, finite number"):
            SpectralPenalty(weight)
    with pytest.raises(TypeError, match="center: expected a number, got str"):
        SpectralPenalty(0.1, "second")
    with pytest.raises(ValueError, match="center: expected a finite number, got inf"):
        SpectralPenalty(0.1, float("inf"))
    with pytest.warns(UserWarning, match="weights: third matches no weight in SVD form"):
        trainer(tmp_path, SpectralPenalty(0.1, weights="third")).fit(Regression(), vectors())
