import torch
from torch import nn

from spectral_param import Band, SVDParametrization, register_svd_parametrization, singular_values, without_adapter
from spectral_param.spectrum.whole_sigma import sigma_in_blocks


def read(layer):
    return sigma_in_blocks(SVDParametrization.alone_on(layer, "weight"))


def test_half_precision_is_read_as_the_layer_computes_with_it():
    layer = register_svd_parametrization(nn.Linear(8, 8), sigma=Band(0.001), init="orthogonal")
    with torch.no_grad():
        layer.parametrizations.weight[0].raw_sigma.normal_()
    layer.bfloat16()
    torch.testing.assert_close(read(layer).sort(descending=True).values[0], singular_values(layer).float())


def test_an_adapter_that_is_off_is_not_read():
    layer = register_svd_parametrization(nn.Linear(8, 6), base="frozen", reflectors=2, rank=2)
    with torch.no_grad():
        layer.parametrizations.weight[0].raw_sigma.mul_(3)
    for both in (read(layer).amax(), torch.linalg.matrix_norm(layer.weight, 2)):
        torch.testing.assert_close(both, torch.linalg.matrix_norm(layer.weight, 2))
    with without_adapter(layer):
        torch.testing.assert_close(read(layer).amax(), torch.linalg.matrix_norm(layer.weight, 2))
