import pytest
import torch
from torch import nn

from spectral_param.nn import Residual


@pytest.mark.parametrize("f", [nn.Linear(4, 1), nn.AdaptiveMaxPool1d(1), nn.Unflatten(0, (1, 2))])
def test_a_branch_that_does_not_keep_the_shape_is_an_error_and_not_repeated(f):
    with pytest.raises(ValueError, match=r"Residual: expected f to keep the shape \(2, 4\), got"):
        Residual(f)(torch.ones(2, 4))
