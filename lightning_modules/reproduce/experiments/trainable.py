"""Where deep networks train at all: learning rate by depth, which the paper is about and does not show."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments.mlp_depth import CONTROLS, SVD_START
from lightning_modules.reproduce.figures import models
from lightning_modules.reproduce.model_arguments import NETWORKS
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result

DEPTHS = (30, 100, 300)
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)
STEPS = 300
COLUMNS = 4  # of panels
MODELS: dict[str, dict[str, Any]] = {
    "plain, He": CONTROLS["MLP, He"],
    "plain, orthogonal": CONTROLS["MLP, orthogonal"],
    "plain, SVD form's start": CONTROLS["MLP, start of Spectral-MLP"],
    "spectral norm": {"network": "normed-mlp"},
    "spectral norm, SVD form's start": {"network": "normed-mlp"} | SVD_START,
    **{f"SVD form, r = {radius:g}": NETWORKS["Spectral-MLP"] | {"radius": radius} for radius in (0.01, 0.1, 0.5)},
}


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """MLPs of 30, 100 and 300 layers at six learning rates, 300 steps; quick: 10 layers, three rates, 30 steps."""
    return [
        PlannedRun(
            experiment="trainable",
            model=model,
            setting=f"{depth} layers, {rate:g}",
            seed=seed,
            task=(
                "ImageClassifier",
                {"input_size": 784, "output_size": 10, "depth": depth, "learning_rate": rate} | network,
            ),
            data=("FlatMNIST", {"seed": seed}),
            trainer={"max_epochs": 1, "limit_train_batches": 30 if quick else STEPS},
            monitor="val_accuracy",
            mode="max",
            folder="mnist",
        )
        for depth in ((10,) if quick else DEPTHS)
        for rate in (RATES[1:4] if quick else RATES)
        for model, network in MODELS.items()
    ]


def draw(results: Sequence[Result]) -> Figure:
    """Draws a map of test accuracies for each model: learning rates from left to right, depths from above."""
    names = models(results)
    depths = sorted({_depth(result) for result in results})
    rates = sorted({result.learning_rate for result in results})
    rows = -(-len(names) // COLUMNS)
    size = (2.6 * min(len(names), COLUMNS) + 1, rows * (0.9 + 0.4 * len(depths)) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, min(len(names), COLUMNS), squeeze=False, sharex=True, sharey=True).flat)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels, names, strict=False):
        map_ = np.full((len(depths), len(rates)), np.nan)
        for i, depth in enumerate(depths):
            for j, rate in enumerate(rates):
                scores = [
                    result.scores["test_accuracy"]
                    for result in results
                    if (result.model, _depth(result), result.learning_rate) == (name, depth, rate)
                ]
                if scores:
                    map_[i, j] = 100 * np.mean(scores)
                    colour = "white" if map_[i, j] < 60 else "black"
                    panel.text(j, i, f"{map_[i, j]:.0f}", ha="center", va="center", color=colour, fontsize=8)
        image = panel.imshow(map_, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        panel.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], rotation=60, fontsize=8)
        panel.set_title(name, fontsize=9)
    panels[0].set_yticks(range(len(depths)), [f"{depth} layers" for depth in depths])
    figure.supxlabel("learning rate", fontsize=9)
    figure.colorbar(image, ax=panels, label="test accuracy, %")
    return figure


def _depth(result: Result) -> int:
    return int(result.setting.split()[0])


TRAINABLE = Experiment(
    title="Where an MLP trains: learning rate by depth",
    runs=runs,
    score="test_accuracy",
    draw=draw,
    digits=1,
    factor=100,
    notes=(
        f"Test accuracies in percent after {STEPS} steps of Adam with batches of 128 of MNIST: layers of 128 units, "
        "ReLU. In SVD form four reflectors on each side. The paper has no such figure.",
    ),
)
