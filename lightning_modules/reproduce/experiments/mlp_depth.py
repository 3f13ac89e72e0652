"""Figure 5: deep MLPs and ResNets on MNIST, and what they owe to their start."""

from collections.abc import Mapping
from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import scores_by_setting
from lightning_modules.reproduce.model_arguments import NETWORKS
from lightning_modules.reproduce.planned_run import PlannedRun

SVD_START = {"start": "spectral", "reflectors": NETWORKS["Spectral-MLP"]["reflectors"]}
# the same plain networks from other starts than Glorot's
CONTROLS: dict[str, dict[str, Any]] = {
    "MLP, He": {"network": "mlp", "start": "he"},
    "MLP, orthogonal": {"network": "mlp", "start": "orthogonal"},
    "MLP, start of Spectral-MLP": {"network": "mlp"} | SVD_START,
    "ResNet, blocks from zero": {"network": "resnet", "start": "zero"},
}


def runs(
    quick: bool, seed: int, experiment: str = "mlp-depth", models: Mapping[str, dict[str, Any]] = NETWORKS
) -> list[PlannedRun]:
    """Depths from 30 to 100, three epochs; quick: 10, 30 and 50, one epoch."""
    return [
        PlannedRun(
            experiment=experiment,
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
        for model, network in models.items()
    ]


MLP_DEPTH = Experiment(
    title="Deep networks of 128 units on MNIST (Figure 5)",
    runs=runs,
    score="test_accuracy",
    draw=scores_by_setting("test_accuracy", "layers", "test accuracy"),
    digits=1,
    factor=100,
    learning_rates=(0.001, 0.0003),
    tuned_on="30",
    notes=(
        "Accuracies in percent by depth. The paper: MLP fails beyond 35 layers, ResNet beyond 70, the others never.",
    ),
)
DEPTH_CONTROLS = Experiment(
    title="Deep networks on MNIST by their start, learning rates chosen at each depth",
    runs=lambda quick, seed: runs(quick, seed, "depth-controls", NETWORKS | CONTROLS),
    score="test_accuracy",
    draw=scores_by_setting("test_accuracy", "layers", "test accuracy"),
    digits=1,
    factor=100,
    learning_rates=(0.003, 0.001, 0.0003, 0.0001, 0.00003),
    seeds=3,
    notes=(
        "Accuracies in percent by depth. MLP and ResNet start from Glorot's weights where nothing is said; those in "
        "SVD form near the identity, the blocks of Spectral-ResNet with all σ at zero.",
    ),
)
