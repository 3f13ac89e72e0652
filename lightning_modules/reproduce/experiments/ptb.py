"""Table 3: the Penn Treebank by words."""

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
SETTING = "300 words"


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Ten epochs, after which a tenth of the learning rate is left; quick: 20 windows and a tenth of the evaluation."""
    limits = {"limit_train_batches": 20, "limit_val_batches": 0.1, "limit_test_batches": 0.1} if quick else {}
    return [
        PlannedRun(
            experiment="ptb",
            model=model,
            setting=SETTING,
            seed=seed,
            task=("LanguageModel", {"vocabulary_size": 10_000, "embedding_size": 128, "decay": 0.8} | arguments),
            data=("PennTreebank", {"seq_len": 300}),
            trainer={"max_epochs": 1 if quick else 10, "gradient_clip_val": 1.0, **limits},
            monitor="val_perplexity",
            folder="ptb",
        )
        for model, arguments in MODELS.items()
    ]


PTB = Experiment(
    title="Penn Treebank, words (Table 3)",
    runs=runs,
    score="test_perplexity",
    draw=curves_by_step("val_perplexity", "perplexity"),
    digits=1,
    paper={
        ("LSTM(1, 128)", SETTING): "130.7",
        ("LSTM(2, 128)", SETTING): "122.7",
        ("Spectral-RNN(1, 512)", SETTING): "130.2",
        ("Spectral-RNN(2, 512)", SETTING): "121.3",
    },
    notes=("In brackets are layers and units. Parameters include the embedding and the output layer.",),
)
