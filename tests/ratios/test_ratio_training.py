"""Log-ratio estimators and their training, against closed forms."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app.objectives.regression import CTSM
from ebm_app.objectives.time_sampling import SharedTimes, stratified_numbers
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import CovarianceScores, TimeScores
from ebm_app.ratios.pairs import (
    TOY_2D,
    DensityPair,
    gaussian_pair,
    information_pair,
    standard_normal,
)
from ebm_app.ratios.points import SIDE, TIMES, EvaluationPoints, density_planes
from ebm_app.ratios.training import RatioTraining, train
from ebm_app.utils.errors import NumericalError

SHIFT = 4.0


def exact(dim, shift):
    """The exact time score of N(shift, I)."""
    model = ExactModel(LinearVPPath(), 1e-5, torch.full((1, dim), shift, dtype=F64), (1.0,))
    return TimeScoreRatio(model, CTSM())


def test_integral_of_exact_time_score_is_the_log_ratio():
    pair = gaussian_pair(5, 2.0)
    ratio = exact(5, 2.0)
    x = normal((30, 5)) + 1.0
    found = ratio.log_ratio(x)
    assert found.shape == (30,) and found.dtype == F64
    # the model stops at 1 - 1e-5
    assert torch.allclose(found, pair.log_ratio(x), rtol=0, atol=2e-3)


def test_log_ratios_along_a_path_match_closed_form():
    x = normal((20, 2))
    found = exact(2, SHIFT).log_ratios_at(x, TIMES)
    assert found.shape == (len(TIMES), 20) and found.dtype == F64
    expected = [SHIFT * t * x.sum(1) - SHIFT**2 * t**2 for t in TIMES]
    # the margin at t = 1
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=2e-3)


def test_planes_hold_the_draws_and_the_learned_mass():
    found = density_planes(gaussian_pair(2, SHIFT), exact(2, SHIFT), generator())
    area = ((found.limits[1] - found.limits[0]) / SIDE) ** 2
    mass, drawn = (area * part.sum((1, 2)) for part in (found.learned, found.drawn))
    assert found.mass == pytest.approx(mass[-1].item())
    assert ((mass > 0.99) & (mass < 1.005)).all() and ((drawn > 0.99) & (drawn <= 1)).all()
    # a cell of mass p counts Poisson(n p) draws: the mean of its squared z-score is 1
    expected, counts = 40_000 * area * found.learned, 40_000 * area * found.drawn
    z = (counts - expected)[expected > 5] / expected[expected > 5].sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.1)


def test_rows_of_planes_increase_in_y():
    pair = DensityPair(standard_normal(2), TOY_2D["pinwheel"])  # whose mirror image is another
    planes = density_planes(pair, TimeScores().build(pair, 0, "cpu"), generator())
    left, right, bottom, top = planes.limits
    centres = (torch.arange(SIDE) + 0.5) / SIDE
    y, x = torch.meshgrid(
        bottom + (top - bottom) * centres, left + (right - left) * centres, indexing="ij"
    )
    truth = pair.p1.log_density(torch.stack([x, y], 2).flatten(0, 1)).exp()
    for drawn, low, high in ((planes.drawn[-1], 0.9, 1), (planes.drawn[-1].T, -1, 0.5)):
        assert low < torch.corrcoef(torch.stack([drawn.flatten(), truth]))[0, 1] < high


METHODS = {
    "ctsm": TimeScores(objective="ctsm"),
    "ctsm_v": TimeScores(),
    "matrix": CovarianceScores(),
}


def run(method, seed=0, lr=1e-2, iterations=6):
    pair = information_pair(4) if method is METHODS["matrix"] else gaussian_pair(3, 1.5)
    points = EvaluationPoints(pair, 64, generator(5))
    return points, train(method, pair, seed, lr, RatioTraining(iterations, 16, 4), points)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_training_keeps_the_best_weights(method):
    points, steps = run(method)
    found = list(steps)
    assert [at.step for at in found] == [0, 4, 6]
    errors = [at.metrics["error"] for at in found]
    last = found[-1]
    assert (
        last.best_error == min(errors) and last.best_step == [0, 4, 6][errors.index(min(errors))]
    )
    assert points.metrics(last.best.log_ratio(points.x))["error"] == pytest.approx(last.best_error)
    first, best = (list(at.best.parameters()) for at in (found[0], last))
    assert not last.best_step or not any(map(torch.equal, first, best))


def test_run_is_a_function_of_its_seed():
    one, same, other = ([at.metrics for at in run(METHODS["ctsm_v"], n)[1]] for n in (0, 0, 1))
    assert one == same and all(a != b for a, b in zip(one, other, strict=True))


def test_divergence_raises_and_keeps_the_first_weights():
    _, steps = run(METHODS["ctsm_v"], lr=1e30, iterations=8)
    with pytest.raises(NumericalError, match="smaller learning rate"):
        for at in steps:
            assert at.best_step == 0 and math.isfinite(at.best_error)


def test_shared_times_come_in_equal_runs():
    shared = SharedTimes(LinearVPPath(), 1e-3, 4)
    t, weight = shared.sample(12, generator())
    expected = (1 - 1e-3) * stratified_numbers(4, generator())
    assert torch.equal(t, expected.repeat_interleave(3)) and (weight == 1).all()


def test_half_of_the_points_are_of_each_density():
    pair = information_pair(4)
    points = EvaluationPoints(pair, 40_001, generator(3))
    assert points.x.shape == (40_001, 4) and points.num1 == 20_000
    metrics = points.metrics(points.truth + 0.5)
    assert metrics["error"] == pytest.approx(0.25)
    error = points.truth[-20_000:].std().item() / math.sqrt(20_000)
    assert abs(metrics["divergence"] - 0.5 - 1.0) < 4 * error  # D/4 nats


def test_learning_rate_follows_a_cosine():
    training = RatioTraining(12, eval_every=4)
    rates = [training.learning_rate_factor(step) for step in range(12)]
    expected = [0.5 * (1 + math.cos(math.pi * k / 3)) for k in (0, 1, 2) for _ in range(4)]
    assert rates == pytest.approx(expected)
