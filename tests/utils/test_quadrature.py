"""Quadrature: polynomial exactness, error estimates, and an adaptive solver that always ends."""

import math

import pytest
import torch
from exact import F64

from ebm_app.utils import quadrature
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.quadrature import gauss_legendre, integrate


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
