import inspect
import warnings

import torch
from torch import nn

from spectral_param import register_svd_parametrization
from spectral_param.torch_state.users_line import warn


def test_a_warning_points_to_the_line_that_calls_and_to_none_above_it():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn("so it is")
        line = inspect.currentframe().f_lineno - 1
    assert [(one.filename, one.lineno) for one in told] == [(__file__, line)]


def test_a_warning_passes_over_the_lines_of_torch_and_of_this_library():
    layer = register_svd_parametrization(nn.Linear(4, 4))
    weight = layer.weight
    with torch.no_grad():
        weight.mul_(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nn.Sequential(layer)(torch.eye(4))
        line = inspect.currentframe().f_lineno - 1
    assert [(one.filename, one.lineno) for one in told] == [(__file__, line)]
