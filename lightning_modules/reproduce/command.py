"""The command ``spectral-param reproduce``."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import spectral_param.native
from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments import EXPERIMENTS
from lightning_modules.reproduce.learning_rates import at_best_rates, trials
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.processes import error_path, train_all, usual_processes
from lightning_modules.reproduce.results import Result, read_results
from lightning_modules.reproduce.table import markdown

INTERRUPTED = 130


def reproduce(words: Sequence[str]) -> None:
    """Trains the grid of a table or figure of the paper and writes the report.

    Args:
        words: command line after ``reproduce``.

    Raises:
        SystemExit: with status 2 for wrong arguments or missing data, 1 if a run failed, 130 after an interrupt.
    """
    arguments = _parser().parse_args(words)
    arguments.native = _build_native() if arguments.native else None
    experiment = EXPERIMENTS[arguments.what]
    seeds = range(experiment.seeds if arguments.seeds is None else arguments.seeds)
    grid = [run for seed in seeds for run in experiment.runs(arguments.quick, seed)]
    some = _chosen(grid, "models", arguments.models)
    wanted = _chosen(some, "settings", arguments.settings)
    rates, setting = () if arguments.quick else experiment.learning_rates, experiment.tuned_on
    choices = experiment.choices
    tries = partial(trials, rates=rates, setting=setting, choices=choices, trainer=experiment.trial_trainer)
    tried = tries(some if setting else wanted)
    console = Console(stderr=True)
    deadline = time.monotonic() + arguments.max_hours * 3600
    failed: list[PlannedRun] = []
    interrupted = False

    def decided(runs: list[PlannedRun], tried: list[PlannedRun], finished: Mapping[str, Result]) -> list[PlannedRun]:
        if not rates:
            return runs
        ended = [(run, finished.get(run.name)) for run in tried if run not in failed]
        return at_best_rates(runs, ended, setting, choices)

    try:
        failed += _train(tried, "learning rates", arguments, deadline, console)
        finished = read_results(arguments.results, arguments.what)
        failed += _train(decided(wanted, tried, finished), arguments.what, arguments, deadline, console)
    except KeyboardInterrupt:
        interrupted = True
    finished = read_results(arguments.results, arguments.what)
    # what was trained before stays in the report, whatever was asked for now
    results = [finished[run.name] for run in decided(grid, tries(grid), finished) if run.name in finished]
    path = write_report(arguments.what, experiment, results, len(grid), arguments.report or arguments.results)
    console.print(f"[bold]{path}[/bold], {path.with_suffix('.png')}")
    for run in failed:
        console.print(f"failed: {error_path(arguments.results, run)}", style="red")
    if failed or interrupted:
        raise SystemExit(INTERRUPTED if interrupted else 1)


def write_report(what: str, experiment: Experiment, results: Sequence[Result], total: int, folder: Path) -> Path:
    """Writes the table, ``WHAT.md``, and the figure, ``WHAT.png``, of what has finished of a ``total``.

    Returns:
        The path of the table.
    """
    path = folder / f"{what}.md"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(experiment, results, total - len(results)), encoding="utf8")
    if results:
        for name, draw in {"": experiment.draw, **experiment.more_figures}.items():
            draw(results).savefig(path.with_name(f"{path.stem}{name}.png"), dpi=100)
    return path


def _train(
    runs: Sequence[PlannedRun], title: str, arguments: argparse.Namespace, deadline: float, console: Console
) -> list[PlannedRun]:
    """Trains the runs that have no result under a progress bar and returns those that failed."""
    failed: list[PlannedRun] = []
    finished = read_results(arguments.results, arguments.what)
    missing = [run for run in runs if run.name not in finished]
    _prepare(missing, arguments.data)
    if not runs:
        return failed
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *left, console=console) as progress:
        bar = progress.add_task(title, total=len(runs), completed=len(runs) - len(missing))
        processes = min(arguments.processes or usual_processes(), max(len(missing), 1))
        seconds = deadline - time.monotonic()
        places = arguments.data, arguments.results
        options = arguments.native, arguments.flush_denormal
        for run, done in train_all(missing, *places, processes, seconds, *options):
            if not done:
                failed.append(run)
            progress.update(bar, advance=1)
            progress.console.print(f"{run.setting}, {run.model}, seed {run.seed}{'' if done else ': failed'}")
    return failed


def _build_native() -> Path:
    try:
        return spectral_param.native.build().parent
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"error: --native: {error}\n")
        raise SystemExit(2) from error


def _prepare(runs: Sequence[PlannedRun], root: Path) -> None:
    """Downloads what is missing, once, before processes that share it start."""
    for place in {json.dumps([run.data[0], run.data[1].get("name"), run.folder]): run for run in runs}.values():
        try:
            place.make_data(root).prepare_data()
        except (OSError, ValueError) as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2) from error


def _chosen(runs: list[PlannedRun], option: str, names: Sequence[str] | None) -> list[PlannedRun]:
    """Returns the runs of some models or settings."""
    if not names:
        return runs
    named = [(run, str(getattr(run, option.removesuffix("s")))) for run in runs]
    known = {name.lower(): name for _, name in named}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        expected, got = ", ".join(known.values()), ", ".join(unknown)
        sys.stderr.write(f"error: --{option}: expected some of {expected}, got {got}\n")
        raise SystemExit(2)
    return [run for run, name in named if name.lower() in {name.lower() for name in names}]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spectral-param reproduce",
        description="Trains the grid of one of the paper's tables or figures. Finished runs are kept, a line each of "
        "WHAT.jsonl, and not trained again: after Ctrl-C the same command goes on, with what was running too, from its "
        "last epoch. The report, WHAT.md and WHAT.png, sets the scores beside the paper's.",
    )
    parser.add_argument("what", metavar="WHAT", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="a small version, in minutes")
    parser.add_argument("--seeds", type=_positive(int), help="seeds of each run (usually one, five for ucr)")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="only these models, by their names in the table")
    parser.add_argument("--settings", nargs="+", metavar="SETTING", help="only these settings, in the same way")
    parser.add_argument(
        "--max-hours", type=_positive(float), default=float("inf"), help="end after this time, keeping what is finished"
    )
    parser.add_argument("--processes", type=_positive(int), help="runs at a time (one a core, or one on a GPU)")
    parser.add_argument(
        "--native",
        action="store_true",
        help="compile the native forms and train with them: recurrences take half the time",
    )
    parser.add_argument(
        "--flush-denormal",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take numbers too small for full precision for zero: gradients that vanish are many times as fast so",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="folder with mnist, ptb, ucr and multilabel (data)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results (results)")
    parser.add_argument("--report", type=Path, help="folder of the table and the figure (that of the results)")
    return parser


def _positive(kind: type) -> Callable[[str], float]:
    def convert(word: str) -> float:
        number = kind(word)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {word}")
        return number

    convert.__name__ = f"positive {kind.__name__}"
    return convert
