"""What registering many weights did, as a report and as one warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spectral_param.parametrization.mismatch import APPROXIMATE, SigmaMoved, TooFewReflectors
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.torch_state.users_line import warn

_NAMED = 4  # names given for each reason when a report is printed


@dataclass(frozen=True, repr=False)
class RegistrationReport:
    """What :func:`register_all` did; prints as a short text.

    Attributes:
        taken: the weights registered, by qualified name.
        passed_over: the other parameters, each with the reason.
        changed: by how much each weight taken has changed, ‖new - old‖ / ‖old‖ in the Frobenius norm; nothing for
            ``init="orthogonal"``, which draws it anew, and on the meta device.
        asked: of the weights that are too small for it, how many reflectors and trained σ were asked for.
    """

    taken: dict[str, SVDParametrization]
    passed_over: dict[str, str]
    changed: dict[str, float] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"registered {len(self.taken)}, passed over {len(self.passed_over)}"]
        for name, parametrization in self.taken.items():
            change = self.changed.get(name, 0.0)
            told = f", changed by {percent(change)}" if change > APPROXIMATE else ""
            lines.append(f"  {name}: {parametrization.extra_repr()}{told}")
        for reason in dict.fromkeys(self.passed_over.values()):
            names = [name for name, why in self.passed_over.items() if why == reason]
            lines.append(f"  passed over, {reason}: {some_of(names)}")
        for asked in dict.fromkeys(self.asked.values()):
            names = [name for name, wanted in self.asked.items() if wanted == asked]
            lines.append(f"  too small for {asked}: {some_of(names)}")
        if self.taken:
            lines.append("  to train at the rate of the plain model: parameter_groups(model, lr=…)")
        return "\n".join(lines)

    __repr__ = __str__


def warn_of_changes(
    told: Mapping[str, Sequence[warnings.WarningMessage]], changed: Mapping[str, float], sigma: SigmaMap | None
) -> None:
    """Warns once of all weights that are not what they were, and once of each other thing that was told.

    Args:
        told: the warnings of each weight's registration, by qualified name.
        changed: by how much each weight changed.
        sigma: the σ map that was asked for.
    """
    weights: dict[tuple[type[Warning], str], list[str]] = {}
    for name, warned in told.items():
        for warning in warned:
            is_change = issubclass(warning.category, (TooFewReflectors, SigmaMoved))
            key = warning.category, "" if is_change else str(warning.message)
            weights.setdefault(key, []).append(name)
    few, moved = (weights.pop((kind, ""), []) for kind in (TooFewReflectors, SigmaMoved))
    causes = []
    if few:
        causes.append(f"{some_of(few)}: too few reflectors to meet the weight, as all of them would.")
    if moved:
        causes.append(f"{some_of(moved)}: σ outside the range of {sigma} start inside it.")
    if causes:
        most = max({*few, *moved}, key=lambda name: changed.get(name, 0.0))
        causes.append(f"{most} changes most, by {percent(changed[most])}; the report names the others.")
        keeping = ' To keep them: base="frozen".' if few else ""
        warn(f'{" ".join(causes)}{keeping} To begin with weights drawn anew: init="orthogonal".')
    for (category, message), names in weights.items():
        warn(f"{some_of(names)}: {message}", category)


def percent(change: float) -> str:
    """A part of one in per cent, with two digits: 0.12 %, 9.4 %, 94 %."""
    return f"{100 * change:.2g} %" if change < 0.995 else f"{100 * change:.0f} %"


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
