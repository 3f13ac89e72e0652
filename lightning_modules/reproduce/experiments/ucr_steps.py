"""Table 4 with a budget counted in steps: ten of its sets make one step an epoch."""

from dataclasses import replace
from functools import partial
from typing import Any

from lightning_modules.reproduce.comparison import against_the_paper
from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments import ucr
from lightning_modules.reproduce.figures import scores_by_setting, training_and_validation
from lightning_modules.reproduce.planned_run import PlannedRun

STEPS, QUICK_STEPS = 3000, 50
LEFT = 0.05  # of the learning rate at the end
READINGS = 100  # of validation
BATCH = 64
# training series of the archive, of which four fifths are trained on
SERIES = {
    "50words": 450,
    "Adiac": 390,
    "ArrowHead": 36,
    "Beef": 30,
    "BeetleFly": 20,
    "CBF": 30,
    "Coffee": 28,
    "Cricket_X": 390,
    "DistalPhalanxOutlineCorrect": 276,
    "DistalPhalanxTW": 139,
    "ECG200": 100,
    "ECG5000": 500,
    "ECGFiveDays": 23,
    "FaceAll": 560,
    "FaceFour": 24,
    "FacesUCR": 200,
    "Gun_Point": 50,
    "InsectWingbeatSound": 220,
    "ItalyPowerDemand": 67,
    "Lighting2": 60,
    "MiddlePhalanxOutlineCorrect": 291,
}
TEXT, CHOSEN = "Spectral-RNN, m = 8", "Spectral-RNN, m and r chosen"
# Table 4 counts 16 reflectors on each side, the text has 8
MORE: dict[str, dict[str, Any]] = {TEXT: {"reflectors": 8}, CHOSEN: {}}
MODELS = (*ucr.MODELS, *MORE)


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """All 21 sets, 3,000 steps; quick: three sets, 50 steps."""
    steps = QUICK_STEPS if quick else STEPS
    grid = [_by_steps(run, steps) for run in ucr.runs(quick, seed)]
    planned = []
    for run in grid:
        planned.append(run)
        if run.model == "Spectral-RNN":
            planned += [
                replace(run, model=model, task=(run.task[0], run.task[1] | arguments))
                for model, arguments in MORE.items()
            ]
    return planned


def _by_steps(run: PlannedRun, steps: int) -> PlannedRun:
    """The run with as many epochs as make so many steps, and the decay that leaves a twentieth of the rate."""
    epochs = round(steps / -(-SERIES[run.setting] * 4 // 5 // BATCH))
    trainer = {**run.trainer, "max_epochs": epochs, "check_val_every_n_epoch": max(1, epochs // READINGS)}
    decay = round(LEFT ** (1 / epochs), 6)
    return replace(run, experiment="ucr-steps", task=(run.task[0], run.task[1] | {"decay": decay}), trainer=trainer)


_SAME = {TEXT: "Spectral-RNN", CHOSEN: "Spectral-RNN"}
UCR_STEPS = Experiment(
    title=f"UCR archive, {STEPS} steps (Table 4)",
    runs=runs,
    score="test_accuracy",
    draw=scores_by_setting("test_accuracy", "", "test accuracy", "baseline_accuracy", line=""),
    more_figures={"-curves": training_and_validation(ucr.FIGURE_6)},
    paper={(model, name): ucr.UCR.paper[_SAME.get(model, model), name] for name in ucr.TABLE_4 for model in MODELS},
    learning_rates=(0.03, 0.01, 0.003),
    choices={CHOSEN: [{"reflectors": m, "radius": r} for m in (4, 8, 16) for r in (0.01, 0.1)]},
    seeds=5,
    notes=(
        "The epoch that is tested has the least loss on a fifth of the training series. Learning rates fall evenly by "
        "step to a twentieth.",
    ),
    summary=partial(
        against_the_paper, models=MODELS, paper={name: row.accuracies for name, row in ucr.TABLE_4.items()}
    ),
)
