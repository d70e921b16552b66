"""Weighted conformal prediction: the quantile by its definition, and the coverage on rows of
another density."""

import numpy as np
import pytest
from conftest import error_of

from ebm_app import log_density_ratio
from ebm_app.tabular.conformal import weighted_quantile


def by_definition(scores, weights, weight, level):
    """The smallest score whose part of the distribution is the level."""
    total = weights.sum() + weight
    reached = [v for v in scores if weights[scores <= v].sum() / total >= level]
    return min(reached, default=np.inf)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.83])
def test_the_quantile_by_its_definition(level):
    numbers = np.random.default_rng(0)
    scores = numbers.integers(0, 12, 40).astype(float)  # with ties
    log_weight, at = 3 * numbers.standard_normal(40), np.array([-50.0, 0.0, 4.0, 50.0])
    found = weighted_quantile(scores, log_weight + 900, at + 900, level)
    expected = [by_definition(scores, np.exp(log_weight), np.exp(a), level) for a in at]
    np.testing.assert_array_equal(found, expected)
    assert found[-1] == np.inf and (np.diff(found) >= 0).all()


def answers(numbers, x):
    """x_1^2 with noise that grows with x_1, and nothing of x_2."""
    return x[:, 0] ** 2 + np.exp(0.5 * x[:, 0]) * numbers.standard_normal(len(x))


def repetition(seed, steps, num_folds):
    """Coverages on 500 rows of N((1, 0), I) with weights and without, from 500 rows of N(0, I) and
    a line that 200 others fit."""
    numbers = np.random.default_rng(seed)
    train, x0, x1, new = (numbers.standard_normal((num, 2)) for num in (200, 500, 500, 500))
    x1[:, 0] += 1
    new[:, 0] += 1
    line = np.polyfit(train[:, 0], answers(numbers, train), 1)
    scores, of_new = (np.abs(answers(numbers, x) - np.polyval(line, x[:, 0])) for x in (x0, new))
    ratio = log_density_ratio(x0, x1, num_folds, steps, seed)
    plain = weighted_quantile(scores, np.zeros(500), np.zeros(1), 0.9)
    return (of_new <= ratio.conformal_bound(scores, new)).mean(), (of_new <= plain).mean()


@pytest.mark.slow
def test_coverage_over_a_hundred_repetitions(capsys):
    found = np.array([repetition(seed, 200, 5) for seed in range(100)])
    (weighted, plain), error = found.mean(0), found.std(0) / 10
    with capsys.disabled():
        print(f"\ncoverage of 90 percent: {weighted:.3f} ± {error[0]:.3f} with weights, ", end="")
        print(f"{plain:.3f} ± {error[1]:.3f} without")
    assert abs(weighted - 0.9) < 0.02 and plain < 0.85


def test_a_ratio_bounds_scores_and_what_is_no_score_is_refused():
    with_weights, without = np.mean([repetition(seed, 20, 2) for seed in range(3)], 0)
    assert without < 0.85 < with_weights < 0.95
    numbers = np.random.default_rng(2)
    ratio = log_density_ratio(numbers.normal(size=60), numbers.normal(2, size=60), 2, 1)
    for scores, coverage, message in (
        (np.ones(59), 0.9, "scores has the shape (59, 1): give one for each of the 60 rows"),
        (np.full(60, np.nan), 0.9, "NaN or infinite"),
        (np.ones(60), 1.0, "coverage: must be less than 1"),
    ):
        assert message in error_of(ratio.conformal_bound, scores, np.zeros(3), coverage)
    assert (ratio.conformal_bound(np.arange(60.0), np.full(1, 1e3)) == np.inf).all()
