"""Reflectors that reduce orthonormal columns to those of the identity.

Note [Reduction]
    A Householder reduction of orthonormal columns Q with ``U[:, :k] = Q S``, S the signs, is an elimination:
    ``Q - S = L R``, where column j of L is the reflector ``q - s e₁`` of what is left of its column, scaled to begin
    with 1 (Ballard et al., "Reconstructing Householder vectors from tall-skinny QR"). So it takes matrix products
    and triangular solves, and one by one only the square at the top of a block. Its pivots are ``x - s``, x the first
    entry of what is left: from -2 to 2, and near zero where s has the sign of an x near 1. There, and in the last
    columns, where such entries are found, columns are reduced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spectral_param.functional.householder import householder_apply

_PANEL = 32  # columns reduced one by one before the rest catches up in one product
_BLOCK, _LEAST_BLOCK = 64, 8  # columns of an elimination, at least where it goes on
_LEAST = 0.25  # pivot

Signs = Callable[[int, Tensor], Tensor]
"""From a column's number and the first entries of what is left of it, (bases, …), to a sign for each."""


def reduced(bases: Sequence[Tensor], signs: Signs) -> tuple[list[Tensor], Tensor]:
    """Reduces matrices of orthonormal columns to the identity, all in step.

    Args:
        bases: (…, n, k) float64 each, with the same k and the same dimensions before.
        signs: of their columns.

    Returns:
        Reflectors of unit length, (…, n, k) each, whose product begins with ``signs * basis``; and the signs,
        (bases, …, k).

    Example:
        >>> import torch
        >>> from spectral_param.functional import householder_product
        >>> from spectral_param.functional.reduction import reduced
        >>> basis = torch.linalg.qr(torch.randn(200, 100, dtype=torch.float64)).Q
        >>> [reflectors], _ = reduced([basis], lambda column, leads: torch.ones_like(leads))
        >>> torch.allclose(householder_product(reflectors, columns=100), basis)
        True
    """
    found = [torch.zeros_like(b) for b in bases]
    count, lead = bases[0].shape[-1], (len(bases), *bases[0].shape[:-2])
    chosen = bases[0].new_ones(*lead, count)
    done = _by_elimination(bases, signs, found, chosen)
    if done < count:
        left = [
            householder_apply(r[..., :done], b[..., done:], transpose=True)[..., done:, :]
            for r, b in zip(found, bases, strict=True)
        ]
        rest = [r[..., done:, done:] for r in found]
        _one_by_one(left, lambda i, leads: signs(done + i, leads), rest, chosen[..., done:])
    return found, chosen


def _by_elimination(bases: Sequence[Tensor], signs: Signs, found: Sequence[Tensor], chosen: Tensor) -> int:
    """Fills in the reflectors and signs of the first columns, as many as have pivots to divide by; how many."""
    # L, scaled to columns of length -1, is ``found``; the rows of R beyond its blocks, scaled back, stand in ``work``
    work = [b.clone() for b in bases]
    start, count = 0, chosen.shape[-1]
    while start < count:
        stop = min(start + _BLOCK, count)
        panels = [
            _less(w[..., start:, start:stop], f[..., start:, :start], w[..., :start, start:stop])
            for w, f in zip(work, found, strict=True)
        ]
        tops = torch.stack([panel[..., : stop - start, :] for panel in panels])
        width = _eliminate(tops, start, signs, chosen)
        if width < min(_LEAST_BLOCK, count - start):
            break
        stop, tops = start + width, tops[..., :width, :width]
        for w, f, panel, top in zip(work, found, (panel[..., :width] for panel in panels), tops, strict=True):
            panel[..., width:, :] = torch.linalg.solve_triangular(top, panel[..., width:, :], upper=True, left=False)
            panel[..., :width, :] = top.tril(-1)
            panel.diagonal(dim1=-2, dim2=-1).fill_(1)
            lengths = torch.linalg.vector_norm(panel, dim=-2)
            torch.div(panel, -lengths.unsqueeze(-2), out=f[..., start:, start:stop])
            right = _less(w[..., start:stop, stop:], f[..., start:stop, :start], w[..., :start, stop:])
            right = torch.linalg.solve_triangular(top, right, upper=False, unitriangular=True)
            torch.mul(right, -lengths.unsqueeze(-1), out=w[..., start:stop, stop:])
        start = stop
    return start


def _less(part: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``part - left right``."""
    return torch.baddbmm(part, left, right, alpha=-1) if part.dim() == 3 else part - left @ right


def _eliminate(tops: Tensor, start: int, signs: Signs, chosen: Tensor) -> int:
    """Eliminates squares, from column ``start`` of their bases on, in place; how many columns have pivots."""
    pivots, size = torch.empty_like(tops[..., 0]), tops.shape[-1]
    for j in range(size):
        lead = tops[..., j, j]
        sign = signs(start + j, lead)
        chosen[..., start + j] = sign
        lead -= sign
        pivots[..., j] = lead
        if j + 1 < size:
            column = tops[..., j + 1 :, j : j + 1]
            column /= lead[..., None, None]
            tops[..., j + 1 :, j + 1 :].addcmul_(column, tops[..., j : j + 1, j + 1 :], value=-1)
    good = (pivots.abs() >= _LEAST).view(-1, size).all(0)
    return int(good.long().cumprod(0).sum())


def _one_by_one(bases: Sequence[Tensor], signs: Signs, found: Sequence[Tensor], chosen: Tensor) -> None:
    """Fills in all reflectors and signs, each reflector formed from what it has to turn."""
    work, count = [b.clone() for b in bases], bases[0].shape[-1]
    for start in range(0, count, _PANEL):
        stop = min(start + _PANEL, count)
        for i in range(start, stop):
            columns = [w[..., i:, i] / torch.linalg.vector_norm(w[..., i:, i], dim=-1, keepdim=True) for w in work]
            chosen[..., i] = signs(i, torch.stack([x[..., 0] for x in columns]))
            for w, r, x, sign in zip(work, found, columns, chosen[..., i], strict=True):
                r[..., i:, i] = h = _to_first_axis(sign.unsqueeze(-1) * x)
                trailing = w[..., i:, i + 1 : stop]
                trailing -= 2 * h.unsqueeze(-1) * (h.unsqueeze(-2) @ trailing)
        for w, r in zip(work, found, strict=True):
            w[..., start:, stop:] = householder_apply(r[..., start:, start:stop], w[..., start:, stop:], transpose=True)


def _to_first_axis(x: Tensor) -> Tensor:
    """The unit u with H(u) x = e₁ for unit x, (…, n); zero only for x = 1, of a single entry."""
    if x.shape[-1] == 1:
        return x.clamp(max=0).sign()
    lead, tail = x[..., 0], x[..., 1:].square().sum(-1)
    first = torch.where(lead > 0, -tail / (1 + lead.abs()), lead - 1)  # x₁ - 1 without cancellation
    u = x.select_scatter(first, -1, 0)
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    is_axis = length <= 8 * torch.finfo(x.dtype).eps  # any direction orthogonal to e₁ will do
    second = torch.zeros_like(x)
    second[..., 1] = 1.0
    return torch.where(is_axis, second, u / length.masked_fill(is_axis, 1.0))
