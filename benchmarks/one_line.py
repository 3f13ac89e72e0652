"""``register_all(model)`` and nothing more, on models of many kinds: what it takes, tells and changes.

``python -m benchmarks.one_line [NAME …]`` prints a row for each: how many weights were registered, how many passed
over, how many warnings there were, the seconds, and by how much the forward differs, of its largest number. Those of
transformers are there where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param import register_all

WORDS, WIDTH, LENGTH = 64, 32, 10
DIFFERENCE = 1e-5  # at most


class GPT(nn.Module):
    """A language model in the manner of nanoGPT: learned places, attention in one matrix, the head tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "before": nn.LayerNorm(WIDTH),
                "attention": nn.Linear(WIDTH, 3 * WIDTH),
                "out": nn.Linear(WIDTH, WIDTH),
                "between": nn.LayerNorm(WIDTH),
                "network": nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)),
            })
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        block: Any
        for block in self.blocks:
            parts = block["attention"](block["before"](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](attended.transpose(1, 2).flatten(-2))
            x = x + block["network"](block["between"](x))
        return self.head(x)


def models() -> dict[str, Callable[[], nn.Module]]:
    """What builds each model, by its name."""
    import torchvision

    def vit() -> nn.Module:
        model = torchvision.models.vit_b_16()
        nn.init.normal_(model.heads[-1].weight)  # zero as it comes
        return model

    found: dict[str, Callable[[], nn.Module]] = {
        "nanoGPT": GPT,
        "ResNet-18": torchvision.models.resnet18,
        "ViT-B/16": vit,
    }
    if importlib.util.find_spec("transformers") is None:
        return found
    import transformers as hf

    heads = {"num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": LENGTH}
    common = {"vocab_size": WORDS, "hidden_size": WIDTH}
    gated = {**common, **heads, "intermediate_size": 48, "num_key_value_heads": 2}
    return found | {
        "GPT-2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2)
        ),
        "BERT": lambda: hf.BertForMaskedLM(hf.BertConfig(**common, **heads, intermediate_size=48)),
        "T5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=WORDS, d_model=WIDTH, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
        ),
        "Mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**common, num_hidden_layers=2, state_size=8)),
        "Mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**gated, num_local_experts=4)),
        "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**gated)),
    }


def output(name: str, model: nn.Module) -> Tensor:
    """What the model says to an input that is the same each time."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (2, LENGTH), generator=generator)
    pixels = torch.randn(2, 3, 224, 224, generator=generator)
    options = {"decoder_input_ids": tokens} if name == "T5" else {}
    with torch.no_grad():
        said: Any = model(pixels if name in ("ResNet-18", "ViT-B/16") else tokens, **options)
    return said if isinstance(said, Tensor) else said.logits


def row(name: str, build: Callable[[], nn.Module]) -> tuple[list[str], bool]:
    """The cells of a model, and whether it holds what is promised."""
    torch.manual_seed(0)
    model = build().eval()
    before, start = output(name, model), time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = register_all(model)
    seconds = time.perf_counter() - start
    difference = float((output(name, model) - before).abs().max() / before.abs().max())
    counts = [str(len(some)) for some in (report.taken, report.passed_over, told)]
    return [name, *counts, f"{seconds:.1f}", f"{difference:.1e}"], len(told) <= 1 and difference <= DIFFERENCE


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_line", description=__doc__)
    parser.add_argument("names", nargs="*", help="which models (default: all that are installed)")
    known = models()
    names = parser.parse_args().names or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"names: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}.")
    print("| model | registered | passed over | warnings | seconds | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    broken = []
    for name in names:
        cells, holds = row(name, known[name])
        print(f"| {' | '.join(cells)} |", flush=True)
        broken += [] if holds else [name]
    if broken:
        raise SystemExit(f"more than one warning, or a forward that differs: {', '.join(broken)}")


if __name__ == "__main__":
    main()
