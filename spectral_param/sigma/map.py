"""What a σ map is."""

from __future__ import annotations

from torch import Tensor, nn

from spectral_param.sigma.level import Level


class SigmaMap(nn.Module):
    """What every σ map has: ``forward`` from raw numbers to σ, ``inverse`` back, and a range.

    A map of your own defines both, elementwise, and its range.

    Attributes:
        low: the least σ that the map reaches or comes near to: a number, or one for each σ; may be ``-inf``.
        high: the greatest.
        start: σ where no weight says otherwise, as with ``init="orthogonal"``: a number, or one for each σ.
        trained: whether there are raw numbers to train.

    Example:
        >>> import torch
        >>> from spectral_param import SigmaMap
        >>> class Exponential(SigmaMap):
        ...     low, high = 0.0, float("inf")
        ...     def forward(self, raw):
        ...         return raw.exp()
        ...     def inverse(self, sigma):
        ...         return sigma.clamp_min(1e-6).log()
        >>> Exponential()(torch.zeros(2))
        tensor([1., 1.])
    """

    low: Level
    high: Level
    start: Level = 1.0
    trained: bool = True

    def forward(self, raw: Tensor) -> Tensor:
        """Raw numbers → σ, elementwise."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define forward.")

    def inverse(self, sigma: Tensor) -> Tensor:
        """σ → raw numbers, elementwise; a σ outside the range is moved just inside."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define inverse.")

    def reaches(self, low: float, high: float) -> bool | Tensor:
        """Whether some σ of the map lies between two numbers; for each σ, where each has its own range."""
        below: bool | Tensor = self.low < high
        return below & (self.high > low)

    def check(self, k: int, chunks: int = 1) -> None:
        """Raises ``ValueError`` if levels of the map are tensors made for another number of σ.

        Args:
            k: how many σ a block has.
            chunks: how many blocks.
        """
        shapes = [(k,)] if chunks == 1 else [(k,), (chunks, k)]
        for name, level in self.named_buffers(recurse=False):
            if tuple(level.shape) not in shapes:
                expected = " or ".join(map(str, shapes))
                raise ValueError(f"sigma: expected {name} of shape {expected}, got {tuple(level.shape)}.")

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        levels = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, level in levels.items():
            moved = self._buffers[name]
            if level is not None and moved is not None and moved.dtype.itemsize < 4:
                self._buffers[name] = level.to(moved.device)  # half precision would move an edge by more than a band
        return self
