"""The paper's data sets as LightningDataModules."""

from datamodules.adding import AddingProblem
from datamodules.mnist import PixelMNIST

__all__ = ["AddingProblem", "PixelMNIST"]
