"""The report of an experiment: a Markdown table beside the paper's numbers."""

from collections.abc import Sequence

import numpy as np

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.results import Result

NOTHING = "–"
COLUMNS = (
    "setting",
    "model",
    "parameters",
    "parameters in the paper",
    "score",
    "score in the paper",
    "trivial answer",
    "learning rate",
    "seeds",
    "minutes a run",
)


def markdown(experiment: Experiment, results: Sequence[Result], missing: int) -> str:
    """Writes the report.

    Scores are means over the seeds, with the standard deviation where there are several. Columns in which there is
    nothing are left out.

    Args:
        experiment: what the results are of.
        results: the finished runs.
        missing: how many runs are not there.

    Returns:
        Markdown.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.setting, result.model), []).append(result)
    names = [name.replace("_", " ") for name in (experiment.score, experiment.other_score) if name]
    header = [name.replace("score", " or ".join(names)) for name in COLUMNS]
    header += [name.replace("_", " ") for name in experiment.beside]
    rows = [_words(experiment, group) for group in groups.values()]
    used = [i for i in range(len(header)) if any(row[i] != NOTHING for row in rows)]
    lines = [f"# {experiment.title}", ""]
    lines += [_row([row[i] for i in used]) for row in (header, ["---"] * len(header), *rows)]
    lines += ["", *experiment.notes]
    if experiment.summary is not None and results:
        lines += ["", *experiment.summary(results)]
    if missing:
        lines.append(f"{missing} runs of the grid are not in this table.")
    if results:
        lines += [
            "",
            f"Trained on {', '.join(sorted({result.device for result in results}))} with {_versions(results)}.",
        ]
    return "\n".join(lines) + "\n"


def _versions(results: Sequence[Result]) -> str:
    """All that the runs were trained with, each name once."""
    versions: dict[str, set[str]] = {}
    for result in results:
        for name, version in result.versions.items():
            versions.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(some))}" for name, some in versions.items())


def _words(experiment: Experiment, group: Sequence[Result]) -> list[str]:
    first = group[0]
    key = (first.model, first.setting)
    score = experiment.score if experiment.score in first.scores else experiment.other_score
    trivial = first.scores.get(score.replace("test_", "baseline_"))
    parameters = experiment.paper_parameters.get(key)
    return [
        first.setting,
        first.model,
        f"{first.parameters:,}",
        NOTHING if parameters is None else f"{parameters:,}",
        _mean(experiment, group, score),
        experiment.paper.get(key, NOTHING),
        NOTHING if trivial is None else f"{trivial * experiment.factor:.{experiment.digits}f}",
        ", ".join(f"{rate:g}" for rate in sorted({result.learning_rate for result in group})),
        str(len(group)),
        f"{np.mean([result.seconds for result in group]) / 60:.1f}",
        *(_mean(experiment, group, name) for name in experiment.beside),
    ]


def _mean(experiment: Experiment, group: Sequence[Result], score: str) -> str:
    """The mean of a score over the seeds, and its standard deviation."""
    scores = [result.scores[score] * experiment.factor for result in group if score in result.scores]
    if not scores:
        return NOTHING
    deviation = f" ± {np.std(scores, ddof=1):.{experiment.digits}f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.{experiment.digits}f}{deviation}"


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
