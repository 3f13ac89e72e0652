"""The command ``spectral-param``, also ``python -m spectral_param``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spectral_param.report.checkpoints.command import add_arguments, inspect

TASKS = {  # carried out by lightning_modules
    "fit": "train a task of the paper, a YAML file each in examples/configs",
    "validate": "measure a trained model on validation data",
    "test": "measure a trained model on test data",
    "predict": "write a trained model's predictions",
    "reproduce": "train a table or figure of the paper anew",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: those after the program's name; ``None``: of the process.
    """
    parser = argparse.ArgumentParser(prog="spectral-param", description="See and control singular values.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_arguments(commands.add_parser("inspect", help="singular values of the weights in a checkpoint"))
    report = commands.add_parser("report", help="rebuild spectral_report.html from a run's checkpoint or metrics.csv")
    report.add_argument("run_dir", help="the Trainer's log_dir, say lightning_logs/version_0")
    report.add_argument("--output", help="the file to write (default: spectral_report.html in RUN_DIR)")
    for name, what in TASKS.items():
        commands.add_parser(name, help=what)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] and words[0] in TASKS:
        try:
            from lightning_modules import cli  # needs Lightning and more, which the core does not
        except ModuleNotFoundError as error:
            parser.error(str(error))
        cli.main(None if arguments is None else words)
        return
    options = parser.parse_args(words)
    try:
        if options.command == "inspect":
            inspect(options)
        else:
            from spectral_param.report.page import rebuild  # needs matplotlib, which the core does not

            print(rebuild(options.run_dir, options.output))
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
