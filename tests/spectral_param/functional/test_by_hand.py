"""The operators: what torch asks of one, gradients of both orders, autocast, vmap, and strides as they are told."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from spectral_param.functional import factorization, householder, low_rank, thin_product
from spectral_param.functional.by_hand import ByHand
from spectral_param.functional.scan import dense
from spectral_param.functional.scan import low_rank as low_rank_recurrence
from spectral_param.functional.scan.recording import recorded
from spectral_param.sizes import packed_size

OPS = torch.ops.spectral_param


class Case(NamedTuple):
    name: str
    call: Callable[..., Any]  # the operator, its results alone
    rule: type[ByHand]
    tensors: Sequence[tuple[int, ...] | None]  # their shapes
    numbers: tuple[Any, ...] = ()


SQUARE, WIDE = [6, 6, 2, 3], [5, 7, 2, 1]


def _factors(sizes: list[int], *lead: int) -> list[tuple[int, ...]]:
    p, q, m1, m2 = sizes
    return [(*lead, packed_size(p, m1)), (*lead, min(p, q)), (*lead, packed_size(q, m2))]


CASES = {
    "thin product": Case(
        "thin_product", thin_product._operator, thin_product._ThinProduct, [(4, 7), (5,), (5, 3), (7, 3), (5,)]
    ),
    "thin product without b": Case(
        "thin_product", thin_product._operator, thin_product._ThinProduct, [(4, 5), (5,), (7, 3), (5, 3), None]
    ),
    **{
        f"{name} {sizes} {lead}": Case(name, call, rule, _factors(sizes, *lead), (sizes, *more))
        for name, call, rule, more in (
            ("thin_factors", low_rank._factors_operator, low_rank._ThinFactors, ()),
            ("low_rank_weight", low_rank._weight_operator, low_rank._LowRankWeight, (False,)),
        )
        for sizes in (SQUARE, WIDE)
        for lead in ((), (2,))
    },
    **{
        f"reflect {shape} {x} {transpose} {columns}": Case(
            "reflect", householder._operator, householder._ReflectorProduct, [shape, x], (transpose, columns)
        )
        for shape, x, transpose, columns in (
            ((6, 3), (6, 4), False, 4),
            ((2, 6, 3), (2, 6, 4), True, 4),
            ((6, 3), None, False, 6),
            ((2, 6, 3), None, False, 2),
            ((70, 66), (70, 2), True, 2),  # two blocks
        )
    },
    **{
        f"scan {phi} {b}": Case(
            "rnn_scan", dense._operator, recorded(dense._Scan), [(4, 2, 3), (2, 5), (5, 3), (5, 5), b], (phi, 0.1)
        )
        for phi, b in (("tanh", (5,)), ("leaky_relu", None))
    },
    **{
        f"scan of low rank {phi} {b}": Case(
            "low_rank_scan",
            low_rank_recurrence._operator,
            recorded(low_rank_recurrence._Scan),
            [(4, 2, 3), (2, 5), (5, 3), (5,), (5, 2), (5, 2), b],
            (phi, 0.1),
        )
        for phi, b in (("tanh", (5,)), ("leaky_relu", None))
    },
    "unpack": Case("unpack", factorization._operator, factorization._Dense, [(packed_size(6, 3),)], (6, 3)),
    "unpack all": Case("unpack", factorization._operator, factorization._Dense, [(2, packed_size(4, 4))], (4, 4)),
}
SMALL = {name: case for name, case in CASES.items() if "70" not in name}


def drawn(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    return [None if shape is None else torch.randn(shape, dtype=dtype, requires_grad=True) for shape in case.tensors]


def some(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [t for t in tensors if t is not None]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_torch_finds_no_fault_with_an_operator(case):
    torch.library.opcheck(getattr(OPS, case.name).default, (*drawn(case), *case.numbers))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_torch_finds_no_fault_with_its_backward(case):
    tensors = [None if t is None else t.detach() for t in drawn(case)]
    outputs = case.rule.compute(*tensors, *case.numbers)
    grads = [torch.randn_like(result) for result in outputs[: case.rule.results]]
    needs = [t is not None for t in tensors]
    arguments = (*grads, *tensors, outputs[case.rule.kept_from :], needs, *case.numbers)
    torch.library.opcheck(getattr(OPS, f"{case.name}_backward").default, arguments)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_operator_computes_what_eager_torch_does_to_the_bit(case):
    tensors = drawn(case, torch.float32)
    found = [run(*tensors, *case.numbers) for run in (case.call, case.rule.apply)]
    results = [[r] if isinstance(r, Tensor) else list(r) for r in found]
    if "scan" in case.name:
        results[0][1] = results[0][1][1:]  # without h₀
    grads = [torch.randn_like(r) for r in results[0]]
    both = [[*each, *torch.autograd.grad(each, some(tensors), grads)] for each in results]
    for ours, eager in zip(*both, strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_gradients_of_both_orders(case):
    tensors = drawn(case)
    places = [i for i, t in enumerate(tensors) if t is not None]

    def run(*given):
        arguments = list(tensors)
        for i, t in zip(places, given, strict=True):
            arguments[i] = t
        return case.call(*arguments, *case.numbers)

    assert torch.autograd.gradcheck(run, some(tensors))
    assert torch.autograd.gradgradcheck(run, some(tensors))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_vmap_maps_it(case):
    tensors = drawn(case)
    first = torch.randn(3, *case.tensors[0], dtype=torch.float64)

    def run(t):
        return case.call(t, *tensors[1:], *case.numbers)

    ours, one_by_one = torch.vmap(run)(first), [run(t) for t in first]
    if not isinstance(ours, Tensor):
        ours, one_by_one = ours[0], [each[0] for each in one_by_one]
    torch.testing.assert_close(ours, torch.stack(one_by_one))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_autocast_and_coarse_products_change_nothing(case):
    tensors = drawn(case, torch.float32)
    want = case.call(*tensors, *case.numbers)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            got = case.call(*tensors, *case.numbers)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shapes_and_strides_are_as_told(case):
    tensors = [None if t is None else t.detach() for t in drawn(case, torch.float32)]
    operator = getattr(OPS, case.name).default
    want = operator(*tensors, *case.numbers)
    with FakeTensorMode() as mode:
        told = operator(*(None if t is None else mode.from_tensor(t) for t in tensors), *case.numbers)
    assert [(t.shape, t.stride()) for t in told] == [(t.shape, t.stride()) for t in want]
