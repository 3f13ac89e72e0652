"""Figure 2: the copying problem."""

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.model_arguments import MODEL_ARGUMENTS
from lightning_modules.reproduce.planned_run import PlannedRun

MODELS = ("RNN", "IRNN", "LSTM", "oRNN", "Spectral-RNN")


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Lags of 100 and 300 with 128 units; quick: 20 with 64."""
    return [
        PlannedRun(
            experiment="copy",
            model=model,
            setting=f"T = {lag}",
            seed=seed,
            task=(
                "SequenceCopier",
                {"input_size": 10, "output_size": 9, "hidden_size": 64 if quick else 128, "radius": 0.01}
                | MODEL_ARGUMENTS[model],
            ),
            data=("CopyMemory", {"lag": lag, "seed": seed}),
            trainer={"max_epochs": 8 if quick else 12},
            monitor="val_loss",
        )
        for lag in ((20,) if quick else (100, 300))
        for model in MODELS
    ]


COPY = Experiment(
    title="Copying problem (Figure 2)",
    runs=runs,
    score="test_loss",
    draw=curves_by_step("val_loss", "cross-entropy", "baseline_loss"),
    digits=4,
    learning_rates=(0.003, 0.001),
    tuned_on="T = 100",
    seeds=3,
    notes=("The paper draws curves: Spectral-RNN is the first below the answer without memory, 10 ln 8 / (T + 20).",),
)
