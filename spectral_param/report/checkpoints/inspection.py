"""What there is to say of the weights in a checkpoint, and of what training did to them between two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spectral_param.registration.progress_line import progress_line
from spectral_param.report.checkpoints.matrices import Weight, weights_of
from spectral_param.report.checkpoints.stored import stored_tensors
from spectral_param.spectrum.dense.krylov import leading_svd
from spectral_param.spectrum.statistics import shape_statistics, spectral_statistics

WHOLE = 1024  # the longest shorter side whose σ are all computed
STEPS = 12  # products for the leading σ of larger ones


@torch.no_grad()
def inspect_file(path: str | Path, *, top: int = 10, whole: int = WHOLE) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Reads σ of every weight of a checkpoint, one tensor in memory at a time.

    Args:
        path: the file; see :func:`~spectral_param.report.checkpoints.stored.stored_tensors`.
        top: how many leading σ are listed.
        whole: of matrices with a shorter side up to this all σ are computed; of others the leading ones, too small
            by less than 1 % wherever it was measured.

    Returns:
        For each weight ``weight``, ``kind``, ``blocks``, ``shape``, ``max``, ``stable_rank``, ``effective_rank``,
        ``tail_exponent``, ``tail_error`` and ``sigma``, the leading σ of each block. NaN where not all σ are computed;
        what is not a matrix, by name, with the reason.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is cut, or no checkpoint.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from spectral_param.report.checkpoints.inspection import inspect_file
        >>> path = f"{tempfile.mkdtemp()}/model.pt"
        >>> torch.save({"fc.weight": torch.diag(torch.tensor([3.0, 1.0]))}, path)
        >>> [(row["weight"], row["sigma"]) for row in inspect_file(path)[0]]
        [('fc.weight', [[3.0, 1.0]])]
    """
    if top < 1:
        raise ValueError(f"top: expected a positive number, got {top}.")
    if whole < 0:
        raise ValueError(f"whole: expected a length, got {whole}.")
    weights, passed_over = weights_of(stored_tensors(path), Path(path))
    return [_row(weight, top, whole) for weight in _one_by_one(weights, path)], passed_over


@torch.no_grad()
def compare_files(path: str | Path, other: str | Path, *, top: int = 10) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Says what became of σ and of the leading subspaces between two checkpoints of a model.

    Args:
        path: the earlier file.
        other: the later.
        top: how many leading directions are compared.

    Returns:
        For each weight in both ``weight``, ``shape``, ``change`` ‖W' - W‖_F / ‖W‖_F, ``max`` and ``max_after``,
        ``sigma_change`` max|σ' - σ| / σ_max over the leading ones, and ``angle_left`` and ``angle_right``, in degrees:
        the root mean square of the principal angles' cosines between the leading subspaces, as an angle, the largest of
        the blocks. Where σ at the end of the list lie close together, these angles are large for a small change.
        Weights in one of them alone, or of another shape, by name, with the reason.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if one is cut, or no checkpoint.
    """
    if top < 1:
        raise ValueError(f"top: expected a positive number, got {top}.")
    (ours, reasons), (theirs, others) = (weights_of(stored_tensors(file), Path(file)) for file in (path, other))
    before, after = ({weight.name: weight for weight in weights} for weights in (ours, theirs))
    passed_over = {
        name: reason if reasons.get(name) == others.get(name) else f"in {file}, {reason}"
        for file, over in ((path, reasons), (other, others))
        for name, reason in over.items()
    }
    passed_over |= {name: f"in {path} alone" for name in before if name not in after and name not in others}
    passed_over |= {name: f"in {other} alone" for name in after if name not in before and name not in reasons}
    shared = []
    for name in (name for name in before if name in after):
        one, two = before[name], after[name]
        if (one.blocks, one.shape) == (two.blocks, two.shape):
            shared.append(one)
        else:
            passed_over[name] = f"{one.blocks} of {one.shape} before, {two.blocks} of {two.shape} after"
    return [_compared(weight, after[weight.name], top) for weight in _one_by_one(shared, path)], passed_over


def _one_by_one(weights: list[Weight], path: str | Path) -> Iterator[Weight]:
    with progress_line(f"inspecting {Path(path).name}", len(weights)) as tell:
        for i, weight in enumerate(weights):
            tell(i + 1)
            yield weight


def _row(weight: Weight, top: int, whole: int) -> dict[str, Any]:
    thin = weight.thin()
    found = [_numbers(matrix, top, whole) for matrix in (weight.matrices() if thin is None else (thin,))]
    said = {name: sum(numbers[name] for _, numbers in found) / len(found) for name in found[0][1]}
    return {
        "weight": weight.name,
        "kind": weight.kind,
        "blocks": weight.blocks,
        "shape": weight.shape,
        "max": _greatest(sigma[0] for sigma, _ in found),
        **said,
        "sigma": [sigma for sigma, _ in found],
    }


def _numbers(matrix: Tensor, top: int, whole: int) -> tuple[list[float], dict[str, float]]:
    """Leading σ, and statistics of all where they are computed."""
    if min(matrix.shape) <= whole and matrix.isfinite().all():
        sigma = torch.linalg.svdvals(matrix)
        effective_rank = spectral_statistics(sigma)["effective_rank"]
        said = {"effective_rank": effective_rank, **shape_statistics(sigma)}
        return sigma[:top].tolist(), {name: said[name] for name in STATISTICS}
    sigma = leading_svd(matrix, top, steps=STEPS)[1]
    entire = torch.linalg.vector_norm(matrix, dtype=torch.float64)
    said = dict.fromkeys(STATISTICS, math.nan) | {"stable_rank": float((entire / sigma[0].double()).square())}
    return sigma.tolist(), said


STATISTICS = ("stable_rank", "effective_rank", "tail_exponent", "tail_error")


def _compared(weight: Weight, other: Weight, top: int) -> dict[str, Any]:
    blocks = [_block(*both, top) for both in zip(weight.matrices(), other.matrices(), strict=True)]
    row = {name: _greatest(block[name] for block in blocks) for name in blocks[0]}
    return {"weight": weight.name, "shape": weight.shape} | row


def _block(matrix: Tensor, other: Tensor, top: int) -> Mapping[str, float]:
    first = leading_svd(matrix, top, steps=STEPS)
    second = first if torch.equal(matrix, other) else leading_svd(other, top, steps=STEPS)
    (u, sigma, vh), (u_after, sigma_after, vh_after) = ([part.double() for part in svd] for svd in (first, second))
    size = torch.linalg.vector_norm(matrix, dtype=torch.float64)
    moved = torch.linalg.vector_norm(other - matrix, dtype=torch.float64)
    return {
        "change": float(moved / size),
        "max": float(sigma[0]),
        "max_after": float(sigma_after[0]),
        "sigma_change": float((sigma_after - sigma).abs().max() / sigma[0]),
        "angle_left": _angle(u, u_after),
        "angle_right": _angle(vh.mT, vh_after.mT),
    }


def _angle(basis: Tensor, after: Tensor) -> float:
    """By the sine too, since a cosine near 1 says nothing of small angles; 0 for the same numbers."""
    moved = after - basis
    cosines, outside = basis.mT @ after, moved - basis @ (basis.mT @ moved)
    return float(torch.atan2(torch.linalg.vector_norm(outside), torch.linalg.vector_norm(cosines)).rad2deg())


def _greatest(numbers: Any) -> float:
    """The largest; NaN where one is."""
    return float(torch.tensor(list(numbers), dtype=torch.float64).max())
