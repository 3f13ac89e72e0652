"""How many reflectors and trained σ a weight gets, and which are trained: what is asked for, read and checked."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from spectral_param.parametrization.blocks import Matrices
from spectral_param.sigma import SigmaMap

_TURNS = 8  # reflectors a side of a frozen base, where none are named
_RANK = 32  # σ of a frozen base that are trained, where none are named


def counts_of(reflectors: Any, k: int) -> tuple[int, int]:
    """Reflectors of U and of V, k each where none are named.

    Example:
        >>> from spectral_param.registration.counts import counts_of
        >>> counts_of(None, 4), counts_of(3, 4), counts_of((2, 0), 4)
        ((4, 4), (3, 3), (2, 0))
    """
    if reflectors is None:
        return k, k
    pair = _pair(reflectors)
    if len(pair) != 2 or not all(0 <= m <= k for m in pair) or not any(pair):
        raise ValueError(
            f"reflectors: expected a number from 1 to {k}, or a pair from 0 to {k} that is not (0, 0), "
            f"got {reflectors!r}."
        )
    return pair[0], pair[1]


def even_counts(reflectors: Any, matrices: Matrices) -> tuple[int, int]:
    """Reflectors that turn a frozen base on the left and on the right, in pairs that begin by cancelling.

    Example:
        >>> from spectral_param.parametrization.blocks import Matrices
        >>> from spectral_param.registration.counts import even_counts
        >>> even_counts(None, Matrices((100, 5), 1, 100, 5)), even_counts(2, Matrices((100, 5), 1, 100, 5))
        ((8, 4), (2, 2))
    """
    sides = matrices.p, matrices.q
    if reflectors is None:
        return min(_TURNS, sides[0] // 2 * 2), min(_TURNS, sides[1] // 2 * 2)
    pair = _pair(reflectors)
    if len(pair) != 2 or not all(0 <= m <= n and m % 2 == 0 for m, n in zip(pair, sides, strict=True)):
        raise ValueError(
            "reflectors: expected, with base='frozen', an even number or a pair of even numbers, "
            f"up to {sides[0]} on the left and {sides[1]} on the right, got {reflectors!r}."
        )
    return pair[0], pair[1]


def rank_of(rank: Any, matrices: Matrices) -> int:
    """How many leading σ of a frozen base are trained.

    Example:
        >>> from spectral_param.parametrization.blocks import Matrices
        >>> from spectral_param.registration.counts import rank_of
        >>> rank_of(None, Matrices((100, 50), 1, 100, 50)), rank_of(None, Matrices((9, 5), 1, 9, 5))
        (32, 5)
    """
    k = min(matrices.p, matrices.q)
    if rank is None:
        return min(_RANK, k)
    r = integer("rank", rank, "None or an integer")
    if not 0 <= r <= k:
        raise ValueError(f"rank: expected a number from 0 to {k}, got {r}.")
    return r


def check_choices(sigma: Any, train: Any) -> None:
    """Raises ``TypeError`` for what is no σ map, and ``ValueError`` for a part that cannot be chosen to be trained.

    Example:
        >>> from spectral_param.registration.counts import check_choices
        >>> check_choices(None, "bias")
        Traceback (most recent call last):
        ValueError: train: expected 'all', 'sigma' or 'reflectors', got 'bias'.
    """
    if sigma is not None and not isinstance(sigma, SigmaMap):
        got = f"the class {sigma.__name__}" if isinstance(sigma, type) else type(sigma).__name__
        raise TypeError(f"sigma: expected a σ map or None, for instance Band(0.1), got {got}.")
    if train not in ("all", "sigma", "reflectors"):
        raise ValueError(f"train: expected 'all', 'sigma' or 'reflectors', got {train!r}.")


def check_trained(train: str, counts: tuple[int, int], rank: int, sigma_map: SigmaMap) -> None:
    """Raises ``ValueError`` where nothing of a frozen base's change would be trained."""
    of_sigma, of_reflectors = rank > 0 and sigma_map.trained, any(counts)
    if not {"all": of_sigma or of_reflectors, "sigma": of_sigma, "reflectors": of_reflectors}[train]:
        raise ValueError(
            f"train: {train!r} leaves nothing to train with reflectors={counts}, rank={rank} and {sigma_map}."
        )


def integer(name: str, value: Any, expected: str) -> int:
    """An int from any whole number, such as NumPy's.

    Example:
        >>> from spectral_param.registration.counts import integer
        >>> integer("rank", 2.5, "an integer")
        Traceback (most recent call last):
        TypeError: rank: expected an integer, got float.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}.") from None


def _pair(reflectors: Any) -> list[int]:
    is_pair = isinstance(reflectors, Sequence) and not isinstance(reflectors, str)
    each = reflectors if is_pair else (reflectors, reflectors)
    return [integer("reflectors", m, "None, an integer or a pair of integers") for m in each]
