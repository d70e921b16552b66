"""Proposition 5: its matrices against derivatives and closed forms, and e against many fits."""

import math

import numpy as np
import pytest
import torch
from exact import F64, generator, z_score
from exact_kl import gaussian_kl
from scipy.integrate import quad
from torch.func import grad, hessian, vmap

from ebm_app.models.time_score import ModelOutput
from ebm_app.objectives.regression import CTSM, CTSMv
from ebm_app.objectives.weighting import TimeScore, UniformWeighting
from ebm_app.paths import LinearVPPath, PathSample, VPPath
from studies.proposition5 import TARGETS, GaussianFamily, Regression, ScoreErrors, fit
from studies.theorem4 import kl_bound, lipschitz_constant

THETA = torch.tensor([1.0, -0.5, math.log(0.8)], dtype=F64)


def objective_and_model(name, family, theta):
    """The objective of the package and the family's member as a model."""
    objective = {"ctsm": CTSM, "ctsm_v": CTSMv}[name](TimeScore())
    return objective, lambda x, t: ModelOutput(family.components(theta, x, t), None)


def loss(name, family, theta, sample):
    """Losses (B,) by the package's objective, for CTSM-v the sum over components."""
    objective, model = objective_and_model(name, family, theta)
    factor = 1 if name == "ctsm" else sample.x1.shape[1]
    return factor * objective(model, family.path, sample, torch.ones_like(sample.t))


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear_vp", "vp"])
@pytest.mark.parametrize("name", TARGETS)
def test_the_matrices_are_moments_of_derivatives_of_the_objective(name, path):
    """G and H as they are defined, whose Hessian has the term that vanishes."""
    family = GaussianFamily(path, 0.05)
    sample, weight = family.draw_rule(THETA, num_times=4)
    regression = Regression(name, family, TimeScore())
    square = regression.residuals(THETA, sample).square().sum(1)
    assert torch.allclose(square, loss(name, family, THETA, sample), rtol=1e-12)

    def one(theta, *parts):
        return loss(name, family, theta, PathSample(*(part[None] for part in parts)))[0]

    gradients = vmap(grad(one), (None, 0, 0, 0, 0, 0))(THETA, *sample)
    hessians = vmap(hessian(one), (None, 0, 0, 0, 0, 0))(THETA, *sample)
    found = regression.asymptotics(THETA, sample, weight)
    assert (weight @ gradients).abs().max() < 1e-10
    expected = torch.einsum("q,qp,qr->pr", weight, gradients, gradients)
    assert torch.allclose(found.g, expected, rtol=1e-9)
    assert torch.allclose(found.h, torch.einsum("q,qpr->pr", weight, hessians), rtol=1e-9)
    assert torch.allclose(found.h @ found.covariance @ found.h, found.g, rtol=1e-9, atol=1e-9)


def test_the_family_is_the_time_score_of_its_data():
    for path in (LinearVPPath(), VPPath()):
        family, t = GaussianFamily(path, 0.05), torch.tensor(0.6, dtype=F64)
        x = family.data(THETA).draw(20, generator())
        total = family.components(THETA, x, t.expand(20)).sum(1)
        assert torch.allclose(total, family.data(THETA).time_score(x, t), rtol=1e-10)


class MeanOnly(GaussianFamily):
    """theta = mu alone, of a known standard deviation ``std``."""

    std = 1.0

    def mean_and_std(self, theta):
        return theta, torch.tensor(self.std, dtype=F64)


class Point(MeanOnly):
    """Data that are a point: the conditional score is the marginal one."""

    std = 0.0


@pytest.mark.parametrize(
    "weighting", [TimeScore(), UniformWeighting()], ids=["time_score", "uniform"]
)
def test_a_single_unknown_mean_is_known_by_hand(weighting):
    """Data N(mu, 1), with y = x - t mu ~ N(0, 1): ds/dmu = y - t mu, and given x the conditional
    score is (y - t mu) z / sqrt(v) - (t / v) (z^2 - 1) plus its mean, z ~ N(0, 1)."""
    mu, eps, num_steps = 0.7, 0.05, 4

    def scale(t):
        v = 1 - t**2
        return v**2 / (1 + t**2) if isinstance(weighting, TimeScore) else 1.0

    def h(t):
        return 2 * scale(t) * (1 + (t * mu) ** 2)

    def g(t):
        a, v = t * mu, 1 - t**2
        fourth, second = 3 + 6 * a**2 + a**4, 1 + a**2
        return 4 * scale(t) ** 2 * (fourth / v + 2 * t**2 * second / v**2)

    expected = [quad(part, 0, 1 - eps)[0] / (1 - eps) for part in (g, h)]
    family, theta = MeanOnly(LinearVPPath(), eps), torch.tensor([mu], dtype=F64)
    for name in TARGETS:  # in one dimension they are the same
        found = Regression(name, family, weighting).asymptotics(theta, *family.draw_rule(theta))
        assert [found.g.item(), found.h.item()] == pytest.approx(expected, rel=1e-9)
        t = np.arange(1, num_steps + 1) / num_steps
        moment = (1 + mu**2 * (1 - 2 * t) ** 2).mean()
        e = ScoreErrors(family, theta, num_steps).expected_square(found.covariance).item()
        assert e == pytest.approx(expected[0] / expected[1] ** 2 * moment, rel=1e-9)


