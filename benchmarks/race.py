"""Timing side by side: all candidates in each round, in random order, so that what disturbs one disturbs all.

One thread, and the processor time of that thread: other work on the machine then costs little. Several threads, and
wall time, which asks for a quiet machine. Medians, and medians of the ratios within a round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

SHORT = 5e-3  # seconds; below, a call right before the timed one warms the caches


class Race:
    """The times of some candidates.

    Args:
        candidates: functions of no argument, by name.
        seconds: about how long to go on.
        rounds: at least so many.
        threads: how many torch uses; 1: processor time is taken, more: wall time.
    """

    def __init__(
        self, candidates: Mapping[str, Callable[[], object]], seconds: float, rounds: int = 3, threads: int = 1
    ) -> None:
        torch.set_num_threads(threads)
        self._clock = time.thread_time if threads == 1 else time.perf_counter
        self.times: dict[str, list[float]] = {name: [] for name in candidates}
        for call in candidates.values():
            call()
        short = {name: self._time(call) < SHORT for name, call in candidates.items()}
        order, shuffle = list(candidates), random.Random(0).shuffle
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(self.times[order[0]]) < rounds:
            shuffle(order)
            for name in order:
                if short[name]:
                    candidates[name]()
                self.times[name].append(self._time(candidates[name]))

    def seconds(self, name: str) -> float:
        """The median."""
        return statistics.median(self.times[name])

    def ratio(self, name: str, reference: str) -> float:
        """The median over the rounds of one's time over the other's."""
        pairs = zip(self.times[name], self.times[reference], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def _time(self, call: Callable[[], object]) -> float:
        start = self._clock()
        call()
        return self._clock() - start


def gemm_rate(size: int = 1024) -> float:
    """Floating point operations a second of ``torch.mm`` in float32, now."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / Race({"mm": lambda: a @ b}, seconds=0.5).seconds("mm")
