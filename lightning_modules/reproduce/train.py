"""Training one planned run."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_modules.reproduce.last_epoch import LastEpoch, to_go_on_from
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result
from spectral_param import callbacks, svd_parametrizations
from spectral_param.callbacks import GradientNormMonitor, SpectralMonitor
from spectral_param.callbacks.recorder import versions

READINGS = 50
TIMES = 16


class Curves(Callback):
    """Keeps what validation logs, by training step, the training loss beside it, and the time that all took."""

    def __init__(self) -> None:
        self.curves: dict[str, tuple[list[int], list[float]]] = {}
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time of the run, without that between an interrupt and its going on."""
        return time.monotonic() - self._started

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on needs."""
        return {"curves": self.curves, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes it over."""
        self.curves = state_dict["curves"]
        self._started = time.monotonic() - state_dict["seconds"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds a point to each curve."""
        if trainer.sanity_checking:
            return
        for name, value in trainer.callback_metrics.items():
            if name.startswith(("val_", "train_")):
                steps, values = self.curves.setdefault(name, ([], []))
                steps.append(trainer.global_step)
                values.append(value.item())


def train(run: PlannedRun, root: Path, folder: Path) -> Result:
    """Trains the model of a run and tests it as it was in its best epoch of validation.

    A run that was interrupted goes on from the last epoch that it saved, with the same batches as if it never had been;
    dropout alone is drawn anew. Where a checkpoint is damaged the run begins anew, with a warning.

    Args:
        run: what to train.
        root: folder of all data.
        folder: folder of the run's checkpoints.

    Returns:
        The result.
    """
    seed_everything(run.seed, workers=True, verbose=False)
    model, data = run.make_model(), run.make_data(root)
    record = Curves()
    gradients = GradientNormMonitor(times=TIMES, weights=(), max_readings=READINGS)
    margin = _margin_monitor(model)
    watching = [monitor for name, monitor in (("gradients", gradients), ("margin", margin)) if name in run.watch]
    best = ModelCheckpoint(folder, filename="best", enable_version_counter=False, monitor=run.monitor, mode=run.mode)
    last = LastEpoch(folder / "last.ckpt")
    options = {"accelerator": "auto", "devices": 1, **run.trainer}
    own = [getattr(callbacks, name)(**arguments) for name, arguments in options.pop("callbacks", ())]
    trainer = Trainer(
        **options,
        callbacks=[*own, *watching, record, best, last],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, data, ckpt_path=to_go_on_from(last.path, folder / "best.ckpt"))
    # before the test, which takes callbacks back to the best epoch too
    curves, started = dict(record.curves), time.monotonic() - record.seconds
    names = gradients.history.names if "gradients" in run.watch else []
    through_time = [name for name in names if name.endswith(".h")]
    norms = gradients.history[through_time[0]].tolist() if through_time else []
    steps = list(gradients.history.steps)
    if names:
        curves["loss"] = (steps, gradients.history["loss"].flatten().tolist())
    if "margin" in run.watch:
        curves["margin"] = (list(margin.history.steps), _margins(margin))
    trainer.test(model, data, ckpt_path=best.best_model_path or None, verbose=False)
    scores = {name: value.item() for name, value in trainer.callback_metrics.items()}
    if "train" in run.watch:
        scores |= _training_scores(trainer, model, data)
    return Result(
        model=run.model,
        setting=run.setting,
        seed=run.seed,
        scores=scores,
        learning_rate=model.hparams["learning_rate"],
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        best=extreme(curves[run.monitor][1], max if run.mode == "max" else min),
        least_loss=extreme(curves["val_loss"][1], min),
        curves={name: thinned(curve) for name, curve in curves.items()},
        gradients=norms,
        gradient_steps=steps if through_time else [],
        seconds=round(time.monotonic() - started, 1),
        versions=versions(),
        device=torch.cuda.get_device_name() if trainer.num_devices and model.device.type == "cuda" else "cpu",
    )


def _training_scores(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> dict[str, float]:
    """Tests on the whole training set, in order and without dropout: ``train_…``."""
    loader = data.train_dataloader()
    in_order = DataLoader(loader.dataset, batch_size=loader.batch_size, collate_fn=loader.collate_fn)
    trainer.test(model, in_order, verbose=False)
    found = trainer.callback_metrics.items()
    return {name.replace("test_", "train_"): score.item() for name, score in found if name.startswith("test_")}


def extreme(values: Sequence[float], of: Callable[[Iterable[float]], float]) -> float:
    """The best of an epoch's values; NaN if no epoch has a finite one.

    Epochs that end in NaN are left out as :class:`ModelCheckpoint` does, which tests the best of the others: a run is
    judged by the epoch that it is tested in.
    """
    finite = [value for value in values if math.isfinite(value)]
    return of(finite) if finite else math.nan


def thinned(curve: tuple[list[int], list[float]]) -> tuple[list[int], list[float]]:
    """At most as many points as there are readings, evenly spaced, with the first and the last."""
    kept = np.unique(np.linspace(0, len(curve[0]) - 1, READINGS).round().astype(int))
    return [curve[0][i] for i in kept], [curve[1][i] for i in kept]


def _margin_monitor(model: LightningModule) -> SpectralMonitor:
    """Watches the recurrent weights, in SVD form or not."""
    if next(svd_parametrizations(model), None) is not None:
        return SpectralMonitor(max_readings=READINGS)
    return SpectralMonitor(weights=(), dense="*.weight_hh_l*", max_readings=READINGS)


def _margins(monitor: SpectralMonitor) -> list[float]:
    """max|σ - 1| over the watched weights at each reading."""
    names = [name for name in monitor.history.names if name != "loss"]
    margins = torch.stack([(monitor.history[name] - 1).abs().amax(1) for name in names])
    return margins.amax(0).tolist()
