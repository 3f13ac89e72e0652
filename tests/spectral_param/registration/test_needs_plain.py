import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from spectral_param import register_all, register_svd_parametrization

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"max_norm": 1.0}, {"sparse": True}])
def test_an_embedding_that_writes_its_own_rows_stays_plain(kind, options):
    model = nn.Sequential(kind(9, 4, **options))
    report = register_all(model)
    assert not report.taken
    assert "embedding" in report.passed_over["0.weight"]
    for register in (lambda: register_all(model, where=kind), lambda: register_svd_parametrization(model[0])):
        with pytest.raises(ValueError, match=f"an embedding with {next(iter(options))} .*needs? a plain weight"):
            register()


def test_the_row_of_padding_stays_zero():
    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=0))
    register_all(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randint(0, 20, (6, 4))) - 1).square().sum().backward()
        optimizer.step()
    assert not model(torch.tensor([0])).any()


COMPUTED = {
    "weight_norm": (weight_norm, ["weight_g", "weight_v"], "torch.nn.utils.remove_weight_norm"),
    "spectral_norm": (spectral_norm, ["weight_orig"], "torch.nn.utils.remove_spectral_norm"),
    "pruning": (
        lambda m: prune.l1_unstructured(m, "weight", amount=0.5),
        ["weight_orig"],
        "torch.nn.utils.prune.remove",
    ),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_a_weight_is_computed_from_by_a_hook_is_not_registered(kind):
    put_on_top, names, remedy = COMPUTED[kind]
    model = nn.Sequential(put_on_top(nn.Linear(5, 4)))
    report = register_all(model)
    assert not report.taken
    for name in names:
        assert "take that off first" in report.passed_over[f"0.{name}"]
        with pytest.raises(ValueError, match=f"{name!r} is what .* computes 'weight' from; take that off first"):
            register_svd_parametrization(model[0], name)
    with pytest.raises(ValueError, match=f"'weight' is what .* computes; take that off first, with {remedy}"):
        register_svd_parametrization(model[0])
    with pytest.raises(ValueError, match="take that off first"):
        register_all(model, where=nn.Linear)
    model(torch.ones(1, 5))


def test_the_other_weights_beside_a_normed_one_are_taken():
    model = weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    assert list(register_all(model).taken) == ["weight_ih_l0"]
