"""Table 2: MNIST read pixel by pixel."""

from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.model_arguments import MODEL_ARGUMENTS, normalized
from lightning_modules.reproduce.planned_run import PlannedRun

SETTINGS: dict[str, dict[str, Any]] = {
    "784 steps": {"seq_len": 784},
    "392 steps": {"seq_len": 392},
    "784 steps, permuted": {"seq_len": 784, "permute": True},
}
QUICK: dict[str, dict[str, Any]] = {"28 steps": {"seq_len": 28}}
# what trains the simple recurrences well, beside a wide band, decay, a trained first state, normalised reflectors
SIMPLE = {"nonlinearity": "leaky_relu", "negative_slope": 0.2}


def runs(quick: bool, seed: int, experiment: str = "pixel-mnist", models: tuple[str, ...] = ()) -> list[PlannedRun]:
    """Three ways of reading a digit; quick: its rows, two epochs."""
    return [
        PlannedRun(
            experiment=experiment,
            model=model,
            setting=setting,
            seed=seed,
            task=("SequenceClassifier", arguments(model, 784 // data["seq_len"])),
            data=("PixelMNIST", {**data, "seed": seed}),
            trainer={"max_epochs": 2 if quick else 10, "gradient_clip_val": 1.0} | normalized(model),
            monitor="val_accuracy",
            mode="max",
            folder="mnist",
        )
        for setting, data in (QUICK if quick else SETTINGS).items()
        for model in models or (name for name in MODEL_ARGUMENTS if name != "IRNN")
    ]


def arguments(model: str, input_size: int) -> dict[str, Any]:
    """Arguments of the classifier."""
    common = {"input_size": input_size, "output_size": 10, "hidden_size": 128, "radius": 0.1}
    common |= {"learn_initial_state": True, "learning_rate": 0.002, "decay": 0.9}
    simple = {} if model in ("LSTM", "uRNN", "full-capacity uRNN") else SIMPLE
    return common | simple | MODEL_ARGUMENTS[model]


PIXEL_MNIST = Experiment(
    title="Pixel MNIST (Table 2)",
    runs=runs,
    score="test_accuracy",
    draw=curves_by_step("val_accuracy", "accuracy"),
    digits=1,
    factor=100,
    paper={
        ("Spectral-RNN", "784 steps"): "97.7",
        ("RNN", "784 steps"): "94.1",
        ("LSTM", "784 steps"): "97.3",
        ("factorized RNN", "784 steps"): "94.6",
    },
    paper_parameters={("Spectral-RNN", "784 steps"): 6_000},
    notes=(
        "Accuracies in percent. The paper took its numbers for the RNN, the LSTM and the factorized RNN from others, "
        "and gives its own count of parameters as about 6k.",
    ),
)
