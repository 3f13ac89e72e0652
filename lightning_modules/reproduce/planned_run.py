"""One training run of a table or figure."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule

import datamodules
import lightning_modules

Spec = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class PlannedRun:
    """A model, a setting and a seed, and all that is needed to train them.

    Args:
        experiment: name of the table or figure.
        model: the model's name in the table.
        setting: the setting's name in the table.
        seed: seed of the run.
        task: class in ``lightning_modules``, and its arguments.
        data: class in ``datamodules``, and its arguments but ``root``.
        trainer: arguments of the Trainer; its callbacks as names in ``spectral_param.callbacks`` with arguments.
        monitor: what decides which epoch is tested.
        mode: "min" or "max", which of it is best.
        folder: the data's folder below the root of all data; None where data are generated.
        watch: what is recorded in training besides losses and metrics: "gradients", "margin"; "train", the scores
            of the training set after training.
    """

    experiment: str
    model: str
    setting: str
    seed: int
    task: Spec
    data: Spec
    trainer: dict[str, Any]
    monitor: str
    mode: str = "min"
    folder: str | None = None
    watch: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """A file name, another one for every other planned run."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.setting} {self.model}").strip("-").lower()
        return f"{words}-seed{self.seed}-{digest}"

    def make_model(self) -> LightningModule:
        """Builds the model."""
        name, arguments = self.task
        return getattr(lightning_modules, name)(**arguments)

    def make_data(self, root: Path) -> LightningDataModule:
        """Builds the data module, with its files in its folder below ``root``."""
        name, arguments = self.data
        place = {} if self.folder is None else {"root": root / self.folder}
        return getattr(datamodules, name)(**arguments, **place)
