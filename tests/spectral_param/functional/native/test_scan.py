import shutil
import subprocess
import sys

import pytest
import torch

from spectral_param import show_config
from spectral_param.functional import native, rnn_scan
from spectral_param.functional.native import library
from spectral_param.functional.scan import NONLINEARITIES, low_rank_scan
from spectral_param.nn import SpectralRNN
from tests.reference import relative

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


SCANS = {"W": rnn_scan, "thin": low_rank_scan}


def inputs(steps, batch, n, rank=None):
    """Of a scan with W, or with σ and thin factors of ``rank`` columns, whose values keep the states from growing."""
    weight = ((n, n),) if rank is None else ((n,), (n, rank), (n, rank))
    shapes = ((steps, batch, 3), (batch, n), (n, 3), *weight, (n,))
    tensors = [torch.randn(s, dtype=torch.float64) for s in shapes]
    for tensor in tensors[3:-1]:
        tensor /= n**0.5
    return [t.requires_grad_() for t in tensors]


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize(
    ("steps", "batch", "n", "rank"),
    [(9, 37, 128, 32), (1, 33, 16, 1), (7, 5, 48, 20), (4, 8, 96, 70), (11, 3, 272, 16)],
)
@pytest.mark.parametrize("outputs", ["states", "last", "both"])
@pytest.mark.parametrize("form", SCANS)
def test_equal_to_float64_with_gradients(nonlinearity, steps, batch, n, rank, outputs, form):
    exact = inputs(steps, batch, n, rank if form == "thin" else None)
    near = [t.detach().float().requires_grad_() for t in exact]
    weight = torch.randn(steps, batch, n, dtype=torch.float64)
    found = []
    for tensors in (near, exact):
        states, last = SCANS[form](*tensors, nonlinearity, 0.1)
        loss = (states * weight.to(states.dtype)).sum() if outputs != "last" else 0
        loss = loss + (last.sin().sum() if outputs != "states" else 0)
        found.append([states, last, *torch.autograd.grad(loss, tensors)])
    for got, want in zip(*found, strict=True):
        assert relative(got, want) < 5e-6


@pytest.mark.usefixtures("_native")
def test_values_far_out_and_not_a_number():
    n = 16
    x = torch.linspace(-100, 100, 64 * n).view(1, 64, n)
    x[0, 0] = torch.nan
    zero, eye = torch.zeros(64, n), torch.eye(n)
    for nonlinearity, phi in (("tanh", torch.tanh), ("relu", torch.relu)):
        states, _ = rnn_scan(x, zero, eye, torch.zeros(n, n), None, nonlinearity)
        torch.testing.assert_close(states, phi(x), rtol=3e-7, atol=1e-30, equal_nan=True)
    small = torch.logspace(-12, 0, 64 * n).view(1, 64, n)
    states, _ = rnn_scan(small, zero, eye, torch.zeros(n, n))
    torch.testing.assert_close(states, small.tanh(), rtol=5e-7, atol=0)


@pytest.mark.usefixtures("_native")
def test_only_what_it_is_made_for(monkeypatch):
    x, h0 = torch.zeros(4, 8, 5), torch.zeros(8, 32)
    assert native.fits(x, h0, None)
    assert not native.fits(x, torch.zeros(8, 30))
    assert not native.fits(x, h0.double())
    assert not native.fits(x, h0, torch.zeros(32, 32, dtype=torch.float64))
    assert not native.fits(x[:3], h0)  # so few rows that W is not worth laying out
    assert not native.fits(x[:, :0], h0[:0])
    calls, run = [], native.run
    monkeypatch.setattr(native, "run", lambda *args: (calls.append(args[4].thin), run(*args))[1])
    SpectralRNN(2, 32)(torch.randn(4, 8, 2))
    SpectralRNN(2, 64, reflectors=8)(torch.randn(4, 8, 2))
    assert [thin is None for thin in calls] == [True, False]


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("form", SCANS)
@pytest.mark.parametrize("needed", range(7))
def test_each_gradient_alone(form, needed):
    tensors = [t.detach().float() for t in inputs(5, 7, 32, 8 if form == "thin" else None)]
    if needed >= len(tensors):
        return
    tensors[needed].requires_grad_()
    (got,) = torch.autograd.grad(SCANS[form](*tensors)[1].sum(), tensors[needed])
    library.loaded.clear()
    (want,) = torch.autograd.grad(SCANS[form](*tensors)[1].sum(), tensors[needed])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("batch", [128, 512])
def test_sums_over_many_rows_keep_their_digits(batch):
    n, steps = 16, 300
    found = []
    for dtype in (torch.float32, torch.float64):
        b, w = torch.full((n,), 0.1, dtype=dtype), 0.99 * torch.eye(n, dtype=dtype)
        x, h0, m = (torch.ones(s, dtype=dtype) for s in ((steps, batch, 1), (batch, n), (n, 1)))
        states, _ = rnn_scan(x, h0, m, w.requires_grad_(), b.requires_grad_(), "relu")
        found.append(torch.autograd.grad(states.mean(), (w, b)))
    for got, want in zip(*found, strict=True):
        assert relative(got, want) < 1e-5


@pytest.mark.usefixtures("_native")
def test_saved_tensors_that_come_back_with_gaps():
    tensors = [t.detach().float().requires_grad_() for t in inputs(5, 7, 32, 8)]
    want = torch.autograd.grad(low_rank_scan(*tensors)[1].sum(), tensors)
    turned = (lambda t: t.detach().clone(), lambda t: t.mT.contiguous().mT if t.dim() > 1 else t)
    with torch.autograd.graph.saved_tensors_hooks(*turned):
        last = low_rank_scan(*tensors)[1]
    for a, b in zip(torch.autograd.grad(last.sum(), tensors), want, strict=True):
        torch.testing.assert_close(a, b)


