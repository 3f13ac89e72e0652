"""Training runs in processes of their own, some at a time."""

import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import spectral_param.native
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import read_result, run_folder, write_result
from lightning_modules.reproduce.train import train


def usual_processes() -> int:
    """Returns how many runs to train at a time: one on a GPU, one a core without."""
    if torch.cuda.is_available():
        return 1
    # networks as small as the paper's gain little from a second thread
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_all(
    runs: Sequence[PlannedRun],
    root: Path,
    folder: Path,
    processes: int,
    seconds: float,
    native: Path | None = None,
    flush_denormal: bool = True,
) -> Iterator[tuple[PlannedRun, bool]]:
    """Trains runs, each in a process of its own, and writes their results.

    Leaving the iterator, by an interrupt or otherwise, ends what is being trained; finished results stay. The error of
    a run that fails is written to :func:`error_path`. Checkpoints are kept in the run's folder until there is a result,
    so that a run that ended too early goes on where it was when it is trained again. A run that another command trains
    at that moment into the same folder is waited for, and its result taken; if that command is ended, the run goes on
    here.

    Args:
        runs: what to train, in this order.
        root: folder of all data.
        folder: folder of the results.
        processes: how many at a time.
        seconds: time after which everything ends, finished or not.
        native: folder of the native forms that runs take, compiled already; None for none.
        flush_denormal: takes numbers too small for full precision for zero, which is many times as fast on some CPUs.

    Yields:
        Each run as it ends, and whether there is a result.
    """
    context = _context()
    deadline = time.monotonic() + seconds
    waiting = deque(runs)
    running: dict[BaseProcess, PlannedRun] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = waiting.popleft()
                process = context.Process(
                    target=_work, args=(run, root, folder, processes > 1, native, flush_denormal), daemon=True
                )
                process.start()
                running[process] = run
            left = deadline - time.monotonic()
            if left <= 0:
                return
            wait([process.sentinel for process in running], timeout=min(left, 3600))
            for process in [process for process in running if not process.is_alive()]:
                process.join()
                yield running.pop(process), process.exitcode == 0
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.join()


def error_path(folder: Path, run: PlannedRun) -> Path:
    """Returns where the error of a run that fails is written."""
    return run_folder(folder, run).with_name(f"{run.name}.error")


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        os.environ.setdefault(name, str(1 << 30))  # glibc keeps freed memory: an LSTM takes half the time
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # the imports, once for all runs
    return context


def _work(
    run: PlannedRun, root: Path, folder: Path, one_thread: bool, native: Path | None, flush_denormal: bool
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()  # also where it is killed
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", ".*expected a whole checkpoint")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_flush_denormal(flush_denormal)
    if one_thread:
        torch.set_num_threads(1)
    checkpoints, failure = run_folder(folder, run), error_path(folder, run)
    checkpoints.parent.mkdir(parents=True, exist_ok=True)
    lock = checkpoints.with_name(f"{run.name}.lock")
    with FileLock(lock):  # the system gives it back when this process ends, however it does
        if read_result(folder, run) is None:
            failure.unlink(missing_ok=True)
            try:
                if native is not None:
                    spectral_param.native.build(native)
                write_result(folder, run, train(run, root, checkpoints))
            except Exception:
                failure.write_text(traceback.format_exc())
                raise SystemExit(1) from None
        shutil.rmtree(checkpoints, ignore_errors=True)
        with suppress(OSError):  # where an open file cannot be removed
            lock.unlink()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
