"""The tab of mutual information: methods side by side on paired Gaussians."""

import json
import math

import pytest
from conftest import error_of

from ebm_app.ratios.training import RatioTrainer
from ebm_app.web.information import gaussian


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few points and draws."""
    monkeypatch.setattr(gaussian, "NUM_POINTS", 400)


def approach(methods=("CTSM-v",), dim=40, rate=2e-2, iterations=2, seed=0):
    return gaussian.approach(dim, methods, rate, iterations, seed)


def test_the_estimate_approaches_the_true_value():
    *_, (plot, text, found) = approach(iterations=120)
    method = found["methods"]["CTSM-v"]
    assert found["truth"] == 10 and method["step"] == 120
    assert abs(method["mutual_information"] - 10) < 1.5 and abs(method["matrix"] - 10) < 2
    assert text.startswith("120 steps · D = 40 · true value 10 nats · seed 0 · ")
    assert f"\nCTSM-v: {method['mutual_information']:.3f} nats · " in text
    above, below = plot.axes
    (truth, curve) = above.lines
    assert list(truth.get_ydata()) == [10, 10] and truth.get_linestyle() == "--"
    assert curve.get_ydata()[-1] == method["mutual_information"] and len(curve.get_xdata()) == 21
    assert below.patches[0].get_width() == method["step_ms"]


def test_methods_are_trained_in_turns():
    names = list(gaussian.METHODS)
    shown = list(approach(names))
    assert [text.split(" · ")[0] for _, text, _ in shown] == [
        "Step 0 of 2",
        "Step 1 of 2",
        "2 steps",
    ]
    first = shown[0][2]["methods"]
    assert all(first[name]["mutual_information"] == 0 for name in names)  # Sigma = I
    last = shown[-1][2]
    assert list(last["methods"]) == names and json.loads(json.dumps(last)) == last
    assert len({last["methods"][name]["mutual_information"] for name in names}) == 3


def test_who_stops_iterating_stops_the_training(monkeypatch):
    steps = []
    step = RatioTrainer.train_step
    monkeypatch.setattr(
        RatioTrainer, "train_step", lambda trainer: steps.append(1) or step(trainer)
    )
    run = approach(iterations=100)
    next(run), next(run)
    run.close()
    assert len(steps) == 5


def test_a_run_that_is_not_finite_says_so():
    curve = [{"step": 1, "divergence": None, "error": None, "step_ms": 2.0}]
    settings = {"dim": 40, "iterations": 9, "seed": 0}
    text = gaussian.report({"TSM": curve}, settings, 10.0, 0.1)
    assert text.startswith("Step 1 of 9 · ") and "\nTSM: no longer finite: lower" in text


def test_mistakes_with_gaussians_are_explained():
    for arguments, message in (
        ({"dim": 41}, "unknown problem 'mi_d41'"),
        ({"methods": ()}, "there is no method to train: choose at least one"),
        ({"methods": ("x",)}, "unknown method 'x'"),
        ({"rate": math.inf}, "the learning rate cannot be inf"),
        ({"iterations": 5_001}, "iterations cannot be 5001"),
        ({"seed": 0.5}, "the seed cannot be 0.5"),
    ):
        assert message in error_of(lambda a: list(approach(**a)), arguments)
