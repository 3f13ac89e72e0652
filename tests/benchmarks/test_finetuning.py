"""What is fine-tuned: which runs come next, what a method trains, and that the page says what the results are."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.finetuning import runs
from benchmarks.finetuning.digits import Digits
from benchmarks.finetuning.methods import ALL, hra, lora, oft, ours
from benchmarks.finetuning.page import table
from benchmarks.finetuning.runs import best_rate, name_of, rates, run, runs_left
from benchmarks.finetuning.text import Text

ROOT = Path(__file__).parents[2]
TASKS = [task(ROOT / "data") for task in (Digits, Text)]


class Small(Digits):
    """A perceptron on noise."""

    name = "small"
    batch_size = 4

    def network(self):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def data(self):
        return {part: (torch.randn(8, 6), torch.randint(3, (8,))) for part in ("train", "val", "test")}


def test_rates_are_tried_with_the_first_seed_and_the_best_goes_on_with_the_others(monkeypatch):
    task, method = Small(ROOT), ours(2, 0, 3)
    monkeypatch.setattr(runs, "METHODS", {"small": [method]})
    lines = []
    for i, (_, rate, seed) in enumerate(list(runs_left(task, lines))):
        assert (rate, seed) == (rates(method)[i], 0)
        assert best_rate(task, method, lines) is None
        line = {"task": "small", "method": method.name, "rate": rate, "seed": seed, "val": -abs(i - 1)}
        lines.append({"name": name_of(task, method, rate, seed), **line})
    assert best_rate(task, method, lines) == rates(method)[1]
    assert [*runs_left(task, lines)] == [(method, rates(method)[1], seed) for seed in (1, 2)]


@pytest.mark.parametrize("method", [ALL, ours(2, 0, 3), ours(0, 0, 6), lora(2), hra(2), oft(2)], ids=lambda m: m.name)
def test_a_method_trains_the_chosen_weights_alone_from_where_they_are(method):
    if method.kind.endswith("Config"):
        pytest.importorskip("peft", reason="needs the extra [bench]")
    torch.manual_seed(0)
    task = Small(ROOT)
    base = task.network()
    before = copy.deepcopy(base)
    x = torch.randn(5, 6)
    model, groups = method.adapt(copy.deepcopy(base), task.weights, 0.1)
    torch.testing.assert_close(model(x), base(x))
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert trained == {id(p) for group in groups for p in group["params"]}
    line = run(task, base, method, 0.1, 0)
    assert line["numbers"] == sum(p.numel() for group in groups for p in group["params"])
    assert line["seed"] == 0
    assert all(torch.equal(a, b) for a, b in zip(base.parameters(), before.parameters(), strict=True))


def test_hra_reflects_inputs_as_peft_reflects_the_weight():
    pytest.importorskip("peft", reason="needs the extra [bench]")
    model, _ = hra(4).adapt(nn.Sequential(nn.Linear(6, 5)), ["0"], 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(3, 6)
    ours_to_it = model(x)
    for module in model.modules():
        vars(module).pop("forward", None)
    torch.testing.assert_close(ours_to_it, model(x))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_tables_of_the_page_are_those_of_the_results(task):
    page = (ROOT / "docs" / "finetuning.md").read_text()
    rows = table(task, runs.read(ROOT / "results" / "finetuning.jsonl"))
    assert len(rows) > 8
    for row in rows:
        assert row in page


def test_ours_trains_at_most_as_many_numbers_as_those_it_is_held_against():
    numbers = {line["method"]: line["numbers"] for line in runs.read(ROOT / "results" / "finetuning.jsonl")}
    assert numbers["ours, m = 4, 0, r = 256"] <= min(numbers["LoRA r = 2"], numbers["HRA r = 4"])
    assert numbers["ours, m = 2, 0, r = 128"] <= min(numbers["LoRA r = 1"], numbers["HRA r = 2"])
