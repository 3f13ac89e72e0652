"""The scan on CUDA in one kernel for all steps, where Triton is there: see Note [Scan in one kernel].

Tested in Triton's interpreter, and compiled for CUDA devices; it has not run on one yet, and the bounds of :func:`fits`
are counted, not measured.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = 256  # features; in float32 a matrix of 256 fills the registers of one multiprocessor


def fits(states: Tensor, w: Tensor) -> bool:
    """Whether the kernel runs here and is made for such states, (T + 1, B, n), and W.

    Up to 256 features, and while the batch is small: one product a step fills a device too, from about 8000 sequences
    of 128 features on, or 1000 of 256.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan import triton_scan
        >>> triton_scan.fits(torch.zeros(5, 2, 128), torch.eye(128))  # not on a CPU
        False
    """
    batch, n = states.shape[1:]
    made_for = states.is_cuda and type(states) is Tensor and states.dtype in DTYPES and states.dtype == w.dtype
    small = n <= LARGEST and batch * n**3 <= 2**34
    return made_for and small and states.numel() > 0 and why_off(states.device.index) is None


@functools.cache
def why_off(device: int | None = None) -> str | None:
    """Why the kernel cannot run on a CUDA device, tried once; ``None`` if it can.

    Args:
        device: its index; ``None``: the current one.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan import triton_scan
        >>> triton_scan.why_off() if not torch.cuda.is_available() else "no CUDA device"
        'no CUDA device'
    """
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        states = torch.zeros(2, 1, 1, device=torch.device("cuda", device) if device is not None else "cuda")
        forward_(states, states[0], "relu", 0.0)
    except ModuleNotFoundError:
        return "Triton is not installed"
    except Exception as error:  # an old device, no C compiler, …: Triton has many ways to say so
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def forward_(states: Tensor, w: Tensor, nonlinearity: str, slope: float) -> None:
    """Fills the states, in place of the projected inputs behind the first of them."""
    from spectral_param.functional.scan import triton_kernels

    steps, batch, n = states.shape
    with torch.cuda.device_of(states):
        triton_kernels.forward[(batch,)](
            states, w.mT.contiguous(), batch, steps - 1, n, slope, PHI=nonlinearity, **_tile(n)
        )


def backward_(
    deltas: Tensor, states: Tensor, w: Tensor, grad_states: Tensor | None, nonlinearity: str, slope: float
) -> None:
    """Fills the gradients before φ, (T, B, n), the last of which is there."""
    from spectral_param.functional.scan import triton_kernels

    steps, batch, n = deltas.shape
    given = grad_states is not None
    extra = deltas if grad_states is None else grad_states.contiguous()
    with torch.cuda.device_of(states):
        triton_kernels.backward[(batch,)](
            deltas, states, w.contiguous(), extra, batch, steps, n, slope, PHI=nonlinearity, GIVEN=given, **_tile(n)
        )


def _tile(n: int) -> dict[str, int]:
    """The width of W's tile, and warps for 64 of its entries a thread."""
    width = max(16, 1 << (n - 1).bit_length())
    return {"N": width, "num_warps": min(max(width * width // 2048, 1), 16)}
