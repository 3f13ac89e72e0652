import pytest
import torch
from torch import nn

from lightning_modules.networks.deep_network import deep_network
from spectral_param import svd_parametrizations
from spectral_param.nn import Residual


def count(*args, **kwargs) -> int:
    return sum(p.numel() for p in deep_network(*args, **kwargs).parameters())


def test_parameters():
    ends = 784 * 128 + 128 + 128 * 10 + 10
    plain, m = 128 * 128 + 128, 16
    spectral = 2 * (m * 128 - m * (m - 1) // 2) + 128 + 128
    for kind in ("mlp", "resnet"):
        assert count(kind, 784, 10, depth=6) == ends + 6 * plain
        assert count(f"spectral-{kind}", 784, 10, depth=6, reflectors=m) == ends + 6 * spectral


def test_layers_by_hand():
    mlp = deep_network("mlp", 5, 3, depth=2, width=4)
    first, second, third, last = (layer for layer in mlp if isinstance(layer, nn.Linear))
    x = torch.randn(7, 5)
    torch.testing.assert_close(mlp(x), last(third(second(first(x).relu()).relu()).relu()))
    resnet = deep_network("resnet", 5, 3, depth=2, width=4, nonlinearity="leaky_relu", negative_slope=0.3)
    first, last = (layer for layer in resnet if isinstance(layer, nn.Linear))
    [block] = (layer for layer in resnet if isinstance(layer, Residual))
    inner, outer = block[0], block[2]

    def act(z):
        return torch.where(z > 0, z, 0.3 * z)

    h = act(first(x))
    torch.testing.assert_close(resnet(x), last(act(h + outer(act(inner(h))))))


@pytest.mark.parametrize(("network", "center"), [("spectral-mlp", 1.0), ("spectral-resnet", 0.0)])
def test_singular_values_are_in_their_band(network, center):
    model = deep_network(network, 5, 3, depth=4, width=6, reflectors=2, radius=0.25)
    parametrizations = [p for _, p in svd_parametrizations(model)]
    assert len(parametrizations) == 4
    for p in parametrizations:
        assert (p.sigma_map.low, p.sigma_map.high) == (center - 0.25, center + 0.25)
        torch.testing.assert_close(p.sigma, torch.full((6,), center))


@pytest.mark.parametrize("network", ["mlp", "resnet", "spectral-mlp", "spectral-resnet"])
def test_gradients_reach_every_parameter(network):
    model = deep_network(network, 5, 3, depth=4, width=8, reflectors=4, nonlinearity="tanh")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):  # where all start at zero, one factor after the other gets its own
        optimizer.zero_grad()
        model(torch.randn(9, 5)).square().sum().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        if parameter.numel() > 1:
            assert (parameter.grad != 0).any(), name


def test_dropout_after_every_layer_or_block():
    model = deep_network("resnet", 5, 3, depth=4, width=8, dropout=0.1)
    assert [layer.p for layer in model if isinstance(layer, nn.Dropout)] == [0.1] * 3


def test_bad_arguments():
    with pytest.raises(ValueError, match="network: expected one of mlp, resnet, .*, got 'cnn'"):
        deep_network("cnn", 5, 3)
    with pytest.raises(ValueError, match="depth: expected an even number for 'resnet', got 3"):
        deep_network("resnet", 5, 3, depth=3)
    with pytest.raises(ValueError, match="depth: expected at least 1 for 'mlp', got 0"):
        deep_network("mlp", 5, 3, depth=0)


def weights(model) -> list[torch.Tensor]:
    return [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Linear)][1:-1]


def test_plain_layers_start_as_asked_for():
    torch.manual_seed(0)
    he, orthogonal, zero = (
        weights(deep_network(network, 5, 3, depth=4, width=64, start=start))
        for network, start in (("mlp", "he"), ("mlp", "orthogonal"), ("resnet", "zero"))
    )
    assert torch.stack(he).std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.03)
    for weight in orthogonal:
        torch.testing.assert_close(weight @ weight.T, torch.eye(64), rtol=0, atol=1e-5)
    assert [bool(weight.any()) for weight in zero] == [True, False, True, False]


def test_the_spectral_start_is_that_of_the_svd_form():
    torch.manual_seed(0)
    plain = deep_network("mlp", 5, 3, depth=4, width=16, reflectors=2, start="spectral")
    torch.manual_seed(0)
    spectral = deep_network("spectral-mlp", 5, 3, depth=4, width=16, reflectors=2)
    assert not list(svd_parametrizations(plain))
    x = torch.randn(7, 5)
    torch.testing.assert_close(plain(x), spectral(x))


def test_layers_under_spectral_norm_have_a_largest_singular_value_of_one():
    torch.manual_seed(0)
    model = deep_network("normed-mlp", 5, 3, depth=3, width=16)
    for _ in range(50):  # power iterations, one a forward
        model(torch.randn(7, 5))
    for weight in weights(model):
        assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(1.0, abs=0.02)


def test_a_start_that_a_network_has_not_is_refused():
    with pytest.raises(ValueError, match="start: expected glorot for 'spectral-mlp', got 'he'"):
        deep_network("spectral-mlp", 5, 3, start="he")
    with pytest.raises(
        ValueError, match="start: expected glorot or he or orthogonal or spectral for 'mlp', got 'zero'"
    ):
        deep_network("mlp", 5, 3, start="zero")
