"""Finding the factors of many weights of one shape in one call: their columns are reduced in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import torch

from spectral_param.functional.fitting import Factors, fit
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.register import Replacement
from spectral_param.torch_state.modes import has_numbers

_MOST = 2**21  # entries of a call: 32 of 256×256, two of 1024×1024, which gain little


def found_together(replacements: Sequence[Replacement]) -> Iterator[Factors | None]:
    """Finds the factors of weights that are to be registered, those of one shape in one call.

    Args:
        replacements: of the weights, in the order in which they are asked for.

    Yields:
        The factors of each weight's blocks, or ``None`` for one that is to be treated by itself: it has no equal, is
        drawn anew, stays as a frozen base, has no numbers yet, or some that are not finite.
    """
    kinds = list(map(_kind, replacements))
    calls = {
        kind: _in_few_calls([one for one, its in zip(replacements, kinds, strict=True) if its == kind])
        for kind, count in Counter(kinds).items()
        if kind is not None and count > 1
    }
    for kind in kinds:
        yield next(calls[kind]) if kind in calls else None


def _kind(replacement: Replacement) -> Hashable:
    """What weights have in common that are fitted in one call; ``None`` for one by itself."""
    weight, parametrization = replacement.weight, replacement.parametrization
    if type(parametrization) is not SVDParametrization or parametrization.init != "weight":
        return None
    if 2 * weight.numel() > _MOST or not has_numbers(weight) or not torch.isfinite(weight).all():
        return None
    return parametrization.sizes, weight.dtype, weight.device


def _in_few_calls(equal: Sequence[Replacement]) -> Iterator[Factors | None]:
    rest = iter(equal)
    while some := list(islice(rest, max(_MOST // equal[0].weight.numel(), 1))):
        with torch.inference_mode(False):
            blocks = [one.parametrization.matrices.of(one.weight.detach()) for one in some]
            factors = fit(torch.cat(blocks), *some[0].parametrization.reflectors)
        yield from zip(*(part.split([len(b) for b in blocks]) for part in factors), strict=True)
