"""The matrices of a checkpoint: its weights, and the products of low-rank adapters."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spectral_param.report.checkpoints.stored import Stored

KERNEL = 9  # three dimensions of which the last is no longer are those of a convolution over a sequence
_ADAPTERS = (
    re.compile(r"^(?P<weight>.+)\.(?P<factor>lora_[AB])(?:\.(?P<adapter>[^.]+))?\.weight$"),  # peft
    re.compile(r"^(?P<weight>.+)\.(?P<factor>lora_(?:down|up))\.weight$"),  # sd-scripts
)
_SECOND = {"lora_A": "lora_B", "lora_down": "lora_up"}
_FIRST = {second: first for first, second in _SECOND.items()}


@dataclass(frozen=True)
class Weight:
    """One or several matrices under a name.

    Attributes:
        name: of the weight.
        kind: "plain", or "LoRA r=8".
        blocks: how many matrices.
        shape: p, q of each.
        parts: what is read: a tensor, or the factors A and B of a product.
        scale: of the product.
    """

    name: str
    kind: str
    blocks: int
    shape: tuple[int, int]
    parts: tuple[Stored, ...]
    scale: float = 1.0

    def matrices(self) -> Iterator[Tensor]:
        """Each matrix in float32 or float64, one that has the same σ where it is a product of thin factors."""
        if len(self.parts) == 1:
            stack = self.parts[0].load().reshape(self.blocks, *self.shape)
            yield from (_wide(matrix) for matrix in stack)
            return
        a, b = (_wide(part.load().flatten(1)) for part in self.parts)
        yield self.scale * b @ a

    def thin(self) -> Tensor | None:
        """A small matrix with the σ of a product that are not 0; ``None`` for what is no product."""
        if len(self.parts) == 1:
            return None
        a, b = (_wide(part.load().flatten(1)) for part in self.parts)
        return self.scale * torch.linalg.qr(b).R @ torch.linalg.qr(a.mT).R.mT


def weights_of(tensors: Mapping[str, Stored], path: Path | None = None) -> tuple[list[Weight], dict[str, str]]:
    """Goes through the tensors of a checkpoint.

    Two dimensions are a matrix, four and five a kernel read as (out, in·kh·kw). Three are a kernel (out, in, k) where
    the last is up to nine, and else a matrix for each entry of the first, as experts have them. Adapters are read as
    their product B A, times alpha / r where the file, or peft's ``adapter_config.json`` beside it, says them, under the
    name of the weight, with that of the adapter behind it where the weight has several.

    Args:
        tensors: by name.
        path: of the file, for the configuration beside it.

    Returns:
        The weights, and the names of tensors that are none of these though they have numbers in two dimensions or
        more, each with the reason.

    Example:
        >>> import torch
        >>> from spectral_param.report.checkpoints.matrices import weights_of
        >>> from spectral_param.report.checkpoints.stored import Stored
        >>> weights_of({"up": Stored((8, 64, 32), torch.float32, torch.empty)})[0][0].blocks
        8
    """
    weights, passed_over = [], {}
    adapters = Counter(match["weight"] for name in tensors if (match := _adapter(name)) and match["factor"] in _SECOND)
    for name, stored in tensors.items():
        if stored.unread:
            passed_over[name] = stored.unread
        elif "parametrizations." in name:
            passed_over[name] = "of a parametrized weight, in SVD form for one; inspect what plain_state_dict writes"
        elif _is_of_frozen_base(name, tensors):
            passed_over[name] = "of an adapter on a frozen base; load_adapter puts it onto its model"
        elif stored.dtype is None or not stored.dtype.is_floating_point:
            passed_over |= {name: f"its dtype is {_said(stored)}"} if len(stored.shape) > 1 else {}
        elif (match := _adapter(name)) is not None:
            first, second = match["factor"], _SECOND.get(match["factor"])
            if second is None:  # B, which comes with A
                if _partner(name, match["factor"], _FIRST[match["factor"]]) not in tensors:
                    passed_over[name] = f"a factor without a {_FIRST[match['factor']]}"
                continue
            other = tensors.get(_partner(name, first, second))
            weight = None if other is None else _product(match["weight"], stored, other, tensors, path)
            if weight is None:
                passed_over[name] = f"a factor without a {second} that fits"
            elif adapters[match["weight"]] > 1:
                weights.append(replace(weight, name=f"{weight.name}.{match.groupdict().get('adapter') or 'default'}"))
            else:
                weights.append(weight)
        elif len(stored.shape) >= 2 and 0 not in stored.shape:
            blocks, shape = _as_matrices(stored.shape)
            weights.append(Weight(name, "plain", blocks, shape, (stored,)))
    return weights, passed_over


def _is_of_frozen_base(name: str, tensors: Mapping[str, Stored]) -> bool:
    """Whether it is the u, sigma or v of what ``save_adapter`` wrote, with two numbers of the base beside it."""
    weight, _, part = name.rpartition(".")
    base = tensors.get(f"{weight}.base")
    return part in ("u", "sigma", "v") and base is not None and base.shape == (2,)


def _said(stored: Stored) -> str:
    return "none of torch's" if stored.dtype is None else str(stored.dtype).removeprefix("torch.")


def _adapter(name: str) -> re.Match[str] | None:
    return next((match for pattern in _ADAPTERS if (match := pattern.match(name))), None)


def _partner(name: str, factor: str, other: str) -> str:
    head, _, tail = name.rpartition(f".{factor}.")
    return f"{head}.{other}.{tail}"


def _product(name: str, a: Stored, b: Stored, tensors: Mapping[str, Stored], path: Path | None) -> Weight | None:
    if min(len(a.shape), len(b.shape)) < 2 or b.shape[1:] != (a.shape[0], *[1] * (len(b.shape) - 2)):
        return None
    rank = a.shape[0]
    alpha = tensors.get(f"{name}.alpha")
    is_said = alpha is not None and torch.Size(alpha.shape).numel() == 1
    scale = alpha.load().item() / rank if alpha is not None and is_said else _configured_scale(path, name, rank)
    inputs = int(torch.Size(a.shape[1:]).numel())
    return Weight(name, f"LoRA r={rank}", 1, (b.shape[0], inputs), (a, b), scale)


def _configured_scale(path: Path | None, name: str, rank: int) -> float:
    config = path.with_name("adapter_config.json") if path is not None else None
    if config is None or not config.is_file():
        return 1.0
    try:
        said = json.loads(config.read_text(encoding="utf-8"))
        divisor = rank**0.5 if said.get("use_rslora") else rank
        own = [alpha for key, alpha in (said.get("alpha_pattern") or {}).items() if _is_meant(key, name)]
        return float(own[0] if own else said.get("lora_alpha", divisor)) / divisor
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise ValueError(f"{config}: expected the configuration of an adapter; {error!r}.") from error


def _is_meant(pattern: str, name: str) -> bool:
    """Whether peft takes a key of ``alpha_pattern``, a regular expression, for the end or all of a module's name."""
    return re.match(rf"(.*\.)?({pattern})$", name.removeprefix("base_model.model.")) is not None


def _as_matrices(shape: tuple[int, ...]) -> tuple[int, tuple[int, int]]:
    if len(shape) == 3 and shape[2] > KERNEL and min(shape) > 1:
        return shape[0], (shape[1], shape[2])
    return 1, (shape[0], int(torch.Size(shape[1:]).numel()))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
