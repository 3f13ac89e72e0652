"""Registering an SVD parametrization on a weight of an existing module, finding it, and taking it off again."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn

from spectral_param.functional.fitting import Factors
from spectral_param.parametrization.blocks import has_channels_last, matrices_of
from spectral_param.parametrization.lookup import (
    check_module,
    is_registered,
    registered_names,
    svd_parametrizations,
)
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.counts import check_choices, check_trained, counts_of, even_counts, integer, rank_of
from spectral_param.registration.injection.install import install, uninstall
from spectral_param.registration.parameter import parameter_of
from spectral_param.registration.report import some_of
from spectral_param.sigma import SigmaMap, Unconstrained


def register_svd_parametrization(
    module: nn.Module,
    tensor_name: str = "weight",
    *,
    reflectors: int | tuple[int, int] | None = None,
    sigma: SigmaMap | None = None,
    chunks: int = 1,
    init: str = "weight",
    train: str = "all",
    matrix_free: bool | None = None,
    base: str | None = None,
    rank: int | None = None,
) -> nn.Module:
    r"""Keeps a weight as ``W = U diag(σ) Vᵀ``, U and V products of Householder reflectors: Equations 7 and 8.

    The module is changed in place. Its weight is computed from the trained tensors where it is read, by torch's
    layers once a forward, and may still be assigned to. What is trained is
    ``m₁p - m₁(m₁-1)/2 + m₂q - m₂(m₂-1)/2 + k`` numbers for a p×q weight, k = min(p, q).

    Register before an optimizer is built, since the weight is no parameter any more and the factors are new ones.

    Args:
        module: the module that owns the weight.
        tensor_name: name of a parameter of ``module``: a matrix, the kernel of a convolution, read as
            (out, in·kh·kw), or the weight of a bilinear layer, a matrix for each output.
        reflectors: how many reflectors turn U and V. ``None``: min(p, q) each, which reaches every matrix; an int m,
            1 ≤ m ≤ min(p, q): m each; a pair ``(m1, m2)``, where one may be 0: that side is the identity.
        sigma: a σ map, copied; ``None``: :class:`~spectral_param.Unconstrained`.
        chunks: blocks stacked along dim 0, each with its own SVD: 4 for the gates of an LSTM, 3 for those of a GRU and
            for ``in_proj_weight`` of attention, ``groups`` for a convolution in groups. Each trained tensor has a row
            for each block then, and is no matrix: keep loops over ``parameters()`` that initialise or train whatever
            has two dimensions from names with ``".parametrizations."``.
        init: ``"weight"``: start from the present weight, exactly where all reflectors are there and σ is in the
            map's range. ``"orthogonal"``: draw U and V at random, σ at the map's start (1 for ``Unconstrained``).
        train: ``"all"``; ``"sigma"``: σ alone, U and V frozen and built once; ``"reflectors"``: U and V alone. The
            factors of a weight that does not require a gradient require none.
        matrix_free: how an ``nn.Linear`` is applied; elsewhere it says nothing. ``False``: W is built. ``True``: V, σ
            and U are applied to the input in turn, in float32 at least, unless a compiler or a transform of
            ``torch.func`` looks on. ``None``: whichever is less work for the number of vectors, see
            :func:`spectral_param.functional.work.is_less_work`; W under autocast and in half precision. The results are
            the same to rounding.
        base: ``None``: the factors are all there is. ``"frozen"``: the weight stays as it is, in its own dtype and
            untrained, and what is trained turns it and moves its leading σ, for existing weights that few reflectors
            would change: ``W = Q_u (W₀ + U_r diag(δ) V_rᵀ) Q_vᵀ``, which starts at W₀. ``reflectors`` are then even
            numbers up to p and q, of full length (``None``: 8, or as many as there can be; 0 for none on that side),
            ``train`` chooses between σ and reflectors, whatever the weight required, and ``init`` is ``"weight"``. The
            dtype of what is trained is float32, or float64 for a float64 weight.
        rank: with a frozen base, how many leading σ are trained, from 0 to min(p, q); the σ map is theirs, and the
            others stay. ``None``: 32, or all of fewer.

    Returns:
        ``module``.

    Raises:
        TypeError: if ``module`` is no module, ``tensor_name`` no string, ``sigma`` no σ map, the weight not
            of a real floating dtype, or a count no integer.
        ValueError: if there is no such parameter, it is no matrix, is parametrized already, tied to another, sharded or
            not finite, or a number is out of range. The module is then as it was.

    Warns:
        UserWarning: if σ of the weight lie outside the map's range, or too few reflectors change it by more than 0.1 %.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import Band, register_svd_parametrization, singular_values
        >>> layer = nn.Linear(4, 3)
        >>> before = layer.weight.detach().clone()
        >>> _ = register_svd_parametrization(layer)
        >>> torch.allclose(layer.weight, before, atol=1e-6)
        True
        >>> lstm = nn.LSTM(8, 16)
        >>> _ = register_svd_parametrization(
        ...     lstm, "weight_hh_l0", chunks=4, reflectors=4, sigma=Band(0.1), init="orthogonal")
        >>> singular_values(lstm, "weight_hh_l0").shape
        torch.Size([4, 16])
    """
    planned(
        module,
        tensor_name,
        reflectors=reflectors,
        sigma=sigma,
        chunks=chunks,
        init=init,
        train=train,
        matrix_free=matrix_free,
        base=base,
        rank=rank,
    ).carry_out()
    return module


class Replacement(NamedTuple):
    """A weight and what takes its place; nothing has changed yet.

    A caller that held the weight beforehand would look like somebody else, for whom all objects are searched.

    Attributes:
        module: whose weight it is.
        tensor_name: what it is called there.
        weight: the parameter.
        parametrization: that replaces it.
        train: which part of it is trained.
    """

    module: nn.Module
    tensor_name: str
    weight: nn.Parameter
    parametrization: SVDParametrization
    train: str

    def carry_out(self, found: Factors | None = None) -> None:
        """Puts the parametrization in the weight's place.

        Args:
            found: the factors of the weight's blocks, where they have been found before.
        """
        with torch.inference_mode(False):  # factors made within it would never get a gradient
            weight = self.weight.clone() if self.weight.is_inference() else self.weight
            some = self.parametrization
            start = some.starting_factors(weight) if found is None else some.of_found(found, weight)
            install(self.module, self.tensor_name, some, start)
        some.freeze_all_but_(self.train)


def planned(
    module: nn.Module,
    tensor_name: str,
    *,
    reflectors: int | tuple[int, int] | None = None,
    sigma: SigmaMap | None = None,
    chunks: int = 1,
    init: str = "weight",
    train: str = "all",
    matrix_free: bool | None = None,
    base: str | None = None,
    rank: int | None = None,
) -> Replacement:
    """Checks what :func:`register_svd_parametrization` is asked for, and makes what will take the weight's place."""
    weight = parameter_of(module, tensor_name, base)
    chunks = integer("chunks", chunks, "an integer")
    matrices = matrices_of(module, weight, chunks)
    check_choices(sigma, train)
    if init not in ("weight", "orthogonal"):
        raise ValueError(f"init: expected 'weight' or 'orthogonal', got {init!r}.")
    if not (matrix_free is None or isinstance(matrix_free, bool)):
        raise TypeError(f"matrix_free: expected None, True or False, got {type(matrix_free).__name__}.")
    if base not in (None, "frozen"):
        raise ValueError(f"base: expected None or 'frozen', got {base!r}.")
    sigma_map = Unconstrained() if sigma is None else copy.deepcopy(sigma)
    shared: dict[str, Any] = {
        "dtype": weight.dtype,
        "matrix_free": matrix_free,
        "channels_last": has_channels_last(weight),
    }
    if base == "frozen":
        if init != "weight":
            raise ValueError(f"init: expected 'weight' with base='frozen', which keeps the weight, got {init!r}.")
        counts, r = even_counts(reflectors, matrices), rank_of(rank, matrices)
        check_trained(train, counts, r, sigma_map)
        sigma_map.check(r, matrices.count)
        parametrization: SVDParametrization = TurnedParametrization(matrices, counts, sigma_map, r, **shared)
    else:
        if rank is not None:
            raise ValueError(f"rank: expected None without base='frozen', got {rank!r}.")
        sigma_map.check(min(matrices.p, matrices.q), matrices.count)
        if train == "sigma" and not sigma_map.trained:
            raise ValueError(f"train: 'sigma' leaves nothing to train with {sigma_map}.")
        counts = counts_of(reflectors, min(matrices.p, matrices.q))
        parametrization = SVDParametrization(matrices, counts, sigma_map, init=init, **shared)
    return Replacement(module, tensor_name, weight, parametrization, train)


