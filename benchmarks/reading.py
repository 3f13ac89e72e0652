"""``python -m benchmarks.reading``: what reading plain weights costs, of a training step.

Fifty layers of 512, Adam; σ is read as ``SpectralMonitor(dense="*")`` reads it by default: every 50th step, all of it
at one reading of several. One thread, processor time of it, the least of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from spectral_param.report.watch import Watch

LAYERS, WIDTH, EVERY = 50, 512, 50


def main() -> None:
    """Prints a line for each batch size."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    watch = Watch(dense="*")
    interval = watch._interval(model)
    whole, glance = least(lambda: watch.read(model), 2), least(lambda: watch.glance(model), 5)
    for rows in (128, 512):
        x = torch.randn(rows, WIDTH)

        def step(x: torch.Tensor = x) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        seconds = least(step, 10)
        share = (whole + (interval - 1) * glance) / (interval * EVERY * seconds)
        step_ms, glance_ms, whole_ms = (round(1e3 * part) for part in (seconds, glance, whole))
        print(f"{rows} rows: {share:.2%} of training: a step {step_ms} ms, {interval - 1} glances {glance_ms} ms each,")
        print(f"    and all σ, {whole_ms} ms")


def least(call: Callable[[], object], times: int) -> float:
    call()
    seconds = []
    for _ in range(times):
        begin = time.thread_time()
        call()
        seconds.append(time.thread_time() - begin)
    return min(seconds)


if __name__ == "__main__":
    main()
