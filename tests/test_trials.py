"""Trials: their snapshots during training, and the densities along a path."""

import math

import pytest
import torch
from conftest import error_of
from exact import F64, normal

from ebm_app.numerics.tensors import seeded
from ebm_app.ratios import trials
from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import TimeScores
from ebm_app.ratios.pairs import gaussian_pair
from ebm_app.ratios.plots import plot_trial
from ebm_app.ratios.points import TIMES, DensityGrid
from ebm_app.ratios.training import RatioTraining, draw
from ebm_app.ratios.trials import PAIRS, Trial, watch

SHORT = RatioTraining(2, 32, eval_every=1)
SHIFT = 4.0


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Evaluations on few draws."""
    for name in ("NUM_POINTS", "NUM_LOSS_DRAWS", "NUM_GRID_DRAWS"):
        monkeypatch.setattr(trials, name, 200)


class Exact(TimeScoreRatio):
    """The time score of N(0, I) -> N(4, I): p_t is N(4 t, I)."""

    def time_scores(self, x, t):
        return (SHIFT * (x.double() - SHIFT * t)).sum(1)


def exact():
    method, pair = TimeScores(), gaussian_pair(2, SHIFT)
    return Exact(method.build(pair, 0, "cpu").model, method.loss(pair))


def closed_form(x, t):
    return (SHIFT * t * x - SHIFT**2 * t**2 / 2).sum(1)


def test_log_ratios_along_a_path_are_integrals_of_the_time_score():
    x = normal((20, 2))
    found = exact().log_ratios_at(x, TIMES)
    assert found.shape == (len(TIMES), 20) and found.dtype == F64
    expected = torch.stack([closed_form(x, t) for t in TIMES])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)  # the margin at t = 1


def grid_of(pair, num=40_000):
    method = TimeScores()
    rows = draw(pair, method.sampler.sample, num, seeded("cpu", 1))
    return DensityGrid(pair, method.path, rows)


def test_the_window_holds_the_draws_and_the_learned_mass():
    grid = grid_of(gaussian_pair(2, SHIFT))
    log_density = grid.log_densities(exact())
    mass = grid.mass(log_density)
    assert mass.shape == (5,) and ((mass > 0.99) & (mass < 1.005)).all()
    drawn = grid.cell_area * grid.drawn.sum((1, 2))
    assert ((drawn > 0.99) & (drawn <= 1)).all()
    # a cell of mass p counts Poisson(n p) draws: the mean of its squared z-score is 1
    expected = 40_000 * grid.cell_area * log_density.exp()
    counts = 40_000 * grid.cell_area * grid.drawn
    z = (counts - expected)[expected > 5] / expected[expected > 5].sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.1)


def test_rows_of_the_plane_go_upwards():
    pair = PAIRS["pinwheel"]  # whose mirror image is another
    grid = grid_of(pair)
    truth = pair.p1.log_density(grid.centres).exp()
    assert torch.corrcoef(torch.stack([grid.drawn[-1].flatten(), truth]))[0, 1] > 0.9
    mirrored = torch.stack([grid.drawn[-1].T.flatten(), truth])
    assert torch.corrcoef(mirrored)[0, 1] < 0.5


def test_a_trial_on_the_plane_is_drawn():
    *_, shot = watch(Trial("rings", "variance_preserving", "ctsm_v_time1", training=SHORT))
    mass = shot.evaluator.grid.mass(shot.log_densities[-1]).item()
    assert shot.scalars["mass"] == pytest.approx(mass)
    plot_trial(shot, "a title").savefig("/dev/null", format="png")


def test_a_trial_ends_with_its_best_weights_on_fresh_draws():
    trial = Trial("gaussians_d5", "variance_preserving", "ctsm_v_time1", training=SHORT)
    *shots, final = watch(trial)
    assert [(shot.step, shot.is_final) for shot in shots] == [(0, False), (1, False), (2, False)]
    assert final.is_final and len(final.curve) == 3
    assert [at["step"] for at in final.curve] == [0, 1, 2]
    errors = [at["error"] for at in final.curve]
    assert final.best_step == errors.index(min(errors))
    for shot in (shots[-1], final):
        truth = shot.evaluator.points.truth
        assert shot.scalars["error"] == pytest.approx((shot.estimate - truth).square().mean())
    assert not torch.equal(final.evaluator.points.x, shots[-1].evaluator.points.x)
    assert final.log_densities is None


def test_toy_data_are_judged_at_points_of_their_own():
    shot = next(watch(Trial("moons", "bridge_sigma1", "ctsm_v_time1", training=SHORT)))
    assert shot.evaluator.points.truth.min() > -10  # no point of p_0 among them


def test_what_is_no_trial_is_refused():
    good = ("gaussians_d2", "variance_preserving", "ctsm_v_time1")
    for place, message in ((0, "unknown problem 'x'"), (1, "unknown path"), (2, "unknown method")):
        names = list(good)
        names[place] = "x"
        assert message in error_of(Trial, *names)
    assert (
        "starts at N(0, I), which mixtures_k2 does not: choose one of bridge_sigma1"
        in error_of(Trial, "mixtures_k2", *good[1:])
    )
    for rate in (0.0, math.nan):
        assert f"the learning rate is {rate}: give" in error_of(Trial, *good, learning_rate=rate)