def remove_svd_parametrization(
    module: nn.Module, tensor_name: str | None = None, *, leave_parametrized: bool = True
) -> nn.Module:
    """Folds SVD parametrizations back into plain weights, which get the values they have now.

    Each weight becomes a ``Parameter`` again, at its old place among the others, trained if a factor was.

    Args:
        module: a module, or a whole model.
        tensor_name: the weight of ``module`` to fold; ``None``: every registered weight of it and of what it contains.
        leave_parametrized: must be true, as in :func:`torch.nn.utils.parametrize.remove_parametrizations` for a weight
            made of several tensors.

    Returns:
        ``module``.

    Raises:
        ValueError: if the named weight is not registered, or ``leave_parametrized`` is false.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, remove_svd_parametrization
        >>> layer = register_svd_parametrization(nn.Linear(4, 3))
        >>> type(remove_svd_parametrization(layer)).__name__, list(layer.state_dict())
        ('Linear', ['weight', 'bias'])
    """
    check_module("module", module)
    if not leave_parametrized:
        raise ValueError("leave_parametrized: expected True: the weight from before registration is not kept.")
    if tensor_name is not None and not is_registered(module, tensor_name):
        within = [name for name, _ in svd_parametrizations(module)]
        remedy = f"; without it, all within are folded: {some_of(within)}" if within else ""
        raise ValueError(f"tensor_name: {tensor_name!r} has no SVD parametrization in {type(module).__name__}{remedy}.")
    owners = [module] if tensor_name is not None else list(module.modules())
    for owner in owners:
        names = [tensor_name] if tensor_name is not None else registered_names(owner)
        for name in names:
            uninstall(owner, name)
    return module
