import gzip
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder that is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Any]]]:
    """Runs a function of (rank, *arguments) in two processes that share a gloo group; started once a session."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        barrier = context.Manager().Barrier(2)
        list(pool.map(_join_group, range(2), [str(store)] * 2, [barrier] * 2))

        def run(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            results = pool.map(_on_own_rank, [function] * 2, [arguments] * 2, [barrier] * 2)
            return [result for _, result in sorted(results, key=lambda pair: pair[0])]

        yield run


@pytest.fixture
def shared_data() -> Path:
    """Folder of the real data sets, beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"no real data at {SHARED}")
    return SHARED


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), mtime=0))


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with 100 training and 40 test images of noise in MNIST's format."""
    root = tmp_path_factory.mktemp("mnist")
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, size in (("train", 100), ("t10k", 40)):
        images = random.integers(256, size=(size, 28, 28), dtype=np.uint8)
        labels = random.permutation(np.arange(size, dtype=np.uint8) % 10)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return root


def _join_group(rank: int, store: str, barrier: Any) -> None:
    barrier.wait(60)  # so that each process takes one of the two calls
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def _on_own_rank(function: Callable[..., Any], arguments: tuple[Any, ...], barrier: Any) -> tuple[int, Any]:
    barrier.wait(60)
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    return rank, function(rank, *arguments)
