"""``python -m benchmarks.on_gpu``: what there is to find out on a CUDA device, in one command, some minutes long.

Runs the tests that need one, holds every way of computing against float64 on the CPU, and times layers beside torch's
own, with float32 products whole and in TF32. Writes a page and a JSON file. ``--dry-run`` goes the same way on the CPU.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param import Band, register_svd_parametrization, together
from spectral_param.nn import SpectralRNN

TESTS = ("tests/spectral_param/functional/scan", "tests/spectral_param/torch_state")
CLOSE = {"highest": 1e-4, "high": 2e-2}  # relative, in float32 and with TF32


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, small")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder of gpu.md and gpu.json")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("expected a CUDA device, or --dry-run.")
    device = "cpu" if options.dry_run else "cuda"
    found: dict[str, Any] = {"torch": torch.__version__, "device": _name(device), "tests": _tests()}
    for precision in CLOSE:
        torch.set_float32_matmul_precision(precision)
        found[precision] = {"agreement": agreement(device, CLOSE[precision]), "times": times(device, options.dry_run)}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.output / "gpu.md").write_text(page(found))
    print(page(found))


def agreement(device: str, close: float) -> list[dict[str, Any]]:
    """How far outputs and gradients of each way are from those in float64 on the CPU, relative to the largest."""
    rows = []
    for name, (make, shape) in WAYS.items():
        torch.manual_seed(0)
        exact = make().double()
        near = copy.deepcopy(exact).float().to(device)
        x = torch.randn(shape, dtype=torch.float64)
        error = max(map(_relative, _run(near, x.float().to(device)), _run(exact, x)))
        rows.append({"way": name, "error": error, "close": error <= close})
    return rows


def times(device: str, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of a training step of ours and of torch's own layer, and their ratio."""
    rows = []
    for name, (ours, plain, shape) in _races(quick).items():
        milliseconds = []
        for make in (ours, plain):
            layer, x = make().to(device), torch.randn(shape, device=device)
            milliseconds.append(_milliseconds(lambda layer=layer, x=x: _run(layer, x), device))
        rows.append({"work": name, "ours": milliseconds[0], "plain": milliseconds[1]})
    return rows


def page(found: dict[str, Any]) -> str:
    """The findings as Markdown."""
    lines = ["# On a GPU", "", f"`python -m benchmarks.on_gpu`, torch {found['torch']}, {found['device']}.", ""]
    lines += [f"Tests: {found['tests']}", ""]
    for precision in CLOSE:
        lines += [
            f"## float32 products: {precision}",
            "",
            "| way | relative error against float64 | |",
            "| --- | --- | --- |",
        ]
        rows = found[precision]["agreement"]
        lines += [f"| {r['way']} | {r['error']:.1e} | {'close' if r['close'] else 'FAR'} |" for r in rows]
        lines += ["", "| a training step | ours, ms | torch's own, ms | ratio |", "| --- | --- | --- | --- |"]
        for r in found[precision]["times"]:
            lines.append(f"| {r['work']} | {r['ours']:.2f} | {r['plain']:.2f} | {r['ours'] / r['plain']:.2f} |")
        lines.append("")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------------- what is looked at


def _linear(n: int, m: int | None, **settings: Any) -> Callable[[], nn.Module]:
    init = {} if settings.get("base") or m is None else {"init": "orthogonal"}
    return lambda: register_svd_parametrization(nn.Linear(n, n), reflectors=m, **init, **settings)


def _compiled(make: Callable[[], nn.Module]) -> Callable[[], Any]:
    return lambda: torch.compile(make())


def _rnn(n: int, m: int, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: SpectralRNN(3, n, nonlinearity="relu", reflectors=m, sigma=Band(0.01), **settings)


class _Together(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        with together(self):
            return super().forward(input)


WAYS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear, m = 8, passed by": (_linear(128, 8), (256, 128)),
    "Linear, m = 8, W built": (_linear(128, 8, matrix_free=False), (256, 128)),
    "Linear, all reflectors": (_linear(128, None), (256, 128)),
    "Linear, σ alone": (_linear(128, 8, train="sigma"), (256, 128)),
    "Linear, a frozen base": (_linear(128, 8, base="frozen"), (256, 128)),
    "ten layers together": (lambda: _Together(*(_linear(64, 8)() for _ in range(10))), (32, 64)),
    "convolution": (lambda: register_svd_parametrization(nn.Conv2d(8, 16, 3)), (4, 8, 9, 9)),
    "LSTM, all reflectors": (
        lambda: register_svd_parametrization(nn.LSTM(3, 32), "weight_hh_l0", chunks=4),
        (20, 8, 3),
    ),
    "SpectralRNN, W in one kernel": (_rnn(64, 8, matrix_free=False), (50, 8, 3)),
    "SpectralRNN, thin factors": (_rnn(64, 4, matrix_free=True), (50, 8, 3)),
    "SpectralRNN, 256 features": (_rnn(256, 16, matrix_free=False), (20, 4, 3)),
}


def _races(quick: bool) -> dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]]:
    sizes, recurrent = ((64,), ((32, 20),)) if quick else ((512, 1024, 2048), ((128, 784), (512, 100)))
    races: dict[str, Any] = {}
    for n in sizes:
        plain, shape = (lambda n=n: nn.Linear(n, n)), (2048, n)
        for name, m, settings in (
            ("m = 16", 16, {}),
            ("m = n", None, {}),
            ("frozen base", 8, {"base": "frozen", "rank": 8}),
        ):
            races[f"Linear {n}, {name}"] = _linear(n, m, **settings), plain, shape
            races[f"Linear {n}, {name}, compiled"] = _compiled(_linear(n, m, **settings)), plain, shape
    for n, steps in recurrent:
        for m in (16, n):
            for kind in ("RNN", "LSTM"):
                options = {"nonlinearity": "relu"} if kind == "RNN" else {}
                peer = functools.partial(getattr(nn, kind), 3, n, **options)
                races[f"SpectralRNN {n}, T = {steps}, m = {m}, over nn.{kind}"] = _rnn(n, m), peer, (steps, 128, 3)
    return races


def _run(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of a training step."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    y.square().mean().backward()
    return [y, x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


def _relative(near: Tensor, exact: Tensor) -> float:
    difference = (near.detach().double().cpu() - exact.detach()).abs().max()
    return (difference / exact.detach().abs().max().clamp_min(1e-30)).item()


def _milliseconds(call: Callable[[], object], device: str) -> float:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        call()
    each = []
    for _ in range(10):
        wait()
        start = time.perf_counter()
        call()
        wait()
        each.append(1e3 * (time.perf_counter() - start))
    return statistics.median(each)


def _tests() -> str:
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=240)
    last = (ended.stdout.strip().splitlines() or ["nothing printed"])[-1]
    return f"`pytest {' '.join(TESTS)}` ended with {ended.returncode}: {last}"


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "a CPU, to try the command"


if __name__ == "__main__":
    main()