@pytest.mark.parametrize("name", TARGETS)
def test_there_is_no_error_where_the_conditional_score_is_the_marginal_one(name):
    family, theta = Point(LinearVPPath(), 0.05), torch.tensor([0.7, -0.2], dtype=F64)
    found = Regression(name, family, TimeScore()).asymptotics(theta, *family.draw_rule(theta))
    assert found.g.abs().max() < 1e-20 < found.h.diagonal().min()


def test_nodes_of_the_path_are_those_of_its_draws():
    family = GaussianFamily(LinearVPPath(), 0.05)
    nodes, weight = family.draw_rule(THETA)
    draws = family.draw(THETA, 20_000, generator())
    assert weight.sum().item() == pytest.approx(1)
    for name in TARGETS:
        regression = Regression(name, family, TimeScore())
        at_nodes, at_draws = (
            regression.residuals(THETA, sample).square().sum(1) for sample in (nodes, draws)
        )
        assert z_score(at_draws, weight @ at_nodes) < 4
    fine, coarse = (family.draw_rule(THETA, num) for num in (128, 64))
    for weighting in (TimeScore(), UniformWeighting()):
        regression = Regression("ctsm", family, weighting)
        g, g_coarse = (regression.asymptotics(THETA, *rule).g for rule in (fine, coarse))
        assert torch.allclose(g, g_coarse, rtol=1e-7)


def test_e_is_the_squared_error_of_the_sum_to_second_order():
    """For a step of theta, E[(s_theta+step - s)^2] = trace(step step^T E[grad s grad s^T])."""
    errors = ScoreErrors(GaussianFamily(LinearVPPath(), 0.05), THETA, 16)
    for direction in torch.eye(3, dtype=F64) + 0.3:
        step = 1e-6 * direction
        square, kl = errors.measured((THETA + step)[None])
        assert square.item() == pytest.approx(
            errors.expected_square(step.outer(step)).item(), rel=1e-4
        )
        assert kl.item() == pytest.approx(errors.exact_kl.item(), rel=1e-3)


def data_sets(family, num, num_examples, seed=0):
    sample = family.draw(THETA, num * num_examples, generator(seed))
    return PathSample(*(part.unflatten(0, (num, num_examples)) for part in sample))


@pytest.mark.parametrize("name", TARGETS)
def test_a_fit_is_stationary_for_the_objective_and_lowers_its_loss(name):
    family = GaussianFamily(LinearVPPath(), 0.05)
    samples = data_sets(family, 5, 500)
    regression = Regression(name, family, TimeScore())
    fits = fit(regression, THETA, samples)
    assert fits.converged.all()
    for theta, *parts in zip(fits.theta, *samples, strict=True):
        sample = PathSample(*parts)
        mean = lambda theta, s=sample: loss(name, family, theta, s).mean()  # noqa: E731
        assert grad(mean)(theta).abs().max() < 1e-5 < grad(mean)(THETA).abs().max()
        assert mean(theta) < mean(THETA)
    again = fit(regression, THETA + torch.tensor([-2.0, 2.0, 1.0]), samples)
    assert torch.allclose(again.theta, fits.theta, atol=1e-5)
    assert not fit(regression, THETA, samples, max_steps=1).converged.any()


@pytest.mark.parametrize("name", [pytest.param("ctsm", marks=pytest.mark.slow), "ctsm_v"])
def test_the_squared_error_of_fits_is_e_over_n_and_their_kl_is_bounded(name):
    num, num_examples, num_steps = 60, 2_500, 16
    family = GaussianFamily(LinearVPPath(), 0.05)
    regression = Regression(name, family, TimeScore())
    fits = [
        fit(regression, THETA, data_sets(family, 10, num_examples, seed)).theta
        for seed in range(num // 10)
    ]
    errors = ScoreErrors(family, THETA, num_steps)
    e = errors.expected_square(regression.asymptotics(THETA, *family.draw_rule(THETA)).covariance)
    square, kl = errors.measured(torch.cat(fits))
    assert z_score(num_examples * square, e) < 4
    made = family.data(THETA)
    x = made.draw(2000, generator(1))
    exact = kl_bound(made, x, lipschitz_constant(made, x), num_steps)
    assert abs(exact["kl"] - errors.exact_kl) < 4 * exact["kl_stderr"]
    assert errors.exact_kl.item() == pytest.approx(
        gaussian_kl(THETA[:2].numpy(), 0.8, num_steps), rel=1e-9
    )
    assert kl.square().mean() < exact["discretisation"] + 2 * e / num_examples
    # the error of the mean score is what fits do to KL: (KL_hat - KL)^2 <= the squared error
    assert ((kl - errors.exact_kl).square() <= square).all()
