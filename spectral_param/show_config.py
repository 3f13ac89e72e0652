"""Which of the faster paths are live."""

from __future__ import annotations

import torch

from spectral_param.functional import native
from spectral_param.functional.scan import triton_scan


def show_config() -> None:
    """Prints which ways of computing are live in this process.

    Example:
        >>> import spectral_param
        >>> spectral_param.show_config()
        torch ..., ... thread...
        W built or passed by: by the number of operations
        native scan: ...
        Triton scan: ...
        native weights: ...
    """
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} thread{'s' if threads > 1 else ''}")
    print("W built or passed by: by the number of operations")
    state = "float32 on the CPU, sizes that 16 divides" if native.is_loaded() else "off; spectral_param.native.build()"
    print(f"native scan: {state}")
    off = triton_scan.why_off()
    print(f"Triton scan: {f'off; {off}' if off else f'on CUDA, up to {triton_scan.LARGEST} features'}")
    state = "float32 on the CPU, sides that 16 divides up to 256" if native.is_loaded() else "off, in the same way"
    print(f"native weights: {state}")
