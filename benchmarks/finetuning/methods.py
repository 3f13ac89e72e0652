"""Ways to fine-tune some weights of a network with few numbers: ours, and those of peft."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from spectral_param import parameter_groups, register_all


@dataclass(frozen=True)
class Method:
    """A way to fine-tune, with its settings.

    Args:
        kind: "all weights", "frozen base", or a configuration of peft, like "LoraConfig".
        settings: of :func:`~spectral_param.register_all`, or of peft.
        fixed: more of them, that follow from these.
        sigma_rate: with a frozen base, the rate of σ over that of the reflectors.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    sigma_rate: float = 1.0

    @property
    def name(self) -> str:
        """What it is, in words."""
        if self.kind == "frozen base":
            left, right = self.settings["reflectors"]
            return f"ours, m = {left}, {right}, r = {self.settings['rank']}"
        settings = ", ".join(f"{SHORT.get(name, name)} = {value}" for name, value in self.settings.items())
        return " ".join([self.kind.removesuffix("Config").replace("Lora", "LoRA"), settings]).strip()

    def adapt(self, model: nn.Module, weights: Sequence[str], rate: float) -> tuple[nn.Module, list[dict[str, Any]]]:
        """Makes a network ready, in place.

        Args:
            model: a trained network.
            weights: names of the linear layers whose weights are fine-tuned.
            rate: the learning rate.

        Returns:
            What is to be called, and parameter groups for an optimizer.
        """
        model.requires_grad_(False)
        if self.kind == "all weights":
            for name in weights:
                model.get_submodule(name).weight.requires_grad_(True)
        elif self.kind == "frozen base":
            chosen = {f"{name}.weight" for name in weights}
            register_all(model, lambda name, module: name in chosen, base="frozen", **self.settings)
            return model, parameter_groups(model, sigma_lr=rate * self.sigma_rate)
        else:
            import peft

            config = getattr(peft, self.kind)(target_modules=list(weights), **self.settings, **self.fixed)
            model = peft.get_peft_model(model, config)
            if self.kind == "HRAConfig":
                _reflect_inputs(model)
        return model, [{"params": [p for p in model.parameters() if p.requires_grad]}]


def _reflect_inputs(model: nn.Module) -> None:
    """Has peft's HRA reflect its inputs, one reflector after the other.

    The same output; peft multiplies n×n matrices in each step, which takes ten times as long here.
    """
    from peft.tuners.hra.layer import HRALinear

    def forward(self: HRALinear, x: Tensor) -> Tensor:
        u = self.hra_u["default"]
        for ui in reversed((u / u.norm(dim=0)).unbind(1)):
            x = x - 2 * (x @ ui).unsqueeze(-1) * ui
        return self.base_layer(x)

    for module in model.modules():
        if isinstance(module, HRALinear):
            module.forward = types.MethodType(forward, module)


SHORT = {"oft_block_size": "b"}


def ours(left: int, right: int, rank: int, sigma_rate: float = 30.0) -> Method:
    """A frozen base with reflectors on both sides and some of its σ."""
    return Method("frozen base", {"reflectors": (left, right), "rank": rank}, sigma_rate=sigma_rate)


def lora(r: int) -> Method:
    """A thin product beside the weight."""
    return Method("LoraConfig", {"r": r}, {"lora_alpha": 2 * r})


def hra(r: int) -> Method:
    """A product of reflectors on the right of the weight."""
    return Method("HRAConfig", {"r": r})


def oft(block: int) -> Method:
    """An orthogonal matrix in blocks on the right of the weight."""
    return Method("OFTConfig", {"oft_block_size": block}, {"r": 0})


ALL = Method("all weights")
