"""Figure 1: the adding problem."""

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_and_gradients
from lightning_modules.reproduce.model_arguments import AS_IN_THE_PAPER, MODEL_ARGUMENTS, normalized
from lightning_modules.reproduce.planned_run import PlannedRun

MODELS = ("RNN", "IRNN", "LSTM", "oRNN", "Spectral-RNN")


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Lengths 30, 100 and 300 with 128 units; quick: 30 and 100 with 64, a third of the steps."""
    return [
        PlannedRun(
            experiment="adding",
            model=model,
            setting=f"L = {length}",
            seed=seed,
            task=(
                "SequenceRegressor",
                {"input_size": 2, "output_size": 1, "hidden_size": 64 if quick else 128, "radius": 0.01} | arguments,
            ),
            data=("AddingProblem", {"length": length, "seed": seed}),
            trainer={"max_epochs": 8 if quick else 24} | normalized(model),
            monitor="val_mse",
            watch=("gradients",),
        )
        for length in ((30, 100) if quick else (30, 100, 300))
        for model, arguments in ({name: MODEL_ARGUMENTS[name] for name in MODELS} | AS_IN_THE_PAPER).items()
    ]


ADDING = Experiment(
    title="Adding problem (Figure 1)",
    runs=runs,
    score="test_mse",
    draw=curves_and_gradients,
    digits=4,
    learning_rates=(0.003, 0.001),
    seeds=3,
    paper={
        (model, "L = 300"): "< 0.167" if model in ("oRNN", "Spectral-RNN") else "not below 0.167" for model in MODELS
    },
    notes=("The paper draws curves: at L = 300 oRNN and Spectral-RNN alone come below the constant answer.",),
)
