"""At which multiples of a plain weight's learning rate its factors are trained to move W as far as it would move.

Note [Rates]
    Let η be the plain rate, p×q the weight, k = min(p, q), σ and w the root mean squares of its singular values and of
    its entries: w = σ / √max(p, q). A reflector of n entries that turns by θ turns a plane by 2 θ: its own direction,
    half of which is an axis that W has, and that of the turn, spread like the other half over n dimensions, of which W
    has k. So turning all m of them, each to a side of its own, moves W by √(8 m s) θ σ in the Frobenius norm, with
    s = (1 + 3 k / n) / 4, which is 1 for a square. Each of the three parts may move W as far as the plain step would.

    *Adam* and its kin move each entry by η, so W by η √(pq). If each σ moves by d that is √k d = η √(pq), so
    d = η √max(p, q); and θ = η √(pq) / (√(8 m s) σ) = (η / w) √(k / m) / √(8 s). Adam turns a reflector by its rate
    over the root mean square ρ of its entries: hence the rate θ ρ.

    *SGD* moves W by η ∂L/∂W, and σ, trained at η, by the same to first order: ∂L/∂σ is the diagonal of Uᵀ ∂L/∂W V. A
    reflector u turns by its rate / ‖u‖² times the gradient by its direction, and W by 8 s σ² times that: hence the
    rate η ‖u‖² / (8 s σ²).

    *Adafactor* moves what it trains in proportion to itself: η w for W, so η σ for σ, whose rate is η; and a reflector
    by the angle of its rate: η √(k / m) / √(8 s).

    A kernel between shifts has as many entries more as it has taps, so that √max(p, q) is times the root of their
    number in all of this; a reflector that shifts is taken for one that turns.

    A map σ = f(raw) has the slope f′. Where it holds σ in a range, σ moves by the share of half of that range that it
    would move of 1: a step as long as that of a free σ would end at an edge, where nothing is learned. So its step is
    multiplied by r = min(1.5, half of the range), and the rate of raw by r / f′, under SGD r / f′².

    The multiples are those of the start; as σ grows the lengths of reflectors follow (Note [Lengths] in
    ``spectrum/reflector_lengths``).

    A scale within the parametrization, W = U diag(c raw) Vᵀ, serves one kind alone: Adam would move σ by c η,
    SGD by c² η; and checkpoints would change their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.torch_state.modes import has_numbers
from spectral_param.torch_state.shards import whole

LEAST_SIGMA = 0.1  # a weight that starts at zero, as a residual branch may, has no scale yet
_LEAST_SLOPE = 1e-3  # as of a σ at the edge of its range
_LEAST_PARAMETER = 1e-3  # below it Adafactor's steps are those of a parameter of this size
_SGD_SIGMA = 2.7  # measured, where Note [Rates] has 1: σ makes up for what turns do not reach
_FARTHEST = 1.5  # measured, too: a free σ moves W farther than a plain step does, and programs gain by it


class _Scale(NamedTuple):
    """What Note [Rates] calls √max(p, q), σ, the size of raw, f′ and r."""

    width: float
    sigma: float
    raw: float
    slope: float
    reach: float


class _Reflectors(NamedTuple):
    """√(k / m), 8 s, ρ and ‖u‖ of the reflectors of one side."""

    few: float
    moves: float
    entry: float
    length: float


class StepRates(NamedTuple):
    """How σ and the reflectors of a weight are trained by optimizers of one kind.

    Attributes:
        sigma: the multiple of the plain rate for raw σ.
        reflectors: for the reflectors of a side.
    """

    sigma: Callable[[_Scale], float]
    reflectors: Callable[[_Scale, _Reflectors], float]

    def of(self, parametrization: SVDParametrization) -> tuple[float, ...]:
        """The multiple for each factor of a weight, in their order. On shards a collective read.

        Raises:
            ValueError: on the meta device, where there are no lengths to go by.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from spectral_param import register_svd_parametrization, svd_parametrizations
            >>> from spectral_param.parametrization.step_rates import ADAM
            >>> [(_, held)] = svd_parametrizations(register_svd_parametrization(nn.Linear(64, 16), init="orthogonal"))
            >>> ADAM.of(held)[1]
            12.0
        """
        if not all(map(has_numbers, parametrization.factors)):
            raise ValueError("model: expected weights with numbers to take rates from, got some on the meta device.")
        scale, k = _scale(parametrization), min(parametrization.shape)
        found = {place: self.sigma(scale) for place in parametrization.layout.places[1:2] if place >= 0}
        for _, place, n, m, count in parametrization.sides:
            factor = whole(parametrization.factors[place].detach())
            found[place] = self.reflectors(scale, _reflectors(factor, n, k, m, count))
        return tuple(found[place] for place in sorted(found))


ADAM = StepRates(
    sigma=lambda scale: scale.width * scale.reach / scale.slope,
    reflectors=lambda scale, u: u.entry * scale.width / scale.sigma * u.few / math.sqrt(u.moves),
)
SGD = StepRates(
    sigma=lambda scale: _SGD_SIGMA * scale.reach / scale.slope**2,
    reflectors=lambda scale, u: u.length**2 / (u.moves * scale.sigma**2),
)
ADAFACTOR = StepRates(
    sigma=lambda scale: scale.sigma * scale.reach / (scale.slope * max(scale.raw, _LEAST_PARAMETER)),
    reflectors=lambda scale, u: u.few / math.sqrt(u.moves),
)


def _scale(parametrization: SVDParametrization) -> _Scale:
    sigma_map, raw = parametrization.sigma_map, parametrization.raw_sigma
    size, slope = 0.0, 1.0
    if raw is not None:
        with torch.enable_grad():
            raw = whole(raw.detach()).double().requires_grad_()
            [slopes] = torch.autograd.grad(sigma_map(raw).sum(), raw)
        size, slope = _rms(raw.detach()), max(_rms(slopes), _LEAST_SLOPE)
    half = torch.as_tensor((sigma_map.high - sigma_map.low) / 2)
    return _Scale(
        width=math.sqrt(math.prod(parametrization.matrices.weight_shape) / parametrization.sigma.numel()),
        sigma=max(parametrization.size_of_sigma, LEAST_SIGMA),
        raw=size,
        slope=slope,
        reach=half.clamp(max=_FARTHEST).double().mean().item(),
    )


def _reflectors(packed: Tensor, n: int, k: int, m: int, chunks: int) -> _Reflectors:
    length = math.sqrt(packed.double().square().sum().item() / (m * chunks))
    return _Reflectors(few=math.sqrt(k / m), moves=2 + 6 * k / n, entry=_rms(packed), length=length)


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item() if tensor.numel() else 0.0
