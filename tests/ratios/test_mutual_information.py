"""The estimate of mutual information: normals, discrete columns, copies of rows, warnings."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of
from exact import generator
from scipy import stats
from sklearn.datasets import load_wine

from ebm_app import mutual_information
from ebm_app.cli.command_line import run_script
from ebm_app.tabular import classifier
from ebm_app.tabular.information import combined
from ebm_app.tabular.known import EXAMPLES
from ebm_app.tabular.lower_bounds import PairRatios
from ebm_app.tabular.mutual_information import Estimation


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One small network for a fit, and a validation after every fiftieth step."""
    monkeypatch.setattr(classifier, "CHECK_EVERY", 50)
    monkeypatch.setattr(classifier, "HIDDEN", (32, 32, 16))
    monkeypatch.setattr(sys.modules[Estimation.__module__], "NUM_MEMBERS", 1)


SHORT = {"steps": 100}


def data(task="normal_1x1", num=1_000, seed=0):
    return [part.numpy() for part in EXAMPLES[task][1](num, generator(seed))]


@pytest.mark.parametrize("task", ["sparse_5x5", "discrete_uniform_4"])
def test_the_interval_holds_the_truth(task):
    found = mutual_information(*data(task, 1_500), **SHORT)
    assert abs(found.value - EXAMPLES[task][0]) < 3.5 * found.stderr < 0.35
    assert found.interval[0] == pytest.approx(found.value - 1.96 * found.stderr)
    assert found.num_rows == found.num_distinct == 1_500
    assert found.log_ratio.shape == (1_500,)


@pytest.mark.process
def test_a_network_finds_what_the_copula_misses():
    """A Swiss roll: the first of two normals, as a uniform number, rolled up in the plane."""
    x, y = data("normal_1x1", 3_000)
    angle = 1.5 * math.pi * (1 + 2 * stats.norm.cdf(x))
    x = angle * np.hstack([np.cos(angle), np.sin(angle)])
    found = mutual_information(x, y, steps=400)
    base = mutual_information(x, y, steps=1)
    assert base.lower_bound < 0.1 and abs(found.value - 0.413) < 3.5 * found.stderr < 0.3


def test_discrete_columns_are_found_and_named():
    (x, y), information = data("discrete_uniform_4", 1_500), EXAMPLES["discrete_uniform_4"][0]
    table = pd.DataFrame({"kind": x[:, 0]}), pd.Series(y[:, 0])
    found = mutual_information(*table, steps=200)
    assert found.discrete == ["'kind'"]
    assert abs(found.neighbours - information) < 0.03
    assert abs(found.value - information) < 0.08
    assert "taken as discrete: 'kind'" in found.summary()


