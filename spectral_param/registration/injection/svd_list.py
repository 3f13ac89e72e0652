"""What stands in a module for a registered weight: torch's list, which lets on top only what can stand there."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.registration.injection import watch


class SVDList(ParametrizationList):
    """The SVD of a weight, and parametrizations on top of it, each of which maps W to a W of the same shape."""

    def append(self, module: nn.Module) -> Any:
        """Puts a parametrization on top.

        Raises:
            ValueError: if it does not map W to a W of the same shape; nothing is changed then.
        """
        with torch.no_grad():
            weight = self()
        try:
            with torch.no_grad():
                result = copy.deepcopy(module)(weight)  # some learn from being called
            fits = isinstance(result, Tensor) and result.shape == weight.shape
        except Exception as error:
            raise ValueError(self._refusal(module)) from error
        if not fits:
            raise ValueError(self._refusal(module))
        return super().append(module)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        watch.tell(self)  # and lets go of what nobody holds, or torch could not swap what it was computed from
        return super()._apply(*args, **kwargs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Notes the dtype of W beside that of the trained tensors, which are float32 for half a W."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            dtypes = {"dtype": str(self._svd.dtype), "factors": str(self._svd.factors[0].dtype)}
            destination._metadata[prefix[:-1]] |= dtypes

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: dict[str, Any], *args: Any) -> None:
        """Loads the trained tensors; where they are assigned W comes out in its dtype, unless they were cast since."""
        watch.forget(self)
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)
        is_assigned = metadata.get("assign_to_params_buffers") and f"{prefix}original0" in state_dict
        if is_assigned and metadata.get("factors") == str(self._svd.factors[0].dtype):
            self._svd.dtype = getattr(torch, metadata["dtype"].removeprefix("torch."))

    @property
    def _svd(self) -> Any:
        return self[0]

    def _refusal(self, module: nn.Module) -> str:
        name = type(module).__name__.lstrip("_")
        return (
            f"parametrization: {name} cannot stand on top of an SVD, since it maps no weight to one of its shape;"
            " choose a σ map instead, or fold first, with remove_svd_parametrization."
        )
