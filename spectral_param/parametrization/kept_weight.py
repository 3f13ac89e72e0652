"""W kept from one read to the next where nothing is trained, for those who read it many times in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.sigma import SigmaMap
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.snapshot import Snapshot, is_still_shared, lazy_copy


class _Kept(NamedTuple):
    sources: tuple[Snapshot, ...]
    settings: tuple[object, ...]
    built: Tensor | None = None  # none while it was asked for but once
    weight: Tensor | None = None  # a lazy copy for readers


class KeptWeight:
    """What was built from factors as they are. Copies and pickles begin with nothing kept.

    On the CPU alone: elsewhere writes through ``.data`` would not be seen.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.kept_weight import KeptWeight
        >>> kept, factor = KeptWeight(), torch.ones(2)
        >>> first = kept.weight([factor], lambda: 2 * factor)
        >>> kept.weight([factor], lambda: 1 / 0)
        tensor([2., 2.])
        >>> factor.data.add_(1)
        tensor([2., 2.])
        >>> kept.weight([factor], lambda: 2 * factor)
        tensor([4., 4.])
    """

    def __init__(self) -> None:
        self.kept: _Kept | None = None

    def weight(self, sources: Sequence[Tensor], build: Callable[[], Tensor], *settings: object) -> Tensor:
        """W as it was built last, or is built now, without a graph; what a reader does to it is not for the next.

        Args:
            sources: the tensors that it depends on.
            build: makes it.
            settings: what else it depends on.
        """
        kept = self._current(sources, settings)
        if kept is not None and kept.weight is not None and _is_as_given(kept.weight, kept.built):
            return kept.weight
        built = None if kept is None else kept.built
        if built is None and not all(map(_is_watchable, sources)):
            return build()
        with torch.inference_mode(False), torch.no_grad():
            if built is None:
                built = build()
            weight = lazy_copy(built)
        self.kept = _Kept(tuple(map(Snapshot, sources)), settings, built, weight)
        return weight

    def weight_asked_again(
        self, sources: Sequence[Tensor], build: Callable[[], Tensor], *settings: object
    ) -> Tensor | None:
        """As :meth:`weight`, but for ``None`` the first time, for those who can do without: it may be the only one."""
        if self._current(sources, settings) is not None:
            return self.weight(sources, build, *settings)
        if all(map(_is_watchable, sources)):
            self.kept = _Kept(tuple(map(Snapshot, sources)), settings)
        return None

    def _current(self, sources: Sequence[Tensor], settings: tuple[object, ...]) -> _Kept | None:
        kept = self.kept
        if kept is None or kept.settings != settings:
            return None
        for snapshot, source in zip(kept.sources, sources, strict=True):
            if not snapshot.is_still(source):
                return None
        return kept

    def clear(self) -> None:
        """Keeps nothing."""
        self.kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptWeight, ()


def _is_as_given(weight: Tensor, built: Tensor | None) -> bool:
    return built is not None and is_still_shared(weight, built) and not (weight._version or weight.requires_grad)


def settings_of(sigma_map: SigmaMap, sigma: Callable[[], Tensor]) -> tuple[object, ...]:
    """What W depends on by way of a σ map, besides the raw numbers.

    Args:
        sigma_map: one of ours with numbers alone is told by them; of another, which may look anywhere, what it gives.
        sigma: evaluates it.

    Example:
        >>> from spectral_param import Bounded
        >>> from spectral_param.parametrization.kept_weight import settings_of
        >>> a, b, c = (settings_of(Bounded(high), lambda: 1 / 0) for high in (2.0, 2.0, 3.0))
        >>> a == b, a == c
        (True, False)
    """
    kind = type(sigma_map)
    if kind.__module__.startswith("spectral_param.") and not (sigma_map._buffers or sigma_map._modules):
        own = [value for name, value in sigma_map.__dict__.items() if name not in _OF_EVERY_MODULE]
        if all(type(value) in (int, float, bool) for value in own):
            return kind, *own
    return (checksum(sigma()),)


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _is_watchable(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
