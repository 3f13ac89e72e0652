"""The tensors of a checkpoint file, each read when it is asked for."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spectral_param.report.checkpoints.safetensors import layout_of, read_tensor
from spectral_param.spectrum.table import escaped

STATE_DICTS = ("state_dict", "model_state_dict", "model")  # where training programs put a model among other things


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor; ``None`` for one that torch has not.
        load: reads it.
        unread: why it cannot be, or "".
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    load: Callable[[], Tensor]
    unread: str = ""


def stored_tensors(path: str | Path) -> dict[str, Stored]:
    """Opens a checkpoint.

    Args:
        path: ``.safetensors``, the ``.index.json`` of several such files, or what ``torch.save`` wrote, ``.pt``,
            ``.bin`` or Lightning's ``.ckpt`` among others. That is loaded with ``weights_only=True``; of what a
            training program saved, the state dict of the model is taken, and that of an optimizer never.

    Returns:
        The tensors by name, in the order of the file; also those that cannot be read, such as one that an index names
        and no file has.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is cut, is none of these, or holds other objects than tensors and plain values; it names
            the file.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from spectral_param.report.checkpoints.stored import stored_tensors
        >>> path = f"{tempfile.mkdtemp()}/model.pt"
        >>> torch.save({"epoch": 3, "state_dict": torch.nn.Linear(2, 3).state_dict()}, path)
        >>> {name: tensor.shape for name, tensor in stored_tensors(path).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a checkpoint, found no such file.")
    if path.name.endswith(".index.json"):
        return dict(_of_index(path))
    if path.suffix == ".safetensors":
        return {
            name: Stored(entry.shape, entry.dtype, partial(read_tensor, path, entry))
            for name, entry in layout_of(path).items()
        }
    return {name: _in_memory(path, name, tensor) for name, tensor in _tensors_in(_loaded(path))}


def _of_index(path: Path) -> Iterator[tuple[str, Stored]]:
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        parts = dict.fromkeys(files.values())
        names = [Path(part).name for part in parts]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected an index with a weight_map of file names; {error!r}.") from error
    missing, there = dict.fromkeys(files), set[str]()
    for name in names:  # the name alone: an index does not lead out of its folder
        if not name.isprintable() or not name or name.endswith(".index.json"):
            raise ValueError(f"{path}: expected names of files with tensors in its weight_map, got {name!r}.")
        if not path.with_name(name).is_file():
            continue
        there.add(name)
        for tensor, stored in stored_tensors(path.with_name(name)).items():
            missing.pop(tensor, None)
            yield tensor, stored
    if parts and not there:
        raise FileNotFoundError(f"{path}: expected {escaped(names[0])} with what it names, found nothing of it.")
    for name in missing:
        part = Path(files[name]).name
        why = f"not in {part}" if part in there else f"there is no {escaped(part)}"
        yield name, Stored((), None, partial(_refuse, f"{path}: expected {escaped(name)} in {part}."), why)


def _loaded(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?i).*sparse", UserWarning)  # tensors that are named and passed over
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # a file of before torch 1.6 cannot be mapped
                return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # which advises to run what it refuses
        found = re.search(r"GLOBAL (\S+)", str(error))
        got = f"got {escaped(found[1])}" if found else "got something else"
        written = "as torch.save(model.state_dict(), path) writes it"
        raise ValueError(
            f"{path}: expected a checkpoint of tensors and plain values alone, {written}, {got}."
        ) from error
    except Exception as error:
        raise ValueError(f"{path}: expected a checkpoint of tensors and plain values alone; {error}") from error


def _tensors_in(found: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(found, Tensor):
        yield prefix, found
    elif isinstance(found, Mapping):
        if not prefix and (known := next((key for key in STATE_DICTS if isinstance(found.get(key), Mapping)), None)):
            found = found[known]
        if _is_of_optimizer(found):
            return
        for name, value in found.items():
            yield from _tensors_in(value, f"{prefix}.{name}" if prefix else str(name))


def _is_of_optimizer(found: Mapping[Any, Any]) -> bool:
    """Whether it is what ``Optimizer.state_dict`` answers: averages of gradients, which have no σ to speak of."""
    return isinstance(found.get("state"), Mapping) and isinstance(found.get("param_groups"), list)


def _in_memory(path: Path, name: str, tensor: Tensor) -> Stored:
    unread = _unread(tensor)
    if not unread and tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        fewer = f"got {tuple(tensor.shape)} made of fewer"
        raise ValueError(f"{path}: expected {escaped(name)} with numbers of its own, {fewer}.")
    return Stored(() if tensor.is_nested else tuple(tensor.shape), tensor.dtype, lambda: tensor, unread)


def _unread(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "it is nested"
    if tensor.layout != torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}; save it with to_dense()"
    return "it is on the meta device, without numbers" if tensor.is_meta else ""


def _refuse(message: str) -> Tensor:
    raise ValueError(message)
