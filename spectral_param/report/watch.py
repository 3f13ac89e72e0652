"""What is read of a model's weights in training: which of them, how often, and in what numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.blocks import blocks_of, gate_names, matrices_of
from spectral_param.parametrization.lookup import named_modules
from spectral_param.parametrization.stacked import on_top_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma.level import finite
from spectral_param.spectrum.as_matrix import weight_of
from spectral_param.spectrum.operator import Images, check_convolutions, check_images, convolution, image_for, in_words
from spectral_param.spectrum.patterns import as_patterns, owner_of, parametrized_weights, plain_weights
from spectral_param.spectrum.statistics import SHAPE_STATISTICS, STATISTICS, shape_statistics, spectral_statistics
from spectral_param.spectrum.whole_sigma import (
    dense_singular_values,
    leading_numbers,
    operator_numbers,
    operator_sigma,
    sigma_in_blocks,
)

SLOWER = 10  # readings to one of all σ of plain weights, at least, where these are much work
WIDTH = 20  # of a weight, for each further reading to one: all its σ then take the same share of a step at any width
KEPT = 1024  # σ of an operator: its largest, its smallest, and others evenly between
MUCH = 1e8  # p q min(p, q) of all plain weights, about 50 ms of svdvals on a CPU core


class Watch:
    """Takes readings of a model: σ of its weights, and numbers of them to log.

    Args:
        weights: name patterns of the weights in SVD form.
        dense: name patterns of plain weights.
        dense_every: at which readings all σ of plain weights are computed; ``None``: each, or where that is much work
            every tenth or, beyond a width of 200, fewer: every 26th of 512. At the others their leading σ is.
        per_gate: gates, and groups of plain convolutions, as weights of their own.
        statistics: which numbers to log.
        center: what margins are measured from.
        operator: images, or such by name patterns: convolutions that are read as maps of them, in SVD form or plain.
        separator: between statistic and weight in the names of numbers.

    Raises:
        TypeError: if patterns are no strings, or ``operator`` is something else.
        ValueError: for an unknown statistic, or if ``dense_every`` is not positive.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.report.watch import Watch
        >>> layer = nn.Linear(2, 2)
        >>> layer.weight.data = torch.diag(torch.tensor([3.0, 1.0]))
        >>> readings, numbers = Watch(dense="*", statistics=["sigma_max"]).take(layer)
        >>> readings, numbers
        ({'weight': tensor([[3., 1.]])}, {'sigma_max-weight': 3.0, 'spectral_margin': 2.0})
    """

    def __init__(
        self,
        *,
        weights: str | Sequence[str] = "*",
        dense: str | Sequence[str] = (),
        dense_every: int | None = None,
        per_gate: bool = False,
        statistics: Sequence[str] = STATISTICS,
        center: float = 1.0,
        operator: Images | None = None,
        separator: str = "-",
    ) -> None:
        self.weights = as_patterns("weights", weights)
        self.dense = as_patterns("dense", dense)
        known = (*STATISTICS, *SHAPE_STATISTICS)
        if unknown := [name for name in statistics if name not in known]:
            raise ValueError(f"statistics: expected some of {known}, got {unknown}.")
        if dense_every is not None and dense_every < 1:
            raise ValueError(f"dense_every: expected a positive number, got {dense_every}.")
        self.dense_every = dense_every
        self.per_gate = per_gate
        self.statistics = tuple(statistics)
        self.center = finite("center", center)  # goes into checkpoints, which hold plain numbers alone
        check_images(operator)
        self.operator = operator
        self.separator = separator
        self._taken = 0

    def begin(self) -> None:
        """The next reading is the first."""
        self._taken = 0

    def describe(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """What the watched weights are, in plain values, by the names of their readings."""
        check_convolutions(self.operator, model)
        described: dict[str, dict[str, Any]] = {}
        for name, parametrization in parametrized_weights(model, self.weights).items():
            names = self._names(model, name, parametrization.chunks)
            what = _described(parametrization) | {"blocks": parametrization.chunks // len(names)}
            described |= dict.fromkeys(names, what)
        for name, (module, weight) in plain_weights(model, self.dense).items():
            names = self._names(model, name)
            count = matrices_of(module, weight, self._chunks(model, name)).count
            described |= {key: {"shape": list(weight.shape), "blocks": count // len(names)} for key in names}
        for name, (module, image) in self._on_images(model).items():
            words = in_words(weight_of(module, "weight"), convolution(module), image)
            described[name] |= {"blocks": 1, "operator": words}
        return described

    def take(
        self, model: nn.Module, sigma_of: Callable[[SVDParametrization], Tensor] = sigma_in_blocks
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The next reading, σ by weight, and the numbers to log; plain weights whole where it is their turn."""
        if not self.is_whole(model):
            return self.glance(model, sigma_of)
        readings = self.read(model, sigma_of)
        return readings, self.summary(readings)

    def is_whole(self, model: nn.Module) -> bool:
        """Whether plain weights are read whole at the next reading; to be asked once for each."""
        self._taken += 1
        return (self._taken - 1) % self._interval(model) == 0

    def glance(
        self, model: nn.Module, sigma_of: Callable[[SVDParametrization], Tensor] = sigma_in_blocks
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """σ of the weights in SVD form, and numbers that hold what a few products with the plain ones say."""
        readings = self.read(model, sigma_of, with_plain=False)
        numbers = self.summary(readings)
        numbers.pop("spectral_margin", None)  # of the whole model it would not be
        return readings, numbers | self._leading(model)

    def read(
        self,
        model: nn.Module,
        sigma_of: Callable[[SVDParametrization], Tensor] = sigma_in_blocks,
        *,
        with_plain: bool = True,
    ) -> dict[str, Tensor]:
        """Singular values of every watched weight, (blocks, k), float32 on the CPU.

        A collective where the model is sharded: to be called on every rank.

        Args:
            model: whose weights are meant.
            sigma_of: |σ| of a weight in SVD form, (chunks, k).
            with_plain: whether plain weights are read too.
        """
        readings: dict[str, Tensor] = {}
        on_images = self._on_images(model)
        for name, parametrization in parametrized_weights(model, self.weights).items():
            if name in on_images:
                continue
            names = self._names(model, name, parametrization.chunks)
            sigma = sigma_of(parametrization)
            readings |= zip(names, sigma.reshape(len(names), -1, sigma.shape[-1]), strict=True)
        for name, (module, weight) in plain_weights(model, self.dense if with_plain else ()).items():
            if name in on_images:
                continue
            names = self._names(model, name)
            sigma = dense_singular_values(module, weight, self._chunks(model, name))
            readings |= zip(names, sigma.reshape(len(names), -1, sigma.shape[-1]), strict=True)
        for name, (module, image) in (on_images if with_plain else {}).items():
            readings[name] = operator_sigma(module, weight_of(module, "weight"), image)
        return readings

    def summary(self, readings: dict[str, Tensor]) -> dict[str, float]:
        """The numbers to log for readings."""
        numbers: dict[str, float] = {}
        margins = []
        with_shape = not set(SHAPE_STATISTICS).isdisjoint(self.statistics)
        for name, sigma in readings.items():
            values = spectral_statistics(sigma, self.center) | (shape_statistics(sigma) if with_shape else {})
            margins.append(values["spectral_margin"])
            numbers |= {f"{statistic}{self.separator}{name}": values[statistic] for statistic in self.statistics}
        if margins:
            numbers["spectral_margin"] = torch.tensor(margins, dtype=torch.float64).max().item()  # NaN where one is
        return numbers

    def _leading(self, model: nn.Module) -> dict[str, float]:
        """What a few products with the plain weights say."""
        numbers: dict[str, float] = {}
        on_images = self._on_images(model)
        for name, (module, image) in on_images.items():
            of_operator = operator_numbers(module, weight_of(module, "weight"), image)
            for statistic in filter(of_operator.__contains__, self.statistics):
                numbers[f"{statistic}{self.separator}{name}"] = of_operator[statistic].item()
        for name, (module, weight) in plain_weights(model, self.dense).items():
            if name in on_images:
                continue
            names = self._names(model, name)
            found = leading_numbers(module, weight, self._chunks(model, name))
            greatest = found["sigma_max"].reshape(len(names), -1).amax(1)
            of_each = {"sigma_max": greatest, "stable_rank": found["stable_rank"].reshape(len(names), -1).mean(1)}
            for statistic in filter(of_each.__contains__, self.statistics):
                labels = (f"{statistic}{self.separator}{key}" for key in names)
                numbers |= zip(labels, of_each[statistic].tolist(), strict=True)
        return numbers

    def _interval(self, model: nn.Module) -> int:
        if self.dense_every is not None:
            return self.dense_every
        on_images = self._on_images(model)
        plain = {name: found for name, found in plain_weights(model, self.dense).items() if name not in on_images}
        found = [matrices_of(module, weight) for module, weight in plain.values()]
        work = sum(m.count * m.p * m.q * min(m.p, m.q) for m in found)
        for module, image in on_images.values():
            groups, rows, columns = convolution(module).blocks(weight_of(module, "weight")).shape[:3]
            work += 2 * groups * rows * columns * min(rows, columns) * math.prod(image)  # complex, at half of them
        if work <= MUCH:
            return 1
        numbers = sum(m.count * m.p * m.q for m in found)
        numbers += sum(weight_of(module, "weight").numel() for module, _ in on_images.values())
        return max(SLOWER, round(work / numbers / WIDTH))

    def _on_images(self, model: nn.Module) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
        """The watched convolutions that are read as maps of images, with these."""
        if self.operator is None:
            return {}
        named = dict(named_modules(model))
        watched = [*parametrized_weights(model, self.weights), *plain_weights(model, self.dense)]
        owners = {name: named[name.rpartition(".")[0]] for name in watched}
        images = {name: image_for(self.operator, module, name) for name, module in owners.items()}
        return {name: (owners[name], image) for name, image in images.items() if image is not None}

    def _chunks(self, model: nn.Module, name: str) -> int:
        """In how many blocks a plain weight is read: one, as by ``singular_values``, but for its gates and groups."""
        return blocks_of(*owner_of(model, name)) if self.per_gate else 1

    def _names(self, model: nn.Module, name: str, blocks: int | None = None) -> list[str]:
        """What the readings of a weight are called: as the weight, or by gate if it has a block for each."""
        gates = gate_names(*owner_of(model, name)) if self.per_gate else ""
        if not gates or blocks not in (None, len(gates)):
            return [name]
        return [f"{name}.{gate}" for gate in gates]


def to_keep(readings: dict[str, Tensor], described: dict[str, dict[str, Any]]) -> dict[str, Tensor]:
    """What a history keeps of readings: of operators with many σ some, of which ``described`` then says how many.

    Example:
        >>> import torch
        >>> from spectral_param.report.watch import to_keep
        >>> described = {"0.weight": {"operator": "64×64"}}
        >>> to_keep({"0.weight": torch.linspace(2, 1, 4096).unsqueeze(0)}, described)["0.weight"].shape, described
        (torch.Size([1, 1024]), {'0.weight': {'operator': '64×64', 'values': 4096}})
    """
    kept = dict(readings)
    for name, sigma in readings.items():
        if "operator" in described.get(name, {}) and (count := sigma.shape[-1]) > KEPT:
            described[name]["values"] = count
            kept[name] = sigma[:, torch.linspace(0, count - 1, KEPT).round().long()]
    return kept


def _described(parametrization: SVDParametrization) -> dict[str, Any]:
    """What a weight in SVD form is, in plain values."""
    sigma_map, later = parametrization.sigma_map, on_top_of(parametrization)
    low, high = (torch.as_tensor(edge) for edge in ((0, math.inf) if later else (sigma_map.low, sigma_map.high)))
    return {
        "shape": [parametrization.chunks * parametrization.shape[0], parametrization.shape[1]],
        "reflectors": list(parametrization.reflectors),
        "sigma": f"{sigma_map}, {later}" if later else repr(sigma_map),
        "low": low.min().item(),
        "high": high.max().item(),
    }
