import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer

from datamodules import FlatMNIST, MultiLabel
from lightning_modules import ImageClassifier, MultiLabelClassifier
from spectral_param import SVDParametrization
from tests.small_data import write_multilabel

DEEP = {"depth": 2, "width": 8, "reflectors": 4}


def trainer(folder, **kwargs) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", default_root_dir=folder, enable_model_summary=False, **quiet, **kwargs)


@pytest.fixture(params=[ImageClassifier, MultiLabelClassifier])
def task(request, small_mnist, tmp_path):
    if request.param is ImageClassifier:
        return ImageClassifier(784, 10, depth=2, reflectors=4), FlatMNIST(small_mnist, val_size=20, batch_size=16)
    data = MultiLabel("bibtex", write_multilabel(tmp_path), batch_size=4)
    return MultiLabelClassifier(6, 3, network="spectral-resnet", depth=2, width=8, reflectors=4, dropout=0.1), data


def test_checkpoint_loads_without_arguments(task, tmp_path):
    model, data = task
    run = trainer(tmp_path, max_epochs=1)
    run.fit(model, data)
    run.save_checkpoint(tmp_path / "one.ckpt")
    loaded = type(model).load_from_checkpoint(tmp_path / "one.ckpt")
    assert loaded.hparams == model.hparams
    inputs, _ = next(iter(data.val_dataloader()))
    assert torch.equal(loaded.eval()(inputs), model.eval()(inputs))


def test_evaluation_and_predictions_agree(task, tmp_path):
    model, data = task
    run = trainer(tmp_path)
    (logged,) = run.test(model, data, verbose=False)
    answers = torch.cat(run.predict(model, data))
    inputs, targets = (torch.cat(parts) for parts in zip(*data.test_dataloader(), strict=True))
    output = model.eval()(inputs)
    if isinstance(model, ImageClassifier):
        assert torch.equal(answers, output.argmax(1))
        assert logged["test_accuracy"] == pytest.approx((answers == targets).float().mean().item())
        assert logged["test_loss"] == pytest.approx(F.cross_entropy(output, targets).item(), rel=1e-5)
        return
    torch.testing.assert_close(answers, output.sigmoid())
    right = ((answers > 0.5) & (targets == 1)).sum()
    f1 = 2 * right / ((answers > 0.5).sum() + targets.sum())
    assert logged["test_f1"] == pytest.approx(f1.item())
    assert logged["test_loss"] == pytest.approx(F.binary_cross_entropy(answers, targets).item(), rel=1e-5)
    assert 0 <= logged["test_ranking_precision"] <= 1
    order = answers.argsort(1, descending=True)
    for k in (1, 3, 5):
        named = targets.gather(1, order[:, :k])  # three labels are all there are
        assert logged[f"test_precision_at_{k}"] == pytest.approx((named.sum(1) / k).mean().item())


def test_the_rate_of_a_plain_network_is_that_of_groups(tmp_path):
    ours, plainly = (
        MultiLabelClassifier(6, 3, depth=2, width=8, reflectors=4, plain_rate=choice) for choice in (False, True)
    )
    names = [
        [group.get("name") for group in model.configure_optimizers()["optimizer"].param_groups]
        for model in (ours, plainly)
    ]
    assert names[0] == [None]
    assert names[1][0] == "others"
    assert names[1][-1].startswith("sigma")


def test_in_training_the_weights_of_a_deep_network_are_built_together(monkeypatch):
    task, x, built = ImageClassifier(12, 5, depth=4, width=16, reflectors=4), torch.randn(3, 12), []
    expected = task.eval()(x)
    forward = SVDParametrization.forward
    monkeypatch.setattr(SVDParametrization, "forward", lambda *args, **kw: built.append(1) or forward(*args, **kw))
    output = task.train()(x)
    torch.testing.assert_close(output, expected)
    assert not built
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in task.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_whose_probabilities_are_all_1_keep_their_order(dtype):
    model = MultiLabelClassifier(4, 5, **DEEP)
    logits = torch.tensor([[21.0, 19.0, 20.0, 23.0, 22.0]], dtype=dtype)
    labels = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]])
    scores, labels = model.judged(logits, labels)
    found = {name: metric(scores, labels).item() for name, metric in model.metrics().items()}
    assert found["precision_at_1"] == found["ranking_precision"] == 1.0


def test_scores_are_on_the_side_of_the_half_where_probabilities_are():
    model = MultiLabelClassifier(4, 5, **DEEP)
    logits, labels = 3 * torch.randn(50, 5), torch.rand(50, 5).round()
    scores, labels = model.judged(logits, labels)
    for metric in model.metrics().values():
        torch.testing.assert_close(metric(scores, labels), metric(logits.double().sigmoid(), labels))
    assert torch.equal(scores.isnan(), model.judged(logits * torch.nan, labels)[0].isnan().logical_not())


def test_an_interrupted_validation_leaves_nothing_to_the_next(tmp_path):
    class Stops(MultiLabelClassifier):
        stops = True

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if self.stops:
                raise RuntimeError

    data = MultiLabel("bibtex", write_multilabel(tmp_path), batch_size=2)
    run, model = trainer(tmp_path), Stops(6, 3, **DEEP)
    with pytest.raises(RuntimeError):
        run.validate(model, data, verbose=False)
    model.stops = False
    [found] = run.validate(model, data, verbose=False)
    [again] = run.validate(model, data, verbose=False)
    assert found == again
