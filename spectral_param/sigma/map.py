"""What a σ map is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.sigma.level import Level, everywhere
from spectral_param.torch_state.precision import moved_in_full


class SigmaMap(nn.Module):
    """What every σ map has: ``forward`` from raw numbers to σ, ``inverse`` back, and a range.

    A map of your own defines both, elementwise, and its range.

    Which map it is, with the attributes of it that are numbers, stands in the metadata of a ``state_dict``, beside the
    keys. Loading numbers that were trained under another map warns, since they mean another weight.

    Attributes:
        low: the least σ that the map reaches or comes near to: a number, or one for each σ; may be ``-inf``.
        high: the greatest.
        start: σ where no weight says otherwise, as with ``init="orthogonal"``: a number, or one for each σ.
        trained: whether there are raw numbers to train.
        follows_schedule: whether something else puts its numbers back that belong to a checkpoint.

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
    follows_schedule: bool = False
    _are_lost: bool = False  # whether levels came from the meta device, where they had no values

    def forward(self, raw: Tensor) -> Tensor:
        """Raw numbers → σ, elementwise."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define forward.")

    def inverse(self, sigma: Tensor) -> Tensor:
        """σ → raw numbers, elementwise; a σ outside the range is moved just inside."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define inverse.")

    def recover(self, sigma: Tensor) -> Tensor:
        """σ that the map has given → raw numbers, elementwise; unlike :meth:`inverse` it moves none at an edge."""
        return self.inverse(sigma)

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

    @property
    def identity(self) -> str:
        """The formula by name, and its numbers, by which raw numbers are read; levels in tensors are saved beside.

        Example:
            >>> from spectral_param import Bounded
            >>> Bounded(2.0).identity
            'Interval(low=0.0, high=2.0)'
        """
        return f"{self._formula}({', '.join(f'{name}={value}' for name, value in self._numbers.items())})"

    @property
    def _formula(self) -> str:
        return next(cls for cls in type(self).__mro__ if "forward" in vars(cls)).__name__

    @property
    def _numbers(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if type(value) in (int, float)}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] |= {"sigma_map": self.identity, "sigma_numbers": self._numbers}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        self._are_lost = self._are_lost and any(f"{prefix}{name}" not in state_dict for name in self._buffers)
        self.loaded_from = local_metadata.get("sigma_map")
        if self.follows_schedule:
            if str(self.loaded_from).startswith(f"{self._formula}("):
                saved, own = local_metadata.get("sigma_numbers", {}), self._numbers
                vars(self).update({name: number for name, number in saved.items() if name in own})
        else:
            weight = prefix.replace("parametrizations.", "").removesuffix(".0.sigma_map.")
            self.warn_of_others(weight or "sigma")

    def warn_of_others(self, weight: str) -> None:
        """Warns, once, if the raw numbers that were loaded are of another map, or of one with other numbers.

        Args:
            weight: its name.
        """
        saved = vars(self).pop("loaded_from", None)
        if saved not in (None, self.identity):
            warnings.warn(
                f"{weight}: raw numbers of σ from {saved} are loaded into {self.identity}, which gives "
                "another weight; register it with the map of the checkpoint.",
                stacklevel=2,
            )

    def check_levels(self) -> None:
        """Raises ``ValueError`` if levels that are tensors have come from the meta device without their values."""
        if not all(everywhere(level.isfinite()) for level in self.buffers()):
            names = " and ".join(self._buffers)
            raise ValueError(
                f"sigma: {names} of {type(self).__name__} have no values since to_empty() took them from the meta "
                "device; load a checkpoint, or fill these buffers first."
            )
        self._are_lost = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves levels, which are constants: neither ``half`` nor ``to_empty`` changes their values."""
        levels = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, level in levels.items():
            moved = self._buffers[name]
            if level is None or moved is None or moved.is_meta:
                continue
            if level.is_meta:
                moved.fill_(torch.nan)
                self._are_lost = True
            else:  # half precision would move an edge by more than a band
                self._buffers[name] = moved_in_full(level, moved)
        return self
