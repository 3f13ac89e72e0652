"""Figure 4: the spectral margin and the gradient by the first state, while pixel MNIST is trained."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments import pixel_mnist
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result
from spectral_param.report.figures import margin_gradient_loss_figure

MODELS = ("RNN", "LSTM", "oRNN", "Spectral-RNN", "IRNN, orthogonal", "LSTM, forget bias 1")
RADIUS = 0.1


def runs(quick: bool, seed: int, experiment: str = "spectral-margin", epochs: int = 2) -> list[PlannedRun]:
    """Some epochs of 784 steps; quick: of 28."""
    chosen = pixel_mnist.runs(quick, seed, experiment, MODELS)
    return [
        replace(run, trainer={**run.trainer, "max_epochs": epochs}, watch=("gradients", "margin"))
        for run in chosen
        if run.setting in ("784 steps", "28 steps")
    ]


def draw(results: Sequence[Result]) -> Figure:
    """Draws margin, gradient and loss of the first seed."""
    drawn = {}
    for result in results:
        if result.seed == results[0].seed:
            first = [row[0] for row in result.gradients]
            drawn[result.model] = {
                "margin": result.curves["margin"],
                "gradient": (result.gradient_steps, first),
                "loss": result.curves["loss"],
            }
    return margin_gradient_loss_figure(drawn, radius=RADIUS)


SPECTRAL_MARGIN = Experiment(
    title="Spectral margin and gradient on pixel MNIST (Figure 4)",
    runs=runs,
    score="test_accuracy",
    draw=draw,
    digits=1,
    factor=100,
    notes=("Accuracies in percent, after the few epochs that are drawn. The paper gives curves alone.",),
)
SPECTRAL_MARGIN_LONG = replace(
    SPECTRAL_MARGIN,
    title="Spectral margin and gradient on pixel MNIST, five epochs (Figure 4)",
    runs=lambda quick, seed: runs(quick, seed, "spectral-margin-long", 5),
)
