"""The scan in one Triton kernel: in Triton's interpreter, compiled for absent devices, on a GPU where there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spectral_param import show_config
from spectral_param.functional import rnn_scan
from spectral_param.functional.scan import triton_scan
from tests.spectral_param.functional.scan.against_float64 import (
    CASES,
    Case,
    activated,
    drawn,
    error,
    error_of_second_derivatives,
)
from tests.versions import interpreted_kernels

ROOT = Path(__file__).parents[4]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
gpu = pytest.mark.skipif(triton_scan.why_off() is not None, reason=f"Triton scan off: {triton_scan.why_off()}")


def run(module, **environment):
    """The output of a program of its own: Triton reads its environment once."""
    # Triton of before NumPy 2.4 takes numbers out of arrays as NumPy then began to advise against, and Triton builds
    # a syntax tree as Python 3.13 advises against
    advice = ("-W", "ignore:Conversion of an array with ndim > 0", "-W", "ignore:AnnAssign.__init__ missing")
    command = [sys.executable, "-W", "error", *advice, "-m", module]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def interpreted():
    return json.loads(run("tests.spectral_param.functional.scan.against_float64", TRITON_INTERPRET="1"))


@needs_triton
@interpreted_kernels
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_to_float64_with_gradients(interpreted, case):
    assert interpreted[str(case)] < TOLERANCE[case.dtype]


@needs_triton
@interpreted_kernels
def test_second_derivatives(interpreted):
    assert interpreted["second"] < 1e-5


@needs_triton
@interpreted_kernels
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "leaky_relu"])
def test_activations_keep_their_digits(interpreted, nonlinearity):
    assert interpreted["activations"][nonlinearity] < 5e-7


@needs_triton
def test_compiled_for_devices_that_are_not_here(tmp_path):
    run("tests.spectral_param.functional.scan.compiled_for_absent_devices", TRITON_CACHE_DIR=str(tmp_path))


def test_only_what_it_is_made_for(monkeypatch):
    def fits(shape, dtype=torch.float32, w_dtype=None):
        states = torch.empty(shape, dtype=dtype, device="meta")
        return triton_scan.fits(states, torch.empty(shape[-1], shape[-1], dtype=w_dtype or dtype, device="meta"))

    monkeypatch.setattr(triton_scan, "why_off", lambda device: None)
    assert not fits((5, 2, 16))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert all(fits((5, 2, 16), dtype) for dtype in triton_scan.DTYPES)
    assert fits((1001, 1024, 256))
    assert not fits((5, 1025, 256))
    assert not fits((5, 2, 257))
    assert not fits((5, 0, 16))
    assert not fits((5, 2, 16), torch.float64)
    assert not fits((5, 2, 16), torch.float16, torch.float32)
    monkeypatch.setattr(triton_scan, "why_off", lambda device: "no compiler")
    assert not fits((5, 2, 16))


def test_why_it_is_off_is_told(monkeypatch, capsys):
    def why(error=None):
        def launch(*args):
            if error is not None:
                raise error

        monkeypatch.setattr(triton_scan, "forward_", launch)
        triton_scan.why_off.cache_clear()
        show_config()
        return capsys.readouterr().out.partition("Triton scan: ")[2].splitlines()[0]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why() == "off; no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: torch.empty(shape))
    assert why() == "on CUDA, up to 256 features"
    assert why(ModuleNotFoundError("triton")) == "off; Triton is not installed"
    assert why(RuntimeError("no C compiler\nat all")) == "off; RuntimeError: no C compiler"
    triton_scan.why_off.cache_clear()


def test_triton_is_not_imported_before_it_is_used():
    code = (
        "import sys, torch; from spectral_param.nn import SpectralRNN; import spectral_param; "
        "SpectralRNN(2, 3)(torch.zeros(4, 1, 2)); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_to_float64_on_a_gpu(case):
    assert error(case, "cuda") < TOLERANCE[case.dtype]


@gpu
def test_second_derivatives_on_a_gpu():
    assert error_of_second_derivatives("cuda") < 1e-5


@gpu
def test_tanh_on_a_gpu():
    z = torch.linspace(-9, 9, 256, device="cuda")
    torch.testing.assert_close(activated(z, "tanh"), z.tanh(), rtol=1e-6, atol=0)


@gpu
def test_captured_in_a_graph():
    x, *others = drawn(Case((7, 3, 33), "tanh", "states"), "cuda")
    wanted, _ = rnn_scan(x, *others)
    graph, kept = torch.cuda.CUDAGraph(), torch.zeros_like(x)
    with torch.cuda.graph(graph):
        states, _ = rnn_scan(kept, *others)
    kept.copy_(x)
    graph.replay()
    torch.testing.assert_close(states, wanted)
