"""Paths: derived quantities against automatic differentiation, Monte Carlo, integration or the
closed form of a mixture."""

import math

import pytest
import torch
from exact import F64, SineDiffusion, SinePath, normal, uniform, z_score
from torch.distributions import Normal

from ebm_app.paths import (
    GaussianPath,
    LinearVPPath,
    OneSidedPath,
    SchrodingerBridgePath,
    VPPath,
)
from ebm_app.utils.tensors import derivative, expand_like

CASES = {
    "linear_vp": LinearVPPath(),
    "linear_vp c=0.3": LinearVPPath(c=0.3),
    "vp c=2.5": VPPath(c=2.5),
    "bridge sigma=0.5": SchrodingerBridgePath(0.5),
    "bridge sigma=sqrt2 c=7": SchrodingerBridgePath(math.sqrt(2), c=7),
    "user": SinePath(c=1.5),
    "user one-sided": SineDiffusion(c=0.6),
}
ONE_SIDED = {name: path for name, path in CASES.items() if isinstance(path, OneSidedPath)}
every_path = pytest.mark.parametrize("path", CASES.values(), ids=CASES)
every_one_sided_path = pytest.mark.parametrize("path", ONE_SIDED.values(), ids=ONE_SIDED)


def times(num=7):
    return torch.linspace(0.03, 0.97, num, dtype=F64)


def draw(path, shape, t, seed=0):
    """Draw a sample whose delta is exponential, with second moment c in every dimension."""
    x0 = normal(shape, seed)
    delta = -math.sqrt(path.c / 2) * (1 - uniform(shape, seed + 1)).log()
    if isinstance(path, SchrodingerBridgePath):
        return path.sample(x0, x0 + delta, t, normal(shape, seed + 2))
    return path.sample(x0, delta, t, x0)


def log_normal(path, sample, t, x):
    """Return log N(x_i; mean_t(z), v_t) for every dimension."""
    spread = expand_like(path.variance(t).sqrt(), x)
    return Normal(path.mean(sample._replace(t=t)), spread).log_prob(x)


