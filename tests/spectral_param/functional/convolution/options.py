"""Convolutions with options of every kind, small enough to be written out."""

import torch
from hypothesis import strategies as st
from torch import nn


@st.composite
def convolutions(draw: st.DrawFn, modes: tuple[str, ...], circles: bool = False) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution in float64 and an image that suits it."""
    sides = draw(st.sampled_from([1, 2, 2, 3]))

    def each(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(sides))

    mode = draw(st.sampled_from(modes))
    transposed = mode == "zeros" and draw(st.booleans())
    kernel, dilation, stride = each(1, 3) if circles else each(1, 2, 3, 4), each(1, 1, 2), each(1, 1, 2, 3)
    if circles:
        padding = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
        image = tuple(s * draw(st.integers(2, 4 if sides < 3 else 2)) for s in stride)
        image = tuple(max(n, s * -(-p // s)) for n, s, p in zip(image, stride, padding, strict=True))
    else:
        padding = each(0, 1, 2)
        image = each(7, 9, 12) if sides < 3 else each(7)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels = [groups * draw(st.sampled_from([1, 2] if sides < 3 else [1])) for _ in range(2)]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "padding_mode": mode}
    if transposed:
        kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        options["output_padding"] = tuple(max(s, d) - 1 for s, d in zip(stride, dilation, strict=True))
        image = tuple(n // 2 + 2 for n in image)
    else:
        kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    torch.manual_seed(draw(st.integers(0, 2**31)))
    conv = kinds[sides - 1](*channels, kernel, bias=draw(st.booleans()), dtype=torch.float64, **options)
    if draw(st.booleans()):  # smooth kernels, whose greatest frequency is 0
        nn.init.uniform_(conv.weight)
    return conv, image


def jacobian(conv: nn.Module, image: tuple[int, ...]) -> torch.Tensor:
    """The operator as a matrix, by what the module itself makes of each pixel."""
    size = conv.in_channels * torch.Size(image).numel()
    basis = torch.eye(size, dtype=torch.float64).reshape(size, conv.in_channels, *image)
    with torch.no_grad():
        return (conv(basis) - conv(torch.zeros_like(basis[:1]))).flatten(1).T


def true_values(conv: nn.Module, image: tuple[int, ...]) -> torch.Tensor:
    return torch.linalg.svdvals(jacobian(conv, image))
