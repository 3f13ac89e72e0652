"""Which name was probably meant by one that is wrong."""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence

from lightning import Trainer

import datamodules
import lightning_modules
import spectral_param.callbacks

ARGUMENT = re.compile(r"given class_path '([\w.]+)':\s+Option '(\w+)' is not accepted")
CLASS = re.compile(r"Expected a dot import path string: (\w+)")
OPTION = re.compile(r"does not accept option '([\w.]+)'|unrecognized arguments: --([\w.]+)")
OPTIONS = (
    "config",
    "seed_everything",
    "trainer",
    "model",
    "data",
    "optimizer",
    "lr_scheduler",
    "predictions",
    "ckpt_path",
    "verbose",
)


def with_suggestion(message: str) -> str:
    """Adds the nearest right names to an error of the command line, if it is about a wrong one.

    Args:
        message: error of jsonargparse.

    Returns:
        The message, with a line of suggestions where there are any.

    Example:
        >>> print(with_suggestion("Expected a dot import path string: AdingProblem"))
        Expected a dot import path string: AdingProblem
        Did you mean AddingProblem?
    """
    near = [name for wrong, right in _wrong_names(message) for name in difflib.get_close_matches(wrong, right, n=1)]
    return f"{message}\nDid you mean {' or '.join(dict.fromkeys(near))}?" if near else message


def _wrong_names(message: str) -> Iterator[tuple[str, Sequence[str]]]:
    """The wrong names of a message, each with those that would have been right."""
    for class_path, wrong in ARGUMENT.findall(message):
        module, name = class_path.rsplit(".", 1)
        yield wrong, _arguments(getattr(importlib.import_module(module), name))
    for wrong in CLASS.findall(message):
        yield wrong, [*lightning_modules.__all__, *datamodules.__all__, *spectral_param.callbacks.__all__]
    for found in OPTION.findall(message):
        option, _, argument = "".join(found).partition(".")
        if option not in OPTIONS:
            yield option, OPTIONS
        elif option == "trainer":
            yield argument, _arguments(Trainer)


def _arguments(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)
