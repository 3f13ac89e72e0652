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

import math
from typing import Any

import torch
from torch import Tensor

from spectral_param.torch_state.modes import traced_or_transformed, without_autocast

BLOCKS = (32, 64, 128)
"""Reflectors a block: for many small matrices at once, as a rule, and for large ones."""


def householder_product(reflectors: Tensor, columns: int | None = None) -> Tensor:
    """Multiplies reflectors out: ``U = H(column 0) … H(column m-1)``, or its first columns.

    Args:
        reflectors: (…, n, m) floating point, 0 ≤ m ≤ n. Only the lower trapezoid is read.
        columns: how many leading columns of U to build, between 1 and n. ``None``: all n.

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
    columns = n if columns is None else columns
    if not 1 <= columns <= n:
        raise ValueError(f"columns: expected a number from 1 to {n}, got {columns}.")
    return _apply(reflectors, None, transpose=False, columns=columns)


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
    return _apply(reflectors, x, transpose=transpose, columns=x.shape[-1])


def normalized(reflectors: Tensor) -> Tensor:
    """Scales every reflector to unit length, which changes no H; zero ones, and those of unit length, keep their bits.

    Args:
        reflectors: (…, n, m) float32 or float64; norms from 1e-37 to 1e37 are told from zero.

    Returns:
        (…, n, m), zero above the diagonal.

    Example:
        >>> import torch
        >>> from spectral_param.functional.householder import normalized
        >>> normalized(torch.tensor([[3e-15], [4e-15]]))
        tensor([[0.6000],
                [0.8000]])
    """
    z, c = _directions(reflectors)
    is_unit = (c / math.sqrt(2.0) - 1).abs() <= 4 * torch.finfo(c.dtype).eps
    return torch.where(is_unit, reflectors.tril(), z / math.sqrt(2.0))


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
    z, _ = _directions(reflectors)
    return z, _solve(z.mT @ z, z.mT, transpose=False)


def _check_reflectors(reflectors: Tensor) -> None:
    if reflectors.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"reflectors: expected float32 or float64, got {reflectors.dtype}.")
    if reflectors.dim() < 2 or reflectors.shape[-1] > reflectors.shape[-2]:
        shape = tuple(reflectors.shape)
        raise ValueError(f"reflectors: expected (…, n, m) with m at most n, got {shape}.")


def _apply(reflectors: Tensor, x: Tensor | None, *, transpose: bool, columns: int) -> Tensor:
    """Chooses the handwritten backward where only eager autograd looks on, else plain operations."""
    batch = reflectors.shape[:-2]
    if x is not None:
        batch = torch.broadcast_shapes(batch, x.shape[:-2])
        x = _one_batch_dim(x, batch)
    reflectors = _one_batch_dim(reflectors, batch)
    if traced_or_transformed():
        out = _apply_plainly(reflectors, x, transpose, columns)
    else:
        out = _ReflectorProduct.apply(reflectors, x, transpose, columns)
    return out.reshape(*batch, *out.shape[-2:]) if len(batch) > 1 else out


def _one_batch_dim(x: Tensor, batch: torch.Size) -> Tensor:
    """(…, n, b) → (n, b) where there is no batch, else (B, n, b)."""
    if x.shape[:-2] != batch:
        x = x.expand(*batch, *x.shape[-2:])
    return x if len(batch) < 2 else x.reshape(batch.numel(), *x.shape[-2:])


# ------------------------------------------------------------------------------------ the pieces of Note [Compact WY]


def norms(y: Tensor) -> Tensor:
    """‖column‖ (…, 1, m), safe from overflow and underflow; for float32 in float64."""
    if y.dtype == torch.float32 and y.device.type != "mps":  # float64 squares hold every float32
        return torch.linalg.vector_norm(y, dim=-2, keepdim=True, dtype=torch.float64)
    scale = y.detach().abs().amax(-2, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    return torch.linalg.vector_norm(y / scale, dim=-2, keepdim=True) * scale


def _directions(reflectors: Tensor) -> tuple[Tensor, Tensor]:
    """Z = c u with ‖z‖ = √2, and c = √2/‖u‖ (…, 1, m); both zero where u is zero."""
    y = reflectors.tril()
    length = norms(y)
    zero = length < torch.finfo(y.dtype).tiny
    c = (math.sqrt(2.0) / length.masked_fill(zero, 1.0)).masked_fill(zero, 0.0).to(y.dtype)
    return y * c, c


def _solve(gram: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """S⁻¹ b or S⁻ᵀ b, S = I + striu(gram); the rest of the Gram matrix is never read.

    Solved from the right, ``bᵀ S⁻ᵀ``, where rows of b lie in memory as they are wanted: twice as fast.
    """
    triangle = gram if transpose else gram.mT
    return torch.linalg.solve_triangular(triangle, b.mT, upper=transpose, left=False, unitriangular=True).mT


def add_product_(out: Tensor, a: Tensor, b: Tensor, alpha: float = 1) -> Tensor:
    """Out += alpha a b, in place, batched or not."""
    if out.dim() == 2:
        return out.addmm_(a, b, alpha=alpha)
    return out.baddbmm_(a, b, alpha=alpha)


def added(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1, beta: float = 1) -> Tensor:
    """Beta c + alpha a b, batched or not, in one operation where torch has one."""
    if c.dim() == 2:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)
    return torch.baddbmm(c, a, b, alpha=alpha, beta=beta) if c.dim() == 3 else beta * c + alpha * (a @ b)


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
        z, _ = _directions(reflectors[..., a:, a:end])
        below = out[..., a:, :]
        below = below - z @ _solve(z.mT @ z, z.mT @ below, transpose)
        out = torch.cat([out[..., :a, :], below], dim=-2) if a else below
    return out


class _ReflectorProduct(torch.autograd.Function):
    """U x, Uᵀ x, or the first columns of U (x = None), with the backward of Note [Backward]."""

    @staticmethod
    def forward(ctx: Any, reflectors: Tensor, x: Tensor | None, transpose: bool, columns: int) -> Tensor:
        start = _identity(reflectors, columns) if x is None else x
        out = start.clone(memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for a, end in _blocks(reflectors, transpose):
            # While U grows from the identity, columns before a have nothing in rows a and below.
            below = out[..., a:, (0 if x is not None else min(a, columns)) :]
            z, c = _directions(reflectors[..., a:, a:end])
            gram = z.mT @ z
            m = _solve(gram, z.mT @ below, transpose)
            add_product_(below, z, m, alpha=-1)
            kept += [z, c, gram, m]
        ctx.save_for_backward(reflectors, x, out, *kept)
        ctx.transpose, ctx.columns = transpose, columns
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        reflectors, x, out, *kept = ctx.saved_tensors
        transpose, columns = ctx.transpose, ctx.columns
        needed = [t for t, need in zip((reflectors, x), ctx.needs_input_grad[:2], strict=True) if need]
        if torch.is_grad_enabled():  # of higher order: the kept pieces have no graph, so compute anew
            again = _apply_plainly(reflectors, x, transpose, columns)
            grads = iter(torch.autograd.grad(again, needed, grad, create_graph=True))
            first, second = (next(grads) if need else None for need in ctx.needs_input_grad[:2])
            return first, second, None, None

        grad = grad.clone(memory_format=torch.contiguous_format)
        d_reflectors = None
        if ctx.needs_input_grad[0]:
            d_reflectors, out = torch.zeros_like(reflectors), out.clone()
        blocks = _blocks(reflectors, transpose)
        for i in reversed(range(len(blocks))):
            z, c, gram, m = kept[4 * i : 4 * i + 4]
            a, end = blocks[i]
            lead = 0 if x is not None else min(a, columns)
            g = grad[..., a:, lead:]
            n = _solve(gram, z.mT @ g, not transpose)
            if d_reflectors is not None:
                before = add_product_(out[..., a:, lead:], z, m, alpha=1)
                upper = (m @ n.mT if transpose else n @ m.mT).triu(1)
                dz = z @ (upper + upper.mT)
                add_product_(dz, g, m.mT, alpha=-1)
                add_product_(dz, before, n.mT, alpha=-1)
                along = (dz * z).sum(-2, keepdim=True)
                d_reflectors[..., a:, a:end] = dz.addcmul_(z, along, value=-0.5).mul_(c)
            if i > 0 or ctx.needs_input_grad[1]:
                add_product_(g, z, n, alpha=-1)
        if d_reflectors is not None:
            d_reflectors = d_reflectors.tril_()
            if reflectors.shape[-1] == reflectors.shape[-2]:
                d_reflectors[..., -1, -1] = 0
        return d_reflectors, grad if ctx.needs_input_grad[1] else None, None, None
