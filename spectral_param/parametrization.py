"""Registering an SVD parametrization on a weight of an existing module, and taking it off again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param import fitting, injection
from spectral_param.factorization import svd_weight
from spectral_param.householder import normalized
from spectral_param.sigma import SigmaMap, Unconstrained
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


def register_svd_parametrization(
    module: nn.Module,
    tensor_name: str = "weight",
    *,
    reflectors: int | tuple[int, int] | None = None,
    sigma: SigmaMap | None = None,
    chunks: int = 1,
    init: str = "weight",
) -> nn.Module:
    r"""Keeps a weight as ``W = U diag(σ) Vᵀ``, U and V products of Householder reflectors (Eqs. 7 and 8 of the paper).

    The module is changed in place. Its weight is computed from the trained tensors wherever it is read, once a
    forward, and may still be assigned to. What is trained is ``m₁p - m₁(m₁-1)/2 + m₂q - m₂(m₂-1)/2 + k`` numbers for
    a p×q weight, k = min(p, q).

    Register before an optimizer is built, since the weight is no parameter any more and the factors are new ones.

    Args:
        module: the module that owns the weight.
        tensor_name: name of a two-dimensional parameter of ``module``.
        reflectors: how many reflectors turn U and V. ``None``: min(p, q) each, which reaches every matrix; an int m,
            1 ≤ m ≤ min(p, q): m each; a pair ``(m1, m2)``, where one may be 0: that side is the identity.
        sigma: a σ map, copied; ``None``: :class:`~spectral_param.Unconstrained`.
        chunks: blocks stacked along dim 0, each with its own SVD: 4 for the gates of an LSTM, 3 for those of a GRU.
        init: ``"weight"``: start from the present weight, exactly where all reflectors are there and σ is in the
            map's range. ``"orthogonal"``: draw U and V at random, σ at the map's start (1 for ``Unconstrained``).

    Returns:
        ``module``.

    Raises:
        TypeError: if ``module`` is no module, ``tensor_name`` no string, ``sigma`` no σ map, the weight not
            of a real floating dtype, or a count no integer.
        ValueError: if there is no such parameter, it has not two dimensions, is parametrized already, is not finite, or
            a number is out of range. The module is then as it was.

    Warns:
        UserWarning: if σ of the weight lie outside the map's range, or too few reflectors change it by more than 0.1 %.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import Band, register_svd_parametrization, singular_values
        >>> layer = nn.Linear(4, 3)
        >>> before = layer.weight.detach().clone()
        >>> _ = register_svd_parametrization(layer)
        >>> torch.allclose(layer.weight, before, atol=1e-6)
        True
        >>> lstm = nn.LSTM(8, 16)
        >>> _ = register_svd_parametrization(
        ...     lstm, "weight_hh_l0", chunks=4, reflectors=4, sigma=Band(0.1), init="orthogonal")
        >>> singular_values(lstm, "weight_hh_l0").shape
        torch.Size([4, 16])
    """
    weight = _parameter(module, tensor_name)
    _check_chunks(chunks, weight)
    p, q = weight.shape[0] // chunks, weight.shape[1]
    if sigma is not None and not isinstance(sigma, SigmaMap):
        raise TypeError(f"sigma: expected a σ map or None, got {type(sigma).__name__}.")
    if init not in ("weight", "orthogonal"):
        raise ValueError(f"init: expected 'weight' or 'orthogonal', got {init!r}.")
    sigma_map = Unconstrained() if sigma is None else copy.deepcopy(sigma)
    parametrization = SVDParametrization(weight, _counts(reflectors, min(p, q)), sigma_map, chunks, init)
    injection.install(module, tensor_name, parametrization, parametrization.starting_factors(weight))
    return module


def remove_svd_parametrization(
    module: nn.Module, tensor_name: str | None = None, *, leave_parametrized: bool = True
) -> nn.Module:
    """Folds SVD parametrizations back into plain weights, which get the values they have now.

    Each weight becomes a ``Parameter`` again, at its old place among the others, trained if a factor was.

    Args:
        module: a module, or a whole model.
        tensor_name: the weight of ``module`` to fold; ``None``: every registered weight of it and of what it contains.
        leave_parametrized: must be true, as in :func:`torch.nn.utils.parametrize.remove_parametrizations` for a weight
            made of several tensors.

    Returns:
        ``module``.

    Raises:
        ValueError: if the named weight is not registered, or ``leave_parametrized`` is false.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, remove_svd_parametrization
        >>> layer = register_svd_parametrization(nn.Linear(4, 3))
        >>> type(remove_svd_parametrization(layer)).__name__, list(layer.state_dict())
        ('Linear', ['weight', 'bias'])
    """
    if not leave_parametrized:
        raise ValueError("leave_parametrized: expected True: the weight from before registration is not kept.")
    if tensor_name is not None and not is_registered(module, tensor_name):
        raise ValueError(f"tensor_name: {tensor_name!r} has no SVD parametrization in {type(module).__name__}.")
    owners = [module] if tensor_name is not None else list(module.modules())
    for owner in owners:
        names = [tensor_name] if tensor_name is not None else registered_names(owner)
        for name in names:
            injection.uninstall(owner, name)
    return module


def svd_parametrizations(model: nn.Module) -> Iterator[tuple[str, SVDParametrization]]:
    """Goes through the registered weights of a model.

    Args:
        model: any module.

    Yields:
        The weight's qualified name, like ``"encoder.fc.weight"``, and its :class:`SVDParametrization`.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, svd_parametrizations
        >>> model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = register_svd_parametrization(model[2])
        >>> [name for name, _ in svd_parametrizations(model)]
        ['2.weight']
    """
    for name, held in model.named_modules():
        if isinstance(held, parametrize.ParametrizationList):
            first = held[0]
            if isinstance(first, SVDParametrization):
                yield injection.qualified_name(name), first


def registered_names(module: nn.Module) -> list[str]:
    """Names of the weights of this very module that are registered.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization import registered_names, register_svd_parametrization
        >>> registered_names(register_svd_parametrization(nn.Linear(2, 2)))
        ['weight']
    """
    if not parametrize.is_parametrized(module):
        return []
    lists = injection.parametrization_lists(module).items()
    return [name for name, held in lists if isinstance(held[0], SVDParametrization)]


def is_registered(module: nn.Module, tensor_name: str) -> bool:
    """Whether this weight of the module is held by an :class:`SVDParametrization`.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization import is_registered
        >>> is_registered(nn.Linear(2, 2), "weight")
        False
    """
    return tensor_name in registered_names(module)


# ----------------------------------------------------------------------------------------------------- reading
# arguments


def _parameter(module: nn.Module, tensor_name: str) -> nn.Parameter:
    """The parameter to register on, or an error that says what stands in its place."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}.")
    if not isinstance(tensor_name, str):
        raise TypeError(f"tensor_name: expected a string, got {type(tensor_name).__name__}.")
    owner = type(module).__name__
    if parametrize.is_parametrized(module, tensor_name):
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} is parametrized already.")
    if tensor_name in module._buffers:
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} is a buffer, expected a parameter.")
    weight = module._parameters.get(tensor_name)
    if weight is None:
        names = ", ".join(n for n, p in module._parameters.items() if p is not None) or "none"
        raise ValueError(f"tensor_name: {owner} has no parameter {tensor_name!r}; it has {names}.")
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} has no shape before the first forward.")
    if not weight.dtype.is_floating_point:
        raise TypeError(f"tensor_name: expected a real floating dtype, got {weight.dtype}.")
    if weight.dim() != 2 or weight.numel() == 0:
        raise ValueError(
            f"tensor_name: expected a two-dimensional {tensor_name!r} with entries, got shape {tuple(weight.shape)}."
        )
    return weight


