"""How the weight of a module is read as a matrix, or as a stack of matrices with an SVD each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_GATED = ("weight_ih", "weight_hh")
GATES: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...], str], ...] = (
    ((nn.LSTM, nn.LSTMCell), _GATED, "ifgo"),
    ((nn.GRU, nn.GRUCell), _GATED, "rzn"),
    ((nn.MultiheadAttention,), ("in_proj_weight",), "qkv"),
)
"""What torch stacks along dim 0: kinds of modules, how the names of such weights begin, a letter for each part."""
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by the dimensions of a kernel."""


@dataclass(frozen=True)
class Matrices:
    """A weight as ``count`` matrices p×q.

    Attributes:
        weight_shape: the shape of the weight.
        count: how many matrices: chunks, the outputs of a bilinear layer, or experts.
        p: rows of a matrix.
        q: columns.
        input_first: whether dim 0 of the weight counts inputs, as in transposed convolutions.
    """

    weight_shape: tuple[int, ...]
    count: int
    p: int
    q: int
    input_first: bool = False

    def of(self, weight: Tensor) -> Tensor:
        """The weight as (count, p, q)."""
        if self.input_first:
            first, *rest = self.weight_shape
            weight = weight.reshape(self.count, first // self.count, *rest).transpose(1, 2)
        return weight.reshape(self.count, self.p, self.q)

    def to_weight(self, matrices: Tensor) -> Tensor:
        """(count, p, q), or (p, q) where there is one, as the weight, with the strides of a plain one."""
        if not self.input_first:
            return matrices.reshape(self.weight_shape)
        first, *rest = self.weight_shape
        blocks = matrices.reshape(self.count, rest[0], first // self.count, *rest[1:])
        return blocks.transpose(1, 2).reshape(self.weight_shape).contiguous()


def matrices_of(module: nn.Module, weight: Tensor, chunks: int = 1) -> Matrices:
    """Says how a weight is read.

    Two dimensions: as it is, cut into ``chunks`` along dim 0. A convolution: (out, in·kh·kw); a transposed one, whose
    kernel stands as (in, out, kh, kw): the same. With ``chunks=groups`` each group has its own. A bilinear layer: one
    matrix for each output. Three dimensions, each of two or more, in a module that is no layer of ``torch.nn``: one
    matrix for each entry of dim 0, as experts have them.

    Args:
        module: the owner.
        weight: its weight; only the shape counts.
        chunks: blocks along dim 0.

    Raises:
        ValueError: if the weight has fewer than two dimensions or no entries, has more where ``torch.nn`` gives them no
            such meaning, or is not cut evenly by ``chunks``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import matrices_of
        >>> conv = nn.Conv2d(16, 32, 3)
        >>> matrices_of(conv, conv.weight).q
        144
        >>> matrices_of(nn.Module(), torch.empty(8, 64, 32))
        Matrices(weight_shape=(8, 64, 32), count=8, p=64, q=32, input_first=False)
    """
    shape = tuple(weight.shape)
    if len(shape) < 2 or math.prod(shape) == 0:
        raise ValueError(f"tensor_name: expected a weight of two dimensions or more, with entries, got shape {shape}.")
    if chunks < 1 or shape[0] % chunks:
        raise ValueError(f"chunks: expected a divisor of {shape[0]}, the length of dim 0, got {chunks}.")
    if len(shape) == 2 or isinstance(module, CONVOLUTIONS):
        return Matrices(shape, chunks, shape[0] // chunks, math.prod(shape[1:]))
    if isinstance(module, TRANSPOSED_CONVOLUTIONS):
        columns = math.prod(shape) // shape[1] // chunks
        return Matrices(shape, chunks, shape[1], columns, input_first=True)
    if are_experts(module, weight) or (isinstance(module, nn.Bilinear) and len(shape) == 3):
        if chunks != 1:
            what = "a bilinear layer, whose outputs" if isinstance(module, nn.Bilinear) else "experts, which"
            raise ValueError(f"chunks: expected 1 for {what} have a matrix each, got {chunks}.")
        count, p, q = shape
        return Matrices(shape, count, p, q)
    raise ValueError(
        f"tensor_name: expected two dimensions in {type(module).__name__}, which torch.nn gives no more, got {shape}."
    )


def are_experts(module: nn.Module, weight: Tensor) -> bool:
    """Whether a weight has a matrix for each entry of dim 0: three dimensions, in a module that is no torch layer.

    Each dimension is of two or more, unlike that of a table of positions, (1, length, width).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import are_experts
        >>> are_experts(nn.Module(), torch.empty(8, 64, 32)), are_experts(nn.Conv1d(2, 3, 4), torch.empty(3, 2, 4))
        (True, False)
    """
    kinds = {kind.__module__ for kind in type(module).__mro__} - {nn.Module.__module__, nn.ModuleList.__module__}
    is_layer = any(kind.startswith("torch.nn.modules.") for kind in kinds)
    return weight.dim() == 3 and min(weight.shape) > 1 and not is_layer


def gate_names(module: nn.Module, tensor_name: str) -> str:
    """One letter for each gate that a weight stacks: ``"ifgo"``, ``"rzn"``, ``"qkv"``, or none.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import gate_names
        >>> gate_names(nn.LSTM(3, 4), "weight_hh_l0"), gate_names(nn.Linear(3, 4), "weight")
        ('ifgo', '')
    """
    for kinds, names, gates in GATES:
        if isinstance(module, kinds) and tensor_name.startswith(names):
            return gates
    return ""


def blocks_of(module: nn.Module, tensor_name: str) -> int:
    """How many blocks a module stacks in a weight: 4 for the gates of an LSTM, 3 for those of a GRU, and so on.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import blocks_of
        >>> blocks_of(nn.LSTM(3, 4), "weight_hh_l0"), blocks_of(nn.MultiheadAttention(8, 2), "in_proj_weight")
        (4, 3)
        >>> blocks_of(nn.Conv2d(8, 8, 3, groups=2), "weight"), blocks_of(nn.RNN(3, 4), "weight_hh_l0")
        (2, 1)
    """
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)) and tensor_name == "weight":
        return module.groups
    return len(gate_names(module, tensor_name)) or 1


def has_channels_last(weight: Tensor) -> bool:
    """Whether a kernel has its channels last in memory.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.blocks import has_channels_last
        >>> has_channels_last(torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last))
        True
        >>> has_channels_last(torch.empty(2, 3, 1, 1)), has_channels_last(torch.empty(2, 3, 4, 4))
        (False, False)
    """
    format = CHANNELS_LAST.get(weight.dim())
    if format is None or not weight.is_contiguous(memory_format=format):
        return False
    # a kernel of 1×1 is contiguous either way, and convolutions go by its strides
    return weight.stride() != torch.empty(weight.shape, device="meta").stride()