NO_THREADS = """
import resource, sys
import torch
from pathlib import Path
from spectral_param import native
from spectral_param.functional import rnn_scan

native.build(Path(sys.argv[1]))
x, h0, m, w = torch.ones(4, 64, 2), torch.zeros(64, 32), torch.ones(32, 2), torch.eye(32).mul_(0.1)
want = rnn_scan(x, h0, m, w)[1]
torch.set_num_threads(16)
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (20 << 20), resource.RLIM_INFINITY))
got = rnn_scan(x, h0, m, w)[1]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # what follows imports
torch.testing.assert_close(got, want)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_threads_that_are_not_to_be_had_are_done_without(folder):
    done = subprocess.run([sys.executable, "-c", NO_THREADS, str(folder.parent)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_compiler_with_options(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "c++ -g0")
    assert native.build(tmp_path).stat().st_size > 0
    library.loaded.clear()


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("form", SCANS)
def test_tensors_with_gaps(form):
    rank = 8 if form == "thin" else None
    tensors = [t.detach().float() for t in inputs(5, 7, 32, rank)]
    with_gaps = [torch.stack([t, t], -1)[..., 0].requires_grad_() for t in tensors]
    assert not with_gaps[-1].is_contiguous()
    states, _ = SCANS[form](*with_gaps)
    want, _ = SCANS[form](*tensors)
    assert torch.equal(states, want)
    assert all(g.isfinite().all() for g in torch.autograd.grad(states.sum(), with_gaps))


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("rank", [16, 5])
def test_built_between_forward_and_backward_or_gone(rank, folder):
    tensors = [t.detach().float().requires_grad_() for t in inputs(5, 7, 32, rank)]
    last = low_rank_scan(*tensors)[1]
    library.loaded.clear()
    got = torch.autograd.grad(last.sum(), tensors)
    last = low_rank_scan(*tensors)[1]
    native.build(folder.parent)
    want = torch.autograd.grad(last.sum(), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("form", SCANS)
def test_two_threads_give_the_same(form):
    tensors = [t.detach().float().requires_grad_() for t in inputs(6, 13, 64, 16 if form == "thin" else None)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 16):
            torch.set_num_threads(threads)
            states, _ = SCANS[form](*tensors)
            results.append([states, *torch.autograd.grad(states.square().sum(), tensors)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("form", SCANS)
def test_double_backward(form):
    tensors = [t.detach().float().requires_grad_() for t in inputs(3, 11, 16, 4 if form == "thin" else None)]
    (grad,) = torch.autograd.grad(SCANS[form](*tensors)[0].square().sum(), tensors[3], create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), tensors[3])
    library.loaded.clear()
    (grad,) = torch.autograd.grad(SCANS[form](*tensors)[0].square().sum(), tensors[3], create_graph=True)
    (want,) = torch.autograd.grad(grad.square().sum(), tensors[3])
    torch.testing.assert_close(second, want, rtol=1e-4, atol=1e-4)


def test_built_once_and_only_when_asked(folder, monkeypatch, capsys):
    assert not native.is_loaded()
    show_config()
    assert "native scan: off" in capsys.readouterr().out
    monkeypatch.setattr(library, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.build(folder.parent) == folder
    show_config()
    assert "native scan: float32" in capsys.readouterr().out
    library.loaded.clear()


def test_a_file_that_is_no_library_is_replaced(folder, tmp_path):
    (tmp_path / folder.name).touch()
    assert native.build(tmp_path).stat().st_size > 0
    library.loaded.clear()


def test_a_missing_or_failing_compiler_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="build: expected a C\\+\\+ compiler at 'no-such-compiler'"):
        native.build(tmp_path)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match="build: false failed"):
        native.build(tmp_path)
    assert not list(tmp_path.glob("*.so"))
    assert not native.is_loaded()


@pytest.mark.usefixtures("_native")
def test_the_default_dtype_does_not_matter():
    tensors = [t.detach().float().requires_grad_() for t in inputs(6, 6, 32)]
    want = torch.autograd.grad(rnn_scan(*tensors)[0].square().sum(), tensors)
    torch.set_default_dtype(torch.float64)
    try:
        got = torch.autograd.grad(rnn_scan(*tensors)[0].square().sum(), tensors)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("form", ["W", 3, 16, 20])
@pytest.mark.parametrize("nonlinearity", ["relu", "leaky_relu"])
@pytest.mark.parametrize("outputs", ["states", "last"])
def test_states_that_overflow_are_infinite_where_torch_has_them_so(form, nonlinearity, outputs):
    """The columns that fill up a rank to a multiple of 16 are zeros, and 0 · inf is no number."""
    thin = form != "W"
    x, h0, m, *weight, b = [t.detach().float() for t in inputs(12, 6, 48, form if thin else None)]
    weight = [1e6 * t.abs() * (-1 if i == 1 else 1) for i, t in enumerate(weight)]  # W = Σ - L Rᵀ has no signs to meet
    x, h0 = x.abs(), h0.abs()
    x[:, 4:], h0[4:], m, b = 0, 0, m.abs(), torch.zeros_like(b)  # two samples that stay zero
    found = []
    for _ in range(2):
        tensors = [t.clone().requires_grad_() for t in (x, h0, m, *weight, b)]
        states, last = SCANS["thin" if thin else "W"](*tensors, nonlinearity)
        chosen = {"states": states, "last": last}[outputs]
        found.append([states, *torch.autograd.grad(chosen, tensors, torch.ones_like(chosen))])
        library._loaded.clear()
    assert found[0][0].isinf().any()
    assert not found[1][0].isnan().any()
    for got, want in zip(*found, strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.isinf(), want.isinf())
