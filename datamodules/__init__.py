"""The paper's data sets as LightningDataModules."""

from spectral_param.extras import extra

with extra("tasks"):
    from datamodules.adding import AddingProblem
    from datamodules.copy_memory import CopyMemory
    from datamodules.flat_mnist import FlatMNIST
    from datamodules.multilabel import MultiLabel
    from datamodules.penn_treebank import PennTreebank
    from datamodules.pixel_mnist import PixelMNIST
    from datamodules.ucr import UCRArchive
    from datamodules.wikitext2 import WikiText2

__all__ = [
    "AddingProblem",
    "CopyMemory",
    "FlatMNIST",
    "MultiLabel",
    "PennTreebank",
    "PixelMNIST",
    "UCRArchive",
    "WikiText2",
]
