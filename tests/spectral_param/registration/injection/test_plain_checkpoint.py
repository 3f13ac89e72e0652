import numpy as np
import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(5, 4), "size mismatch for weight"),
        (torch.full((4, 5), torch.nan), "weight: weight: expected finite values"),
        (np.ones((4, 5)), "weight: expected a tensor, got ndarray"),
        (torch.ones(4, 5, dtype=torch.int64), "weight: weight: expected a real floating dtype"),
    ],
)
def test_a_misfit_is_all_that_is_reported(weight, message):
    layer = register_svd_parametrization(nn.Linear(5, 4))
    before = [p.detach().clone() for p in layer.parameters()]
    with pytest.raises(RuntimeError, match=message) as raised:
        layer.load_state_dict({"weight": weight, "bias": layer.bias.detach()})
    said = str(raised.value).splitlines()
    assert len(said) == 2, said  # torch's own first line, and the misfit
    assert all(map(torch.equal, before, layer.parameters()))
    report = nn.Sequential(register_svd_parametrization(nn.Linear(2, 2))).load_state_dict({}, strict=False)
    assert len(report.missing_keys) == 4  # what is missing indeed
