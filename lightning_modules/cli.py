"""What ``spectral-param`` does with tasks: ``fit --config examples/configs/….yaml`` and its kin, and ``reproduce``."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

# imported so that a configuration can name their classes without a path
import datamodules  # noqa: F401
import lightning_modules  # noqa: F401
import spectral_param.callbacks  # noqa: F401
from lightning_modules.prediction_writer import PredictionWriter
from lightning_modules.suggestion import with_suggestion

DESCRIPTION = """Trains and tests the tasks of the paper, one YAML file each in examples/configs.
Its tables and figures: spectral-param reproduce --help.
Singular values of a checkpoint: spectral-param inspect --help."""


def main(args: ArgsType = None) -> LightningCLI | None:
    """Runs ``fit``, ``validate``, ``test``, ``predict`` or ``reproduce``.

    Args:
        args: command line as a list of strings; None takes the process's own.

    Returns:
        The command line interface after the run, with its ``trainer``, ``model`` and
        ``datamodule``; None after ``reproduce``.
    """
    words = sys.argv[1:] if args is None else args
    if isinstance(words, list) and words[:1] == ["reproduce"]:
        from lightning_modules.reproduce.command import reproduce  # needs matplotlib, which training does not

        reproduce(words[1:])
        return None
    with warnings.catch_warnings(), _small_numbers_given_back():
        # of Lightning's own making, at each start of a run
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        return CommandLine(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            parser_class=Parser,
            parser_kwargs={"prog": "spectral-param", "description": DESCRIPTION},
            args=args,
        )


@contextmanager
def _small_numbers_given_back() -> Iterator[None]:
    """Leaves how the CPU takes the smallest numbers as it was."""
    are_kept = torch.tensor([1e-310], dtype=torch.float64).mul(1.0).item() != 0
    try:
        yield
    finally:
        torch.set_flush_denormal(not are_kept)


class CommandLine(LightningCLI):
    """Lightning's own, which writes predictions to files."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of the files, and says what model and data are."""
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.add_argument(
            "--flush_denormal",
            type=bool,
            default=True,
            help="Take numbers too small for full precision for zero on the CPU: gradients that vanish are many times "
            "as fast so.",
        )
        groups = parser.groups or {}
        groups["model"].title = "The task, a LightningModule"
        groups["data"].title = "Its data, a LightningDataModule"

    def before_instantiate_classes(self) -> None:
        """Sets how the CPU takes the smallest numbers, before there are threads that would go on as they are."""
        torch.set_flush_denormal(self._get(self.config, "flush_denormal", default=True))


class Parser(LightningArgumentParser):
    """Adds to an error the nearest name that would have been right."""

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Prints the message and ends the process with status 2."""
        return super().error(with_suggestion(message), ex)
