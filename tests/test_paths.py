"""Paths: every derived quantity against automatic differentiation, Monte Carlo or integration."""

import math

import pytest
import torch
from exact import SinePath, z_score
from path_cases import (
    CASES,
    F64,
    assert_close,
    derivative,
    draw,
    every_path,
    every_shape,
    log_normal,
    normal,
    times,
)

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import expand_like
from ebm_app.paths import PATHS, GaussianPath, LinearVPPath, SchrodingerBridgePath, VPPath


def test_cases_cover_every_path():
    assert set(PATHS.values()) <= {type(path) for path in CASES.values()}


@every_shape
@every_path
def test_time_score_is_the_time_derivative_of_the_log_density(path, shape):
    t = times()
    sample = draw(path, shape, t)
    rate = path.time_score_variance(t).sqrt()
    _, components = torch.func.jvp(
        lambda s: log_normal(path, sample, s, sample.xt), (t,), (torch.ones_like(t),)
    )
    scale = expand_like(rate, sample.xt)
    assert_close(path.conditional_components(sample) / scale, components / scale)
    total = derivative(lambda s: log_normal(path, sample, s, sample.xt), t)
    assert_close(path.conditional_time_score(sample) / rate, total / rate)
    assert path.conditional_time_score(sample).shape == t.shape


@every_shape
@every_path
def test_conditional_score_is_the_gradient_of_the_log_density(path, shape):
    sample = draw(path, shape, times())
    gradient = derivative(lambda x: log_normal(path, sample, sample.t, x), sample.xt)
    assert_close(path.conditional_score(sample), gradient)


@every_path
def test_overrides_equal_the_defaults_which_equal_reverse_mode(path):
    t = times(50)
    for name, function in {"alpha_dt": path.alpha, "variance_dt": path.variance}.items():
        default = getattr(GaussianPath, name)(path, t)
        assert_close(getattr(path, name)(t), default)
        expected = derivative(lambda s, f=function: f(s) + 0 * s, t)
        assert_close(default, expected)
    for c in (None, 0.2, 1.0, 3.7):
        default = GaussianPath.time_score_variance(path, t, c)
        assert_close(path.time_score_variance(t, c) / default, torch.ones_like(t))
    assert_close(path.time_score_variance(t), path.time_score_variance(t, path.c))


@every_shape
def test_endpoints(shape):
    zero, one = torch.zeros(shape[0], dtype=F64), torch.ones(shape[0], dtype=F64)
    x0, x1, noise = (normal(shape, seed) for seed in range(3))
    for dtype in (torch.float32, F64):
        a, b = x0.to(dtype), x1.to(dtype)
        for path in (LinearVPPath(), VPPath()):
            assert torch.equal(path.sample(a, b, one).xt, b)
            assert path.sample(a, b, times()).xt.dtype == dtype
        assert torch.equal(LinearVPPath().sample(a, b, zero).xt, a)
    for sigma in (0, 0.5, 2):
        path = SchrodingerBridgePath(sigma)
        assert torch.equal(path.sample(x0, x1, zero, noise).xt, x0)
        assert_close(path.sample(x0, x1, one, noise).xt, x1, 1e-15)


def test_bridge_of_equal_variances_preserves_them():
    """sigma = sqrt(2 var) (paper, appendix B.2), by Monte Carlo; without noise, a line."""
    t = torch.full((40_000,), 0.3, dtype=F64)
    x0, x1, noise = (normal((40_000, 3), seed) for seed in range(3))
    path = SchrodingerBridgePath(math.sqrt(2 * 1.7), c=2 * 1.7)
    sample = path.sample(math.sqrt(1.7) * x0, math.sqrt(1.7) * x1, t, noise)
    assert z_score(sample.xt.square(), 1.7) < 4
    line = SchrodingerBridgePath(0).sample(x0, x1, t, noise).xt
    assert_close(line, torch.lerp(x0, x1, 0.3), 1e-14)


def test_intervals():
    assert LinearVPPath().interval(1e-3) == VPPath().interval(1e-3) == (0.0, 0.999)
    assert SchrodingerBridgePath().interval(1e-3) == (1e-3, 0.999)


@every_path
def test_stein_head_has_a_target_of_unit_second_moment(path):
    shape = (10_000, 2, 2, 2)
    for k, time in enumerate((0.02, 0.4, 0.95)):
        t = torch.full(shape[:1], time, dtype=F64)
        sample = draw(path, shape, t, seed=10 * k)
        skip, gain = (expand_like(f(t), sample.xt) for f in (path.score_skip, path.score_gain))
        target = (path.conditional_score(sample) - skip * sample.xt) / gain
        assert z_score(target.square(), 1) < 4


@every_path
def test_second_derivatives_in_time(path):
    t = torch.tensor([0.2, 0.7], dtype=F64, requires_grad=True)
    sample = draw(path, (2, 2), t.detach())

    def everything(s):
        x = path.complete(sample.x0, sample.x1, s, sample.eps).xt
        moved = sample._replace(t=s, xt=x)
        scalars = (path.clock(s), path.time_score_variance(s).log(), path.score_gain(s))
        return (*scalars, x, path.conditional_components(moved), path.conditional_score(moved))

    assert torch.autograd.gradcheck(everything, (t,), fast_mode=True)
    assert torch.autograd.gradgradcheck(everything, (t,), fast_mode=True)


@pytest.mark.parametrize(
    "build",
    [
        *(lambda c=c: LinearVPPath(c=c) for c in (0, -1.0, math.inf, math.nan)),
        lambda: SinePath(c=0),
        lambda: VPPath(beta_min=0),
        lambda: VPPath(beta_min=2, beta_max=1),
        lambda: VPPath(beta_max=math.inf),
        lambda: VPPath(beta_min=math.nan),
        *(lambda s=s: SchrodingerBridgePath(sigma=s) for s in (-0.1, math.inf, math.nan)),
        lambda: SchrodingerBridgePath(c=0),
        lambda: SchrodingerBridgePath(0).clock(times()),
    ],
)
def test_bad_arguments_are_a_users_mistake(build):
    with pytest.raises(UserError):
        build()
