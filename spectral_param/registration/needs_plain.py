"""Weights that somebody else computes from or writes into, so that they have to stay plain."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def reason_for_a_plain_weight(module: nn.Module, tensor_name: str) -> str | None:
    """Why a weight cannot be computed; ``None`` where it can.

    Args:
        module: the owner.
        tensor_name: its weight.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.needs_plain import reason_for_a_plain_weight
        >>> reason_for_a_plain_weight(nn.Embedding(5, 3, padding_idx=0), "weight")
        'an embedding with padding_idx keeps a row as it is, and needs a plain weight'
    """
    if isinstance(module, _EMBEDDINGS):
        for option in ("max_norm", "sparse"):  # the one writes into the weight, the other gives it sparse gradients
            if getattr(module, option):
                return f"an embedding with {option} needs a plain weight"
        if module.padding_idx is not None:
            return "an embedding with padding_idx keeps a row as it is, and needs a plain weight"
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            computed, kind, own = hook.name, type(hook).__name__, f"torch.nn.utils.remove_{_NAMES[type(hook)]}"
        elif isinstance(hook, BasePruningMethod):
            computed, kind, own = hook._tensor_name, "pruning", "torch.nn.utils.prune.remove"
        else:
            continue
        if tensor_name == computed:
            return f"{tensor_name!r} is what {kind} computes; take that off first, with {own}"
        if tensor_name.startswith(f"{computed}_"):
            return f"{tensor_name!r} is what {kind} computes {computed!r} from; take that off first, with {own}"
    return None


_NAMES = {WeightNorm: "weight_norm", SpectralNorm: "spectral_norm"}
