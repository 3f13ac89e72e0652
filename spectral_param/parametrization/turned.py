"""The module that holds a weight as a frozen base that is turned, with its leading singular values moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.leading import leading_triplets, restored_triplets
from spectral_param.functional.reflectors import of_unit_length
from spectral_param.functional.turned import TurnedFactor, thin_change
from spectral_param.functional.ways import Way
from spectral_param.parametrization.blocks import Matrices
from spectral_param.parametrization.factors import layout_of
from spectral_param.parametrization.kept_weight import KeptWeight
from spectral_param.parametrization.mismatch import warn_of_moved_sigma
from spectral_param.parametrization.remaining import RemainingSpectrum
from spectral_param.parametrization.starting import check_weight
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import SigmaMap, clipping
from spectral_param.torch_state.modes import has_numbers, traced_or_transformed, under_dispatch_mode
from spectral_param.torch_state.precision import full_precision, moved_in_full, wide
from spectral_param.torch_state.quantized import is_quantized, numbers
from spectral_param.torch_state.shards import is_shard, whole, write_


class TurnedParametrization(SVDParametrization):
    """Holds a weight as ``Q_u (W₀ + U_r diag(δ) V_rᵀ) Q_vᵀ``, Note [Turned] in ``functional/turned.py``.

    ``original0`` … are the reflectors of Q_u, dense, (p, m₁), the raw numbers of the r leading σ and the reflectors of
    Q_v, (q, m₂), as far as they are there, and last the base W₀, in its own dtype and never trained. Blocks stand along
    a first dimension of all but the base.

    Made by ``register_svd_parametrization(…, base="frozen")``.

    Attributes:
        rank: r, how many leading σ are trained.
        left: U_r, (p, r).
        right: V_r, (q, r).
        start: the r leading σ of W₀.
        is_quantized: whether W₀ is a tensor of another class, used by its own product with vectors.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, svd_parametrizations
        >>> layer = register_svd_parametrization(torch.nn.Linear(6, 4), base="frozen", reflectors=2, rank=3)
        >>> [(name, p)] = svd_parametrizations(layer)
        >>> [tuple(factor.shape) for factor in p.factors], p.sigma.shape
        ([(4, 2), (3,), (6, 2), (4, 6)], torch.Size([4]))
    """

    left: Tensor
    right: Tensor
    start: Tensor

    def __init__(
        self,
        matrices: Matrices,
        reflectors: tuple[int, int],
        sigma_map: SigmaMap,
        rank: int,
        *,
        dtype: torch.dtype,
        matrix_free: bool | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__(
            matrices,
            reflectors,
            sigma_map,
            init="weight",
            dtype=dtype,
            matrix_free=matrix_free,
            channels_last=channels_last,
        )
        self.rank = rank
        self.is_quantized = False
        self.times_off = 0  # how many have it switched off
        self.layout = layout_of(self.sizes, self.chunks, rank > 0 and sigma_map.trained)
        for name, shape in (("left", (matrices.p, rank)), ("right", (matrices.q, rank)), ("start", (rank,))):
            self.register_buffer(name, torch.empty(*self.layout.lead, *shape, dtype=self._trained_dtype))
        self._remaining = RemainingSpectrum()
        self._kept_change = KeptWeight()  # L above R

    # ----------------------------------------------------------------------------------------------------- evaluation

    @property
    def own_base(self) -> Tensor:
        """W₀ in its own class, without a gradient; on shards read whole."""
        return whole(self.factors[-1]).detach()

    @property
    def base(self) -> Tensor:
        """W₀ as a plain tensor, without a gradient; on shards read whole."""
        return numbers(self.own_base)

    def _weight(self, factors: tuple[Tensor, ...], way: Way | None) -> Tensor:
        base = numbers(whole(factors[-1]).detach())  # trained, its singular vectors would not be known any more
        if self.is_off:
            return base
        blocks = self._blocks(base).to(self._trained_dtype)
        left, right = thin_change(blocks, *self.turns(factors))
        added = torch.addmm if blocks.dim() == 2 else torch.baddbmm
        return self.as_weight(added(blocks, left, right.mT).to(base.dtype))

    def change_beside(self, base: Tensor) -> tuple[Tensor, Tensor]:
        """L and R of W = W₀ + L Rᵀ, (…, p, s) and (…, q, s), for W₀ as it stands; kept in evaluation."""
        factors = self.factors

        def change() -> Tensor:
            with full_precision(base.device.type):
                return torch.cat(thin_change(self._blocks(base), *self.turns(factors)), -2)

        onlookers = torch.is_grad_enabled() or traced_or_transformed() or under_dispatch_mode()
        both = change() if self.training or onlookers else self._kept_change.weight(self, change)
        left, right = both.split([*self.shape], -2)
        return left, right

    def turns(self, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Reflectors of Q_u, U_r, δ, V_r and reflectors of Q_v, in float32 or float64."""
        u, raw, v = self._turns(factors)
        wide = u.dtype
        delta = self.sigma_map(raw) - self.start.to(wide) if self.rank else raw
        return u, self.left.to(wide), delta, self.right.to(wide), v

    def _turns(self, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Reflectors of Q_u, raw σ and reflectors of Q_v, in float32 or float64."""
        (p, q), wide = self.shape, self._trained_dtype
        some, lead = factors[-1], self.layout.lead
        shapes = (p, 0), (self.rank,), (q, 0)
        found = [
            whole(factors[place]) if place >= 0 else some.new_empty(*lead, *shape)
            for place, shape in zip(self.layout.places, shapes, strict=True)
        ]
        u, raw, v = (part.to(wide) for part in found)
        return u, raw, v

    def _blocks(self, base: Tensor) -> Tensor:
        """(p, q), or (chunks, p, q)."""
        blocks = self.matrices.of(base)
        return blocks if self.chunks > 1 else blocks[0]

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        """Takes a weight for the base, with reflectors that cancel in pairs, drawn anew.

        Warns:
            UserWarning: if leading σ lie outside the range of the σ map.
        """
        if self._start is not None:
            return self._start
        if self.is_quantized and not is_quantized(weight):
            raise ValueError("weight: the frozen base is quantized, and nothing else is written into it.")
        with torch.inference_mode(False), torch.no_grad():  # else it could not be trained on afterwards
            return self._on_base(weight.detach())

    def _on_base(self, weight: Tensor) -> list[Tensor]:
        self.is_quantized = is_quantized(weight)
        base, wide, (p, q), (m1, m2) = weight.to(self.dtype), self._trained_dtype, self.shape, self.reflectors
        base = base.clone() if base.is_inference() else base
        lead, device, weight = self.layout.lead, weight.device, numbers(weight)
        check_weight(weight, self.matrices.weight_shape)
        if has_numbers(weight):
            triplets = [leading_triplets(block, self.rank) for block in self.matrices.of(weight.to(self.dtype))]
            left, start, right = (
                (torch.stack(parts) if lead else parts[0]).to(wide).contiguous()
                for parts in zip(*triplets, strict=True)
            )
            if self.rank:
                warn_of_moved_sigma(start, self.sigma_map)
        else:
            left, start, right = (torch.empty_like(t, device=device) for t in (self.left, self.start, self.right))
        self.left, self.start, self.right = left, start, right
        raw = self.sigma_map.inverse(start).clone() if self.rank else start.clone()  # trained, unlike the start
        parts = _pairs(*lead, p, m1, like=start), raw, _pairs(*lead, q, m2, like=start)
        return [*self.layout.of_those_there(parts), base]

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """All tensors that W is computed from, but for those of the σ map."""
        return *self.factors, self.left, self.start, self.right

    @property
    def settings(self) -> tuple[object, ...]:
        """What W depends on besides the factors and the σ map."""
        return *super().settings, self.is_off

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Of the raw numbers of the trained σ: (r,), or (chunks, r)."""
        return *self.layout.lead, self.rank

    def sigma_of(self, raw: Tensor) -> Tensor:
        """The r trained σ, or those of W₀ while W is W₀, and after them those that stay, found at the first reading."""
        leading = self.start if self.is_off else self.sigma_map(wide(raw)) if self.rank else raw
        return torch.cat([leading.to(self._trained_dtype), self._other_sigma().to(leading.device)], -1)

    @property
    def leading_sigma(self) -> Tensor:
        """The r trained σ, as they are with the adapter on, in float32 or float64."""
        sigma: Tensor = self.sigma_map(self._turns(self.factors)[1])
        return sigma

    @property
    def sigma(self) -> Tensor:
        """σ with its sign, differentiable: see :meth:`sigma_of`."""
        return self.sigma_of(self._turns(self.factors)[1])

    @property
    def size_of_sigma(self) -> float:
        """The root mean square of the σ of W₀."""
        return torch.linalg.vector_norm(self.base.double()).item() / math.sqrt(self.chunks * min(self.shape))

    @property
    def svd(self) -> tuple[TurnedFactor, Tensor, TurnedFactor]:  # type: ignore[override]
        """U, σ and V, differentiable, in float32 or float64; W₀ is decomposed at the first reading."""
        u, _, v = self._turns(self.factors)
        if self.is_off:
            u, v = u[..., :0], v[..., :0]
        more = self._remaining.vectors(self.factors[-1], *self._blocks_and_triplets())
        sides = zip((self.left, self.right), more if self.chunks > 1 else (m[0] for m in more), strict=True)
        left, right = (torch.cat([leading.to(u), others.to(u)], -1) for leading, others in sides)
        return TurnedFactor(u, left), self.sigma, TurnedFactor(v, right)

    @property
    def u(self) -> Tensor | None:
        """Reflectors of Q_u, differentiable: (p, m₁), or (chunks, p, m₁); ``None`` without any."""
        return self._turns(self.factors)[0] if self.reflectors[0] else None

    @property
    def v(self) -> Tensor | None:
        """Reflectors of Q_v, differentiable: (q, m₂), or (chunks, q, m₂); ``None`` without any."""
        return self._turns(self.factors)[2] if self.reflectors[1] else None

    def _other_sigma(self) -> Tensor:
        """σ of W₀ behind the r leading ones."""
        values = self._remaining.values(self.factors[-1], *self._blocks_and_triplets()).to(self._trained_dtype)
        return values if self.chunks > 1 else values[0]

    def _blocks_and_triplets(self) -> tuple[Tensor, ...]:
        """W₀, U_r, σ and V_r, each with a first dimension of blocks."""
        triplets = (self.left, self.start, self.right)
        return self.matrices.of(self.base), *(t if self.chunks > 1 else t.unsqueeze(0) for t in triplets)

    # -------------------------------------------------------------------------------------------------------- editing

    def _check_range(self, low: float, high: float) -> None:
        if self.rank:
            clipping.check_clip(self.sigma_map, low, high)
        if self.rank == min(self.shape) or (low == 0 and self.rank and bool((self.start[..., -1] <= high).all())):
            return
        rest = self._other_sigma()
        if bool((rest < low).any() | (rest > high).any()):
            raise ValueError(
                f"min, max: σ from {rest.min():.3g} to {rest.max():.3g} of the frozen base stay as they are, and not "
                f"all are in [{low}, {high}]; register with a rank above {self.rank} to train them."
            )

    def freeze_all_but_(self, part: str) -> None:
        """Lets σ, the reflectors, or, with ``"all"``, both be trained, and never the base."""
        for place, name in zip(self.layout.places, ("reflectors", "sigma", "reflectors"), strict=True):
            if place >= 0:
                self.factors[place].requires_grad_(part in ("all", name))
        self.factors[-1].requires_grad_(False)

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; W changes by rounding alone."""
        u, _, v = self._turns(self.factors)
        for place, side in ((self.layout.places[0], u), (self.layout.places[2], v)):
            if place >= 0:
                write_(self.factors[place], of_unit_length(side))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy or a pickle: it begins switched on, since nobody would switch it on again."""
        super().__setstate__(state)
        self.times_off, self.is_off = 0, False

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.dtype = self.factors[-1].dtype
        base = self.factors[-1]
        if is_shard(base) or is_quantized(base) or not all(map(has_numbers, (base, self.left, self.right))):
            return
        frames = [t.to(self._trained_dtype) for t in (self.left, self.right)]
        if all(map(_is_orthonormal, frames)):
            return
        with torch.inference_mode(False), torch.no_grad():
            self._restore(base, *frames)

    def _restore(self, base: Tensor, left: Tensor, right: Tensor) -> None:
        """Takes triplets that were rounded, as by a file in half precision, for those of W₀; δ stays."""
        found = restored_triplets(self._blocks(base), left, right)
        left, start, right = (t.to(base.device, self._trained_dtype) for t in found)
        self.left, self.right, raw = left, right, self.raw_sigma
        if raw is not None and raw.dtype.itemsize < 4:
            return  # rounded as the start is, so that they differ by δ
        if raw is not None:
            raw.copy_(self.sigma_map.recover(self.sigma_map(raw) + (start - self.start.to(start))))
        self.start = start

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves the vectors too, which in half precision would be orthonormal no more; the start is rounded as σ is."""
        before = {name: self._buffers[name] for name in ("left", "right")}
        super()._apply(fn, recurse)
        for name, frame in before.items():
            moved = self._buffers[name]
            if frame is not None and moved is not None and not (frame.is_meta or moved.is_meta):
                self._buffers[name] = moved_in_full(frame, moved)
        return self

    def extra_repr(self) -> str:
        """Shape, chunks, reflectors and rank, for printing."""
        return f"{super().extra_repr()}, rank={self.rank}, on a frozen base"


def _is_orthonormal(frame: Tensor) -> bool:
    """But for the rounding of float32."""
    gram = frame.mT @ frame
    return bool((gram - torch.eye(gram.shape[-1]).to(gram)).abs().amax() < 1e-4) if gram.numel() else True


def _pairs(*shape: int, like: Tensor) -> Tensor:
    """Unit reflectors, (…, n, m), each twice in a row, so that their product is the identity."""
    *lead, n, m = shape
    drawn = torch.randn(*lead, n, m // 2, dtype=torch.float64, device="cpu")
    drawn = drawn / torch.linalg.vector_norm(drawn, dim=-2, keepdim=True)
    return drawn.repeat_interleave(2, -1).to(like)
