"""How many of the library's files one forward of a registered layer enters, and how often it asks each question.

``python -m benchmarks.files_entered`` prints a line for each batch: with W built, and without.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import spectral_param
from spectral_param import register_svd_parametrization
from spectral_param.functional import ways
from spectral_param.torch_state import modes

OURS = str(Path(spectral_param.__file__).parent)
QUESTIONS: dict[CodeType, str] = {
    getattr(module, name).__code__: name
    for module, names in (
        (modes, ("autocast_is_on", "is_lowered", "is_seen_through", "is_listened_to")),
        (ways, ("way_to_build", "way_to_apply", "is_frozen", "is_less_work")),
    )
    for name in names
}


def entered(module: nn.Module, x: torch.Tensor) -> tuple[set[str], Counter[str]]:
    """The files that a forward enters, and the questions that it asks."""
    files: set[str] = set()
    asked: Counter[str] = Counter()

    def listen(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            files.add(str(Path(code.co_filename).relative_to(OURS)))
            asked.update([QUESTIONS[code]] if code in QUESTIONS else [])

    module(x)  # index tensors are made once
    sys.setprofile(listen)
    try:
        module(x)
    finally:
        sys.setprofile(None)
    return files, asked


if __name__ == "__main__":
    layer = register_svd_parametrization(nn.Linear(128, 128), reflectors=16, init="orthogonal")
    for batch in (1, 16, 128, 4096):
        files, asked = entered(layer, torch.randn(batch, 128))
        print(f"Linear(128), m = 16, batch {batch}: {len(files)} files: {', '.join(sorted(files))}")
        print("  " + ", ".join(f"{name} {count}" for name, count in asked.most_common()))
