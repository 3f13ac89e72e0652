"""What a callback says of weights that it cannot work on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn
from torch.optim import Optimizer

from spectral_param.callbacks.private import callbacks_of
from spectral_param.optimizers import STEP_RATES
from spectral_param.parametrization.step_rates import ADAM
from spectral_param.spectrum.patterns import matches, parametrized_weights


def warn_unmatched(option: str, patterns: Sequence[str], names: Iterable[str], what: str) -> None:
    """Warns of patterns that fit none of the names, but for ``"*"``, which asks for whatever there is.

    Warns:
        UserWarning: that names the option and these patterns.
    """
    names = list(names)
    idle = [p for p in patterns if p != "*" and not any(matches(name, [p]) for name in names)]
    if idle:
        rank_zero_warn(f"{option}: {', '.join(idle)} matches no {what} of the model.")


def warn_untrained(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Warns of weights in SVD form whose trainable factors no optimizer holds.

    Such a weight was registered after its optimizer was built, and would silently stay as it is.

    Warns:
        UserWarning: that names these weights.
    """
    held = {id(p) for optimizer in optimizers for g in optimizer.param_groups for p in g["params"]}
    idle = [
        name
        for name, parametrization in parametrized_weights(model, ["*"]).items()
        if any(f.requires_grad and id(f) not in held for f in parametrization.factors)
    ]
    if idle:
        rank_zero_warn(
            f"No optimizer holds the factors of {', '.join(idle)}: register weights before "
            "configure_optimizers, in __init__ or configure_model."
        )


def hint_at_rates(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Tells once where Adam or its kin trains σ at the rate of all else, which is not how a plain weight's σ moves.

    Rates are those before a scheduler's first step.
    """
    raw = {id(held.raw_sigma) for held in parametrized_weights(model, ["*"]).values()}
    for optimizer in optimizers:
        rates = {group.get("initial_lr", group["lr"]) for group in optimizer.param_groups}
        parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if STEP_RATES.get(type(optimizer).__name__.lower()) is ADAM and len(rates) == 1 and parameters & raw:
            rank_zero_info(
                f"{type(optimizer).__name__} trains σ at the rate of all else, by which it moves about √n times less "
                "than in a plain weight: for that weight's rate there is spectral_param.parameter_groups(model, lr=…)."
            )
            return


def warn_unpruned(trainer: Trainer, model: nn.Module) -> None:
    """Warns where Lightning's ``ModelPruning`` is at work, which takes parameters alone and so no weight in SVD form.

    Warns:
        UserWarning: that names these weights.
    """
    weights = parametrized_weights(model, ["*"])
    if weights and callbacks_of(trainer, ModelPruning):
        rank_zero_warn(
            f"ModelPruning passes over {', '.join(weights)}, which are computed from factors: prune them after "
            "remove_svd_parametrization."
        )
