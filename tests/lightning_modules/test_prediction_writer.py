import warnings
from pathlib import Path

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy

from datamodules import AddingProblem, PennTreebank
from lightning_modules import LanguageModel, SequenceRegressor
from lightning_modules.prediction_writer import PredictionWriter
from tests.small_data import write_words
from tests.spectral_param.callbacks.test_parallel import InGroup


def trainer(writer: PredictionWriter, **options) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", callbacks=writer, **quiet | options)


def adding() -> tuple[SequenceRegressor, AddingProblem]:
    return SequenceRegressor(2, 1, hidden_size=8, reflectors=4), AddingProblem(6, test_size=21, batch_size=4)


def test_the_file_holds_what_predict_returns(tmp_path):
    returned = trainer(PredictionWriter(tmp_path / "new" / "folder")).predict(*adding())
    (path,) = (tmp_path / "new" / "folder").iterdir()
    written = torch.load(path)
    assert path.name == "predictions_0.pt"
    assert [place for batch in written["indices"] for place in batch] == list(range(21))
    assert torch.equal(torch.cat(written["predictions"]), torch.cat(returned))
    assert [len(batch) for batch in written["predictions"]] == [4, 4, 4, 4, 4, 1]


def test_predictions_that_are_not_returned_are_written_to_the_log_dir(tmp_path):
    trainer(PredictionWriter(), default_root_dir=tmp_path).predict(*adding(), return_predictions=False)
    assert len(torch.load(tmp_path / "predictions_0.pt")["predictions"]) == 6


def test_windows_of_a_text(tmp_path):
    data = PennTreebank(write_words(tmp_path), seq_len=7, eval_batch_size=2, num_workers=1)
    returned = trainer(PredictionWriter(tmp_path)).predict(LanguageModel(10, hidden_size=8, reflectors=4), data)
    written = torch.load(tmp_path / "predictions_0.pt")
    assert written["indices"] == [[i] for i in range(len(returned))]
    assert torch.equal(torch.cat(written["predictions"], dim=1), torch.cat(returned, dim=1))
    assert torch.cat(returned, dim=1).shape == (2, -(-(len(data.tokens["test"]) - 1) // 2))


class TwoLoaders(BoringModel):
    def predict_step(self, batch, batch_idx, dataloader_idx):
        return batch_idx, dataloader_idx

    def predict_dataloader(self):
        return [BoringModel.predict_dataloader(self)] * 2


def test_several_loaders(tmp_path):
    trainer(PredictionWriter(tmp_path), limit_predict_batches=2).predict(TwoLoaders())
    written = torch.load(tmp_path / "predictions_0.pt")
    assert written == {"predictions": [[(0, 0), (1, 0)], [(0, 1), (1, 1)]], "indices": [[[0], [1]], [[0], [1]]]}


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    model, data = adding()
    model.forward = None  # not reached
    with pytest.raises(OSError, match=r"output_dir: expected a folder that can be written to, got .*file/in"):
        trainer(PredictionWriter(tmp_path / "file" / "in")).predict(model, data)


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "predictions_0.pt").write_text("of an earlier run")

    def full(content, path):
        Path(path).write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space left"):
        trainer(PredictionWriter(tmp_path)).predict(*adding())
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "of an earlier run"


class View(BoringModel):
    def predict_step(self, batch, batch_idx):
        return {"first": torch.zeros(1000, 1000)[0], "mean": batch.mean()}


def test_of_a_view_only_itself_is_written(tmp_path):
    trainer(PredictionWriter(tmp_path), limit_predict_batches=2).predict(View())
    path = tmp_path / "predictions_0.pt"
    assert torch.load(path)["predictions"][1]["first"].shape == (1000,)
    assert path.stat().st_size < 20_000


def test_files_of_ranks_that_are_no_more_are_removed(tmp_path):
    others = ("predictions_of_mine.pt", "notes.txt")
    for name in ("predictions_0.pt", "predictions_1.pt", "predictions_12.pt", *others):
        (tmp_path / name).write_text("of an earlier run")
    trainer(PredictionWriter(tmp_path), limit_predict_batches=1).predict(BoringModel())
    assert {path.name for path in tmp_path.iterdir()} == {"predictions_0.pt", *others}


def predict_on_a_rank(rank, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, of many kinds in a process of its own
        strategy = DDPStrategy(cluster_environment=InGroup(rank))
        return trainer(PredictionWriter(folder), devices=2, strategy=strategy).predict(*adding())


def test_ranks_fit_together(two_processes, tmp_path):
    returned = two_processes(predict_on_a_rank, tmp_path)
    files = [torch.load(tmp_path / f"predictions_{rank}.pt") for rank in range(2)]
    for predictions, file in zip(returned, files, strict=True):
        assert torch.equal(torch.cat(predictions), torch.cat(file["predictions"]))
    places = torch.tensor([place for file in files for batch in file["indices"] for place in batch])
    together = torch.cat([batch for file in files for batch in file["predictions"]])[places.argsort()]
    torch.manual_seed(0)
    alone = trainer(PredictionWriter(tmp_path / "alone")).predict(*adding())
    torch.testing.assert_close(together, torch.cat(alone))
