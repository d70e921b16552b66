"""The tab of toy problems: its runs as functions, and its endpoint."""

import json
import re

import pytest
import torch
from conftest import error_of

from ebm_app.ratios import trials
from ebm_app.ratios.training import RatioTrainer
from ebm_app.web.toy import tab as toy

RUN = ("gaussians_d2", "variance_preserving")
NO_PLANE = ("gaussians_d5", "variance_preserving")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Evaluations on few draws."""
    for name in ("NUM_POINTS", "NUM_LOSS_DRAWS", "NUM_GRID_DRAWS"):
        monkeypatch.setattr(trials, name, 100)


def train(methods=("ctsm_v_time1",), rate=1e-3, iterations=2, seed=3, run=RUN):
    return toy.toy(*run, *[*methods, toy.NONE][:2], rate, iterations, seed)


def test_a_run_shows_itself_at_every_evaluation_and_ends_with_figures():
    shown = list(train())
    heads = [text.split(" · ")[0] for _, _, text, _ in shown]
    assert heads == ["Starting", "Step 0 of 2", "Step 1 of 2", "Step 2 of 2", "2 steps"]
    plot, other, text, found = shown[-1]
    assert other is None and len(plot.axes) == 3 + 2 * 5
    (method,) = found["methods"].values()
    assert json.loads(json.dumps(found)) == found
    assert {**found, "methods": None} == {
        **{"problem": "gaussians_d2", "path_kind": "variance_preserving", "methods": None},
        **{"learning_rate": 1e-3, "iterations": 2, "seed": 3},
    }
    assert (method["step"], method["judged_on"]) == (2, "test")
    line = f"CTSM-v · time score weighting, c = 1: best weights, of step {method['best_step']} · "
    assert line in text and f"error {method['error']:.4g} nats²" in text
    assert f"integrates to {method['mass']:.3g}" in text and "ms a step" in text
    # KL(p_1 || p_0) = 16 nats, here over 50 draws of standard deviation sqrt(32) each
    assert abs(method["divergence_truth"] - 16) < 4 * (32 / 50) ** 0.5
    judged = [list(f["methods"].values())[0]["judged_on"] for *_, f in shown[1:]]
    assert judged == ["validation"] * 3 + ["test"]


def test_two_methods_stand_side_by_side_on_the_same_draws(monkeypatch):
    drawn = []
    draw = RatioTrainer.draw

    def spy(trainer):
        drawn.append(draw(trainer))
        return drawn[-1]

    monkeypatch.setattr(RatioTrainer, "draw", spy)
    shown = list(train(("ctsm_v_time1", "tsm_stein"), run=NO_PLANE))
    for plot, other, text, found in shown[1:]:
        assert plot is not other and other is not None
        assert list(found["methods"]) == ["ctsm_v_time1", "tsm_stein"]
        assert re.search(r"\nCTSM-v · .*\nTSM · Stein score weighting: ", text)
    first, second, third, fourth = drawn
    assert torch.equal(first.x1, second.x1) and torch.equal(third.x1, fourth.x1)
    assert not torch.equal(first.x1, third.x1)


def test_who_stops_iterating_stops_the_training(monkeypatch):
    steps = []
    step = RatioTrainer.train_step
    monkeypatch.setattr(
        RatioTrainer, "train_step", lambda trainer: steps.append(1) or step(trainer)
    )
    run = train(iterations=50, run=NO_PLANE)
    texts = [next(run)[2] for _ in range(4)]
    run.close()
    assert len(steps) == 6 and texts[-1].startswith("Step 6 of 50")


def test_the_seed_decides_the_figures():
    def error(seed):
        *_, (*_, found) = train(("nce",), iterations=1, seed=seed, run=NO_PLANE)
        return found["methods"]["nce"]["error"]

    assert error(5) == error(5) != error(6)


def test_a_distribution_without_a_closed_form_has_no_error(monkeypatch):
    monkeypatch.setattr(toy, "plot_trial", lambda *_: None)
    *_, (_, _, text, found) = train(iterations=1, run=("moons", "bridge_sigma1"))
    (method,) = found["methods"].values()
    assert method["error"] is None and "divergence_truth" not in method
    assert "no true log ratio known" in text and "nats²" not in text


def test_a_run_that_is_not_finite_says_so():
    trial = trials.Trial(*RUN, "nce", training=trials.RatioTraining(1))
    shot = next(trials.watch(trial))
    broken = shot._replace(scalars=dict.fromkeys(shot.scalars))
    assert "no longer finite: lower the learning rate" in toy.report([broken], 0.0)


def test_mistakes_are_explained():
    nce = ("nce",)
    for arguments, message in (
        ({"methods": ("x",)}, "unknown method 'x'"),
        ({"run": ("x", "bridge_sigma1")}, "unknown problem 'x'"),
        ({"run": ("mixtures_k1", "variance_preserving")}, "starts at N(0, I)"),
        ({"methods": nce * 2}, "both methods are the same"),
    ):
        assert message in error_of(lambda a: list(train(**a)), arguments)


def test_every_choice_has_a_label_of_its_own():
    assert len({toy.method_label(name) for name in trials.METHODS}) == len(trials.METHODS)
    assert len({toy.problem_label(name) for name in trials.PAIRS}) == len(trials.PAIRS)
    assert toy.problem_label("mixtures_k0.5") == "mixtures, D = 20, k = 0.5"
    assert set(toy.PATHS) == set(trials.SIGMAS)


def test_choices_follow_the_problem():
    names = [name for _, name in toy.path_choices("mixtures_k1")]
    assert names == ["bridge_sigma1", "bridge_sigma1.41"]
    plot, other, text, found = toy.emptied("mixtures_k1")
    assert (other, text, found) == (None, "", None) and len(plot.axes) == 1
