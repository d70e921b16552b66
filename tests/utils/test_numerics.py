"""Quadrature, the small training loop, and what is safe in threads."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from exact import F64

from ebm_app.utils import quadrature
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.fitting import fit, select_average
from ebm_app.utils.quadrature import gauss_legendre, integrate
from ebm_app.utils.random import initial_weights
from ebm_app.utils.tensors import derivative


def monomial(degree):
    """Integral of x^degree over [-1, 1]."""
    return 0.0 if degree % 2 else 2 / (degree + 1)


@pytest.mark.parametrize("num", [3, 4, 5, 8, 33, 64])
def test_rules_are_exact_up_to_their_degrees(num):
    """2n - 1 for the rule, and one less than its number of nodes for the coarse one."""
    rule = gauss_legendre(num)
    errors = [
        abs((rule.weights * rule.nodes**degree).sum().item() - monomial(degree))
        for degree in range(2 * num + 1)
    ]
    assert max(errors[:-1]) < 1e-13
    if num < 16:  # for more nodes, the error at degree 2n is below rounding
        assert errors[-1] > 1e-12
    used = int((rule.coarse_weights != 0).sum())
    assert num // 2 <= used <= num // 2 + 1
    for degree in range(used):
        value = (rule.coarse_weights * rule.nodes**degree).sum().item()
        assert value == pytest.approx(monomial(degree), abs=1e-13)
    assert (rule.weights > 0).all() and (rule.coarse_weights >= 0).all()


SCALES = torch.tensor([0.3, 1.0, 2.0], dtype=F64)
#: Rate of a batch, its antiderivative, start and end
KNOWN = {
    "backwards": (lambda t: (SCALES * t).exp(), lambda t: (SCALES * t).exp() / SCALES, 1.0, -0.5),
    "steep": (lambda t: SCALES / (1 - t), lambda t: -SCALES * math.log1p(-t), 0.0, 1 - 1e-5),
    "end": (lambda t: SCALES * (2 - t) ** 1.5, lambda t: -SCALES * (2 - t) ** 2.5 / 2.5, 0.0, 2.0),
    "empty": (lambda t: SCALES / (t - 0.3), lambda t: 0 * SCALES, 0.3, 0.3),
}


@pytest.mark.parametrize("name", KNOWN)
def test_integral_matches_the_antiderivative(name):
    (rate, antiderivative, start, end), times = KNOWN[name], []

    def recorded(t):
        times.append(t.item())
        return rate(t).float() if name == "steep" else rate(t)  # of any dtype

    result = integrate(recorded, start, end, SCALES)
    expected = torch.as_tensor(antiderivative(end) - antiderivative(start))
    assert result.value.dtype == F64 and result.value.shape == SCALES.shape
    assert ((result.value - expected).abs() < 1e-5 * expected.abs().clamp_min(1)).all()
    assert result.nfe == len(times)
    assert all(min(start, end) <= t <= max(start, end) for t in times)


FAILURES = {
    "infinite at the start": (lambda t: SCALES / t, "not finite at t = 0.0"),
    "singular inside": (lambda t: SCALES / (t - 1 / math.pi).abs(), "Use fixed nodes"),
    "noise": (lambda t: SCALES * torch.frac(1e9 * t.sin()), "600 evaluations"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_solver_fails_with_an_error_and_ends(name, monkeypatch):
    monkeypatch.setattr(quadrature, "MAX_EVALUATIONS", 600)
    rate, message = FAILURES[name]
    with pytest.raises(NumericalError, match=message):
        integrate(rate, 0.0, 1.0, SCALES)


def test_non_finite_loss_raises():
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(NumericalError, match="step 3 is nan"):
        list(fit([weight], lambda step: (weight * (step < 2) / (step < 2)).sum(), 5, 0.1))


def test_best_average_has_the_smallest_validation_loss():
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    steps, seen = [], []

    def train(num_steps):
        for step in range(1, num_steps + 1):
            steps.append(step)
            module.weight.data += 1
            yield step

    def validate(average):
        seen.append(average.weight.item())
        return abs(seen[-1] - 2)

    best, last = select_average(module, train(100), 100, validate, 0.0, 2, patience=6)
    # without decay, the average is the current weight
    assert seen == [0, 2, 4, 6, 8] and steps[-1] == 8
    assert best.weight.item() == 2 and last.weight.item() == 8
    best, last = select_average(module, train(1), 1, validate, 0.5, 2)
    # the last step is validated too; the decay of step 1 is 1/11
    assert best.weight.item() == 8 and last.weight.item() == pytest.approx(8 + 10 / 11)


def test_derivatives_and_initial_weights_are_thread_safe():
    t, seeds = torch.linspace(0.1, 0.9, 50, dtype=F64), [0, 1] * 200

    def derivatives(_):
        return derivative(lambda time: time.square().sin(), t)

    def weights(seed):
        with initial_weights(seed):
            return torch.nn.Linear(8, 8).weight.detach()

    before = torch.get_rng_state()
    alone = [weights(0), weights(1)]
    with ThreadPoolExecutor(4) as pool:
        values, drawn = list(pool.map(derivatives, seeds)), list(pool.map(weights, seeds))
    for seed, value, weight in zip(seeds, values, drawn, strict=True):
        torch.testing.assert_close(value, 2 * t * t.square().cos(), rtol=1e-14, atol=1e-14)
        assert torch.equal(weight, alone[seed])
    assert not torch.equal(*alone) and torch.equal(torch.get_rng_state(), before)
