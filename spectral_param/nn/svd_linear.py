"""A linear layer whose weight is never built: V, σ and U are applied to the input in turn."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection.matrix_free import apply_linear
from spectral_param.registration.register import register_svd_parametrization
from spectral_param.sigma import SigmaMap

_Linear = TypeVar("_Linear", bound=nn.Linear)


class SVDLinear(nn.Linear):
    """``y = U diag(σ) Vᵀ x + b``, called like ``nn.Linear``: x is turned by V, scaled, and turned by U.

    For p outputs, q inputs and a batch of B that is about ``2B (m₁p + m₂q)`` multiplications, against ``Bpq`` and the
    building of W for a registered ``nn.Linear``: cheaper for few reflectors and small batches. All else is as for a
    layer with a registered weight: ``weight`` reads as W and may be assigned to, clipped, and folded back.

    Computed in float32, or float64 for a float64 layer, and given back in the dtype that ``nn.Linear`` would give.

    Initial values: U and V random, σ at the map's start (see ``init``); b uniform in ±1/√in_features, as in
    ``nn.Linear``.

    Args:
        in_features: q, size of an input.
        out_features: p, size of an output.
        bias: whether there is b.
        device: as in ``nn.Linear``.
        dtype: as in ``nn.Linear``.
        reflectors: see :func:`~spectral_param.register_svd_parametrization`.
        sigma: σ map; ``None``: :class:`~spectral_param.Unconstrained`.
        init: ``"orthogonal"``: random U and V; ``"weight"``: those of a W drawn as in ``nn.Linear``.
        train: ``"all"``, ``"sigma"`` or ``"reflectors"``, see :func:`~spectral_param.register_svd_parametrization`.

    Attributes:
        weight: W, (out_features, in_features), computed from its factors when it is read.
        bias: b, (out_features,), or ``None``.

    Raises:
        TypeError, ValueError: as :func:`~spectral_param.register_svd_parametrization`.

    Example:
        >>> import torch
        >>> from spectral_param import Band, spectral_norm
        >>> from spectral_param.nn import SVDLinear
        >>> layer = SVDLinear(300, 200, reflectors=8, sigma=Band(0.1))
        >>> layer(torch.randn(5, 7, 300)).shape
        torch.Size([5, 7, 200])
        >>> spectral_norm(layer).item()
        1.0
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        reflectors: int | tuple[int, int] | None = None,
        sigma: SigmaMap | None = None,
        init: str = "orthogonal",
        train: str = "all",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        register_svd_parametrization(self, reflectors=reflectors, sigma=sigma, init=init, train=train)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        reflectors: int | tuple[int, int] | None = None,
        sigma: SigmaMap | None = None,
        train: str = "all",
    ) -> SVDLinear:
        """Makes a layer that computes what ``linear`` does, sharing no memory with it.

        Exact with all reflectors and σ in the map's range; otherwise as near as
        :func:`~spectral_param.register_svd_parametrization` comes.

        Args:
            linear: any ``nn.Linear``, which stays as it is.
            reflectors: how many turn U and V; ``None``: all, which is exact.
            sigma: σ map; ``None``: :class:`~spectral_param.Unconstrained`.
            train: ``"all"``, ``"sigma"`` or ``"reflectors"``.

        Returns:
            The layer, on the device and in the dtype of ``linear``, trained and frozen where it is.

        Raises:
            TypeError: if ``linear`` is no ``nn.Linear``.

        Example:
            >>> import torch
            >>> from spectral_param.nn import SVDLinear
            >>> linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
            >>> torch.allclose(SVDLinear.from_linear(linear)(x), linear(x), atol=1e-5)
            True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear: expected a torch.nn.Linear, got {type(linear).__name__}.")
        layer = _plain_copy(linear, cls)
        register_svd_parametrization(layer, reflectors=reflectors, sigma=sigma, train=train)
        return layer

    def to_linear(self) -> nn.Linear:
        """Makes an ``nn.Linear`` with the present W and b, sharing no memory with this layer.

        Example:
            >>> from spectral_param.nn import SVDLinear
            >>> SVDLinear(4, 3).to_linear()
            Linear(in_features=4, out_features=3, bias=True)
        """
        return _plain_copy(self, nn.Linear)

    def forward(self, input: Tensor) -> Tensor:
        """Applies the layer.

        Args:
            input: (…, in_features) in the dtype of the layer; under autocast as ``nn.Linear`` takes it.

        Returns:
            (…, out_features).

        Raises:
            ValueError: if the last dimension does not fit.
            TypeError: if the dtype does not.
        """
        if SVDParametrization.alone_on(self) is None:
            return super().forward(input)
        return apply_linear(self, input)


def _plain_copy(linear: nn.Linear, cls: type[_Linear]) -> _Linear:
    """A ``cls`` with the values of ``linear`` and nothing registered."""
    layer = cls.__new__(cls)
    nn.Linear.__init__(layer, linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    trained = any(p.requires_grad for name, p in linear.named_parameters() if name != "bias")
    layer.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=trained)
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=linear.bias.requires_grad)
    return layer.train(linear.training)
