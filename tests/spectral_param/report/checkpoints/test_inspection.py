import json
import math
import pickle

import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization, save_adapter
from spectral_param.__main__ import main
from spectral_param.report.checkpoints.inspection import compare_files, inspect_file
from spectral_param.report.checkpoints.stored import stored_tensors
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors
from tests.spectral_param.report.checkpoints.files import write_safetensors


def rows_of(path, **options):
    rows, passed_over = inspect_file(path, **options)
    return {row["weight"]: row for row in rows}, passed_over


def test_each_weight_is_read_as_matrices_with_the_singular_values_of_each(tmp_path):
    tensors = {
        "fc.weight": torch.randn(7, 5),
        "fc.bias": torch.randn(7),
        "conv.weight": torch.randn(4, 3, 2, 2),
        "conv1d.weight": torch.randn(4, 3, 5),
        "experts.up": torch.randn(3, 12, 20),
        "counts": torch.ones(2, 2, dtype=torch.int64),
    }
    rows, passed_over = rows_of(write_safetensors(tmp_path / "a.safetensors", tensors), top=3)
    assert list(rows) == ["fc.weight", "conv.weight", "conv1d.weight", "experts.up"]
    assert passed_over == {"counts": "its dtype is int64"}
    for name, matrices in (
        ("fc.weight", tensors["fc.weight"][None]),
        ("conv.weight", tensors["conv.weight"].flatten(1)[None]),
        ("conv1d.weight", tensors["conv1d.weight"].flatten(1)[None]),
        ("experts.up", tensors["experts.up"]),
    ):
        truth = torch.linalg.svdvals(matrices)
        torch.testing.assert_close(torch.tensor(rows[name]["sigma"]), truth[:, :3])
        assert rows[name]["max"] == pytest.approx(truth.max().item())
        assert rows[name]["blocks"] == len(matrices)
        stable_rank = (truth.square().sum(1) / truth[:, 0].square()).mean().item()
        assert rows[name]["stable_rank"] == pytest.approx(stable_rank, rel=1e-4)


def test_leading_values_of_a_large_matrix_are_within_a_hundredth(tmp_path):
    matrix = torch.randn(600, 500).bfloat16()
    rows, _ = rows_of(write_safetensors(tmp_path / "a.safetensors", {"w": matrix}), whole=100)
    truth = torch.linalg.svdvals(matrix.float())
    torch.testing.assert_close(torch.tensor(rows["w"]["sigma"][0]), truth[:10], rtol=0.01, atol=0)
    assert rows["w"]["stable_rank"] == pytest.approx((truth.square().sum() / truth[0] ** 2).item(), rel=0.02)
    assert math.isnan(rows["w"]["tail_exponent"])


@pytest.mark.parametrize("scaled", [True, False])
def test_adapters_are_their_product(tmp_path, scaled):
    a, b = torch.randn(4, 20), torch.randn(30, 4)
    names = "model.q_proj.lora_A.weight", "model.q_proj.lora_B.weight"
    if scaled:
        (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    path = write_safetensors(tmp_path / "adapter_model.safetensors", dict(zip(names, (a, b), strict=True)))
    rows, passed_over = rows_of(path)
    row = rows["model.q_proj"]
    assert (row["kind"], row["shape"], passed_over) == ("LoRA r=4", (30, 20), {})
    truth = torch.linalg.svdvals(b @ a)[:4] * (2 if scaled else 1)
    torch.testing.assert_close(torch.tensor(row["sigma"][0]), truth, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("pattern", "scale"),
    [("q_proj", 8), ("model.q_proj", 8), (r"^model\.q_proj", 8), (r".*\.[qk]_proj", 8), ("proj", 2), ("^q_proj", 2)],
)
def test_a_pattern_of_alpha_is_of_the_end_of_a_name(tmp_path, pattern, scale):
    a, b = torch.randn(4, 20), torch.randn(30, 4)
    config = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"other": 1, pattern: 32}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    key = "base_model.model.model.q_proj"
    rows, _ = rows_of(
        write_safetensors(tmp_path / "a.safetensors", {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b})
    )
    truth = torch.linalg.svdvals(b @ a)[:4] * scale
    torch.testing.assert_close(torch.tensor(rows[key]["sigma"][0]), truth, rtol=1e-4, atol=0)


