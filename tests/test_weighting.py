"""Weightings: each is the inverse second moment of what it weights, by Monte Carlo."""

import math

import numpy as np
import path_cases
import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.numerics.tensors import expand_like
from ebm_app.objectives.weighting import (
    ScoreResidual,
    SteinScore,
    TimeScore,
    UniformWeighting,
    second_moment,
)
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath

PATHS = {
    "linear_vp": LinearVPPath(),
    "linear_vp c=3": LinearVPPath(c=3),
    "vp c=0.4": VPPath(c=0.4),
    "bridge": SchrodingerBridgePath(),
    "bridge sigma=0.5 c=2": SchrodingerBridgePath(0.5, c=2),
}
CHECKED = {
    "uniform": UniformWeighting(),
    "stein_score": SteinScore(),
    "time_score": TimeScore(),
    "time_score c=2.3": TimeScore(2.3),
    "score_residual": ScoreResidual(),
}
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
SHAPE = (10_000, 2, 3, 2)


def draw(path, delta, time, seed=0):
    """A sample at one time whose data (or displacement, on a bridge) is ``delta``."""
    x0, t = normal(delta.shape, seed), torch.full((len(delta),), time, dtype=F64)
    if isinstance(path, SchrodingerBridgePath):
        return path.sample(x0, x0 + delta, t, normal(delta.shape, seed + 1))
    return path.sample(x0, delta, t)


def skewed(shape, moment, seed):
    """Independent values of second moment ``moment`` whose mean is not zero."""
    return math.sqrt(moment) * path_cases.skewed(shape, seed)


def weighted_square(weighting, path, sample, values):
    return expand_like(weighting(path, sample.t), values) * values.square()


@every_path
@pytest.mark.parametrize("time", [0.1, 0.5, 0.9])
def test_weighted_targets_have_unit_second_moment(path, time):
    sample = draw(path, skewed(SHAPE, path.c, 7), time)
    score = path.conditional_score(sample)
    components = path.conditional_components(sample)
    skip = expand_like(path.score_skip(sample.t), score)
    residual = score - skip * sample.xt
    assert z_score(weighted_square(SteinScore(), path, sample, score), 1.0) < 4
    assert z_score(weighted_square(TimeScore(), path, sample, components), 1.0) < 4
    assert z_score(weighted_square(ScoreResidual(), path, sample, residual), 1.0) < 4
    assert torch.equal(UniformWeighting()(path, sample.t), torch.ones_like(sample.t))


@every_path
def test_time_score_with_the_second_moment_of_the_data(path):
    """c from the data itself, whatever c the path assumes: drawn with replacement from them."""
    data = skewed((50, *SHAPE[1:]), 2.3, 3) - 0.4
    rows = torch.randint(50, SHAPE[:1], generator=generator(4))
    sample = draw(path, data[rows], 0.6, seed=5)
    weighting = TimeScore(second_moment(data))
    squares = weighted_square(weighting, path, sample, path.conditional_components(sample))
    assert (
        z_score(squares.flatten(1).mean(1), 1.0) < 4
    )  # one value per draw: its components depend


@every_path
@pytest.mark.parametrize("weighting", CHECKED.values(), ids=CHECKED)
def test_derivative_is_that_of_reverse_mode(path, weighting):
    t = torch.linspace(0.02, 0.98, 30, dtype=F64).requires_grad_()
    value = weighting(path, t)
    assert value.dtype == F64 and value.shape == t.shape and (value > 0).all()
    expected = torch.autograd.grad((value + 0 * t).sum(), t)[0]
    actual = weighting.derivative(path, t.detach())
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 6), (40, 2, 3, 4)], ids=["D", "CHW"])
def test_second_moment_is_trace_of_covariance_and_squared_mean(shape):
    """c = (Tr(Sigma) + |mu|^2) / D (paper, lemma in appendix A)."""
    data = skewed(shape, 2.0, 1) + 3
    flat = data.flatten(1).numpy()
    covariance, mean = np.cov(flat.T, bias=True), flat.mean(0)
    expected = (np.trace(covariance) + mean @ mean) / flat.shape[1]
    assert second_moment(data) == pytest.approx(expected, rel=1e-12)
    assert second_moment(data.float()) == pytest.approx(expected, rel=1e-6)
    assert second_moment(torch.full(shape, 255, dtype=torch.uint8)) == 255**2
