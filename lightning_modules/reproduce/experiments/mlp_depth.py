"""Figure 5: deep MLPs and ResNets on MNIST, and what they owe to their start."""

from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import scores_by_setting
from lightning_modules.reproduce.model_arguments import NETWORKS
from lightning_modules.reproduce.planned_run import PlannedRun

SVD_START = {"start": "spectral", "reflectors": NETWORKS["Spectral-MLP"]["reflectors"]}
# the same plain networks from other starts than Glorot's: what is the form's and what is the start's
CONTROLS: dict[str, dict[str, Any]] = {
    "MLP, He": {"network": "mlp", "start": "he"},
    "MLP, orthogonal": {"network": "mlp", "start": "orthogonal"},
    "MLP, start of Spectral-MLP": {"network": "mlp"} | SVD_START,
    "ResNet, blocks from zero": {"network": "resnet", "start": "zero"},
}


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Depths from 30 to 100, three epochs; quick: 10, 30 and 50, one epoch."""
    return [
        PlannedRun(
            experiment="mlp-depth",
            model=model,
            setting=str(depth),
            seed=seed,
            task=("ImageClassifier", {"input_size": 784, "output_size": 10, "depth": depth} | network),
            data=("FlatMNIST", {"seed": seed}),
            trainer={"max_epochs": 1 if quick else 3},
            monitor="val_accuracy",
            mode="max",
            folder="mnist",
        )
        for depth in ((10, 30, 50) if quick else (30, 50, 70, 100))
        for model, network in (NETWORKS | CONTROLS).items()
    ]


MLP_DEPTH = Experiment(
    title="Deep networks of 128 units on MNIST (Figure 5)",
    runs=runs,
    score="test_accuracy",
    draw=scores_by_setting("test_accuracy", "layers", "test accuracy"),
    digits=1,
    factor=100,
    learning_rates=(0.001, 0.0003, 0.0001),
    seeds=3,
    notes=(
        "Accuracies in percent by depth. The paper: MLP fails beyond 35 layers, ResNet beyond 70, the others never.",
    ),
)
