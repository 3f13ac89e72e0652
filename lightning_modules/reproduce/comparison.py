"""Models compared over many sets, with each other and with the paper: means, ranks, Welch's t."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lightning_modules.reproduce.results import Result

LEVELS = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
"""|t| that 5 % of draws without a difference exceed, by degrees of freedom: at most 4 of two times three seeds."""


def against_the_paper(
    results: Sequence[Result],
    models: Sequence[str],
    paper: Mapping[str, Sequence[float]],
    score: str = "test_accuracy",
) -> list[str]:
    """Writes a table of means over the sets on which all models have results.

    Args:
        results: runs; their settings are the sets.
        models: names of the models, those of the paper first, in its order.
        paper: by set, the paper's scores of its models.
        score: what is compared, the greater the better.

    Returns:
        Lines of Markdown; none where there are not two models with a set in common.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for result in results:
        scores.setdefault(result.model, {}).setdefault(result.setting, []).append(result.scores[score])
    there = [model for model in models if model in scores]
    sets = [name for name in paper if all(name in scores[model] for model in there)]
    if len(there) < 2 or not sets:
        return []
    means = np.array([[np.mean(scores[model][name]) for name in sets] for model in there])
    printed = {
        model: np.array([paper[name][i] for name in sets]) for i, model in enumerate(models[: len(paper[sets[0]])])
    }
    below = [_below(printed.get(model), row) for model, row in zip(there, means, strict=True)]
    last = there[-1]
    rows = [
        ["", *there],
        ["---", *["---:"] * len(there)],
        ["mean", *(f"{mean:.3f}" for mean in means.mean(1))],
        ["mean rank", *(f"{rank:.2f}" for rank in ranks(means).mean(1))],
        ["mean in the paper", *(f"{printed[m].mean():.3f}" if m in printed else "–" for m in there)],
        ["below the paper by more than 0.02, sets", *below],
        [f"{last}: better, worse (Welch's t)", *(_better_worse(scores[last], scores[m], sets) for m in there[:-1]), ""],
    ]
    return [f"Over {len(sets)} sets:", "", *(f"| {' | '.join(row)} |" for row in rows)]


def ranks(means: np.ndarray) -> np.ndarray:
    """Ranks of models (rows) on each set (column), 1 for the greatest; equal ones share the mean of theirs.

    Example:
        >>> ranks(np.array([[0.5, 0.9], [0.5, 0.8], [0.1, 1.0]]))
        array([[1.5, 2. ],
               [1.5, 3. ],
               [3. , 1. ]])
    """
    above = (means[None] > means[:, None]).sum(1)
    equal = (means[None] == means[:, None]).sum(1)
    return above + (equal + 1) / 2


def welch_t(a: Sequence[float], b: Sequence[float]) -> float:
    """Welch's t of the means of two samples; NaN where one has less than two numbers or none of them varies.

    Example:
        >>> round(welch_t([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 3)
        -1.549
    """
    if min(len(a), len(b)) < 2:
        return float("nan")
    variance = np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b)
    return float((np.mean(a) - np.mean(b)) / np.sqrt(variance)) if variance else float("nan")


def welch_level(a: Sequence[float], b: Sequence[float]) -> float:
    """What Welch's |t| exceeds once in twenty where there is no difference, at 8 degrees of freedom or fewer.

    Between whole degrees of freedom, which are those of Welch and Satterthwaite, it is interpolated.

    Example:
        >>> round(welch_level([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]), 3)
        2.776
    """
    squares = np.array([np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)])
    degrees = squares.sum() ** 2 / (squares[0] ** 2 / (len(a) - 1) + squares[1] ** 2 / (len(b) - 1))
    ascending = sorted(LEVELS, reverse=True)  # of 1 / degrees, along which the level's logarithm is nearly straight
    logarithms = [math.log(LEVELS[whole]) for whole in ascending]
    return math.exp(np.interp(1 / degrees, [1 / whole for whole in ascending], logarithms))


def _below(printed: np.ndarray | None, ours: np.ndarray) -> str:
    return "–" if printed is None else str(int((printed - ours > 0.02).sum()))


def _better_worse(ours: Mapping[str, list[float]], other: Mapping[str, list[float]], sets: Sequence[str]) -> str:
    marked = [_told_apart(ours[name], other[name]) for name in sets]
    return f"{marked.count(1)}, {marked.count(-1)}"


def _told_apart(a: Sequence[float], b: Sequence[float]) -> int:
    """1 or -1 where the first mean is greater or less by more than chance, else 0."""
    t = welch_t(a, b)
    return 0 if math.isnan(t) or abs(t) <= welch_level(a, b) else int(math.copysign(1, t))
