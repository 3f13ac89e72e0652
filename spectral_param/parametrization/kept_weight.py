"""W kept from one read to the next where nothing is trained, for those who read it many times in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.sigma import Band, Bounded, Fixed, Interval, Positive, Unconstrained
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.private import address
from spectral_param.torch_state.snapshot import Snapshot, lazy_copy


class _Kept(NamedTuple):
    sources: Snapshot
    settings: tuple[object, ...]
    built: Tensor
    weight: Tensor  # a lazy copy of it, for readers


class KeptWeight:
    """What was built from factors as they are. Copies and pickles begin with nothing kept.

    On the CPU alone: elsewhere writes through ``.data`` would not be seen.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization
        >>> layer = register_svd_parametrization(torch.nn.Linear(3, 3))
        >>> p = layer.parametrizations.weight[0]
        >>> first = p.kept_weight.weight(p, layer.parametrizations.weight)
        >>> p.kept_weight.weight(p, lambda: 1 / 0) is first
        True
        >>> _ = p.raw_sigma.data.zero_()
        >>> p.kept_weight.weight(p, layer.parametrizations.weight).norm()
        tensor(0.)
    """

    def __init__(self) -> None:
        self.kept: _Kept | None = None

    def weight(self, parametrization: Any, build: Callable[[], Tensor]) -> Tensor:
        """W as it was built last, or is built now, without a graph; what a reader does to it is not for the next.

        Args:
            parametrization: the ``SVDParametrization`` that this belongs to.
            build: makes W.
        """
        kept = self._current(parametrization)
        if kept is not None and _is_as_given(kept.weight, kept.built):
            return kept.weight
        if kept is None and not _is_watchable(parametrization):
            return build()
        with torch.inference_mode(False), torch.no_grad():
            if kept is None:
                # of before W is built: what another thread writes meanwhile is not in it
                sources, settings = Snapshot(parametrization.sources), _settings(parametrization)
                kept = _Kept(sources, settings, built := build(), lazy_copy(built))
            else:
                kept = kept._replace(weight=lazy_copy(kept.built))
        self.kept = kept
        return kept.weight

    def clear(self) -> None:
        """Keeps nothing."""
        self.kept = None

    def _current(self, parametrization: Any) -> _Kept | None:
        """What is kept, if nothing has changed since."""
        kept = self.kept
        if kept is None or kept.settings != _settings(parametrization):
            return None
        return kept if kept.sources.is_still(parametrization.sources) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptWeight, ()


def _settings(parametrization: Any) -> tuple[object, ...]:
    """What W depends on besides its sources. A σ map of ours is told by its numbers; another may look anywhere."""
    sigma_map = parametrization._modules["sigma_map"]
    own: dict[str, Any] = sigma_map.__dict__
    told: Any = None
    if type(sigma_map) in _OURS and not own["_buffers"]:
        told = [own[name] for name in own if name not in _OF_EVERY_MODULE] if len(own) > len(_OF_EVERY_MODULE) else []
    if told is None or not all([type(value) in (int, float, bool) for value in told]):
        told = checksum(parametrization.sigma)
    return *parametrization.settings, sigma_map, told


_OURS = frozenset({Band, Bounded, Fixed, Interval, Positive, Unconstrained})
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _is_as_given(weight: Tensor, built: Tensor) -> bool:
    return address(weight) == address(built) and not (weight._version or weight.requires_grad)


def _is_watchable(parametrization: Any) -> bool:
    return all(type(f) in (Tensor, nn.Parameter) and f.device.type == "cpu" for f in parametrization.sources)
