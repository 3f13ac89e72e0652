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
_BLOCK = 64  # columns of an elimination
_LEAST = 0.25  # pivot

Signs = Callable[[int, list[float]], list[float]]
"""From a column's number and the first entries of what is left of it in each basis to a sign for each."""


def reduced(bases: Sequence[Tensor], signs: Signs) -> tuple[list[Tensor], list[Tensor]]:
    """Reduces matrices of orthonormal columns to the identity, all in step.

    Args:
        bases: (n, k) float64 each, with the same k.
        signs: of their columns.

    Returns:
        Reflectors of unit length, (n, k) each, whose product begins with ``signs * basis``; and the signs, (k,) each.

    Example:
        >>> import torch
        >>> from spectral_param.functional import householder_product
        >>> from spectral_param.functional.reduction import reduced
        >>> basis = torch.linalg.qr(torch.randn(200, 100, dtype=torch.float64)).Q
        >>> [reflectors], _ = reduced([basis], lambda column, leads: [1.0])
        >>> torch.allclose(householder_product(reflectors, columns=100), basis)
        True
    """
    found, chosen = _by_elimination(bases, signs)
    done = chosen[0].shape[0]
    if done == bases[0].shape[1]:
        return found, chosen
    left = [householder_apply(r, b[:, done:], transpose=True)[done:] for r, b in zip(found, bases, strict=True)]
    rest, more = _one_by_one(left, lambda i, leads: signs(done + i, leads))
    padded = [torch.cat([r.new_zeros(done, r.shape[1]), r]) for r in rest]
    return (
        [torch.cat(pair, 1) for pair in zip(found, padded, strict=True)],
        [torch.cat(pair) for pair in zip(chosen, more, strict=True)],
    )


def _by_elimination(bases: Sequence[Tensor], signs: Signs) -> tuple[list[Tensor], list[Tensor]]:
    """The reflectors of the first columns, as many as have pivots to divide by."""
    work = [b.clone() for b in bases]
    chosen = [b.new_ones(b.shape[1]) for b in bases]
    done = 0
    for start in range(0, bases[0].shape[1] - _BLOCK, _BLOCK):
        stop = start + _BLOCK
        if not _eliminated([w[start:stop, start:stop] for w in work], start, signs, chosen):
            break
        for w in work:
            top, below, right = w[start:stop, start:stop], w[stop:, start:stop], w[start:stop, stop:]
            below.copy_(torch.linalg.solve_triangular(top, below, upper=True, left=False))
            right.copy_(torch.linalg.solve_triangular(top, right, upper=False, unitriangular=True))
            w[stop:, stop:].addmm_(below, right, alpha=-1)
        done = stop
    lower = [w[:, :done].tril(-1) for w in work]
    for y in lower:
        y.diagonal().fill_(1)
    return [-y / torch.linalg.vector_norm(y, dim=0) for y in lower], [c[:done] for c in chosen]


def _eliminated(tops: Sequence[Tensor], start: int, signs: Signs, chosen: Sequence[Tensor]) -> bool:
    """Whether the squares, from column ``start`` of their bases on, could be eliminated, in place."""
    for j in range(tops[0].shape[0]):
        leads = [top[j, j].item() for top in tops]
        for top, lead, sign, c in zip(tops, leads, signs(start + j, leads), chosen, strict=True):
            if abs(lead - sign) < _LEAST:
                return False
            c[start + j] = sign
            top[j, j] = lead - sign
            top[j + 1 :, j] /= lead - sign
            top[j + 1 :, j + 1 :].addr_(top[j + 1 :, j], top[j, j + 1 :], alpha=-1)
    return True


def _one_by_one(bases: Sequence[Tensor], signs: Signs) -> tuple[list[Tensor], list[Tensor]]:
    """:func:`reduced` by one reflector after the other, each formed from what it has to turn."""
    work = [b.clone() for b in bases]
    reflectors = [torch.zeros_like(b) for b in bases]
    chosen = [b.new_ones(b.shape[1]) for b in bases]
    count = bases[0].shape[1]
    for start in range(0, count, _PANEL):
        stop = min(start + _PANEL, count)
        for i in range(start, stop):
            columns = [w[i:, i] / torch.linalg.vector_norm(w[i:, i]) for w in work]
            for b, sign in enumerate(signs(i, [x[0].item() for x in columns])):
                chosen[b][i] = sign
                h = _to_first_axis(sign * columns[b])
                reflectors[b][i:, i] = h
                trailing = work[b][i:, i + 1 : stop]
                trailing -= torch.outer(2 * h, h @ trailing)
        for w, r in zip(work, reflectors, strict=True):
            w[start:, stop:] = householder_apply(r[start:, start:stop], w[start:, stop:], transpose=True)
    return reflectors, chosen


def _to_first_axis(x: Tensor) -> Tensor:
    """The unit u with H(u) x = e₁ for a unit x; zero only for x = 1, of a single entry."""
    if len(x) == 1:
        return (x < 0).to(x)
    tail = x[1:] @ x[1:]
    u = x.clone()
    u[0] = -tail / (1 + x[0]) if x[0] > 0 else x[0] - 1  # x₁ - 1 without cancellation
    length = torch.linalg.vector_norm(u)
    if length <= 8 * torch.finfo(x.dtype).eps:  # x is e₁: any direction orthogonal to it will do
        u.zero_()[1] = 1.0
        return u
    return u / length
