"""What bounds are compared with."""

import torch
from torch import Tensor, nn


def jacobian_norm(module: nn.Module, x: Tensor) -> float:
    """The greatest singular value of the Jacobian of one sample, worked out entry by entry."""
    module = module.eval().double()
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x.unsqueeze(0)).flatten(), x.double())
    return torch.linalg.matrix_norm(jacobian.flatten(1), 2).item()
