"""Toy tab."""

import json

from conftest import error_of

from ebm_app.ratios import planes
from ebm_app.web import toy


def test_every_evaluation_is_shown(monkeypatch):
    monkeypatch.setattr(toy, "NUM_POINTS", 100)
    monkeypatch.setattr(planes, "NUM_DRAWS", 100)
    arguments = "gaussians_d2", "variance_preserving", "ctsm_v_time1", 1e-3, 2, 3
    outputs = list(toy.toy(*arguments))
    heads = [text.split(" · ")[0] for _, text, *_ in outputs]
    assert heads == ["Starting", "Step 0 of 2", "Step 1 of 2", "Step 2 of 2", "2 steps"]
    plot, text, densities, metrics = outputs[-1]
    assert len(densities.axes) == 15 and len(plot.axes) == 2
    assert json.loads(json.dumps(metrics)) == metrics
    assert {"path_kind": "variance_preserving", "iterations": 2}.items() < metrics.items()
    assert f"{metrics['error'] ** 0.5:.3g} nats" in text and f"{metrics['mass']:.3g}" in text
    # KL(p_1 || p_0) = 16 nats, estimated from 50 draws with standard deviation sqrt(32) each
    assert abs(metrics["divergence_truth"] - 16) < 4 * (32 / 50) ** 0.5
    sets = [metrics["points"] for *_, metrics in outputs[1:]]
    assert sets == ["validation"] * 3 + ["test"]


def test_only_two_dimensional_problems_have_a_plot_of_densities():
    names = "gaussians_d5", "variance_preserving", "ctsm_v_time1"
    *_, (_, _, densities, _) = toy.toy(*names, 1e-3, 2, 3)
    assert densities is None


def test_diverged_training_suggests_a_lower_learning_rate():
    assert "learning rate" in toy.result_text({"error": None})


def test_unknown_path_of_a_problem_raises():
    names = "mixtures_k2", "variance_preserving", "ctsm_v_time1"
    message = "unknown path of mixtures_k2 'variance_preserving': choose one of bridge_sigma1, "
    assert message in error_of(next, toy.toy(*names, 1e-3, 10, 0))
