"""The mathematics written out slowly, in float64, for the tests to compare with."""

import torch
from torch import Tensor


def reflector(u: Tensor) -> Tensor:
    """H(u) = I - 2 u uᵀ / ‖u‖², H(0) = I (Eq. 1)."""
    eye = torch.eye(len(u), dtype=torch.float64)
    u = u.double() / u.abs().max().clamp_min(1e-300).double()
    return eye if not u.any() else eye - 2 * torch.outer(u, u) / (u @ u)


def reflector_product(reflectors: Tensor) -> Tensor:
    """H(column 0) H(column 1) … one by one, column j without its first j entries (Eq. 2)."""
    product = torch.eye(reflectors.shape[0], dtype=torch.float64)
    for j, column in enumerate(reflectors.double().mT):
        product = product @ reflector(torch.cat([torch.zeros(j), column[j:]]))
    return product


def svd_product(u: Tensor, sigma: Tensor, v: Tensor) -> Tensor:
    """U[:, :k] diag(σ) V[:, :k]ᵀ (Eqs. 7 and 8)."""
    k = len(sigma)
    return reflector_product(u)[:, :k] @ torch.diag(sigma.double()) @ reflector_product(v)[:, :k].mT


def relative(near: Tensor, exact: Tensor) -> float:
    """‖near - exact‖ / ‖exact‖ in the Frobenius norm, at any scale; 0 for two zeros."""
    near, exact = near.detach().double(), exact.detach().double()
    scale = exact.abs().max().clamp_min(1e-300)
    return ((near - exact) / scale).norm().div((exact / scale).norm().clamp_min(1e-300)).item()
