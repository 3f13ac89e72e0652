"""The module that holds a weight as U diag(σ) Vᵀ in the place where torch looks for a parametrization."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spectral_param import fitting, native
from spectral_param.factorization import is_low_rank, packed_product, packed_weight, svd_weight
from spectral_param.frozen import kept_columns, stands_still, turned
from spectral_param.householder import normalized
from spectral_param.low_rank import Sizes, low_rank_factors
from spectral_param.matrices import Matrices
from spectral_param.matrix_free import is_less_work
from spectral_param.precision import autocast_is_on
from spectral_param.shards import whole, write_
from spectral_param.sigma import SigmaMap
from spectral_param.sigma.level import beside, holds, said
from spectral_param.trapezoid import pack, packed_size, unpack

_APPROXIMATE = 1e-3  # relative error of a fit from which the user is told


class SVDParametrization(nn.Module):
    """Holds a weight as ``U diag(σ) Vᵀ``; what ``torch.nn.utils.parametrize`` keeps for a registered weight.

    The trained tensors stand beside it in ``module.parametrizations.<name>`` as ``original0``, ``original1``, …: the
    reflectors of U without their zeros, the raw numbers of the σ map where it has any, and the reflectors of V. They
    are float32, or float64 for a float64 weight; W comes out in the dtype of the module.

    Made by :func:`register_svd_parametrization` and found again by :func:`svd_parametrizations`.

    Attributes:
        matrices: how the weight is read as ``chunks`` blocks p×q.
        reflectors: (m₁, m₂), how many for U and for V.
        sigma_map: the σ map.
        init: how it starts, at registration and when the module's ``reset_parameters`` is called.
        matrix_free: whether an ``nn.Linear`` is applied without building W; ``None``: where that is less work.

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
        matrices: Matrices,
        reflectors: tuple[int, int],
        sigma_map: SigmaMap,
        *,
        init: str,
        dtype: torch.dtype,
        matrix_free: bool | None = None,
    ) -> None:
        super().__init__()
        self.matrices = matrices
        self.reflectors = reflectors
        self.sigma_map = sigma_map
        self.init = init
        self.dtype = dtype
        self.matrix_free = matrix_free
        self._places = _places(reflectors[0] > 0, sigma_map.trained, reflectors[1] > 0)

    @property
    def shape(self) -> tuple[int, int]:
        """(p, q), rows and columns of one block."""
        return self.matrices.p, self.matrices.q

    @property
    def sizes(self) -> Sizes:
        """Rows and columns of a block, and how many reflectors turn it on the left and on the right."""
        return Sizes(self.matrices.p, self.matrices.q, *self.reflectors)

    @property
    def chunks(self) -> int:
        """How many blocks the weight has, each with its own SVD."""
        return self.matrices.count

    # ----------------------------------------------------------------------------------------------------- evaluation

    def forward(self, *factors: Tensor) -> Tensor:
        """Builds W from the trained tensors, (chunks · p, q), never under autocast."""
        device = factors[0].device.type
        if autocast_is_on(device):
            with torch.autocast(device, enabled=False):
                return self.forward(*factors)
        factors = tuple(map(whole, factors))
        blocks = self._blocks(factors)
        half = factors[0].dtype.itemsize < 4  # a strategy of mixed precision hands factors in its own dtype
        return self.matrices.to_weight(blocks).to(factors[0].dtype if half else self.dtype)

    def _blocks(self, factors: Sequence[Tensor]) -> Tensor:
        if not self._turns_stand_still(factors):
            return packed_weight(*self._packed(factors), self.sizes)
        left, right = self._kept_turns(factors)
        return (left * self._sigma(factors).unsqueeze(-2)) @ right.mT

    def _turns_stand_still(self, factors: Sequence[Tensor]) -> bool:
        place_u, _, place_v = self._places
        return all(stands_still(factors[place]) for place in (place_u, place_v) if place >= 0)

    def _kept_turns(self, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """U[:, :k] and V[:, :k], which are not trained."""
        k = min(self.shape)
        turns = []
        for place, n, m in zip(self._places[::2], self.shape, self.reflectors, strict=True):
            if place < 0:
                turns.append(torch.eye(n, k, device=factors[0].device, dtype=self._sigma(factors).dtype))
            else:
                turns.append(kept_columns(factors[place], n, m, k))
        return turns[0], turns[1]

    def product(self, x: Tensor, *factors: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x Wᵀ + b``, (N, chunks · p) for rows x (N, q), without building W; in float32 or float64 under autocast."""
        device = factors[0].device.type
        if autocast_is_on(device):
            with torch.autocast(device, enabled=False):
                return self.product(x, *factors, bias=bias)
        if self._turns_stand_still(factors):
            y = self._kept_product(x, factors)
        else:
            u, sigma, v = self._packed(factors)
            only_block = self.chunks == 1 and bias is not None
            y = packed_product(x.to(sigma.dtype), u, sigma, v, self.sizes, bias if only_block else None)
            if only_block:
                return y
        y = y if self.chunks == 1 else y.transpose(0, 1).flatten(-2)
        return y if bias is None else y + bias

    def _kept_product(self, x: Tensor, factors: Sequence[Tensor]) -> Tensor:
        """``x Wᵀ`` with U and V kept: whole, or as thin factors where there are few reflectors."""
        p, q, m1, m2 = self.sizes
        k, sigma = self.sizes.k, self._sigma(factors).unsqueeze(-2)
        x = x.to(sigma.dtype)
        if 2 * max(m1, m2) > k:
            left, right = self._kept_turns(factors)
            return ((x @ right) * sigma) @ left.mT
        u, v = (factors[place] if place >= 0 else None for place in self._places[::2])
        return turned(pad(turned(x, v, q, m2)[..., :k] * sigma, (0, p - k)), u, p, m1, transpose=True)

    def thin_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """σ, L and R of ``W = Σ - L Rᵀ``, for reflectors on both sides, fewer than k."""
        u, sigma, v = self._packed(self.factors)
        assert u is not None
        assert v is not None
        return sigma, *low_rank_factors(u, sigma, v, self.sizes)

    def spares_work(self, vectors: int) -> bool:
        """Whether :meth:`product` of so many vectors is less work in a training step than to build W first."""
        if self.is_kept:
            return 2 * max(self.reflectors) <= min(self.shape) or vectors < 2 * min(self.shape)
        if is_low_rank(self.sizes) and native.fits_weight(self.shape, *self.factors):
            return False
        return is_less_work(self.sizes, vectors)

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        """Finds the trained tensors for a weight: see :func:`spectral_param.fitting.fit`.

        Warns:
            UserWarning: if too few reflectors or the range of the σ map keep W from being met.
        """
        self.check_weight(weight)
        blocks = self.matrices.of(weight.detach())
        factors = _stack([fitting.fit(block, *self.reflectors) for block in blocks])
        self._warn_of_differences(blocks, factors)
        return self._pack(factors, like=weight)

    def starting_factors(self, weight: Tensor) -> list[Tensor]:
        """The trained tensors at registration: those of ``weight``, or random U and V around the map's start."""
        if weight.is_meta:  # shapes alone, for a checkpoint or reset_parameters to fill
            return self._shaped_like_factors(weight)
        if self.init == "weight":
            return self.right_inverse(weight)
        start = torch.as_tensor(self.sigma_map.start, dtype=torch.float64, device="cpu")
        levels = start.expand(self.chunks, min(self.shape))
        blocks = [fitting.draw(*self.shape, *self.reflectors, sigma=level) for level in levels]
        return self._pack(_stack(blocks), like=weight)

    def check_weight(self, weight: Tensor) -> None:
        """Raises ``ValueError`` for a weight of another shape, or with NaN or infinity in it."""
        expected = self.matrices.weight_shape
        if tuple(weight.shape) != expected:
            raise ValueError(f"weight: expected shape {expected}, got {tuple(weight.shape)}.")
        if not weight.dtype.is_floating_point:
            raise TypeError(f"weight: expected a real floating dtype, got {weight.dtype}.")
        if not torch.isfinite(weight).all():
            raise ValueError("weight: expected finite values, got NaN or infinity.")

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The trained tensors as they stand: packed U, raw σ, packed V, of which some may be missing."""
        held = self.__dict__["held_in"]
        return tuple(getattr(held, f"original{i}") for i in range(held.ntensors))

    @property
    def trained_parts(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Packed reflectors of U, raw σ, and packed reflectors of V as they stand; raw σ empty where not trained."""
        factors = self.factors
        u, raw, v = (factors[place] if place >= 0 else None for place in self._places)
        return u, self._untrained(factors[0]) if raw is None else raw, v

    @property
    def sigma(self) -> Tensor:
        """σ with its sign, differentiable: (k,), or (chunks, k). On shards a collective read, so one for all ranks."""
        return self._sigma([whole(f) for f in self.factors])

    @property
    def packed(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Reflectors of U without their zeros, σ, and reflectors of V without theirs; differentiable."""
        return self._packed(self.factors)

    @property
    def is_kept(self) -> bool:
        """Whether no reflector is trained, so that U and V are built once and kept."""
        return self._turns_stand_still(self.factors)

    @property
    def u(self) -> Tensor | None:
        """Reflectors of U, differentiable: (p, m₁), or (chunks, p, m₁); ``None`` without any."""
        return self._dense([whole(f) for f in self.factors])[0]

    @property
    def v(self) -> Tensor | None:
        """Reflectors of V, differentiable: (q, m₂), or (chunks, q, m₂); ``None`` without any."""
        return self._dense([whole(f) for f in self.factors])[2]

    # -------------------------------------------------------------------------------------------------------- editing

    @torch.no_grad()
    def clip_(self, low: float, high: float) -> None:
        """Moves every singular value |σ| into [low, high], in place; the others keep their bits.

        σ keeps its sign unless the map reaches [low, high] with the other alone.

        Raises:
            ValueError: if no σ that the map can reach lies in there.
        """
        self.check_clip(low, high)
        if not self.sigma_map.trained:
            return
        raw = self.factors[self._places[1]]
        sigma = self._sigma(self.factors)
        size = sigma.abs().clamp(low, high)
        signed = size.copysign(sigma)
        as_positive, as_negative = (beside(side, sigma) for side in self._reaches(low, high))
        keeps_sign = torch.where(sigma.signbit(), as_negative, as_positive)
        clipped = self.sigma_map.inverse(torch.where(keeps_sign.bool(), signed, -signed))
        raw.copy_(torch.where(size == sigma.abs(), raw, clipped.to(raw.dtype)))

    def check_clip(self, low: float, high: float) -> None:
        """Raises the error of :meth:`clip_`, changing nothing."""
        if not 0 <= low <= high:
            raise ValueError(f"min, max: expected 0 <= min <= max, got {low} and {high}.")
        as_positive, as_negative = self._reaches(low, high)
        if not holds(as_positive | as_negative):
            reach = f"{said(self.sigma_map.low)} to {said(self.sigma_map.high)}"
            some = "" if isinstance(self.sigma_map.low, float) else " for some σ"
            raise ValueError(
                f"min, max: {self.sigma_map} reaches σ from {reach}, none of them in [{low}, {high}]{some}."
            )

    def _reaches(self, low: float, high: float) -> tuple[bool | Tensor, bool | Tensor]:
        """Whether σ can have a size in [low, high] as a positive number, and as a negative one; for each σ."""
        return self.sigma_map.reaches(low, high), self.sigma_map.reaches(-high, -low)

    def freeze_all_but_(self, part: str) -> None:
        """Lets only ``"sigma"`` or only ``"reflectors"`` be trained; ``"all"`` freezes nothing."""
        for place, name in zip(self._places, ("reflectors", "sigma", "reflectors"), strict=True):
            if place >= 0 and part not in ("all", name):
                self.factors[place].requires_grad_(False)

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; W changes by rounding alone."""
        for place, dense in ((self._places[0], self.u), (self._places[2], self.v)):
            if dense is not None:
                write_(self.factors[place], pack(normalized(dense)))

    # ------------------------------------------------------------------------------------- between factors and tensors

    @property
    def _lead(self) -> tuple[int, ...]:
        return (self.chunks,) if self.chunks > 1 else ()

    def _packed(self, factors: Sequence[Tensor]) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Packed reflectors of U, σ, and packed reflectors of V, in float32 or float64."""
        place_u, _, place_v = self._places
        u, v = (_wide(factors[place]) if place >= 0 else None for place in (place_u, place_v))
        return u, self._sigma(factors), v

    def _dense(self, factors: Sequence[Tensor]) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Reflectors with their zeros, and σ, in float32 or float64."""
        u, sigma, v = self._packed(factors)
        (p, q), (m1, m2) = self.shape, self.reflectors
        return None if u is None else unpack(u, p, m1), sigma, None if v is None else unpack(v, q, m2)

    def _sigma(self, factors: Sequence[Tensor]) -> Tensor:
        place = self._places[1]
        return self.sigma_map(_wide(factors[place] if place >= 0 else self._untrained(factors[0])))

    def _untrained(self, like: Tensor) -> Tensor:
        """What the map of a σ that is not trained takes, to see its shape."""
        return like.new_empty(*self._lead, min(self.shape))

    def _pack(self, factors: fitting.Factors, like: Tensor) -> list[Tensor]:
        u, sigma, v = (f if self.chunks > 1 else f[0] for f in factors)
        raw = self.sigma_map.inverse(sigma)
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        if "held_in" in self.__dict__:  # an assignment: as the factors are by now
            dtype = self.factors[0].dtype
        if not torch.isfinite(raw.to(dtype)).all():
            raise ValueError(f"weight: its singular values are too large for {dtype}.")
        parts = [pack(u), raw, pack(v)]
        return [part.to(like.device, dtype) for part, place in zip(parts, self._places, strict=True) if place >= 0]

    def _load_from_state_dict(self, *args: Any) -> None:
        """Takes note of factors, loaded just before, that were assigned in another dtype: W comes out in it."""
        super()._load_from_state_dict(*args)
        dtype = self.factors[0].dtype
        if dtype.itemsize < 4 or (dtype == torch.float64) != (self.dtype == torch.float64):
            self.dtype = dtype

    def _shaped_like_factors(self, weight: Tensor) -> list[Tensor]:
        (p, q), (m1, m2) = self.shape, self.reflectors
        sizes = packed_size(p, m1), min(p, q), packed_size(q, m2)
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        return [
            torch.empty(*self._lead, size, device=weight.device, dtype=dtype)
            for size, place in zip(sizes, self._places, strict=True)
            if place >= 0
        ]

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


def _places(*present: bool) -> tuple[int, ...]:
    """Where U, raw σ and V stand among the factors; -1 for what is not there."""
    return tuple(sum(present[:i]) if here else -1 for i, here in enumerate(present))


def _wide(factor: Tensor) -> Tensor:
    """In float32 where it is narrower."""
    return factor.float() if factor.dtype.itemsize < 4 else factor


def _stack(blocks: Sequence[fitting.Factors]) -> fitting.Factors:
    u, sigma, v = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    return u, sigma, v


def _relative_difference(near: Tensor, weight: Tensor) -> float:
    scale = weight.abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    difference = torch.linalg.vector_norm((near - weight) / scale)
    return (difference / torch.linalg.vector_norm(weight / scale).clamp_min(1e-300)).item()