@pytest.mark.process
def test_neighbours_say_what_a_learned_ratio_has_missed_of_discrete_columns():
    """Hard edges: where no classifier pays, the bound is short. What neighbours find beyond it
    makes the error larger, and the value stays."""
    found = mutual_information(*data("discrete_uniform_4", 3_000, 10), steps=1)
    gain = max(found.lower_bound - found.fewer_rows, 0.0)  # three folds
    assert found.value == pytest.approx(max(found.lower_bound + gain, found.fewer_rows))
    half = (found.neighbours - found.value) / 2
    assert half > 0.01 and found.stderr > math.hypot(half, gain)
    kinds = np.arange(600) % 4
    both = mutual_information(kinds, (kinds + np.arange(600) // 300) % 4, **SHORT)
    assert len(both.discrete) == 2 and both.neighbours is None


@pytest.mark.process
def test_a_class_of_few_rows_is_as_well_told_as_by_logistic_regression():
    """Wine: 178 rows, of which cross-validated logistic regression finds 1.02 of 1.09 nats."""
    wine = load_wine()
    for seed in (0, 1):
        found = mutual_information(wine.data, wine.target, steps=1, random_state=seed)
        low, high = found.interval
        assert low < 1.02 < high and found.stderr < 0.15
        assert found.value >= max(found.lower_bound, found.fewer_rows)


@pytest.mark.parametrize("fewer, value, stderr", [(0.2, 0.6, 0.2), (0.7, 0.7, 0.3)])
def test_the_value_is_never_below_a_bound_and_the_error_holds_the_spread(fewer, value, stderr):
    """Three folds of bounds 0.3, 0.4 and 0.5: B_2 = 0.4; what is added is squared in the error."""

    def left_out(*bounds):
        rows, apart = torch.arange(6).view(3, 2), torch.zeros(2, 2, dtype=torch.float64)
        joint = [torch.full((2,), bound, dtype=torch.float64) for bound in bounds]
        return [(r, PairRatios(j, apart, [1, 1])) for r, j in zip(rows, joint, strict=True)]

    whole, single = left_out(0.3, 0.4, 0.5), left_out(*[fewer] * 3)
    found = combined(whole, single, torch.arange(6), None, [])
    assert (found.lower_bound, found.fewer_rows) == (pytest.approx(0.4), pytest.approx(fewer))
    assert found.value == pytest.approx(value)
    # over rows: deviations of 0.1, twice as large where half of B_2 is added again
    of_rows = (2 if fewer < 0.4 else 1) * 0.04**0.5 / 6
    spread = 0.1 / 3**0.5
    assert found.stderr == pytest.approx(math.hypot(max(of_rows, spread), stderr))
    wide = combined(whole, single, torch.arange(6), value + 1.0, [])
    assert wide.value == found.value and wide.stderr == pytest.approx(
        math.hypot(found.stderr, 0.5)
    )


def test_copies_of_rows_are_one_observation():
    x, y = data(num=600)
    once = mutual_information(x, y, **SHORT)
    copies = mutual_information(*(np.tile(part, (4, 1)) for part in (x, y)), **SHORT)
    assert (copies.num_rows, copies.num_distinct) == (2_400, 600)
    assert copies.stderr == pytest.approx(once.stderr, rel=0.3)
    assert copies.value == pytest.approx(once.value, abs=2 * once.stderr)
    assert copies.neighbours == pytest.approx(once.neighbours, abs=0.02)
    assert "of 2400 rows 600 are distinct" in copies.summary()
    estimation = Estimation(*(np.tile(part, (4, 1)) for part in (x, y)), **SHORT)
    next(estimation.run())
    for fit in estimation.fits:
        learned, chosen = (
            set(estimation.groups[rows].tolist()) for rows in (fit.train, fit.validation)
        )
        assert learned and chosen and not learned & chosen


def test_the_same_seed_gives_the_same_and_torch_keeps_its_generator():
    x, y = data(num=300)
    before = torch.random.get_rng_state()
    first, again = (mutual_information(x, y, **SHORT, random_state=3) for _ in range(2))
    assert first.figures() == again.figures()
    assert mutual_information(x, y, **SHORT, random_state=4).value != first.value
    assert torch.equal(before, torch.random.get_rng_state())
    assert json.loads(json.dumps(first.figures())) == first.figures()


def test_progress_and_a_result_before_the_end():
    estimation = Estimation(*data(num=300), **SHORT)
    seen = list(estimation.run())
    assert [step for step, _ in seen] == [0, 50, 100]
    assert all(math.isfinite(bound) for _, bound in seen)
    early = Estimation(*data(num=300), **SHORT)
    next(early.run())
    assert early.classifiers.best_steps == [0] * 6 and math.isfinite(early.result().value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        ({"effective_pairs": 99.0}, "the normaliser rests on 99 shuffled pairs"),
        ({"mean_log_ratio": 1.2}, "lie 0.210 nats apart"),
        ({"lower_bound": 0.9}, "0.100 nats of the value are extrapolated from 0.880 and 0.900"),
        ({"neighbours": 1.05}, "nearest neighbours find 1.050 nats, 0.050 more than the ratios"),
        ({"fewer_rows": 1.1}, "ratios of fewer rows find more, 1.100 for 0.990 nats"),
        ({"value": -0.1}, "is below 0 by more than its error"),
    ],
)
def test_what_speaks_against_a_value(change, message):
    good = {"value": 1.0, "stderr": 0.02, "lower_bound": 0.99, "fewer_rows": 0.88}
    good |= {"mean_log_ratio": 0.99, "effective_pairs": 500.0, "neighbours": None}
    found = replace(mutual_information(*data(num=30), steps=1), **good | change)
    assert found.warnings == [] if message is None else message in " ".join(found.warnings)


def test_mistakes_end_in_a_sentence():
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((2, 100))
    frame = pd.DataFrame({"a": x, "b": 1.0})
    for arguments, message in (
        ((x, y[:-1]), "x has 100 rows and y has 99"),
        ((x[:10], y[:10]), "of 10 rows 10 differ from each other: give at least 15"),
        ((x, x), "column 1 of x and column 1 of y hold the same values"),
        ((frame[["a"]], np.stack([y, x], 1)), "'a' and column 2 of y hold the same values"),
        ((x, np.r_[np.nan, y[1:]]), "1 of 100 values of y are NaN or infinite"),
        ((frame, y), "constant over all rows, or of values beyond 1e100 or closer than 1e-100"),
        ((frame.assign(b="u"), y), "the column 'b' holds"),
        ((x, 1e200 * y), "are column 1 of y: leave them out, or rescale"),
        ((x, 1e-200 * y), "are column 1 of y: leave them out, or rescale"),
        ((np.repeat(x[:10], 5), np.repeat(y[:10], 5)), "of 50 rows 10 differ from each other"),
    ):
        assert message in error_of(lambda a: mutual_information(*a), arguments)
    assert "equal to 3" in error_of(mutual_information, x, y, num_folds=2)


def test_networks_side_by_side_are_the_networks_one_by_one():
    stack = classifier.Classifiers(3, 5, 1, generator())
    for number, part in enumerate(stack.best):
        is_last = number % 4 == 3
        assert (part == 0).all() if is_last else 0 < part.abs().max() <= 5**-0.5
        part += 0.1 * torch.randn(part.shape, generator=generator(1))
    alone, inputs = [], torch.randn(6, 5, generator=generator(2))
    for n in range(3):
        x, (*hidden, last) = inputs, zip(stack.best[:4], stack.best[4:], strict=True)
        for matrix, offset in hidden:
            x = torch.nn.functional.silu(x @ matrix[n] + offset[n])
        alone.append((x @ last[0][n] + last[1][n])[:, 0].double())
    torch.testing.assert_close(stack.residual(slice(1, 2), inputs), alone[1])
    torch.testing.assert_close(stack.residual(slice(0, 3), inputs), sum(alone) / 3)


def test_before_training_the_ratio_is_the_copulas():
    estimation = Estimation(*data("sparse_5x5", 200), **SHORT)
    next(estimation.run())
    rows, fit = torch.arange(200), estimation.fits[3]
    for shift in (0, -1):
        (found,) = estimation.log_ratios(3, rows, rows.roll(shift), final=True).numpy()
        s = np.hstack([fit.s[:, :5], np.roll(fit.s[:, 5:], shift, 0)])
        np.testing.assert_allclose(found, fit.copula.log_ratio(s))


@pytest.mark.process
def test_the_script(script, capsys, tmp_path):
    """Correlated normals: the base alone is right, so that a short training does."""
    mi, g = script("evaluate/mi.py"), np.random.default_rng(0)
    x = g.standard_normal((1000, 1))
    y = 0.8 * x + 0.6 * g.standard_normal((1000, 1))
    np.save(tmp_path / "x.npy", x), np.save(tmp_path / "y.npy", y)
    rows = "\n".join(f"{a},{b}" for a, b in zip(x[:, 0], y[:, 0], strict=True))
    (tmp_path / "both.csv").write_text(f"a,b\n{rows}\n")
    common = ["--output_dir", str(tmp_path / "out"), "--iterations", "10"]
    arrays = ["--x", str(tmp_path / "x.npy"), "--y", str(tmp_path / "y.npy")]
    table = [f"--{side}={tmp_path / 'both.csv'}" for side in "xy"]
    table += ["--x_columns", "a", "--y_columns", "b"]
    answer = mi.main([*arrays, *common])
    error = answer["value"] + 0.5 * math.log(0.36)
    assert abs(error) < 3.5 * answer["stderr"] and 0 < answer["stderr"] < 0.05
    assert f"mutual information {answer['value']:.4f}" in capsys.readouterr().out
    assert (tmp_path / "out/mi_data.png").exists()
    assert json.loads((tmp_path / "out/mi_data.json").read_text())["figures"] == answer
    assert mi.main([*table, *common])["value"] == pytest.approx(answer["value"], abs=1e-9)
    for flags in (arrays[:2], table[:1], table[2:]):
        assert run_script(mi.main, flags) == 2
        assert "give either --x and --y" in capsys.readouterr().err
