"""The module that holds a weight as U diag(σ) Vᵀ in the place where torch looks for a parametrization."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spectral_param import fitting
from spectral_param.factorization import svd_weight
from spectral_param.householder import householder_apply, normalized
from spectral_param.sigma import SigmaMap
from spectral_param.trapezoid import pack, unpack

_APPROXIMATE = 1e-3  # relative error of a fit from which the user is told


class SVDParametrization(nn.Module):
    """Holds a weight as ``U diag(σ) Vᵀ``; what ``torch.nn.utils.parametrize`` keeps for a registered weight.

    The trained tensors stand beside it in ``module.parametrizations.<name>`` as ``original0``, ``original1``, …: the
    reflectors of U without their zeros, the raw numbers of the σ map where it has any, and the reflectors of V. They
    are float32, or float64 for a float64 weight; W comes out in the dtype of the module.

    Made by :func:`register_svd_parametrization` and found again by :func:`svd_parametrizations`.

    Attributes:
        shape: (p, q), rows and columns of one block.
        chunks: how many blocks are stacked along dim 0.
        reflectors: (m₁, m₂), how many for U and for V.
        sigma_map: the σ map.
        init: how it starts, at registration and when the module's ``reset_parameters`` is called.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, svd_parametrizations
        >>> layer = register_svd_parametrization(nn.Linear(6, 4), reflectors=2, init="orthogonal")
        >>> [(name, p)] = svd_parametrizations(layer)
        >>> name, p.shape, p.reflectors, p.sigma.shape
        ('weight', (4, 6), (2, 2), torch.Size([4]))
    """

    def __init__(
        self,
        weight: Tensor,
        reflectors: tuple[int, int],
        sigma_map: SigmaMap,
        chunks: int,
        init: str,
    ) -> None:
        super().__init__()
        self.weight_shape = weight.shape
        self.shape = (weight.shape[0] // chunks, weight.shape[1])
        self.chunks = chunks
        self.reflectors = reflectors
        self.sigma_map = sigma_map
        self.init = init
        self.dtype = weight.dtype

    # ----------------------------------------------------------------------------------------------------- evaluation

    def forward(self, *factors: Tensor) -> Tensor:
        """Builds W from the trained tensors, (chunks · p, q), never under autocast."""
        device = factors[0].device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.forward(*factors)
        u, sigma, v = self._dense(factors)
        half = factors[0].dtype.itemsize < 4  # a strategy of mixed precision hands factors in its own dtype
        dtype = factors[0].dtype if half else self.dtype
        return svd_weight(u, sigma, v, *self.shape).reshape(self.weight_shape).to(dtype)

    def product(self, x: Tensor, *factors: Tensor) -> Tensor:
        """``W x`` without building W, for columns x (q, b): (chunks · p, b) in float32 or float64, never under autocast."""
        device = factors[0].device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.product(x, *factors)
        u, sigma, v = self._dense(factors)
        p, k = self.shape[0], min(self.shape)
        x = x.to(sigma.dtype)
        turned = x if v is None else householder_apply(v, x, transpose=True)
        scaled = pad(sigma.unsqueeze(-1) * turned[..., :k, :], (0, 0, 0, p - k))
        y = scaled if u is None else householder_apply(u, scaled)
        return y.reshape(self.weight_shape[0], x.shape[-1])

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        """Finds the trained tensors for a weight: see :func:`spectral_param.fitting.fit`.

        Warns:
            UserWarning: if too few reflectors or the range of the σ map keep W from being met.
        """
        self.check_weight(weight)
        blocks = weight.detach().reshape(self.chunks, *self.shape)
        factors = _stack([fitting.fit(block, *self.reflectors) for block in blocks])
        self._warn_of_differences(blocks, factors)
        return self._pack(factors, like=weight)

    def starting_factors(self, weight: Tensor) -> list[Tensor]:
        """The trained tensors at registration: those of ``weight``, or random U and V around the map's start."""
        if self.init == "weight":
            return self.right_inverse(weight)
        start = self.sigma_map.start
        blocks = [fitting.draw(*self.shape, *self.reflectors, sigma=start) for _ in range(self.chunks)]
        return self._pack(_stack(blocks), like=weight)

    def check_weight(self, weight: Tensor) -> None:
        """Raises ``ValueError`` for a weight of another shape, or with NaN or infinity in it."""
        if weight.shape != self.weight_shape:
            expected = tuple(self.weight_shape)
            raise ValueError(f"weight: expected shape {expected}, got {tuple(weight.shape)}.")
        if not torch.isfinite(weight).all():
            raise ValueError("weight: expected finite values, got NaN or infinity.")

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The trained tensors as they stand: packed U, raw σ, packed V, of which some may be missing."""
        held = self.__dict__["held_in"]
        return tuple(getattr(held, f"original{i}") for i in range(held.ntensors))

    @property
    def sigma(self) -> Tensor:
        """σ with its sign, differentiable: (k,), or (chunks, k)."""
        return self._dense(self.factors)[1]

    @property
    def u(self) -> Tensor | None:
        """Reflectors of U, differentiable: (p, m₁), or (chunks, p, m₁); ``None`` without any."""
        return self._dense(self.factors)[0]

    @property
    def v(self) -> Tensor | None:
        """Reflectors of V, differentiable: (q, m₂), or (chunks, q, m₂); ``None`` without any."""
        return self._dense(self.factors)[2]

    # -------------------------------------------------------------------------------------------------------- editing

    @torch.no_grad()
    def clip_(self, low: float, high: float) -> None:
        """Moves every singular value |σ| into [low, high], in place; the others keep their bits.

        Raises:
            ValueError: if no σ that the map can reach lies in there.
        """
        self.check_clip(low, high)
        if not self.sigma_map.trained:
            return
        raw = self.factors[self._places[1]]
        sigma = self.sigma_map(raw)
        clipped = sigma.abs().clamp(low, high).copysign(sigma)
        outside = clipped != sigma
        raw.copy_(torch.where(outside, self.sigma_map.inverse(clipped), raw))

    def check_clip(self, low: float, high: float) -> None:
        """Raises the error of :meth:`clip_`, changing nothing."""
        if not 0 <= low <= high:
            raise ValueError(f"min, max: expected 0 <= min <= max, got {low} and {high}.")
        reach = self.sigma_map.low, self.sigma_map.high
        positive = reach[0] <= high and reach[1] >= low
        negative = reach[0] <= -low and reach[1] >= -high
        if not (positive or negative):
            raise ValueError(
                f"min, max: {self.sigma_map} reaches σ from {reach[0]} to {reach[1]}, none of them in [{low}, {high}]."
            )

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; W changes by rounding alone."""
        u, _, v = self._dense(self.factors)
        for place, dense in ((self._places[0], u), (self._places[2], v)):
            if dense is not None:
                self.factors[place].copy_(pack(normalized(dense)))

    # ------------------------------------------------------------------------------------- between factors and tensors

    @property
    def _places(self) -> tuple[int, int, int]:
        """Where U, raw σ and V stand among the factors; -1 for what is not there."""
        present = (self.reflectors[0] > 0, self.sigma_map.trained, self.reflectors[1] > 0)
        places = [sum(present[:i]) if here else -1 for i, here in enumerate(present)]
        return places[0], places[1], places[2]

    @property
    def _lead(self) -> tuple[int, ...]:
        return (self.chunks,) if self.chunks > 1 else ()

    def _dense(self, factors: Sequence[Tensor]) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Reflectors with their zeros, and σ, in float32 or float64."""
        tensors = [f.float() if f.dtype.itemsize < 4 else f for f in factors]
        (p, q), (m1, m2) = self.shape, self.reflectors
        place_u, place_sigma, place_v = self._places
        u = unpack(tensors[place_u], p, m1) if m1 else None
        v = unpack(tensors[place_v], q, m2) if m2 else None
        sigma_shape = (*self._lead, min(p, q))
        raw = tensors[place_sigma] if self.sigma_map.trained else tensors[0].new_empty(sigma_shape)
        return u, self.sigma_map(raw), v

    def _pack(self, factors: fitting.Factors, like: Tensor) -> list[Tensor]:
        u, sigma, v = (f if self.chunks > 1 else f[0] for f in factors)
        raw = self.sigma_map.inverse(sigma)
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        if "held_in" in self.__dict__:  # an assignment: as the factors are by now
            dtype = self.factors[0].dtype
        parts = [pack(u), raw, pack(v)]
        return [part.to(like.device, dtype) for part, place in zip(parts, self._places, strict=True) if place >= 0]

    def _warn_of_differences(self, blocks: Tensor, factors: fitting.Factors) -> None:
        u, sigma, v = factors
        if min(self.reflectors) < min(self.shape):
            near = svd_weight(u, sigma, v, *self.shape)
            error = _relative_difference(near, blocks.to(near))
            if error > _APPROXIMATE:
                warnings.warn(
                    f"reflectors={self.reflectors} of {min(self.shape)} turn U and V too little to meet the weight: "
                    f"it changes by {error:.1%} in the Frobenius norm.",
                    stacklevel=4,
                )
        moved = (self.sigma_map(self.sigma_map.inverse(sigma)) - sigma).abs()
        count = int((moved > 1e-6 * sigma.abs().amax().clamp_min(1.0)).sum())
        if count:
            warnings.warn(
                f"{self.sigma_map}: {count} of {sigma.numel()} σ of the weight lie outside its range "
                f"and start inside it, moved by up to {moved.amax():.3g}.",
                stacklevel=4,
            )

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def extra_repr(self) -> str:
        """Shape, chunks and reflectors, for printing."""
        (p, q), (m1, m2) = self.shape, self.reflectors
        blocks = f"{self.chunks} × " if self.chunks > 1 else ""
        return f"{blocks}{p}×{q}, reflectors=({m1}, {m2})"


def _stack(blocks: Sequence[fitting.Factors]) -> fitting.Factors:
    u, sigma, v = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    return u, sigma, v


def _relative_difference(near: Tensor, weight: Tensor) -> float:
    scale = weight.abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    difference = torch.linalg.vector_norm((near - weight) / scale)
    return (difference / torch.linalg.vector_norm(weight / scale).clamp_min(1e-300)).item()
