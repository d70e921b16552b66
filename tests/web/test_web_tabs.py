"""Tabs of the page that explain a likelihood, and those of density ratios."""

import json

import numpy as np
import pytest
from conftest import digit, error_of

from ebm_app import ClassifierRatio, mutual_information
from ebm_app.data.levels import to_levels
from ebm_app.ebm import EBM
from ebm_app.evaluation.trace import trace
from ebm_app.likelihood import TimeIntegral
from ebm_app.ratios import plots
from ebm_app.utils.random import LIKELIHOODS, ImageNoise
from ebm_app.web import information, toy


def test_running_integral_ends_at_the_time_integral():
    ebm = EBM.from_pretrained("digits")
    found = trace(ebm, digit(), seed=3)
    levels = to_levels(digit(), ebm.config.num_levels)
    noise = ImageNoise(3, [0], LIKELIHOODS)
    point = ebm.dequantise(levels, noise)
    expected = TimeIntegral()(ebm.model.with_nodes(64), point.y, point.t, noise)
    assert found.totals[-1] == pytest.approx(expected.value.item(), abs=0.5)
    nats = found.totals[-1] + point.negative_log_q.sum().item()
    assert found.bits == pytest.approx(-nats / (64 * np.log(2)))


def test_every_evaluation_is_shown(monkeypatch):
    monkeypatch.setattr(toy, "NUM_POINTS", 100)
    monkeypatch.setattr(plots, "NUM_DRAWS", 100)
    arguments = "two Gaussians, D = 2", "variance preserving", "CTSM-v", 1e-3, 2, 3
    outputs = list(toy.toy(*arguments))
    heads = [text.split(" · ")[0] for _, text, *_ in outputs]
    assert heads[:-1] == ["Step 0 of 2", "Step 1 of 2", "Step 2 of 2"]
    plot, text, densities, metrics = outputs[-1]
    assert len(densities.axes) == 15 and len(plot.axes) == 2
    assert json.loads(json.dumps(metrics)) == metrics
    assert heads[-1] == f"Step {metrics['step']} of 2"  # the best one
    assert f"{metrics['error'] ** 0.5:.3g} nats" in text and f"{metrics['mass']:.3g}" in text
    # KL(p_1 || p_0) = 16 nats, estimated from 50 draws with standard deviation sqrt(32) each
    assert abs(metrics["divergence_truth"] - 16) < 4 * (32 / 50) ** 0.5
    sets = [metrics["points"] for *_, metrics in outputs]
    assert sets == ["validation"] * 3 + ["test"]
    *_, (_, _, densities, _) = toy.toy("two Gaussians, D = 5", *arguments[1:])
    assert densities is None  # of more than two dimensions
    mixtures = "mixtures, D = 20, k = 2"
    assert "choose one of Schrödinger bridge" in error_of(next, toy.toy(mixtures, *arguments[1:]))
    for index, name in ((3, "learning rate"), (4, "iterations"), (5, "seed")):
        empty = [*arguments[:index], None, *arguments[index + 1 :]]
        assert name in error_of(next, toy.toy(*empty))
    paths, *_ = toy.select_problem(mixtures)
    assert paths["choices"] == ["Schrödinger bridge"] == [paths["value"]]


def test_information_of_the_paper_is_learned_step_by_step():
    outputs = list(information.mi_paper(40, 100, 3))
    plot, text, metrics = outputs[-1]
    assert "truth 10 nats" in text and f"{metrics['value']:.2f} nats by CTSM-v" in text
    low, high = metrics["interval"]
    assert low < metrics["value"] < high < low + 0.3  # 10 nats after 2,000 steps
    assert metrics["value"] > 1 and f"interval {low:.2f} to {high:.2f}: " in text
    assert ("✓" in text) == (low <= 10 <= high) != ("✗" in text)
    assert metrics["step"] == 100 and metrics["truth"] == 10
    estimate, truth = plot.axes[0].lines
    assert len(estimate.get_xdata()) == 21 and set(truth.get_ydata()) == {10}
    assert "dimension" in error_of(next, information.mi_paper(41, 100, 3))


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_estimate_equals_that_of_the_library(tmp_path):
    x, noise = np.random.default_rng(0).normal(size=(2, 300))
    files = save(tmp_path, "x.npy", x), save(tmp_path, "y.npy", x + noise)
    plot, text, metrics = information.mi(*files, "classifier", 4)
    ratio = ClassifierRatio(random_state=4)
    expected = mutual_information(x, x + noise, ratio, random_state=4)
    assert metrics == {**expected.figures(), "data": "x.npy and y.npy", "seed": 4}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert text.startswith(expected.summary()) and len(plot.axes[0].patches) > 10


def test_bad_data_give_errors(tmp_path):
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    wide = save(tmp_path, "wide.npy", numbers.normal(size=(200, 64)))
    long = save(tmp_path, "long.npy", numbers.normal(size=20_001))
    for x, y, word in (
        (good, None, "missing"),
        (good, wide, "65 columns"),
        (long, long, "20001 rows"),
    ):
        assert word in error_of(information.mi, x, y, "automatic", 0)
    assert "estimator" in error_of(information.mi, good, good, "other", 0)


def test_size_of_tables_is_read_before_their_rows(tmp_path, monkeypatch):
    """Equal values are compressed a thousandfold."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(information, "read_rows", None)
    for column, word in (
        (np.zeros(1_000_000), "Got 1000000 rows"),
        (["a"] * 9, "text"),
        ([[1.0]] * 9, "lists"),
    ):
        file = str(tmp_path / "x.parquet")
        parquet.write_table(pyarrow.table({"x": column}), file)
        assert word in error_of(information.mi, file, file, "automatic", 0)
    array, text = save(tmp_path, "x.npy", np.zeros((2, 65))), tmp_path / "x.csv"
    text.write_text(",".join(map(str, range(65))))
    for file in (array, str(text)):
        assert "65 columns" in error_of(information.mi, file, file, "automatic", 0)
