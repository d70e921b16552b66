"""Densities of two-dimensional problems on a grid."""

import pytest
import torch
from exact import F64, ExactModel, generator

from ebm_app.objectives.regression import CTSM
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.methods import TimeScoreRatio
from ebm_app.ratios.pairs import DensityPair, GaussianMixture, standard_normal
from ebm_app.ratios.planes import SIDE, TIMES, density_planes

MEAN = [1.0, 3.0]
PAIR = DensityPair(standard_normal(2), GaussianMixture([MEAN], 1.0))


def test_planes_hold_the_draws_and_the_learned_mass():
    model = ExactModel(LinearVPPath(), 1e-5, torch.tensor([MEAN], dtype=F64), (1.0,))
    found = density_planes(PAIR, TimeScoreRatio(model, CTSM()), generator())
    left, right, bottom, top = found.limits
    area = ((right - left) / SIDE) ** 2
    mass, drawn = (area * part.sum((1, 2)) for part in (found.learned, found.drawn))
    assert len(mass) == len(TIMES) and found.mass == pytest.approx(mass[-1].item())
    assert ((mass > 0.99) & (mass < 1.005)).all() and ((drawn > 0.99) & (drawn <= 1)).all()
    # a cell of mass p counts Poisson(n p) draws: the mean of its squared z-score is 1
    expected, counts = 40_000 * area * found.learned, 40_000 * area * found.drawn
    z = (counts - expected)[expected > 5] / expected[expected > 5].sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.1)
    # rows increase in y
    row, column = divmod(found.learned[-1].argmax().item(), SIDE)
    assert left + (column + 0.5) * (right - left) / SIDE == pytest.approx(MEAN[0], abs=0.2)
    assert bottom + (row + 0.5) * (top - bottom) / SIDE == pytest.approx(MEAN[1], abs=0.2)
