"""Attention, which is Lipschitz on bounded inputs alone (Kim, Papamakarios, Mnih, 2021).

Note [Attention in a ball]
~~~~~~~~~~~~~~~~~~~~~~~~~~
n tokens x_i with ‖x_i‖ ≤ r; one head q = Q x + a, k = K x + b, v = V x + c of d entries, f_i = Σ_j P_ij v_j with P the
softmax over j of q_i·k_j / √d, masked or not. Its differential has three parts:

1. Σ_j P_ij dv_j. The rows of P sum to 1 and its columns to n at most: ≤ √n ‖V‖ ‖dx‖.
2. By dq_i: Cov_j(v, k) dq_i / √d over P_i. v lies within ‖V‖ r of c, k within ‖K‖ r of b, and a covariance is at most
the
   product of two deviations: ≤ ‖V‖ ‖K‖ r² ‖Q‖ / √d ‖dx‖.
3. By dk_j: Σ_j P_ij (v_j - f_i) q_i·dk_j / √d, by Cauchy and Schwarz ≤ ‖q_i‖ ‖V‖ r / √d (Σ_j P_ij ‖dk_j‖²)^{1/2}, and
   over all i ≤ √n (‖Q‖ r + ‖a‖) ‖V‖ r ‖K‖ / √d ‖dx‖.

Heads stand beside each other, their squares add up, and ‖W_o‖ follows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from spectral_param.bounds.lipschitz.moved import Moved, in_evaluation
from spectral_param.bounds.norms import weight_in_evaluation


def self_attention(module: nn.MultiheadAttention, value: Moved) -> Moved:
    """With one value as query, key and value; see Note [Attention in a ball]."""
    if value.centre is None or value.reach == math.inf:
        raise ValueError(
            "module: expected around= and radius=, since MultiheadAttention is Lipschitz on bounded inputs alone, got "
            "all inputs."
        )
    if module.bias_k is not None or module.add_zero_attn or not module._qkv_same_embed_dim:
        raise ValueError(
            f"module: expected MultiheadAttention of one width and without add_bias_kv or add_zero_attn, got {module}."
        )
    centre = value.centre
    tokens = centre.shape[1 if module.batch_first and centre.dim() == 3 else 0]
    r = float(torch.linalg.vector_norm(centre.double(), dim=-1).max()) + value.reach
    weight = _exactly(weight_in_evaluation(module, "in_proj_weight"))
    bias = torch.zeros(len(weight)) if module.in_proj_bias is None else module.in_proj_bias
    width = module.head_dim
    q, k, v = (torch.linalg.matrix_norm(part.unflatten(0, (-1, width)), 2) for part in weight.chunk(3))
    a = torch.linalg.vector_norm(_exactly(bias).chunk(3)[0].unflatten(0, (-1, width)), dim=-1)
    n, root = math.sqrt(tokens), math.sqrt(width)
    heads = v * (n + k * q * r**2 / root + n * (q * r + a) * k * r / root)
    output = torch.linalg.matrix_norm(_exactly(weight_in_evaluation(module.out_proj)), 2)
    rounded = 1 + 16 * torch.finfo(module.out_proj.weight.dtype).eps  # what registered weights are off by
    with torch.no_grad(), in_evaluation(module):
        centre = module(centre, centre, centre, need_weights=False)[0]
    return replace(value, by=value.by * torch.linalg.vector_norm(heads) * output * rounded, centre=centre)


def _exactly(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)
