"""Orthogonal matrices as products of Householder reflectors, in compact WY form.

A reflector is ``H(u) = I - 2 u uᵀ / ‖u‖²`` with ``H(0) = I`` (Eq. 1 of the paper). The reflectors of an n×n orthogonal
``U`` are the columns of an n×m matrix whose column j starts with j zeros, and ``U = H(column 0) H(column 1) …
H(column m-1)`` (Eq. 2). Only the lower trapezoid of that matrix is ever read.

Note [Compact WY]
    Scale every column to ``z = √2 u / ‖u‖`` (and to zero where u is zero), so that ``H = I - z zᵀ``. Then
    ``U = I - Z S⁻¹ Zᵀ`` with ``S = I + striu(ZᵀZ)``: matrix products and one triangular solve, which reads only the
    strict upper triangle of the Gram matrix. Columns are taken in blocks; block ``a`` touches rows ``a`` and below
    alone.

Note [Backward]
    For ``C = (I - Z S⁻¹ Zᵀ) X`` and the incoming gradient G, with ``M = S⁻¹ Zᵀ X`` and ``N = S⁻ᵀ Zᵀ G``:
    ``dX = G - Z N`` and ``dZ = Z (striu(N Mᵀ) + striu(N Mᵀ)ᵀ) - G Mᵀ - X Nᵀ``. For the transposed product S and Sᵀ
    change places, and ``N Mᵀ`` becomes ``M Nᵀ``. ``du = √2/‖u‖ (dZ - z (zᵀdZ) / 2)``, zero for a zero reflector and
    for one with a single entry, whose H is -1 whatever its length. X is not kept: ``X = C + Z M`` undoes one block
    at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.by_hand import ByHand, operator
from spectral_param.functional.reflectors import directions
from spectral_param.torch_state.modes import is_seen_through
from spectral_param.torch_state.precision import full_precision

BLOCKS = (32, 64, 128)
"""Reflectors a block: for many small matrices at once, as a rule, and for large ones."""


def householder_product(reflectors: Tensor, columns: int | None = None) -> Tensor:
    """Multiplies reflectors out: ``U = H(column 0) … H(column m-1)``, or its first columns.

    Args:
        reflectors: (…, n, m) floating point, 0 ≤ m ≤ n. Only the lower trapezoid is read.
        columns: how many leading columns of U to build, from 1 to n. ``None``: all n, which may be none.

    Returns:
        (…, n, columns) with orthonormal columns, differentiable any number of times.

    Raises:
        TypeError: if ``reflectors`` is no float32 or float64 tensor.
        ValueError: if a shape or ``columns`` is out of range.

    Example:
        >>> import torch
        >>> from spectral_param.functional import householder_product
        >>> u = householder_product(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
        >>> u
        tensor([[ 0.0000,  1.0000],
                [-1.0000,  0.0000]])
    """
    _check_reflectors(reflectors)
    n = reflectors.shape[-2]
    if columns is not None and not 1 <= columns <= n:
        raise ValueError(f"columns: expected a number from 1 to {n}, got {columns}.")
    if n == 0:
        return reflectors.new_empty(*reflectors.shape[:-1], 0)
    with full_precision(reflectors.device.type):
        return first_columns(reflectors, n if columns is None else columns, plainly=is_seen_through())


def householder_apply(reflectors: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """Applies a product of reflectors: ``U x``, or ``Uᵀ x``, without building U.

    Args:
        reflectors: (…, n, m) floating point, 0 ≤ m ≤ n. Only the lower trapezoid is read.
        x: (…, n, b) of the same dtype; leading dimensions broadcast against those of ``reflectors``.
        transpose: apply Uᵀ.

    Returns:
        (…, n, b), differentiable any number of times.

    Raises:
        TypeError: if a dtype is not float32 or float64, or the two differ.
        ValueError: if shapes do not fit.

    Example:
        >>> import torch
        >>> from spectral_param.functional import householder_apply
        >>> u, x = torch.randn(5, 2), torch.randn(5, 3)
        >>> torch.allclose(householder_apply(u, householder_apply(u, x), transpose=True), x, atol=1e-5)
        True
    """
    _check_reflectors(reflectors)
    if x.dtype != reflectors.dtype:
        raise TypeError(f"x: expected the dtype of reflectors, {reflectors.dtype}, got {x.dtype}.")
    if x.dim() < 2 or x.shape[-2] != reflectors.shape[-2]:
        raise ValueError(f"x: expected (…, {reflectors.shape[-2]}, b), got {tuple(x.shape)}.")
    try:
        torch.broadcast_shapes(reflectors.shape[:-2], x.shape[:-2])
    except RuntimeError:
        shapes = tuple(reflectors.shape[:-2]), tuple(x.shape[:-2])
        raise ValueError(f"x: expected leading dimensions that go with {shapes[0]}, got {shapes[1]}.") from None
    with full_precision(x.device.type):
        return reflect(reflectors, x, transpose=transpose, plainly=is_seen_through())


def compact_wy(reflectors: Tensor) -> tuple[Tensor, Tensor]:
    """Z and T of ``U = I - Z T``, for few reflectors; see Note [Compact WY].

    Args:
        reflectors: (…, n, m) float32 or float64.

    Returns:
        Z, (…, n, m), and ``T = S⁻¹ Zᵀ``, (…, m, n).

    Example:
        >>> import torch
        >>> from spectral_param.functional.householder import compact_wy, householder_product
        >>> u = torch.randn(5, 2)
        >>> z, t = compact_wy(u)
        >>> torch.allclose(torch.eye(5) - z @ t, householder_product(u), atol=1e-5)
        True
    """
    z, _ = directions(reflectors)
    return z, _solve(z.mT @ z, z.mT, transpose=False)


def _check_reflectors(reflectors: Tensor) -> None:
    if reflectors.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"reflectors: expected float32 or float64, got {reflectors.dtype}.")
    if reflectors.dim() < 2 or reflectors.shape[-1] > reflectors.shape[-2]:
        shape = tuple(reflectors.shape)
        raise ValueError(f"reflectors: expected (…, n, m) with m at most n, got {shape}.")


def first_columns(reflectors: Tensor, columns: int, *, plainly: bool) -> Tensor:
    """:func:`householder_product` of what is known to fit.

    Args:
        reflectors: (…, n, m).
        columns: how many.
        plainly: in operations that every transform of torch can see through; else with the handwritten backward.
    """
    batch = reflectors.shape[:-2]
    out = _way(plainly)(_one_batch_dim(reflectors, batch), None, False, columns)
    return out.reshape(*batch, *out.shape[-2:]) if len(batch) > 1 else out


def reflect(reflectors: Tensor, x: Tensor, *, transpose: bool, plainly: bool) -> Tensor:
    """:func:`householder_apply` of what is known to fit.

    Args:
        reflectors: (…, n, m).
        x: (…, n, b).
        transpose: apply Uᵀ.
        plainly: as for :func:`first_columns`.
    """
    batch, other = reflectors.shape[:-2], x.shape[:-2]
    if batch != other:
        batch = torch.broadcast_shapes(batch, other)
    out = _way(plainly)(_one_batch_dim(reflectors, batch), _one_batch_dim(x, batch), transpose, x.shape[-1])
    return out.reshape(*batch, *out.shape[-2:]) if len(batch) > 1 else out


def _one_batch_dim(x: Tensor, batch: torch.Size) -> Tensor:
    """(…, n, b) → (n, b) where there is no batch, else (B, n, b)."""
    if x.shape[:-2] != batch:
        x = x.expand(*batch, *x.shape[-2:])
    return x if len(batch) < 2 else x.reshape(batch.numel(), *x.shape[-2:])


# ------------------------------------------------------------------------------------ the pieces of Note [Compact WY]


def _solve(gram: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """S⁻¹ b or S⁻ᵀ b, S = I + striu(gram); the rest of the Gram matrix is never read.

    Solved from the right, ``bᵀ S⁻ᵀ``, where rows of b lie in memory as they are wanted: twice as fast.
    """
    triangle = gram if transpose else gram.mT
    return torch.linalg.solve_triangular(triangle, b.mT, upper=transpose, left=False, unitriangular=True).mT


def _add_product_(out: Tensor, a: Tensor, b: Tensor, alpha: float = 1) -> Tensor:
    """``out += alpha a b``, in place, batched or not."""
    if out.dim() == 2:
        return out.addmm_(a, b, alpha=alpha)
    return out.baddbmm_(a, b, alpha=alpha)


def _blocks(reflectors: Tensor, transpose: bool) -> list[tuple[int, int]]:
    """First and end of the blocks in the order in which they meet x: the last first for U x, the first for Uᵀ x.

    Narrow blocks skip more of the rows above, wide ones make faster products and fewer calls, as measured: many small
    matrices share the calls, and large ones have work enough for wide products.
    """
    n, m = reflectors.shape[-2:]
    many = reflectors.dim() > 2 and reflectors.shape[0] >= 4
    width = BLOCKS[0 if many and n <= 256 else 1 if n < 2048 else 2]
    blocks = [(a, min(a + width, m)) for a in range(0, m, width)]
    return blocks if transpose else blocks[::-1]


def _identity(reflectors: Tensor, columns: int) -> Tensor:
    n = reflectors.shape[-2]
    eye = torch.eye(n, columns, dtype=reflectors.dtype, device=reflectors.device)
    return eye.expand(*reflectors.shape[:-2], n, columns)


def _apply_plainly(reflectors: Tensor, x: Tensor | None, transpose: bool, columns: int) -> Tensor:
    """The same product in operations that every transform of torch can see through."""
    n, m = reflectors.shape[-2:]
    if n == m:  # the length of a single entry has no gradient, but rounding would give it one
        corner = torch.zeros(n, m, dtype=torch.bool, device=reflectors.device)
        corner[-1, -1] = True
        reflectors = torch.where(corner, reflectors.detach(), reflectors)
    out = _identity(reflectors, columns) if x is None else x
    for a, end in _blocks(reflectors, transpose):
        z, _ = directions(reflectors[..., a:, a:end])
        below = out[..., a:, :]
        below = below - z @ _solve(z.mT @ z, z.mT @ below, transpose)
        out = torch.cat([out[..., :a, :], below], dim=-2) if a else below
    return out


class _ReflectorProduct(ByHand):
    """U x, Uᵀ x, or the first columns of U (x = None), with the backward of Note [Backward]."""

    results, kept_from = 1, 0

    @staticmethod
    def forward(ctx: Any, reflectors: Tensor, x: Tensor | None, transpose: bool, columns: int) -> Tensor:
        kept = _ReflectorProduct.compute(reflectors, x, transpose, columns)
        ctx.save_for_backward(reflectors, x, *kept)
        ctx.rule, ctx.numbers = _ReflectorProduct, (transpose, columns)
        return kept[0]

    @staticmethod
    def compute(reflectors: Tensor, x: Tensor | None, transpose: bool, columns: int) -> list[Tensor]:
        start = _identity(reflectors, columns) if x is None else x
        out = start.clone(memory_format=torch.contiguous_format)
        kept = [out]
        for a, end in _blocks(reflectors, transpose):
            # While U grows from the identity, columns before a have nothing in rows a and below.
            below = out[..., a:, (0 if x is not None else min(a, columns)) :]
            z, c = directions(reflectors[..., a:, a:end])
            gram = z.mT @ z
            m = _solve(gram, z.mT @ below, transpose)
            _add_product_(below, z, m, alpha=-1)
            kept += [z, c, gram, m]
        return kept

    @staticmethod
    def gradients(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor | None],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        transpose: bool,
        columns: int,
    ) -> list[Tensor | None]:
        reflectors, from_identity = tensors[0], tensors[1] is None
        assert reflectors is not None
        out, *pieces = kept
        grad = grads[0].clone(memory_format=torch.contiguous_format)  # becomes ∂L/∂x, block by block
        d_reflectors = torch.zeros_like(reflectors) if needs[0] else None
        out = out.clone() if needs[0] else out  # becomes x again, block by block
        blocks = _blocks(reflectors, transpose)
        for i in reversed(range(len(blocks))):
            a, end = blocks[i]
            z, c, gram, m = pieces[4 * i : 4 * i + 4]
            # z: (B, n - a, w), w reflectors in the block
            # c: (B, 1, w)
            # gram: (B, w, w)
            # m: (B, w, b)
            lead = min(a, columns) if from_identity else 0
            g = grad[..., a:, lead:]  # (B, n - a, b)
            n = _solve(gram, z.mT @ g, not transpose)  # (B, w, b)
            if d_reflectors is not None:
                before = _add_product_(out[..., a:, lead:], z, m, alpha=1)  # (B, n - a, b)
                upper = (m @ n.mT if transpose else n @ m.mT).triu(1)  # (B, w, w)
                dz = z @ (upper + upper.mT)  # (B, n - a, w)
                _add_product_(dz, g, m.mT, alpha=-1)
                _add_product_(dz, before, n.mT, alpha=-1)
                along = (dz * z).sum(-2, keepdim=True)  # (B, 1, w)
                d_reflectors[..., a:, a:end] = dz.addcmul_(z, along, value=-0.5).mul_(c)
            if i > 0 or needs[1]:
                _add_product_(g, z, n, alpha=-1)
        if d_reflectors is not None:
            d_reflectors = d_reflectors.tril_()
            if reflectors.shape[-1] == reflectors.shape[-2]:
                d_reflectors[..., -1, -1] = 0  # a single entry: its length says nothing
        return [d_reflectors, grad if needs[1] else None]

    plainly = staticmethod(_apply_plainly)


_operator = operator("reflect", _ReflectorProduct, "Tensor reflectors, Tensor? x", "bool transpose, SymInt columns")


def _way(plainly: bool) -> Callable[..., Tensor]:
    if plainly:
        return _apply_plainly
    return _operator if torch.compiler.is_compiling() else _ReflectorProduct.apply
