"""Table 2 and Figure 3: MNIST read pixel by pixel."""

from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.model_arguments import AS_IN_THE_PAPER, LEAKY, MODEL_ARGUMENTS, normalized
from lightning_modules.reproduce.planned_run import PlannedRun

SETTINGS: dict[str, dict[str, Any]] = {
    "784 steps": {"seq_len": 784},
    "392 steps": {"seq_len": 392},
    "784 steps, permuted": {"seq_len": 784, "permute": True},
}
EPOCHS, LONG_EPOCHS = 10, 60
QUICK: dict[str, dict[str, Any]] = {"28 steps": {"seq_len": 28}}
# what trains the simple ones well: leaky ReLU, a wide band, decay, a trained first state, normalised reflectors
MODELS: dict[str, dict[str, Any]] = {
    **{name: LEAKY | MODEL_ARGUMENTS[name] for name in ("RNN", "oRNN", "Spectral-RNN", "factorized RNN")},
    "oRNN (256, 32)": LEAKY | MODEL_ARGUMENTS["oRNN"] | {"hidden_size": 256, "reflectors": 32},
    **{name: AS_IN_THE_PAPER[name] for name in ("IRNN, orthogonal", "LSTM, forget bias 1")},
    "LSTM": MODEL_ARGUMENTS["LSTM"],
    **{name: MODEL_ARGUMENTS[name] for name in ("uRNN", "full-capacity uRNN")},
}


def runs(quick: bool, seed: int, experiment: str = "pixel-mnist", models: tuple[str, ...] = ()) -> list[PlannedRun]:
    """Three ways of reading a digit, ten epochs, and the first for sixty; quick: its rows, two epochs."""
    settings = {name: (data, 2, 0.9) for name, data in QUICK.items()}
    if not quick:
        settings = {name: (data, EPOCHS, 0.9) for name, data in SETTINGS.items()}
        settings |= {f"784 steps, {LONG_EPOCHS} epochs": ({"seq_len": 784}, LONG_EPOCHS, 0.95)}
    return [
        PlannedRun(
            experiment=experiment,
            model=model,
            setting=setting,
            seed=seed,
            task=("SequenceClassifier", arguments(model, 784 // data["seq_len"], decay)),
            data=("PixelMNIST", {**data, "seed": seed}),
            trainer={"max_epochs": epochs, "gradient_clip_val": 1.0} | normalized(model),
            monitor="val_accuracy",
            mode="max",
            folder="mnist",
        )
        for setting, (data, epochs, decay) in settings.items()
        for model in models or MODELS
    ]


def arguments(model: str, input_size: int, decay: float) -> dict[str, Any]:
    """Arguments of the classifier."""
    common = {"input_size": input_size, "output_size": 10, "hidden_size": 128, "radius": 0.1}
    common |= {"learn_initial_state": True, "learning_rate": 0.002, "decay": decay}
    return common | MODELS[model]


PIXEL_MNIST = Experiment(
    title="Pixel MNIST (Table 2, Figure 3)",
    runs=runs,
    score="test_accuracy",
    draw=curves_by_step("val_accuracy", "accuracy"),
    digits=1,
    factor=100,
    paper={
        (model, setting): score
        for setting in ("784 steps", f"784 steps, {LONG_EPOCHS} epochs")
        for model, score in {
            "Spectral-RNN": "97.7",
            "oRNN (256, 32)": "97.2",
            "RNN": "94.1",
            "LSTM": "97.3",
            "LSTM, forget bias 1": "97.3",
            "uRNN": "95.1, 97.5",
            "full-capacity uRNN": "92.8",
            "factorized RNN": "94.6",
        }.items()
    },
    paper_parameters={("Spectral-RNN", "784 steps"): 6_000, ("oRNN (256, 32)", "784 steps"): 11_000},
    notes=(
        "Accuracies in percent. The paper took its numbers for all but the Spectral-RNN from others, those of the uRNN "
        "from two (uRNN, RC uRNN), and gives counts of parameters as about 6k, say. It has the best of a grid over "
        "learning rate, decay and batch size; here it is one setting.",
    ),
)
