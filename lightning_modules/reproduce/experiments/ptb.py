"""Table 3: the Penn Treebank by words."""

from collections.abc import Mapping
from typing import Any

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.figures import curves_by_step
from lightning_modules.reproduce.planned_run import PlannedRun

# carried over a whole text, states must stay bounded: with σ ≈ 1 and leaky ReLU they grow without end
SPECTRAL = {"cell": "spectral-rnn", "hidden_size": 512, "nonlinearity": "tanh", "learning_rate": 0.003}
LSTM = {"cell": "lstm", "hidden_size": 128, "learning_rate": 0.01}
MODELS: dict[str, dict[str, Any]] = {
    "LSTM(1, 128)": {**LSTM, "num_layers": 1},
    "LSTM(2, 128)": {**LSTM, "num_layers": 2},
    "Spectral-RNN(1, 512)": {**SPECTRAL, "num_layers": 1},
    "Spectral-RNN(2, 512)": {**SPECTRAL, "num_layers": 2},
}
# 32 reflectors, which the paper's counts of parameters fit, and dropout where there are two layers
AS_IN_THE_PAPER: dict[str, dict[str, Any]] = {
    f"{name}({layers}, {arguments['hidden_size']})": {
        **arguments,
        "num_layers": layers,
        "dropout": 0.2 if layers > 1 else 0.0,
    }
    for layers in (1, 2)
    for name, arguments in {
        "RNN": {"cell": "rnn", "hidden_size": 128, "start": "paper"},
        "LSTM": {**LSTM, "start": "paper"},
        "Spectral-RNN": {**SPECTRAL, "reflectors": 32},
    }.items()
}
SETTING = "300 words"
PAPER = {  # test and training perplexity
    "RNN(1, 128)": ("144.7", "68.1"),
    "LSTM(1, 128)": ("130.7", "69.1"),
    "Spectral-RNN(1, 512)": ("130.2", "65.4"),
    "RNN(2, 128)": ("142.5", "62.6"),
    "LSTM(2, 128)": ("122.7", "26.1"),
    "Spectral-RNN(2, 512)": ("121.3", "36.0"),
}
NOTE = "In brackets are layers and units. Parameters include the embedding and the output layer."


def runs(
    quick: bool,
    seed: int,
    experiment: str = "ptb",
    models: Mapping[str, dict[str, Any]] = MODELS,
    watch: tuple[str, ...] = (),
) -> list[PlannedRun]:
    """Ten epochs, after which a tenth of the learning rate is left; quick: 20 windows and a tenth of the evaluation."""
    limits = {"limit_train_batches": 20, "limit_val_batches": 0.1, "limit_test_batches": 0.1} if quick else {}
    return [
        PlannedRun(
            experiment=experiment,
            model=model,
            setting=SETTING,
            seed=seed,
            task=("LanguageModel", {"vocabulary_size": 10_000, "embedding_size": 128, "decay": 0.8} | arguments),
            data=("PennTreebank", {"seq_len": 300}),
            trainer={"max_epochs": 1 if quick else 10, "gradient_clip_val": 1.0, **limits},
            monitor="val_perplexity",
            folder="ptb",
            watch=watch,
        )
        for model, arguments in models.items()
    ]


PTB = Experiment(
    title="Penn Treebank, words (Table 3)",
    runs=runs,
    score="test_perplexity",
    draw=curves_by_step("val_perplexity", "perplexity"),
    digits=1,
    paper={(model, SETTING): PAPER[model][0] for model in MODELS},
    notes=(NOTE,),
)
PTB_M32 = Experiment(
    title="Penn Treebank, words, with 32 reflectors and dropout on two layers alone (Table 3)",
    runs=lambda quick, seed: runs(quick, seed, "ptb-m32", AS_IN_THE_PAPER, ("train",)),
    score="test_perplexity",
    draw=curves_by_step("val_perplexity", "perplexity"),
    digits=1,
    beside=("train_perplexity",),
    learning_rates=(0.04, 0.02, 0.01, 0.006, 0.003, 0.001),
    trial_trainer={"max_epochs": 1},
    paper={(model, SETTING): f"{test} (training {train})" for model, (test, train) in PAPER.items()},
    notes=(f"{NOTE} Learning rates are chosen after one epoch.",),
)