def assert_close(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


every_shape = pytest.mark.parametrize("shape", [(7, 5), (7, 2, 3, 4)], ids=["D", "CHW"])


@every_path
def test_conditional_scores_are_derivatives(path):
    t = times()
    sample = draw(path, (7, 2, 3, 4), t)
    scale = expand_like(path.time_score_variance(t).sqrt(), sample.xt)
    _, components = torch.func.jvp(
        lambda s: log_normal(path, sample, s, sample.xt), (t,), (torch.ones_like(t),)
    )
    assert_close(path.conditional_components(sample) / scale, components / scale)
    gradient = derivative(lambda x: log_normal(path, sample, sample.t, x), sample.xt)
    assert_close(path.conditional_score(sample), gradient)


@every_path
def test_closed_forms_equal_the_derived_defaults(path):
    t = times(50)
    for name in ("alpha_dt", "variance_dt"):
        assert_close(getattr(path, name)(t), getattr(GaussianPath, name)(path, t))
    t = torch.tensor([1e-6, 1e-3, 0.2, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=F64)
    default = GaussianPath.arc_length(path, t)
    assert_close(path.arc_length(t).diff(), default.diff(), 1e-8)
    assert default[3] == 0


@every_shape
def test_samples_end_at_their_endpoints(shape):
    zero, one = torch.zeros(shape[0], dtype=F64), torch.ones(shape[0], dtype=F64)
    x0, x1, noise = (normal(shape, seed) for seed in range(3))
    for path in (LinearVPPath(), VPPath()):
        assert torch.equal(path.sample(x0, x1, one).xt, x1)
        assert path.sample(x0.float(), x1.float(), times()).xt.dtype == torch.float32
        assert path.interval(1e-3) == (0.0, 0.999)
    assert torch.equal(LinearVPPath().sample(x0, x1, zero).xt, x0)
    for sigma in (0, 0.5):
        path = SchrodingerBridgePath(sigma)
        assert torch.equal(path.sample(x0, x1, zero, noise).xt, x0)
        assert_close(path.sample(x0, x1, one, noise).xt, x1, 1e-15)
        assert path.interval(1e-3) == (1e-3, 0.999)


@every_path
def test_targets_have_their_stated_moments(path):
    """The time score has mean 0 and its variance; the target of a Stein head has second moment
    1."""
    shape = (10_000, 2, 2, 2)
    for k, time in enumerate((0.05, 0.9)):
        t = torch.full(shape[:1], time, dtype=F64)
        sample = draw(path, shape, t, seed=10 * k)
        components = path.conditional_components(sample)
        assert z_score(components, 0) < 4
        assert z_score(components.square(), path.time_score_variance(t[0])) < 4
        skip, gain = (expand_like(f(t), sample.xt) for f in (path.score_skip, path.score_gain))
        target = (path.conditional_score(sample) - skip * sample.xt) / gain
        assert z_score(target.square(), 1) < 4


@every_path
def test_arc_length_integrates_its_rate_and_inverts(path):
    t = times(20)
    rate = path.time_score_variance(t).sqrt()
    assert_close(derivative(path.arc_length, t) / rate, torch.ones_like(t), 1e-9)
    t = torch.tensor([1e-7, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-7], dtype=F64)
    inverse = path.arc_length_inverse(path.arc_length(t))
    assert_close(inverse, t, 1e-12)
    assert ((inverse - t) / (1 - t)).abs().max() < 5e-9  # 1 - t itself is known to 1e-9


def mixture(path, t, x):
    """Return log q_t(x_i) per dimension, where x1 is -1 with probability 0.4 and 2 with 0.6, and
    E[x1 | x_t] by Bayes' formula."""
    spread = expand_like(path.variance(t).sqrt(), x)
    logs = torch.stack(
        [
            math.log(p) + Normal(value * expand_like(path.alpha(t), x), spread).log_prob(x)
            for value, p in ((-1.0, 0.4), (2.0, 0.6))
        ]
    )
    posterior = logs.softmax(0)
    return logs.logsumexp(0), 2 * posterior[1] - posterior[0]


@every_shape
@every_one_sided_path
def test_velocity_and_denoiser_match_a_mixture(path, shape):
    """The continuity equation d/dt log q + u' + u (log q)' = 0 holds in every dimension, Tweedie's
    formula is the posterior mean, and the skip is the score of N(0, c)."""
    t, x = times(), normal(shape, 5)

    def velocity(y):
        score = torch.func.grad(lambda z: mixture(path, t, z)[0].sum())(y)
        return path.velocity(y, score, t)

    _, rate = torch.func.jvp(lambda s: mixture(path, s, x)[0], (t,), (torch.ones_like(t),))
    u, divergence = torch.func.jvp(velocity, (x,), (torch.ones_like(x),))
    score = derivative(lambda y: mixture(path, t, y)[0], x)
    assert_close(path.velocity(x[2:3], score[2:3], t[2]), u[2:3], 1e-14)
    scale = rate.abs() + divergence.abs() + (u * score).abs() + 1e-3
    assert ((rate + divergence + u * score) / scale).abs().max() < 1e-10
    assert_close(path.denoise(x, score, t), mixture(path, t, x)[1], 1e-9)
    deviation = path.marginal_variance(t).sqrt()
    gaussian = derivative(lambda y: Normal(0.0, expand_like(deviation, y)).log_prob(y), x)
    assert_close(expand_like(path.score_skip(t), x) * x, gaussian)


@every_one_sided_path
def test_time_of_ratio_inverts_the_noise_to_signal_ratio(path):
    for ratio in (1e-3, 0.4, 20.0):
        t = torch.tensor(path.time_of_ratio(ratio), dtype=F64)
        assert (path.variance(t).sqrt() / path.alpha(t)).item() == pytest.approx(ratio, rel=1e-9)


@every_one_sided_path
def test_diffused_points_have_the_moments_of_the_path(path):
    """The mean and the variance of x_r given x_1, from those of x_t."""
    t = torch.tensor(0.99, dtype=F64)
    mean, noise = torch.full((20_000,), 2.0, dtype=F64) * path.alpha(t), normal((20_000,))
    x = mean + path.variance(t).sqrt() * normal((20_000,), 1)
    diffused, r = path.diffuse(x, t.item(), 0.3, noise)
    r = torch.tensor(r, dtype=F64)
    assert abs(z_score(diffused - 2 * path.alpha(r))) < 4
    assert diffused.var().item() == pytest.approx(path.variance(r).item(), rel=0.04)
    assert r < t
