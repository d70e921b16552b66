"""Evaluation points, and the densities along a path on a grid."""

import pytest
import torch
from conftest import error_of
from exact import F64, generator, normal

from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import TimeScores
from ebm_app.ratios.pairs import gaussian_pair
from ebm_app.ratios.points import SIDE, TIMES, density_planes
from ebm_app.web.toy import PAIRS, toy

SHIFT = 4.0


class Exact(TimeScoreRatio):
    """The time score of N(0, I) -> N(4, I): p_t is N(4 t, I)."""

    def time_scores(self, x, t):
        return (SHIFT * (x.double() - SHIFT * t)).sum(1)


def exact():
    ratio = TimeScores().build(gaussian_pair(2, SHIFT), 0, "cpu")
    return Exact(ratio.model, ratio.objective)


def closed_form(x, t):
    return (SHIFT * t * x - SHIFT**2 * t**2 / 2).sum(1)


def test_log_ratios_along_a_path_match_closed_form():
    x = normal((20, 2))
    found = exact().log_ratios_at(x, TIMES)
    assert found.shape == (len(TIMES), 20) and found.dtype == F64
    expected = torch.stack([closed_form(x, t) for t in TIMES])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)  # the margin at t = 1


def test_planes_hold_the_draws_and_the_learned_mass():
    found = density_planes(gaussian_pair(2, SHIFT), exact(), generator())
    area = ((found.limits[1] - found.limits[0]) / SIDE) ** 2
    mass, drawn = (area * part.sum((1, 2)) for part in (found.learned, found.drawn))
    assert found.mass == pytest.approx(mass[-1].item())
    assert ((mass > 0.99) & (mass < 1.005)).all() and ((drawn > 0.99) & (drawn <= 1)).all()
    # a cell of mass p counts Poisson(n p) draws: the mean of its squared z-score is 1
    expected, counts = 40_000 * area * found.learned, 40_000 * area * found.drawn
    z = (counts - expected)[expected > 5] / expected[expected > 5].sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.1)


def test_rows_of_planes_increase_in_y():
    pair = PAIRS["pinwheel"]  # whose mirror image is another
    planes = density_planes(pair, TimeScores().build(pair, 0, "cpu"), generator())
    left, right, bottom, top = planes.limits
    centres = (torch.arange(SIDE) + 0.5) / SIDE
    y, x = torch.meshgrid(
        bottom + (top - bottom) * centres, left + (right - left) * centres, indexing="ij"
    )
    truth = pair.p1.log_density(torch.stack([x, y], 2).flatten(0, 1)).exp()
    for drawn, low, high in ((planes.drawn[-1], 0.9, 1), (planes.drawn[-1].T, -1, 0.5)):
        assert low < torch.corrcoef(torch.stack([drawn.flatten(), truth]))[0, 1] < high


def test_unknown_path_of_a_problem_raises():
    names = "mixtures_k2", "variance_preserving", "ctsm_v_time1"
    message = "unknown path of mixtures_k2 'variance_preserving': choose one of bridge_sigma1, "
    assert message in error_of(next, toy(*names, 1e-3, 10, 0))