def test_several_adapters_of_a_weight_have_their_own_names(tmp_path):
    def file(name, of_one):
        factors = {"one": of_one, "two": (torch.ones(2, 4), torch.ones(3, 2))}
        pairs = {
            f"x.lora_{part}.{key}.weight": t for key, ab in factors.items() for part, t in zip("AB", ab, strict=True)
        }
        return write_safetensors(tmp_path / name, pairs)

    a, b = torch.randn(2, 4), torch.randn(3, 2)
    before, after = file("before.safetensors", (a, b)), file("after.safetensors", (a, 7 * b))
    rows, _ = compare_files(before, after)
    assert {row["weight"]: row["change"] for row in rows} == pytest.approx({"x.one": 6.0, "x.two": 0.0}, rel=1e-5)


@pytest.mark.parametrize("scalar", [True, False])
def test_adapters_in_the_names_of_other_programs_are_found(tmp_path, scalar):
    down, up = torch.randn(2, 6, 1, 1), torch.randn(5, 2, 1, 1)
    tensors = {
        "unet.lora_down.weight": down,
        "unet.lora_up.weight": up,
        "unet.alpha": torch.tensor(1.0) if scalar else torch.ones(1),
        "x.lora_A.default.weight": torch.randn(3, 4),
        "y.lora_B.weight": torch.randn(4, 3),
    }
    rows, passed_over = rows_of(write_safetensors(tmp_path / "a.safetensors", tensors))
    truth = torch.linalg.svdvals(up.flatten(1) @ down.flatten(1))[:2] / 2
    torch.testing.assert_close(torch.tensor(rows["unet"]["sigma"][0]), truth, rtol=1e-4, atol=0)
    assert passed_over == {
        "x.lora_A.default.weight": "a factor without a lora_B that fits",
        "y.lora_B.weight": "a factor without a lora_A",
    }


