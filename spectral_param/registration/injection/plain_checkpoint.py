"""Loading a checkpoint of the plain module into a registered one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection.weight_property import factors_of
from spectral_param.torch_state.shards import is_shard, spread_as, whole


def load_plain_weights(
    module: Any,
    base: type[nn.Module],
    state_dict: dict[str, Tensor],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Puts factors in the place of plain weights, as an assignment would, and loads as ``base`` does.

    Stands in for ``_load_from_state_dict`` of a registered module. A weight that does not fit is reported as torch
    reports one, and leaves the factors as they are. Where factors are shards all ranks load the same.
    """
    for name, parametrization_list in module.parametrizations.items():
        plain, lists = f"{prefix}{name}", f"{prefix}parametrizations.{name}.original"
        present = any(key.startswith(lists) for key in state_dict)
        if plain not in state_dict or not isinstance(parametrization_list[0], SVDParametrization):
            continue
        if present:
            if any(map(is_shard, parametrization_list[0].factors)):  # set_model_state_dict adds what is there
                del state_dict[plain]
                error_msgs.append(
                    f"{plain}: a plain weight does not reach factors that are spread over ranks in this way; load it "
                    "before sharding, or by load_plain_state_dict(model, state)."
                )
            continue
        weight = whole(state_dict.pop(plain))
        factors: Sequence[Tensor] = parametrization_list[0].factors
        expected = parametrization_list[0].matrices.weight_shape
        if not isinstance(weight, Tensor):
            error_msgs.append(f"{plain}: expected a tensor, got {type(weight).__name__}.")
        elif tuple(weight.shape) != expected:
            error_msgs.append(
                f"size mismatch for {plain}: copying a param with shape {weight.shape} from checkpoint, "
                f"the shape in current model is {torch.Size(expected)}."
            )
        else:
            try:
                factors = factors_of(parametrization_list, weight)
                if local_metadata.get("assign_to_params_buffers"):
                    parametrization_list[0].dtype = weight.dtype
                    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
                    factors = [factor.to(wide) for factor in factors]
            except (TypeError, ValueError) as error:
                error_msgs.append(f"{plain}: {error}")
        held = zip(parametrization_list[0].factors, factors, strict=True)
        state_dict.update({f"{lists}{i}": spread_as(own, factor) for i, (own, factor) in enumerate(held)})
        levels = parametrization_list[0].state_dict(prefix=f"{prefix}parametrizations.{name}.0.")
        state_dict.update({key: level for key, level in levels.items() if key not in state_dict})
    base._load_from_state_dict(
        module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    )
