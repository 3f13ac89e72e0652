"""Figure 2: the copying problem."""

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.model_arguments import AS_IN_THE_PAPER, MODEL_ARGUMENTS
from lightning_modules.reproduce.planned_run import PlannedRun

MODELS = ("RNN", "IRNN", "LSTM", "oRNN", "Spectral-RNN")
LSTM = {name: arguments for name, arguments in AS_IN_THE_PAPER.items() if "LSTM" in name}


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Lags of 100, 300 and 500 with 128 units; quick: 20 with 64."""
    return [
        PlannedRun(
            experiment="copy",
            model=model,
            setting=f"T = {lag}",
            seed=seed,
            task=(
                "SequenceCopier",
                {"input_size": 10, "output_size": 9, "hidden_size": 64 if quick else 128, "radius": 0.01} | arguments,
            ),
            data=("CopyMemory", {"lag": lag, "seed": seed}),
            trainer={"max_epochs": 8 if quick else 12},
            monitor="val_loss",
        )
        for lag in ((20,) if quick else (100, 300, 500))
        for model, arguments in ({name: MODEL_ARGUMENTS[name] for name in MODELS} | LSTM).items()
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
    notes=("The paper draws curves, in which Spectral-RNN leads. The answer without memory has 10 ln 8 / (T + 20).",),
)
