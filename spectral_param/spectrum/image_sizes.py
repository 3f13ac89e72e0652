"""Which images the convolutions of a model are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spectral_param.parametrization.lookup import named_modules
from spectral_param.torch_state.private import ConvNd


@torch.no_grad()
def image_sizes(model: nn.Module, *example: Any) -> dict[str, tuple[int, ...]]:
    """Runs a model once, in evaluation, and notes the sides of the image that each convolution is given.

    What comes is for the option ``operator`` of :func:`~spectral_param.spectral_table`, of the monitors and of the
    caps.

    Args:
        model: any module; its modes, buffers and hooks are left as they were.
        example: what it is called with.

    Returns:
        For each convolution that ran the name of its weight and its image; of several the largest.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import image_sizes
        >>> image_sizes(nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3)), torch.zeros(1, 3, 33, 33))
        {'0.weight': (33, 33), '1.weight': (16, 16)}
    """
    found: dict[str, tuple[int, ...]] = {}
    modules = list(named_modules(model))
    modes = [(module, module.training) for _, module in modules]
    handles = []
    for name, module in modules:
        if isinstance(module, ConvNd):
            key = f"{name}.weight" if name else "weight"
            sides = len(module.kernel_size)

            def note(
                module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], key: str = key, sides: int = sides
            ) -> None:
                image = tuple((args[0] if args else named["input"]).shape[-sides:])
                found[key] = max(found.get(key, image), image, key=lambda sides: torch.Size(sides).numel())

            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        model.eval()(*example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return found