def test_checkpoints_of_torch_and_of_lightning_are_read(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), register_svd_parametrization(nn.Linear(3, 3)))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    rows, passed_over = rows_of(tmp_path / "a.pt")
    assert list(rows) == ["0.weight"]
    assert all("plain_state_dict" in reason for reason in passed_over.values())
    torch.save(model[0].state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert list(rows_of(tmp_path / "old.pt")[0]) == ["weight"]
    run = trainer(tmp_path)
    run.fit(Regression(), vectors(2))
    run.save_checkpoint(tmp_path / "run.ckpt")
    assert list(rows_of(tmp_path / "run.ckpt")[0]) == ["second.weight"]


class Hostile:
    def __reduce__(self):
        return print, ("run",)


def test_a_hostile_or_cut_checkpoint_of_torch_is_an_error_that_names_it(tmp_path, capsys):
    path = tmp_path / "bad.pt"
    torch.save({"w": torch.randn(300, 300)}, path)
    content = path.read_bytes()
    for bad in (content[: len(content) // 2], b"", b"PK", pickle.dumps(Hostile())):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"bad\.pt: expected a checkpoint of tensors and plain values alone"):
            inspect_file(path)
    torch.save(nn.Linear(2, 2), path)
    written = r"as torch\.save\(model\.state_dict\(\), path\) writes it, got torch\.nn\.modules\.linear\.Linear\.$"
    with pytest.raises(ValueError, match=written):
        inspect_file(path)
    torch.save({"w": torch.ones(1).expand(2**20, 2**20)}, path)
    with pytest.raises(ValueError, match=r"expected w with numbers of its own"):
        inspect_file(path)
    with pytest.raises(FileNotFoundError, match="expected a checkpoint, found no such file"):
        inspect_file(tmp_path / "absent.pt")
    assert "run" not in capsys.readouterr().out


def test_two_files_are_compared_by_their_leading_directions(tmp_path):
    u, _, vh = torch.linalg.svd(torch.randn(20, 12), full_matrices=False)
    sigma = torch.linspace(6, 1, 12)
    turn = torch.linalg.qr(torch.randn(20, 20)).Q
    before = u * sigma @ vh
    one = write_safetensors(tmp_path / "one.safetensors", {"w": before, "same": before, "gone": before, "v": before})
    after = {"w": u * (sigma * torch.cat((torch.tensor([1.5]), torch.ones(11)))) @ vh, "same": before}
    two = write_safetensors(tmp_path / "two.safetensors", after | {"v": turn @ before, "new": before})
    rows, passed_over = compare_files(one, two, top=3)
    rows = {row["weight"]: row for row in rows}
    assert passed_over == {"gone": f"in {one} alone", "new": f"in {two} alone"}
    assert rows["same"]["change"] == rows["same"]["sigma_change"] == 0
    assert rows["same"]["angle_left"] == rows["same"]["angle_right"] == 0
    assert rows["w"]["max_after"] == pytest.approx(9)
    assert rows["w"]["sigma_change"] == pytest.approx(0.5, rel=1e-4)
    assert max(rows["w"]["angle_left"], rows["w"]["angle_right"]) < 1e-3
    assert rows["v"]["sigma_change"] < 1e-5
    assert rows["v"]["angle_right"] < 1e-3
    cosines = torch.linalg.svdvals(u[:, :3].mT @ turn @ u[:, :3])
    assert rows["v"]["angle_left"] == pytest.approx(math.degrees(cosines.square().mean().sqrt().acos()), rel=1e-3)


@pytest.mark.parametrize("angle", [1e-9, 1e-5, 0.3, 1.5])
def test_angles_are_exact_however_small(tmp_path, angle):
    before = torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    turn = torch.eye(3, dtype=torch.float64)
    turn[::2, ::2] = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    one = write_safetensors(tmp_path / "one.safetensors", {"w": before})
    two = write_safetensors(tmp_path / "two.safetensors", {"w": turn @ before})
    [row], _ = compare_files(one, two, top=1)
    assert row["angle_left"] == pytest.approx(math.degrees(angle), rel=1e-5)
    assert row["angle_right"] < 1e-12


def test_the_command_prints_a_table_json_and_a_page(tmp_path, capsys):
    path = write_safetensors(tmp_path / "a.safetensors", {"fc.weight": 2 * torch.eye(3), "n": torch.ones(2, 2).bool()})
    main(["inspect", str(path), "--page", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == [
        *("weight", "kind", "blocks", "shape", "max"),
        *("stable_rank", "effective_rank", "tail_exponent", "tail_error"),
    ]
    assert said.out.splitlines()[1].split() == ["fc.weight", "plain", "1", "3×3", "2", "3", "3"]
    assert "passed over n: its dtype is bool" in said.err
    assert "<td>fc.weight</td>" in (tmp_path / "page.html").read_text()
    main(["inspect", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["weights"][0]["sigma"] == [[2.0, 2.0, 2.0]]
    assert found["weights"][0]["tail_exponent"] is None
    main(["inspect", str(path), str(path)])
    said = capsys.readouterr().out
    assert "angle_left" in said
    assert said.splitlines()[-1].startswith("angles in degrees")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.pt"], "found no such file"),
        (["a.safetensors", "--top", "0"], "top: expected a positive number, got 0"),
        (["a.safetensors", "--whole", "-1"], "whole: expected a length, got -1"),
        (["a.safetensors", "a.safetensors", "--page", "p.html"], "--page: expected one file, got two"),
        (["vectors.safetensors"], "vectors.safetensors: expected matrices, found none to show"),
        (
            ["a.safetensors", "vectors.safetensors"],
            "a.safetensors and vectors.safetensors: expected matrices, found none",
        ),
    ],
)
def test_a_mistake_ends_the_command_with_what_is_wrong(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_safetensors(tmp_path / "a.safetensors", {"w": torch.eye(2)})
    write_safetensors(tmp_path / "vectors.safetensors", {"w": torch.ones(2)})
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", *words])
    assert message in capsys.readouterr().err


def test_a_file_of_an_adapter_on_a_frozen_base_is_said_to_be_one_and_its_reflectors_are_no_weights(tmp_path, capsys):
    model = nn.Sequential(
        register_svd_parametrization(nn.Linear(6, 4), base="frozen", reflectors=2, rank=3),
        register_svd_parametrization(nn.GRUCell(4, 4), "weight_hh", chunks=3, base="frozen", reflectors=2, rank=2),
    ).requires_grad_(False)
    save_adapter(model, tmp_path / "adapter.safetensors")
    rows, passed_over = rows_of(tmp_path / "adapter.safetensors")
    parts = {f"{name}.{part}" for name in ("0.weight", "1.weight_hh") for part in ("u", "sigma", "v")}
    assert (rows, set(passed_over)) == ({}, parts)
    assert all("load_adapter" in reason for reason in passed_over.values())
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(tmp_path / "adapter.safetensors")])
    assert "0.weight.u: of an adapter on a frozen base" in capsys.readouterr().err


def test_what_is_no_weight_is_named_when_two_files_are_compared_as_well(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), register_svd_parametrization(nn.LSTM(3, 3), "weight_hh_l0", chunks=4))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    rows, passed_over = compare_files(tmp_path / "a.pt", tmp_path / "a.pt")
    assert [row["weight"] for row in rows] == ["0.weight", "1.weight_ih_l0"]
    assert list(passed_over) == [f"1.parametrizations.weight_hh_l0.original{i}" for i in range(3)]
    assert all("plain_state_dict" in reason for reason in passed_over.values())


def test_of_two_files_the_one_that_is_passed_over_is_named(tmp_path):
    layer = nn.Linear(3, 3, bias=False)
    plain, registered = (tmp_path / folder / "model.pt" for folder in ("plain", "registered"))  # alike but for the way
    for file in (plain, registered):
        file.parent.mkdir()
    torch.save(layer.state_dict(), plain)
    torch.save(register_svd_parametrization(layer).state_dict(), registered)
    rows, passed_over = compare_files(plain, registered)
    assert not rows
    assert passed_over.pop("weight") == f"in {plain} alone"
    assert len(passed_over) == 3
    assert all(reason.startswith(f"in {registered}, of a parametrized weight") for reason in passed_over.values())


def test_a_tensor_that_has_no_numbers_in_a_row_is_passed_over_by_name(tmp_path):
    tensors = {
        "dense": torch.eye(3),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.eye(3, device="meta"),
    }
    torch.save(tensors, tmp_path / "a.pt")
    rows, passed_over = rows_of(tmp_path / "a.pt")
    assert list(rows) == ["dense"]
    assert passed_over == {
        "sparse": "its layout is sparse_coo; save it with to_dense()",
        "meta": "it is on the meta device, without numbers",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_said_to_be_so(tmp_path, capsys, value):
    experts = torch.randn(2, 12, 10)
    experts[1, 0, 0] = value
    path = write_safetensors(tmp_path / "a.safetensors", {"bad": torch.full((3, 2), value), "experts": experts})
    main(["inspect", str(path), "--page", str(tmp_path / "page.html")])
    assert [line.split()[4:] for line in capsys.readouterr().out.splitlines()[1:]] == [["not", "finite"]] * 2
    assert (tmp_path / "page.html").read_text().count("<td>not finite</td>") == 2
    main(["inspect", str(path), "--json"])
    assert [row["max"] for row in json.loads(capsys.readouterr().out)["weights"]] == [None, None]
    main(["inspect", str(path), str(path)])
    assert capsys.readouterr().out.count("not finite") == 4


def test_control_characters_of_names_do_not_reach_the_terminal_or_the_page(tmp_path, capsys):
    name = "a\x1b[2J\nb\u202e"
    tensors = {name: torch.eye(2), f"{name}.int": torch.ones(2, 2, dtype=torch.int64)}
    path = write_safetensors(tmp_path / "a.safetensors", tensors)
    main(["inspect", str(path), "--page", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    safe = r"a\x1b[2J\nb\u202e"
    assert said.out.splitlines()[1].startswith(f"{safe}  plain")
    assert f"passed over {safe}.int: its dtype is int64" in said.err
    assert f"<td>{safe}</td>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"bytes for a\\x1b\[2J\\nb\\u202e\.int, got"):
        inspect_file(cut)
    torch.save({name: torch.ones(1).expand(2, 2)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"expected a\\x1b\[2J\\nb\\u202e with numbers of its own"):
        inspect_file(tmp_path / "a.pt")


@pytest.mark.parametrize("key", ["optimizer", "opt", "optimizer_states"])
def test_what_an_optimizer_keeps_is_no_weight(tmp_path, key):
    model = nn.Linear(6, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(6)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    saved = {"net": model.state_dict(), key: [state] if key.endswith("s") else state}
    torch.save(saved, tmp_path / "run.pt")
    assert list(stored_tensors(tmp_path / "run.pt")) == ["net.weight", "net.bias"]


def test_a_weight_that_one_of_two_files_has_in_another_form_says_which(tmp_path):
    torch.save({"w": torch.ones(3, 3)}, tmp_path / "one.pt")
    torch.save({"w": torch.ones(3, 3, dtype=torch.int8)}, tmp_path / "two.pt")
    for files in ((tmp_path / "one.pt", tmp_path / "two.pt"), (tmp_path / "two.pt", tmp_path / "one.pt")):
        assert compare_files(*files) == ([], {"w": f"in {tmp_path / 'two.pt'}, its dtype is int8"})


def test_parameters_are_read_as_tensors(tmp_path):
    torch.save(dict(nn.Linear(3, 3).named_parameters()), tmp_path / "a.pt")
    [row], _ = compare_files(tmp_path / "a.pt", tmp_path / "a.pt")  # without a warning of torch, which is an error
    assert row["change"] == 0
    assert list(rows_of(tmp_path / "a.pt")[0]) == ["weight"]
