"""The module that holds a weight as U diag(σ) Vᵀ in the place where torch looks for a parametrization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.functional import fitting
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.functional.low_rank import low_rank_factors
from spectral_param.functional.reflectors import normalized, pack
from spectral_param.functional.thin_product import thin_product
from spectral_param.functional.ways import Kept, Thin, Way, apply, build, way_to_build
from spectral_param.parametrization.blocks import CHANNELS_LAST, Matrices, has_channels_last
from spectral_param.parametrization.factors import Side, layout_of
from spectral_param.parametrization.kept_weight import KeptWeight
from spectral_param.parametrization.mismatch import warn_of_differences
from spectral_param.parametrization.stacked import check_alone
from spectral_param.parametrization.starting import check_weight, drawn
from spectral_param.sigma import SigmaMap, clipping
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import has_numbers, is_lowered, is_seen_through
from spectral_param.torch_state.precision import full_precision, wide
from spectral_param.torch_state.shards import whole, write_

_ORIGINALS = tuple(tuple(f"original{i}" for i in range(count)) for count in range(6))


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
        dtype: of W.
        matrix_free: whether an ``nn.Linear`` is applied without building W; ``None``: where that is less work.
        channels_last: whether a convolution's kernel has its channels last in memory.
        layout: which trained tensors there are.
        kept_weight: W between reads in evaluation without gradients.
        is_off: whether what was trained on a frozen base is left out for the time being.
        parametrization_list: what stands in the module and has the trained tensors; set by :meth:`attach`.
        parameter_order: the names of the module's parameters before any of them was registered; set there too.

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
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.matrices = matrices
        self.reflectors = reflectors
        self.sigma_map = sigma_map
        self.init = init
        self.dtype = dtype
        self.matrix_free = matrix_free
        self.channels_last = channels_last
        self.layout = layout_of(self.sizes, matrices.count, sigma_map.trained)
        self.parameter_order: tuple[str, ...] = ()
        self._held_in: tuple[ParametrizationList, ...] = ()  # in a tuple, since it stands above this module
        self._kept: Kept = FrozenProduct(), FrozenProduct()
        self.kept_weight = KeptWeight()
        self.is_off = False
        self._start: list[Tensor] | None = None

    def attach(self, parametrization_list: ParametrizationList, parameter_order: tuple[str, ...]) -> None:
        """Tells where the trained tensors are, which stand beside this module."""
        self._held_in = (parametrization_list,)
        self.parameter_order = parameter_order

    @staticmethod
    def alone_on(module: nn.Module, tensor_name: str = "weight") -> SVDParametrization | None:
        """The parametrization that says all about a weight; ``None`` for a plain one, or one changed further on top.

        Example:
            >>> from torch import nn
            >>> from spectral_param import SVDParametrization
            >>> SVDParametrization.alone_on(nn.Linear(2, 2)) is None
            True
        """
        lists = module._modules.get("parametrizations")
        held = None if lists is None else lists._modules.get(tensor_name)
        if held is None or len(held._modules) != 1:
            return None
        first = held._modules.get("0")
        return first if isinstance(first, SVDParametrization) else None

    @property
    def parametrization_list(self) -> ParametrizationList:
        """What stands in the module and has the trained tensors."""
        return self._held_in[0]

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

    def forward(self, *factors: Tensor, way: Way | None = None) -> Tensor:
        """Builds W from the trained tensors, in full precision whatever the mode.

        Args:
            factors: the trained tensors.
            way: how, where that is decided already.
        """
        device = factors[0].device.type
        if is_lowered(device):
            with full_precision(device):
                return self._weight(factors, way)
        return self._weight(factors, way)

    def _weight(self, factors: tuple[Tensor, ...], way: Way | None) -> Tensor:
        if hasattr(factors[0], "full_tensor"):
            factors = tuple(map(whole, factors))
        half = factors[0].dtype.itemsize < 4  # a strategy of mixed precision hands factors in its own dtype
        return self.as_weight(self._built(factors, way).to(factors[0].dtype if half else self.dtype))

    def _built(self, factors: tuple[Tensor, ...], way: Way | None) -> Tensor:
        """W as its matrices, in float32 or float64."""
        u, raw, v = self._parts(factors)
        way = way or way_to_build(u, raw, v, transformed=is_seen_through())
        return build(way, *self._wide(u, raw, v, way), self._kept)

    def as_weight(self, matrices: Tensor) -> Tensor:
        """(chunks, p, q), or (p, q) where there is one, in the shape and the memory format of the weight."""
        w = matrices if matrices.shape == self.matrices.weight_shape else self.matrices.to_weight(matrices)
        return w.clone(memory_format=CHANNELS_LAST[w.dim()]) if self.channels_last else w.contiguous()

    def product(self, x: Tensor, way: Way | Thin, bias: Tensor | None = None) -> Tensor:
        """``x Wᵀ + b``, (N, chunks · p) for rows x (N, q), without building W; in float32 or float64.

        Args:
            x: the rows.
            way: how, or the thin factors where they are there already.
            bias: b.
        """
        device = x.device.type
        if is_lowered(device):
            with full_precision(device):
                return self._product(x, way, bias)
        return self._product(x, way, bias)

    def _product(self, x: Tensor, way: Way | Thin, bias: Tensor | None) -> Tensor:
        if not isinstance(way, Way):
            return thin_product(x, *way, bias)
        u, sigma, v = self._wide(*self.parts, way)
        x = x.to(sigma.dtype)
        if self.chunks == 1:
            return apply(way, x, u, sigma, v, self._kept, bias)
        y = apply(way, x, u, sigma, v, self._kept).transpose(0, 1).flatten(-2)  # (chunks, N, p) → (N, chunks · p)
        return y if bias is None else y + bias

    def thin_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """σ, L and R of ``W = Σ - L Rᵀ``, for reflectors on both sides, fewer than k; where nothing transforms."""
        u, sigma, v = self._wide(*self.parts)
        return sigma, *low_rank_factors(u, sigma, v)

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        """Finds the trained tensors for a weight: see ``fit`` in :mod:`spectral_param.functional.fitting`.

        Warns:
            UserWarning: if too few reflectors or the range of the σ map keep W from being met.
        """
        if self._start is not None:
            return self._start
        check_weight(weight, self.matrices.weight_shape)
        if not has_numbers(weight):  # shapes alone, for a checkpoint or reset_parameters to fill
            return self.layout.empty(self._trained_dtype, weight.device)
        return self.of_found(fitting.fit(self.matrices.of(weight.detach()), *self.reflectors), weight)

    def of_found(self, factors: fitting.Factors, weight: Tensor) -> list[Tensor]:
        """The trained tensors for a weight whose factors have been found, block by block.

        Warns:
            UserWarning: as :meth:`right_inverse`.
        """
        warn_of_differences(self.matrices.of(weight.detach()), factors[1], self.sizes, self.sigma_map)
        return self._pack(factors, like=weight)

    def start_at(self, factors: list[Tensor] | None) -> None:
        """Has :meth:`right_inverse` answer these in place of a fit, until ``None`` is given."""
        self._start = factors

    def starting_factors(self, weight: Tensor) -> list[Tensor]:
        """The trained tensors at registration: those of ``weight``, or random U and V around the map's start."""
        if self.init == "weight" or not has_numbers(weight):
            return self.right_inverse(weight)
        return self._pack(drawn(self.chunks, self.sizes, self.sigma_map), like=weight)

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The trained tensors as they stand, packed U, raw σ, packed V, of which some may be missing."""
        [held] = self._held_in
        own: Any = held._parameters  # a lookup, where an attribute of a module is a search
        names = _ORIGINALS[held.ntensors]
        try:
            return tuple(map(own.__getitem__, names))
        except KeyError:  # moved by others, as into a property
            return tuple(getattr(held, name) for name in names)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """All tensors that W is computed from, but for those of the σ map."""
        return self.factors

    @property
    def parts(self) -> tuple[ReflectorProduct, Tensor, ReflectorProduct]:
        """U, the raw numbers of σ, empty where not trained, and V, as they stand; on shards read whole."""
        factors = self.factors
        if hasattr(factors[0], "full_tensor"):
            factors = tuple(map(whole, factors))
        return self._parts(factors)

    @property
    def sides(self) -> list[Side]:
        """The factors that are reflectors."""
        return self.layout.sides

    @property
    def raw_sigma(self) -> Tensor | None:
        """The trained numbers of σ as they stand; ``None`` where σ is fixed."""
        place = self.layout.places[1]
        return self.factors[place] if place >= 0 else None

    @property
    def settings(self) -> tuple[object, ...]:
        """What W depends on besides the trained tensors and the σ map."""
        return self.dtype, self.channels_last

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of the raw numbers of σ, (k,) or (chunks, k)."""
        return *self.layout.lead, min(self.shape)

    def sigma_of(self, raw: Tensor) -> Tensor:
        """σ, (k,) or (chunks, k), of raw numbers of :attr:`raw_shape` in the place of its own, not in half."""
        sigma: Tensor = self.sigma_map(wide(raw))
        return sigma

    @property
    def sigma(self) -> Tensor:
        """σ with its sign, differentiable, (k,) or (chunks, k). On shards a collective read, so one for all ranks."""
        return self.svd[1]

    @property
    def size_of_sigma(self) -> float:
        """The root mean square of all σ."""
        return self.sigma.detach().double().square().mean().sqrt().item()

    @property
    def svd(self) -> tuple[ReflectorProduct, Tensor, ReflectorProduct]:
        """U, σ and V, differentiable, in float32 or float64."""
        return self._wide(*self.parts)

    @property
    def u(self) -> Tensor | None:
        """Reflectors of U, differentiable, (p, m₁) or (chunks, p, m₁); ``None`` without any."""
        u = self.svd[0]
        return u.reflectors() if u.m else None

    @property
    def v(self) -> Tensor | None:
        """Reflectors of V, differentiable, (q, m₂) or (chunks, q, m₂); ``None`` without any."""
        v = self.svd[2]
        return v.reflectors() if v.m else None

    # -------------------------------------------------------------------------------------------------------- editing

    @torch.no_grad()
    def clip_(self, low: float, high: float) -> None:
        """Moves every singular value ``|σ|`` into [low, high], in place; the others keep their bits.

        σ keeps its sign unless the map reaches [low, high] with the other alone.

        Raises:
            ValueError: if no σ that the map can reach lies in there, or another parametrization stands on top.
        """
        self.check_clip(low, high)
        raw = self.raw_sigma
        if raw is not None:
            raw.copy_(clipping.clipped(self.sigma_map, raw, low, high))

    def check_clip(self, low: float, high: float) -> None:
        """Raises the error of :meth:`clip_`, changing nothing."""
        if (low, high) != (0.0, math.inf):
            check_alone(self)
        self._check_range(low, high)

    def _check_range(self, low: float, high: float) -> None:
        clipping.check_clip(self.sigma_map, low, high)

    def freeze_all_but_(self, part: str) -> None:
        """Lets only ``"sigma"`` or only ``"reflectors"`` be trained; ``"all"`` freezes nothing."""
        if part == "sigma":
            for side in self.sides:
                self.factors[side.place].requires_grad_(False)
        elif part == "reflectors" and self.raw_sigma is not None:
            self.raw_sigma.requires_grad_(False)

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; W changes by rounding alone."""
        u, _, v = self.svd
        for place, side in ((self.layout.places[0], u), (self.layout.places[2], v)):
            if side.m:
                write_(self.factors[place], pack(normalized(side.reflectors())))

    # ------------------------------------------------------------------------------------- between factors and tensors

    def _parts(self, factors: Sequence[Tensor]) -> tuple[ReflectorProduct, Tensor, ReflectorProduct]:
        """U, raw σ and V of the trained tensors; a raw σ that is not trained is there for its shape alone."""
        (p, q), (m1, m2), (at_u, at_raw, at_v) = self.shape, self.reflectors, self.layout.places
        some, lead = factors[0], (self.chunks,) if self.chunks > 1 else ()
        u, v = (factors[place] if place >= 0 else some.new_empty(*lead, 0) for place in (at_u, at_v))
        raw = factors[at_raw] if at_raw >= 0 else some.new_empty(*lead, min(p, q))
        return ReflectorProduct(u, p, m1), raw, ReflectorProduct(v, q, m2)

    def _wide(
        self, u: ReflectorProduct, raw: Tensor, v: ReflectorProduct, way: Way | None = None
    ) -> tuple[ReflectorProduct, Tensor, ReflectorProduct]:
        """U, σ and V, in float32 where they are narrower; what is frozen is kept by the tensor that it stands in."""
        if raw.dtype.itemsize < 4:
            raw = raw.float()
            if way not in (Way.FROZEN, Way.FROZEN_REFLECTORS):
                u, v = (ReflectorProduct(each.packed.float(), each.n, each.m) for each in (u, v))
        return u, self.sigma_map(raw), v

    def _pack(self, factors: fitting.Factors, like: Tensor) -> list[Tensor]:
        u, sigma, v = factors
        raw = self.sigma_map.inverse(sigma if self.chunks > 1 else sigma[0]).view_as(sigma)
        dtype = self.factors[0].dtype if self._held_in else self._trained_dtype  # as they are by now
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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        weight = torch.empty((2,) * len(self.matrices.weight_shape), dtype=self.dtype)
        if self.channels_last:
            weight = weight.to(memory_format=CHANNELS_LAST[weight.dim()])
        weight = fn(weight)
        self.dtype, self.channels_last = weight.dtype, has_channels_last(weight)
        return self

    def extra_repr(self) -> str:
        """Shape, chunks and reflectors, for printing."""
        (p, q), (m1, m2) = self.shape, self.reflectors
        blocks = f"{self.chunks} × " if self.chunks > 1 else ""
        return f"{blocks}{p}×{q}, reflectors=({m1}, {m2})"
