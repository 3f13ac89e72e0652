"""The command line: ``python -m lightning_modules fit --config examples/configs/….yaml``."""

from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import ArgsType, LightningCLI

# imported so that a configuration can name their classes without a path
import datamodules  # noqa: F401
import lightning_modules  # noqa: F401
import spectral_param.callbacks  # noqa: F401


def main(args: ArgsType = None) -> LightningCLI:
    """Runs ``fit``, ``validate``, ``test`` or ``predict``.

    Args:
        args: command line as a list of strings; None takes the process's own.

    Returns:
        The command line interface after the run, with its ``trainer``, ``model`` and
        ``datamodule``.
    """
    return LightningCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        save_config_kwargs={"overwrite": True},
        args=args,
    )
