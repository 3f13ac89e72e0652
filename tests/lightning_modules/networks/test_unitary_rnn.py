import pytest
import torch

from lightning_modules.networks.unitary_rnn import FullUnitary, RestrictedUnitary, UnitaryRNN


@pytest.mark.parametrize("kind", [RestrictedUnitary, FullUnitary])
def test_recurrence_is_unitary_and_linear(kind):
    recurrence = kind(6)
    matrix = recurrence()(torch.eye(6, dtype=torch.cfloat)).mT
    torch.testing.assert_close(matrix @ matrix.mH, torch.eye(6, dtype=torch.cfloat))
    h = torch.randn(3, 6, dtype=torch.cfloat)
    torch.testing.assert_close(recurrence()(h), h @ matrix.mT)


def test_restricted_recurrence_is_the_published_product():
    recurrence = RestrictedUnitary(6)
    d1, d2, d3 = (torch.diag(torch.exp(1j * phase)) for phase in recurrence.phases.detach())
    vectors = torch.complex(*recurrence.reflections.detach().chunk(2, dim=1))
    eye = torch.eye(6, dtype=torch.cfloat)
    r1, r2 = (eye - 2 * torch.outer(v, v.conj()) / v.norm() ** 2 for v in vectors)
    fourier = torch.fft.fft(eye, norm="ortho")
    shuffle = eye[recurrence.permutation]
    expected = d3 @ r2 @ fourier.mH @ d2 @ shuffle @ r1 @ fourier @ d1
    torch.testing.assert_close(recurrence()(eye).mT, expected)


@pytest.mark.parametrize("kind", [RestrictedUnitary, FullUnitary])
def test_steps_are_mod_relu(kind):
    rnn = UnitaryRNN(kind(4), 3, 4)
    torch.nn.init.normal_(rnn.bias)
    input, hx = torch.randn(2, 2, 3), torch.randn(1, 2, 8)
    output, last = rnn(input, hx)
    h = torch.complex(*hx[0].chunk(2, dim=1))
    for t in range(2):
        z = rnn.recurrence()(h) + torch.complex(*(input[:, t] @ rnn.input_weight.T).chunk(2, dim=1))
        size = torch.relu(z.abs() + rnn.bias)
        h = torch.polar(size, z.angle())
        torch.testing.assert_close(output[:, t], torch.cat([h.real, h.imag], dim=1), atol=1e-5, rtol=1e-4)
    assert torch.equal(output[:, -1], last[0])


@pytest.mark.parametrize("kind", [RestrictedUnitary, FullUnitary])
def test_gradients_are_finite_at_the_zero_state(kind):
    rnn = UnitaryRNN(kind(4), 3, 4)
    torch.nn.init.ones_(rnn.bias)
    rnn(torch.zeros(2, 1, 3), torch.zeros(1, 2, 8))[0].square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in rnn.parameters())


@pytest.mark.parametrize("kind", [RestrictedUnitary, FullUnitary])
def test_learns_through_blank_steps(kind):
    rnn, head = UnitaryRNN(kind(16), 1, 16), torch.nn.Linear(32, 1)
    parameters = [p for p in (*rnn.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, 1e-2)
    input = torch.cat([torch.zeros(32, 10, 1), torch.randn(32, 1, 1), torch.zeros(32, 10, 1)], dim=1)
    losses = []
    for _ in range(60):
        loss = (head(rnn(input)[1][0]) - input[:, 10]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
