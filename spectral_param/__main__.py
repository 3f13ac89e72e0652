"""``python -m spectral_param report RUN_DIR`` rebuilds a run's page, ``… inspect FILE`` reads a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from spectral_param.report.checkpoints.command import add_arguments, inspect


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: those after the program's name; ``None``: of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m spectral_param", description="See and control singular values.")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="rebuild spectral_report.html from a run's checkpoint or metrics.csv")
    report.add_argument("run_dir", help="the Trainer's log_dir, say lightning_logs/version_0")
    report.add_argument("--output", help="the file to write (default: spectral_report.html in RUN_DIR)")
    add_arguments(commands.add_parser("inspect", help="singular values of the weights in a checkpoint"))
    options = parser.parse_args(arguments)
    try:
        if options.command == "inspect":
            inspect(options)
        else:
            from spectral_param.report.page import rebuild  # needs matplotlib, which the core does not

            print(rebuild(options.run_dir, options.output))
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
