"""The tab of toy problems: its runs as functions."""

import json

import pytest

from ebm_app.ratios import points
from ebm_app.web import toy

NO_PLANE = ("gaussians_d5", "variance_preserving")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Evaluations on few draws."""
    monkeypatch.setattr(toy, "NUM_POINTS", 100)
    monkeypatch.setattr(points, "NUM_GRID_DRAWS", 100)


def train(method="ctsm_v_time1", iterations=2, seed=3, run=NO_PLANE):
    return toy.toy(*run, method, 1e-3, iterations, seed)


def test_a_run_shows_itself_at_every_evaluation_and_ends_with_figures():
    shown = list(train(run=("gaussians_d2", "variance_preserving")))
    heads = [text.split(" · ")[0] for _, text, *_ in shown]
    assert heads == ["Starting", "Step 0 of 2", "Step 1 of 2", "Step 2 of 2", "2 steps"]
    plot, text, found, planes = shown[-1]
    assert len(plot.axes) == 2 and json.loads(json.dumps(found)) == found
    given = {
        **{"problem": "gaussians_d2", "path_kind": "variance_preserving"},
        **{"method": "ctsm_v_time1", "learning_rate": 1e-3, "iterations": 2, "seed": 3},
    }
    assert given.items() < found.items() and found["step"] == 2
    line = f"CTSM-v · time score weighting, c = 1: off by {found['error'] ** 0.5:.3g} nats"
    assert f"{line} at held-out points" in text and f"integrates to {found['mass']:.3g}" in text
    # KL(p_1 || p_0) = 16 nats, here over 50 draws of standard deviation sqrt(32) each
    assert abs(found["divergence_truth"] - 16) < 4 * (32 / 50) ** 0.5
    judged = [found["judged_on"] for *_, found, _ in shown[1:]]
    assert judged == ["validation"] * 3 + ["test"]
    panels = toy.plot_planes(planes, 0.5).axes
    for axes, expected in zip(panels, planes[1:], strict=True):
        assert axes.images[0].get_array().tolist() == expected[2].tolist()
    assert list(train())[-1][-1] is None


def test_a_run_that_is_not_finite_says_so():
    assert toy.verdict({"error": None}) == "no longer finite: lower the learning rate"
