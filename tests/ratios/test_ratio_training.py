"""Pairs of densities, log-ratio estimators and their training, against closed forms."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal
from torch import distributions

from ebm_app.objectives.regression import CTSM
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.densities import (
    DensityPair,
    GaussianMixture,
    gaussian_pair,
    information_pair,
    mixture_pair,
    standard_normal,
)
from ebm_app.ratios.error_bound import discretisation_term
from ebm_app.ratios.methods import GaussianNet, TimeScoreRatio, TimeScores
from ebm_app.ratios.problems import (
    TOY_PROBLEMS,
    EvaluationPoints,
    Problem,
    train,
    train_and_test,
)
from ebm_app.utils.errors import NumericalError


def of_torch(means, std):
    """A mixture of N(mean, std^2 I) as torch.distributions knows it."""
    means = torch.tensor(means, dtype=F64)
    modes = distributions.Independent(distributions.Normal(means, std), 1)
    weights = torch.ones(len(means), dtype=F64)
    return distributions.MixtureSameFamily(distributions.Categorical(weights), modes)


MEANS, STDS = [[-1.0, 2.0, 0.0], [0.5, 1.0, 3.0]], torch.tensor([[0.5, 0.7, 1.0]], dtype=F64)
SIGMA = 2 / math.sqrt(5)  # of k = 1
MODES = [[2 - SIGMA / 2] * 2, [2 + SIGMA / 2] * 2]
RHO = math.sqrt(-math.expm1(-1))
COVARIANCE = torch.tensor([[1, RHO], [RHO, 1]], dtype=F64)
UNEVEN = DensityPair(standard_normal(3), GaussianMixture(MEANS, STDS))
DEPENDENT = distributions.MultivariateNormal(torch.zeros(2, dtype=F64), COVARIANCE)
OTHER_MODES = [[-x for x in mode] for mode in MODES]
#: pair, and both densities as the paper states them
CASES = {
    "gaussians": (gaussian_pair(5), of_torch([[0.0] * 5], 1.0), of_torch([[4.0] * 5], 1.0)),
    "mixtures": (mixture_pair(1.0, 2), of_torch(MODES, SIGMA), of_torch(OTHER_MODES, SIGMA)),
    "uneven": (UNEVEN, of_torch([[0.0] * 3], 1.0), of_torch(MEANS, STDS)),
    "information": (information_pair(2), of_torch([[0.0] * 2], 1.0), DEPENDENT),
}
every_pair = pytest.mark.parametrize("pair, p0, p1", CASES.values(), ids=CASES)


@every_pair
def test_log_densities_match_torch(pair, p0, p1):
    """At samples of either side, and at points far from both; float64 whatever the points."""
    parts = pair.p0.sample(50, generator(1)), pair.p1.sample(50, generator(2))
    x = torch.cat([*parts, 30 * normal((50, pair.dim)).float()])
    for ours, theirs in ((pair.p0, p0), (pair.p1, p1)):
        found = ours.log_density(x)
        assert found.dtype == F64 and found.shape == (150,)
        torch.testing.assert_close(found, theirs.log_prob(x.double()), rtol=1e-9, atol=1e-9)
    expected = p1.log_prob(x.double()) - p0.log_prob(x.double())
    torch.testing.assert_close(pair.log_ratio(x), expected, rtol=1e-9, atol=1e-8)


METHODS = {
    "ctsm_v": TimeScores(),
    "matrix": TimeScores(is_matrix=True),
}


def run(method, seed=0, lr=1e-2, iterations=6):
    pair = information_pair(4) if method == "matrix" else gaussian_pair(3, 1.5)
    points = EvaluationPoints(pair, 64, generator(5))
    problem = Problem(pair, METHODS, (), iterations, batch_size=16, eval_every=4)
    return points, train(problem, method, seed, lr, points)


def test_integral_of_exact_time_score_is_the_log_ratio():
    pair = gaussian_pair(5, 2.0)
    model = ExactModel(LinearVPPath(), 1e-5, torch.full((1, 5), 2.0, dtype=F64), (1.0,))
    x = normal((30, 5)) + 1.0
    found = TimeScoreRatio(model, CTSM()).log_ratio(x)
    assert found.shape == (30,) and found.dtype == F64
    # the model stops at 1 - 1e-5
    assert torch.allclose(found, pair.log_ratio(x), rtol=0, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_training_keeps_the_best_weights(method):
    points, steps = run(method)
    found = list(steps)
    assert [at.step for at in found] == [0, 4, 6]
    errors, last = [at.metrics["error"] for at in found], found[-1]
    assert last.best_error == min(errors)
    assert last.best_step == [0, 4, 6][errors.index(min(errors))]
    assert points.metrics(last.best.log_ratio(points.x))["error"] == pytest.approx(last.best_error)
    first, best = (list(at.best.parameters()) for at in (found[0], last))
    assert not last.best_step or not any(map(torch.equal, first, best))


def test_divergence_raises_and_keeps_the_first_weights():
    _, steps = run("ctsm_v", lr=1e30, iterations=8)
    with pytest.raises(NumericalError, match="smaller learning rate"):
        for at in steps:
            assert at.best_step == 0 and math.isfinite(at.best_error)


def with_covariance(sigma):
    net = GaussianNet(len(sigma)).double()
    with torch.no_grad():
        net.weight.copy_(sigma - torch.eye(len(sigma), dtype=F64))
    return net


def covariance(dim, seed=1):
    a = normal((dim, dim), seed)
    return torch.eye(dim, dtype=F64) * 0.5 + a @ a.T / dim


def test_gaussian_net_is_the_time_derivative():
    dim = 6
    sigma, eye = covariance(dim), torch.eye(dim, dtype=F64)
    net, x = with_covariance(sigma), normal((8, dim), 3)
    t = torch.linspace(0.05, 0.99, 8, dtype=F64).requires_grad_()
    p = torch.distributions.MultivariateNormal(
        torch.zeros(dim, dtype=F64), eye + t[:, None, None] ** 2 * (sigma - eye)
    )
    (rate,) = torch.autograd.grad(p.log_prob(x).sum(), t)
    assert torch.allclose(net(x, t.detach()).sum(1), rate, rtol=1e-9, atol=1e-10)
    one = torch.full((8,), 0.3, dtype=F64)
    shared = torch.tensor([0.3, 0.7], dtype=F64).repeat_interleave(4)
    assert torch.allclose(net(x, one)[:4], net(x, shared)[:4], rtol=1e-12)


def test_mutual_information_of_the_matrix():
    # the symmetric part of the weight counts
    net = with_covariance(torch.tensor([[1.0, 1.6], [0.0, 1.0]], dtype=F64))
    assert net.mutual_information() == pytest.approx(-0.5 * math.log(0.36))
    indefinite = with_covariance(torch.diag(torch.tensor([1.0, -1.0], dtype=F64)))
    assert math.isnan(indefinite.mutual_information())


def test_discretisation_term_matches_closed_form():
    """p_t = N(4t, I), so that the time score 4 sum_i (x_i - 4t) has the slope -16 D."""
    pair = gaussian_pair(5)
    found = discretisation_term(pair, LinearVPPath(), pair.p1.sample(20, generator()), 10)
    assert found == pytest.approx((16 * 5) ** 2 / (2 * 10**2), rel=1e-9)


def test_squared_divergence_error_is_within_the_second_term():
    """The quadrature of the log ratio is nearly exact, so that the first term is not needed."""
    problem = TOY_PROBLEMS["gaussians_d2"].shorten(30)
    record = train_and_test(problem, "ctsm_v_time1", 0, 1e-2, 4_000, "cpu")
    gap = record["test"]["divergence"] - 16  # KL = D shift^2 / 2
    assert 0 < gap**2 < 2 * record["test"]["time_score_error"]
    assert record["curve"][-1][0] == 30 and record["ms"] > 0
