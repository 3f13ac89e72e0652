"""Which weights of a model are meant, by shell-style patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.parametrization.blocks import matrices_of
from spectral_param.parametrization.lookup import named_modules, svd_parametrizations
from spectral_param.parametrization.starting import has_real_numbers
from spectral_param.parametrization.svd import SVDParametrization


def as_patterns(name: str, patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Checks an option that takes one pattern or several.

    Raises:
        TypeError: if it is neither a string nor a sequence of strings.
    """
    if isinstance(patterns, str):
        return (patterns,)
    if isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns):
        return tuple(patterns)
    raise TypeError(f"{name}: expected a name pattern or a sequence of them, got {patterns!r}.")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns; case counts."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def parametrized_weights(model: nn.Module, patterns: Sequence[str]) -> dict[str, SVDParametrization]:
    """The chosen weights in SVD form, by qualified name, each once."""
    return {name: held for name, held in svd_parametrizations(model) if matches(name, patterns)}


def plain_weights(model: nn.Module, patterns: Sequence[str]) -> dict[str, tuple[nn.Module, nn.Parameter]]:
    """The chosen parameters that no parametrization holds and that registration would take, with their modules.

    Nor does pruning or torch's older ``weight_norm`` or ``spectral_norm``, which compute a weight from them.

    These are the ones that :func:`~spectral_param.parametrization.blocks.matrices_of` reads as matrices: neither
    vectors nor, say, a table of positions in three dimensions, nor numbers that are packed or complex.
    """
    return {
        name: (module, parameter)
        for name, module, parameter in _owned_parameters(model)
        if matches(name, patterns) and _is_read_as_matrices(module, parameter)
    }


def chosen_plain(model: nn.Module, dense: bool | str | Sequence[str]) -> dict[str, tuple[nn.Module, nn.Parameter]]:
    """The plain weights that an option ``dense`` asks for: none, all, or those that patterns name.

    Raises:
        TypeError: if it is neither a bool, a string nor a sequence of strings.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.patterns import chosen_plain
        >>> list(chosen_plain(nn.Linear(2, 2), True)), list(chosen_plain(nn.Linear(2, 2), "head.*"))
        (['weight'], [])
    """
    if isinstance(dense, bool):
        dense = "*" if dense else ()
    return plain_weights(model, as_patterns("dense", dense))


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has a weight, and the weight's name there, from its qualified name in the model."""
    prefix, _, tensor_name = name.rpartition(".")
    return dict(named_modules(model))[prefix], tensor_name


def _is_read_as_matrices(module: nn.Module, parameter: nn.Parameter) -> bool:
    if nn.parameter.is_lazy(parameter) or not has_real_numbers(parameter):
        return False
    try:
        matrices_of(module, parameter)
    except ValueError:
        return False
    return True


def _owned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    seen = set()
    for prefix, module in named_modules(model):
        if isinstance(module, ParametrizationList):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen and not _is_behind_a_weight(module, name):
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, module, parameter


def _is_behind_a_weight(module: nn.Module, name: str) -> bool:
    """Whether a plain tensor is computed from a parameter, by torch's ways from before parametrizations."""
    computed, _, suffix = name.rpartition("_")
    return suffix in ("orig", "g", "v") and isinstance(vars(module).get(computed), Tensor)
