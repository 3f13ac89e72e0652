"""The experiments of the paper and some beside them, by the word that names them on the command line."""

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments.adding import ADDING
from lightning_modules.reproduce.experiments.copy_memory import COPY
from lightning_modules.reproduce.experiments.mlp_depth import DEPTH_CONTROLS, MLP_DEPTH
from lightning_modules.reproduce.experiments.multi_label import MULTI_LABEL, MULTI_LABEL_AT_K
from lightning_modules.reproduce.experiments.pixel_mnist import PIXEL_MNIST
from lightning_modules.reproduce.experiments.ptb import PTB, PTB_M32
from lightning_modules.reproduce.experiments.spectral_margin import SPECTRAL_MARGIN, SPECTRAL_MARGIN_LONG
from lightning_modules.reproduce.experiments.studies import LENGTHS, RADIUS, REFLECTOR_COUNT
from lightning_modules.reproduce.experiments.trainable import TRAINABLE
from lightning_modules.reproduce.experiments.ucr import UCR
from lightning_modules.reproduce.experiments.ucr_steps import UCR_STEPS

EXPERIMENTS: dict[str, Experiment] = {
    "adding": ADDING,
    "copy": COPY,
    "pixel-mnist": PIXEL_MNIST,
    "spectral-margin": SPECTRAL_MARGIN,
    "spectral-margin-long": SPECTRAL_MARGIN_LONG,
    "mlp-depth": MLP_DEPTH,
    "depth-controls": DEPTH_CONTROLS,
    "ptb": PTB,
    "ptb-m32": PTB_M32,
    "ucr": UCR,
    "ucr-steps": UCR_STEPS,
    "multi-label": MULTI_LABEL,
    "multi-label-at-k": MULTI_LABEL_AT_K,
    "radius": RADIUS,
    "reflectors": REFLECTOR_COUNT,
    "lengths": LENGTHS,
    "trainable": TRAINABLE,
}
