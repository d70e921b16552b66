"""log Z from weights of a known distribution: log w ~ N(m, s^2) forward, hence N(m + s^2, s^2)
in reverse, and log Z = m + s^2 / 2."""

import math

import pytest
import torch
from exact import F64, normal

from ebm_app.annealing.estimates import bennett, from_forward, from_reverse

MEAN = -3.0


def forward(num, spread, seed=0):
    return MEAN + spread * normal((num,), seed)


def reverse(num, spread, seed=1):
    return MEAN + spread**2 + spread * normal((num,), seed)


def weighted(num, spread, tilt, seed):
    """Return reverse log-weights drawn from N(m + tilt, s^2) instead of N(m + s^2, s^2), and the
    log importance weights of their starting points."""
    u = MEAN + tilt + spread * normal((num,), seed)
    return u, ((u - MEAN - tilt) ** 2 - (u - MEAN - spread**2) ** 2) / (2 * spread**2)


def truth(spread):
    return MEAN + spread**2 / 2


ESTIMATES = {
    "forward": lambda num, spread, seed: from_forward(forward(num, spread, seed)),
    "reverse": lambda num, spread, seed: from_reverse(reverse(num, spread, seed)),
    "bennett": lambda num, spread, seed: bennett(
        forward(num, spread, 2 * seed), reverse(num, spread, 2 * seed + 1)
    ),
    "reverse, weighted": lambda num, spread, seed: from_reverse(*weighted(num, spread, 0.2, seed)),
    "bennett, weighted": lambda num, spread, seed: bennett(
        forward(num, spread, seed + 500), *weighted(num, spread, 0.2, seed)
    ),
}


@pytest.mark.parametrize("spread", [0.1, 1.2])
@pytest.mark.parametrize("name", ["forward", "reverse", "bennett"])
def test_estimates_match_log_normal_weights(name, spread):
    num = 150 if name == "bennett" else 4000
    estimate = ESTIMATES[name](num, spread, 3)
    assert abs(estimate.log_z - truth(spread)) < 3.5 * estimate.stderr
    assert 0 < estimate.stderr < 0.15 and estimate.num == num and not estimate.warnings
    at = MEAN + spread**2 * (name == "reverse")
    assert abs(estimate.mean_log_weight - at) < 5 * spread / math.sqrt(num)
    assert estimate.sd_log_weight == pytest.approx(spread, rel=0.2)


COVERED = [("bennett", 40), ("reverse, weighted", 200), ("bennett, weighted", 30)]


@pytest.mark.parametrize("name, num", COVERED)
def test_stderr_covers_log_z(name, num):
    """Two standard errors cover log Z, and their mean square is that of the error."""
    estimates = [ESTIMATES[name](num, 0.8, 10 + seed) for seed in range(60)]
    errors = torch.tensor([f.log_z - truth(0.8) for f in estimates], dtype=F64)
    stated = torch.tensor([f.stderr for f in estimates], dtype=F64)
    assert 0.88 <= (errors.abs() < 2 * stated).double().mean() <= 1
    assert 0.75 < (errors.square().mean() / stated.square().mean()).sqrt() < 1.3


@pytest.mark.parametrize("shift", [-5000.0, 5000.0])
def test_equal_weights_are_exact_at_any_scale(shift):
    u = torch.full((20,), 1.5 + shift, dtype=F64)
    for estimate in (from_forward(u), from_reverse(u), bennett(u, u[:7])):
        assert estimate.log_z == pytest.approx(1.5 + shift, abs=1e-9)
        assert estimate.stderr < 1e-9 and not estimate.warnings
    assert from_forward(u).ess == pytest.approx(20)


def test_unreliable_weights_warn():
    for call, weights in ((from_forward, forward), (from_reverse, reverse)):
        assert call(weights(500, 4.0)).warnings == ()
        assert "too wide" in call(weights(500, 10.0)).warnings[0]
    assert "hardly overlap" in bennett(forward(100, 8.0), reverse(100, 8.0)).warnings[0]
    assert "7 chains" in from_forward(forward(7, 0.1)).warnings[0]
    assert not from_forward(forward(8, 0.1)).warnings
    u = torch.zeros(1000, dtype=F64)
    u[0] = 6.5  # one dominant weight enters the standard error
    assert from_forward(u).log_z > 0.5 and from_forward(u).stderr > 0.9 * from_forward(u).log_z
