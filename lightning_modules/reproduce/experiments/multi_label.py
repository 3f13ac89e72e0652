"""Figure 7: multi-label sets."""

from collections.abc import Mapping
from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments.mlp_depth import CONTROLS
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.model_arguments import NETWORKS
from lightning_modules.reproduce.planned_run import PlannedRun

SETS = {"Bibtex": ("bibtex", 1836, 159), "Mediamill": ("mediamill", 120, 101)}
STARTS = {name: CONTROLS[name] for name in ("MLP, start of Spectral-MLP", "ResNet, blocks from zero")}


def runs(
    quick: bool,
    seed: int,
    experiment: str = "multi-label",
    monitor: str = "val_ranking_precision",
    models: Mapping[str, dict[str, Any]] = NETWORKS,
) -> list[PlannedRun]:
    """Both sets, 10 and 50 layers, 20 epochs; quick: Bibtex, 10 layers, 5 epochs."""
    return [
        PlannedRun(
            experiment=experiment,
            model=model,
            setting=f"{setting}, {depth} layers",
            seed=seed,
            task=(
                "MultiLabelClassifier",
                {
                    "input_size": inputs,
                    "output_size": labels,
                    "depth": depth,
                    "dropout": 0.1,
                }
                | network,
            ),
            data=("MultiLabel", {"name": name, "seed": seed}),
            trainer={"max_epochs": 5 if quick else 20},
            monitor=monitor,
            mode="max",
            folder="multilabel",
        )
        for setting, (name, inputs, labels) in list(SETS.items())[: 1 if quick else None]
        for depth in ((10,) if quick else (10, 50))
        for model, network in models.items()
    ]


MULTI_LABEL = Experiment(
    title="Multi-label sets (Figure 7)",
    runs=runs,
    score="test_ranking_precision",
    draw=curves_by_step("val_ranking_precision", "precision of the ranking"),
    learning_rates=(0.003, 0.001),
    notes=("The paper draws curves.",),
)
MULTI_LABEL_AT_K = Experiment(
    title="Multi-label sets by the labels named first (Figure 7)",
    runs=lambda quick, seed: runs(quick, seed, "multi-label-at-k", "val_precision_at_1", NETWORKS | STARTS),
    score="test_precision_at_1",
    draw=curves_by_step("val_precision_at_1", "P@1"),
    beside=("test_precision_at_3", "test_precision_at_5", "test_ranking_precision"),
    learning_rates=(0.003, 0.001),
    seeds=3,
    notes=("The paper draws curves, and does not name their measure. P@k is what these sets are judged by elsewhere.",),
)
