"""How far the scan with the kernel is from float64; run as a program, in Triton's interpreter (TRITON_INTERPRET=1)."""

import itertools
import json
from typing import NamedTuple

import torch

from spectral_param.functional import rnn_scan
from spectral_param.functional.scan import NONLINEARITIES, triton_scan
from tests.reference import relative

SIZES = ((5, 3, 1), (1, 2, 3), (4, 1, 16), (6, 2, 33), (3, 2, 128), (2, 1, 200))  # T, B, n
OUTPUTS = ("states", "last", "both")
PHI = {
    "tanh": lambda z, slope: torch.tanh(z),
    "relu": lambda z, slope: torch.where(z <= 0, 0, z),
    "leaky_relu": lambda z, slope: torch.where(z > 0, z, slope * z),
}


class Case(NamedTuple):
    size: tuple[int, int, int]
    nonlinearity: str
    outputs: str
    dtype: torch.dtype = torch.float32

    def __str__(self):
        return f"{self.size} {self.nonlinearity} {self.outputs} {self.dtype}"


CASES = [
    *(Case(*case) for case in itertools.product(SIZES, NONLINEARITIES, OUTPUTS)),
    *(Case((4, 2, 20), name, "both", dtype) for name in NONLINEARITIES for dtype in triton_scan.DTYPES[1:]),
]


def drawn(case, device):
    torch.manual_seed(0)
    steps, batch, n = case.size
    tensors = [torch.randn(shape) for shape in ((steps, batch, 3), (batch, n), (n, 3), (n, n), (n,))]
    tensors[3] /= n**0.5
    return [t.to(device, case.dtype) for t in tensors]


def step_by_step(x, h, m, w, b, nonlinearity, slope):
    states = [h := PHI[nonlinearity](h @ w.T + step @ m.T + b, slope) for step in x]
    return torch.stack(states), h


def loss_of(states, last, outputs):
    loss = states.sum() if outputs == "states" else last.sin().sum()
    return loss + (states.square() * 0.3).sum() if outputs == "both" else loss


def results(run, tensors, case):
    tensors = [t.clone().requires_grad_() for t in tensors]
    states, last = run(*tensors, case.nonlinearity, 0.1)
    return [states, last, *torch.autograd.grad(loss_of(states, last, case.outputs), tensors)]


def error(case, device):
    """The largest relative error of the states and of all gradients."""
    tensors = drawn(case, device)
    found = results(rnn_scan, tensors, case)
    wanted = results(step_by_step, [t.double() for t in tensors], case)
    return max(map(relative, found, wanted))


def error_of_second_derivatives(device):
    case = Case((3, 2, 5), "tanh", "both")

    def second(run, tensors):
        tensors = [t.clone().requires_grad_() for t in tensors]
        loss = loss_of(*run(*tensors, case.nonlinearity, 0.1), case.outputs)
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

    tensors = drawn(case, device)
    return max(map(relative, second(rnn_scan, tensors), second(step_by_step, [t.double() for t in tensors])))


def activated(z, nonlinearity):
    """φ(z) by one step with W = 0."""
    n = len(z)
    return rnn_scan(z[None, None], z.new_zeros(1, n), torch.eye(n).to(z), z.new_zeros(n, n), None, nonlinearity, 0.1)[
        1
    ][0]


def errors_of_activations():
    """The largest relative error of φ, from tiny to large; infinities and nan are to come through."""
    size = torch.logspace(-12, 2, 100)
    z = torch.cat([size, -size])
    errors = {}
    for name in NONLINEARITIES:
        exact = PHI[name](z.double(), 0.1)
        errors[name] = ((activated(z, name) - exact).abs() / exact.abs().clamp_min(1e-30)).max().item()
        odd = torch.tensor([torch.nan, torch.inf, -torch.inf])  # one by one: nan times 0 would be nan in every column
        found = torch.cat([activated(one, name) for one in odd.split(1)])
        torch.testing.assert_close(found, PHI[name](odd, 0.1), equal_nan=True)
    return errors


if __name__ == "__main__":
    triton_scan.fits = lambda states, w: True  # on the CPU, for the interpreter
    print(
        json.dumps(
            {
                **{str(case): error(case, "cpu") for case in CASES},
                "second": error_of_second_derivatives("cpu"),
                "activations": errors_of_activations(),
            }
        )
    )
