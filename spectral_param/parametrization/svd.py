"""The module that holds a weight as U diag(σ) Vᵀ in the place where torch looks for a parametrization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spectral_param.functional import fitting, native
from spectral_param.functional.factorization import packed_product, packed_weight
from spectral_param.functional.frozen import kept_columns, stands_still, turned
from spectral_param.functional.householder import normalized
from spectral_param.functional.low_rank import low_rank_factors
from spectral_param.functional.packing import pack, unpack
from spectral_param.functional.ways import is_less_work, is_low_rank
from spectral_param.parametrization.blocks import Matrices
from spectral_param.parametrization.factors import layout_of
from spectral_param.parametrization.mismatch import warn_of_differences
from spectral_param.sigma import SigmaMap, clipping
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import autocast_is_on
from spectral_param.torch_state.shards import whole, write_


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
        layout: which trained tensors there are.

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
        self.layout = layout_of(self.sizes, matrices.count, sigma_map.trained)

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
        place_u, _, place_v = self.layout.places
        return all(stands_still(factors[place]) for place in (place_u, place_v) if place >= 0)

    def _kept_turns(self, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """U[:, :k] and V[:, :k], which are not trained."""
        k = min(self.shape)
        turns = []
        for place, n, m in zip(self.layout.places[::2], self.shape, self.reflectors, strict=True):
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
        u, v = (factors[place] if place >= 0 else None for place in self.layout.places[::2])
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
        """Finds the trained tensors for a weight: see :func:`spectral_param.functional.fitting.fit`.

        Warns:
            UserWarning: if too few reflectors or the range of the σ map keep W from being met.
        """
        self.check_weight(weight)
        blocks = self.matrices.of(weight.detach())
        factors = _stack([fitting.fit(block, *self.reflectors) for block in blocks])
        warn_of_differences(blocks, factors, self.sizes, self.sigma_map)
        return self._pack(factors, like=weight)

    def starting_factors(self, weight: Tensor) -> list[Tensor]:
        """The trained tensors at registration: those of ``weight``, or random U and V around the map's start."""
        if weight.is_meta:  # shapes alone, for a checkpoint or reset_parameters to fill
            return self.layout.empty(self._trained_dtype, weight.device)
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
        own = held._parameters  # a lookup, where an attribute of a module is a search
        names = [f"original{i}" for i in range(held.ntensors)]
        return tuple(own[name] if name in own else getattr(held, name) for name in names)

    @property
    def trained_parts(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Packed reflectors of U, raw σ, and packed reflectors of V as they stand; raw σ empty where not trained."""
        return self.layout.parts(self.factors)

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
        if self.sigma_map.trained:
            raw = self.factors[self.layout.places[1]]
            raw.copy_(clipping.clipped(self.sigma_map, raw, low, high))

    def check_clip(self, low: float, high: float) -> None:
        """Raises the error of :meth:`clip_`, changing nothing."""
        clipping.check_clip(self.sigma_map, low, high)

    def freeze_all_but_(self, part: str) -> None:
        """Lets only ``"sigma"`` or only ``"reflectors"`` be trained; ``"all"`` freezes nothing."""
        for place, name in zip(self.layout.places, ("reflectors", "sigma", "reflectors"), strict=True):
            if place >= 0 and part not in ("all", name):
                self.factors[place].requires_grad_(False)

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; W changes by rounding alone."""
        for place, dense in ((self.layout.places[0], self.u), (self.layout.places[2], self.v)):
            if dense is not None:
                write_(self.factors[place], pack(normalized(dense)))

    # ------------------------------------------------------------------------------------- between factors and tensors

    def _packed(self, factors: Sequence[Tensor]) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Packed reflectors of U, σ, and packed reflectors of V, in float32 or float64."""
        u, raw, v = self.layout.parts(factors)
        return None if u is None else _wide(u), self.sigma_map(_wide(raw)), None if v is None else _wide(v)

    def _dense(self, factors: Sequence[Tensor]) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Reflectors with their zeros, and σ, in float32 or float64."""
        u, sigma, v = self._packed(factors)
        (p, q), (m1, m2) = self.shape, self.reflectors
        return None if u is None else unpack(u, p, m1), sigma, None if v is None else unpack(v, q, m2)

    def _sigma(self, factors: Sequence[Tensor]) -> Tensor:
        return self.sigma_map(_wide(self.layout.parts(factors)[1]))

    def _pack(self, factors: fitting.Factors, like: Tensor) -> list[Tensor]:
        u, sigma, v = factors
        raw = self.sigma_map.inverse(sigma if self.chunks > 1 else sigma[0]).view_as(sigma)
        dtype = self.factors[0].dtype if "held_in" in self.__dict__ else self._trained_dtype  # as they are by now
        if not torch.isfinite(raw.to(dtype)).all():
            raise ValueError(f"weight: its singular values are too large for {dtype}.")
        return [part.to(like.device, dtype) for part in self.layout.pack(u, raw, v)]

    @property
    def _trained_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def _load_from_state_dict(self, *args: Any) -> None:
        """Takes note of factors, loaded just before, that were assigned in another dtype: W comes out in it."""
        super()._load_from_state_dict(*args)
        dtype = self.factors[0].dtype
        if dtype.itemsize < 4 or (dtype == torch.float64) != (self.dtype == torch.float64):
            self.dtype = dtype

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def extra_repr(self) -> str:
        """Shape, chunks and reflectors, for printing."""
        (p, q), (m1, m2) = self.shape, self.reflectors
        blocks = f"{self.chunks} × " if self.chunks > 1 else ""
        return f"{blocks}{p}×{q}, reflectors=({m1}, {m2})"


def _wide(factor: Tensor) -> Tensor:
    """In float32 where it is narrower."""
    return factor.float() if factor.dtype.itemsize < 4 else factor


def _stack(blocks: Sequence[fitting.Factors]) -> fitting.Factors:
    u, sigma, v = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    return u, sigma, v
