"""Densities of two-dimensional problems on a grid."""

import pytest
import torch
from exact import F64, ExactModel, generator

from ebm_app.objectives.regression import CTSM
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.methods import TimeScoreRatio, TimeScores
from ebm_app.ratios.pairs import DensityPair, GaussianMixture, gaussian_pair, standard_normal
from ebm_app.ratios.planes import SIDE, TIMES, density_planes

SHIFT = 4.0


def exact():
    mean = torch.full((1, 2), SHIFT, dtype=F64)
    return TimeScoreRatio(ExactModel(LinearVPPath(), 1e-5, mean, (1.0,)), CTSM())


def test_planes_hold_the_draws_and_the_learned_mass():
    found = density_planes(gaussian_pair(2, SHIFT), exact(), generator())
    area = ((found.limits[1] - found.limits[0]) / SIDE) ** 2
    mass, drawn = (area * part.sum((1, 2)) for part in (found.learned, found.drawn))
    assert len(mass) == len(TIMES) and found.mass == pytest.approx(mass[-1].item())
    assert ((mass > 0.99) & (mass < 1.005)).all() and ((drawn > 0.99) & (drawn <= 1)).all()
    # a cell of mass p counts Poisson(n p) draws: the mean of its squared z-score is 1
    expected, counts = 40_000 * area * found.learned, 40_000 * area * found.drawn
    z = (counts - expected)[expected > 5] / expected[expected > 5].sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.1)


def test_rows_of_planes_increase_in_y():
    pair = DensityPair(standard_normal(2), GaussianMixture([[1.0, 3.0]], 0.5))
    planes = density_planes(pair, TimeScores().build(pair, 0, "cpu"), generator())
    left, right, bottom, top = planes.limits
    row, column = divmod(planes.drawn[-1].argmax().item(), SIDE)
    assert left + (column + 0.5) * (right - left) / SIDE == pytest.approx(1, abs=0.4)
    assert bottom + (row + 0.5) * (top - bottom) / SIDE == pytest.approx(3, abs=0.4)
