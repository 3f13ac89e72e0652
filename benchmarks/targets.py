"""The figures to reach, and where each is found."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.table import Table

# work, table, figure, at most (or, where negative, at least)
TARGETS = (
    ("SpectralRNN, T = 784, n = 128, m = 16, over nn.RNN", "recurrent", "SpectralRNN, m = 16 n=128 T=784", 0.66),
    ("the same with W built once", "recurrent", "SpectralRNN, m = 16, with W n=128 T=784", 0.82),
    ("the same with the native scan", "native", "SpectralRNN, m = 16 n=128 T=784", 0.45),
    ("the same with the native scan and W", "native", "SpectralRNN, m = 16, with W n=128 T=784", 0.45),
    (
        "SpectralRNN, T = 784, n = 128, m = 16, over nn.LSTM",
        "recurrent",
        "SpectralRNN, m = 16 over LSTM n=128 T=784",
        0.25,
    ),
    ("the same, memory kept", "kept", "SpectralRNN, m = 16 over LSTM n=128 T=784", 0.25),
    ("the same, native scan, over nn.LSTM", "native", "SpectralRNN, m = 16 over LSTM n=128 T=784", 0.15),
    ("SpectralRNN, T = 100, n = 512, m = 16, over nn.RNN", "recurrent", "SpectralRNN, m = 16 n=512 T=100", 0.3),
    ("Linear, n = 2048, m = 16, over nn.Linear", "layer", "m = 16 n=2048", 0.1),
    ("the same with W built", "layer", "m = 16, with W n=2048", 1.5),
    (
        "Linear, n = 512, m = n, over torch orthogonal (householder)",
        "layer",
        "m = n over torch orthogonal, householder",
        0.1,
    ),
    ("the same over geotorch almost_orthogonal", "layer", "m = n over geotorch almost_orthogonal", 0.07),
    ("Linear, n = 1024, m = n, over nn.Linear", "layer", "m = n n=1024", 5.5),
    ("30 layers of 128, m = 16, over the plain network", "deep", "m = 16, together", 1.5),
    ("the same, m = n", "deep", "m = n, together", 5.4),
    ("W of n = 2048, m = n: fraction of the rate of torch.mm, at least", "weight", "fraction n=2048", -0.8),
    ("peak memory of a step, n = 2048, m = 16, over nn.Linear", "memory", "m = 16", 1.1),
    ("σ alone, n = 512, m = 16, over a frozen Linear with a trained diagonal", "overhead", "σ alone, m = 16", 1.5),
    ("the same, m = n", "overhead", "σ alone, m = n", 1.5),
    ("one evaluation, n = 128, m = 32, ms", "weight", "ms n=128 m=32", 0.25),
    ("one evaluation, n = 128, m = 16, ms", "weight", "ms n=128 m=16", 0.25),
    ("the same, native, m = 32", "native-weights", "ms n=128 m=32", 0.15),
    ("the same, native, m = 16", "native-weights", "ms n=128 m=16", 0.15),
    ("30 layers of 128, m = 16, native, over the plain network", "native-weights", "m = 16, together", 1.5),
    ("LSTMCell of 128 over 100 steps, evaluation, over a plain one", "many-reads", "LSTMCell, evaluation", 1.3),
    ("a decoder of 256 writing 32 tokens, over a plain one", "many-reads", "generate", 1.3),
    *(
        (f"a frozen base, n = {n}, m = 8, r = 8, over {peer} 16", "frozen-base", f"over {peer} n={n}", bound)
        for n in (1024, 2048, 4096)
        for peer, bound in (("LoRA", 1.3), ("HRA", 0.6))
    ),
    *(
        (f"the same, peak memory over LoRA 16, n = {n}", "frozen-base", f"memory n={n}", 1.3)
        for n in (1024, 2048, 4096)
    ),
    ("ResNet-18 on frozen bases, m = 8, r = 8, over the plain step", "frozen-base", "ResNet-18, r = 8", 1.5),
    ("registering it with r = 0, s", "frozen-base", "registering ResNet-18, r = 0", 1.0),
    ("registering it with all σ, s", "frozen-base", "registering ResNet-18, all σ", 3.0),
    *(
        (f"{name}, compiled over eager", "compiled", f"compiled over eager, {name}", 1.05)
        for name in (
            *(f"n = {n}, {m}" for n in (256, 1024, 2048) for m in ("m = 16", "all")),
            "SpectralRNN, m = 16",
            "SpectralRNN, m = 128",
        )
    ),
    ("six blocks of 192, m = 8, together, over the plain network", "vision", "together, 16 images", 0.92),
    ("registering n = 2048, all, over torch.linalg.svd in float32", "registering", "n = 2048, all, over svd", 1.3),
    ("registering n = 2048, m = 16, s", "registering", "n = 2048, m = 16, s", 1.0),
    ("registering ResNet-18, m = 8, s", "registering", "ResNet-18, m = 8, s", 2.0),
    ("registering ViT-B/16, m = 16, s", "registering", "ViT-B/16, m = 16, s", 8.0),
    ("compiling n = 1024, all, s", "compiled", "compiling, n = 1024, all", 15),
    ("import spectral_param after torch, s", "overhead", "import", 0.1),
)


def held_against(tables: Mapping[str, Table]) -> list[str]:
    """The targets as lines of a Markdown table, those that were measured."""
    lines = ["| work | at most | measured | |", "| --- | --- | --- | --- |"]
    for work, table, figure, bound in TARGETS:
        if table in tables and figure in tables[table].figures:
            found = tables[table].figures[figure]
            reached = found >= -bound if bound < 0 else found <= bound
            lines.append(f"| {work} | {abs(bound):g} | {found:.3g} | {'reached' if reached else 'missed'} |")
    return lines
