"""The variance of the time score under a path, and the clock that it runs."""

import math

import pytest
import torch
from exact import SinePath, z_score
from path_cases import F64, assert_close, derivative, draw, every_path, times
from scipy.integrate import quad

from ebm_app.paths import GaussianPath
from ebm_app.paths.base import arc_length


@every_path
def test_variance_of_the_time_score(path):
    shape = (10_000, 2, 2, 2)
    for k, time in enumerate((0.1, 0.5, 0.8)):
        t = torch.full(shape[:1], time, dtype=F64)
        components = path.conditional_components(draw(path, shape, t, seed=10 * k))
        assert z_score(components, 0) < 4
        assert z_score(components.square(), path.time_score_variance(t[0])) < 4


@pytest.mark.parametrize("k", [0.3, 1.0, 2.0, 3.0, 9.0])
def test_arc_length_is_its_integral(k):
    def integrand(r):
        return math.sqrt(k + (2 - k) * r * r) / (1 - r * r)

    for s in (-0.99, -0.4, 0.0, 0.2, 0.9, 0.999):
        r = torch.tensor(s, dtype=F64)
        value = arc_length(r, (1 - r) * (1 + r), k).item()
        assert value == pytest.approx(quad(integrand, 0, s, epsabs=1e-12)[0], rel=1e-9, abs=1e-12)


@every_path
def test_clock_integrates_the_standard_deviation(path):
    t = times(20)
    rate = path.time_score_variance(t).sqrt()
    assert_close(derivative(path.clock, t) / rate, torch.ones_like(t), 1e-9)

    def speed(s):
        return path.time_score_variance(torch.tensor(s, dtype=F64)).sqrt().item()

    expected = quad(speed, 0.2, 0.9, epsabs=1e-12)[0]
    ends = path.clock(torch.tensor([0.2, 0.9], dtype=F64))
    assert (ends[1] - ends[0]).item() == pytest.approx(expected, rel=1e-9)


@every_path
def test_closed_form_clock_differs_as_the_default_one(path):
    t = torch.tensor([1e-6, 1e-3, 0.2, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=F64)
    default = GaussianPath.clock(path, t)
    assert_close(path.clock(t).diff(), default.diff(), 1e-8)
    assert default[3] == 0


def test_default_clock_of_a_variance_preserving_path():
    """Its arc length depends on alpha alone, hence is known; at t = 0 it is finite."""
    path = SinePath(c=1.5)
    t = torch.tensor([0.0, 1e-9, 1e-4, 0.3, 0.9, 1 - 1e-4], dtype=F64)
    expected = arc_length(path.alpha(t), path.variance(t), path.c)
    clock = path.clock(t)
    assert_close(clock - clock[0], expected, 1e-9)


@every_path
def test_clock_inverse(path):
    t = torch.tensor([1e-7, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-7], dtype=F64)
    inverse = path.clock_inverse(path.clock(t))
    assert_close(inverse, t, 1e-12)
    assert ((inverse - t) / (1 - t)).abs().max() < 5e-9  # 1 - t itself is known to 1e-9