def _check_chunks(chunks: int, weight: Tensor) -> None:
    if isinstance(chunks, bool) or not isinstance(chunks, int):
        raise TypeError(f"chunks: expected an integer, got {type(chunks).__name__}.")
    if chunks < 1 or weight.shape[0] % chunks:
        raise ValueError(f"chunks: expected a divisor of {weight.shape[0]}, the rows of the weight, got {chunks}.")


def _counts(reflectors: int | tuple[int, int] | None, k: int) -> tuple[int, int]:
    if reflectors is None:
        return k, k
    pair = reflectors if isinstance(reflectors, Sequence) else (reflectors, reflectors)
    if isinstance(pair, str) or any(isinstance(m, bool) or not isinstance(m, int) for m in pair):
        raise TypeError(f"reflectors: expected None, an integer or a pair of integers, got {reflectors!r}.")
    if len(pair) != 2 or not all(0 <= m <= k for m in pair) or not any(pair):
        raise ValueError(
            f"reflectors: expected a number from 1 to {k}, or a pair from 0 to {k} that is not (0, 0), "
            f"got {reflectors!r}."
        )
    return pair[0], pair[1]


def _stack(blocks: Sequence[fitting.Factors]) -> fitting.Factors:
    u, sigma, v = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    return u, sigma, v


def _relative_difference(near: Tensor, weight: Tensor) -> float:
    scale = weight.abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    difference = torch.linalg.vector_norm((near - weight) / scale)
    return (difference / torch.linalg.vector_norm(weight / scale).clamp_min(1e-300)).item()
