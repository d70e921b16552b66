"""Estimates from held-out log ratios, and log ratios of two samples by classification."""

import json
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of
from exact import F64, generator, normal
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from ebm_app import ClassifierRatio, CTSMRatio
from ebm_app.ratios.classifier import NetworkClassifier
from ebm_app.ratios.densities import DensityPair, GaussianMixture, standard_normal
from ebm_app.ratios.estimate import HeldOut, bound_estimate, mean_estimate
from ebm_app.ratios.gaussians import GaussianRatio, select_shrinkage


def network(steps=100):
    return ClassifierRatio(NetworkClassifier(steps), num_folds=3)


def shifted(num=800, dim=2, shift=0.7, seed=0):
    return normal((num, dim), seed).numpy(), normal((num, dim), seed + 1).numpy() + shift


def shift_ratio(x, shift, offset=0.0):
    """Log ratio of N(shift, I) and N(0, I), plus a constant."""
    return (shift * x - shift**2 / 2).sum(1) + offset


def held_out(ratio, x0, x1):
    """Log ratios of a known ratio at independent rows."""
    r0, r1 = ratio(x0), ratio(x1)
    units = np.arange(len(x0))[:, None], len(x0) + np.arange(len(x1))[:, None]
    return HeldOut((r0, r1), units, [(r0, r1)], "Known()", "KL(p_1 || p_0)")


def test_gaussian_ratio_matches_closed_form():
    x0, x1 = normal((60, 3), 2), normal((50, 3), 3) @ normal((3, 3), 4) + 1
    x, ratio = normal((20, 3), 5), GaussianRatio.fit(x0, x1, 0.0)
    for sample, variance in zip((x0, x1), ratio.variances, strict=True):
        covariance = ratio.coordinates(sample).T.cov()
        torch.testing.assert_close(covariance, variance.diag(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ratio.variances.mean(0), torch.ones(3, dtype=F64))
    expected = 0
    for part, sign in ((x1, 1), (x0, -1)):
        density = torch.distributions.MultivariateNormal(part.mean(0), part.T.cov())
        expected = expected + sign * density.log_prob(x)
    torch.testing.assert_close(ratio(x), expected, rtol=1e-5, atol=1e-5)


def test_repeated_column_leaves_the_gaussian_ratio_unchanged():
    x0, x1 = normal((60, 2)), normal((50, 2), 1) + 1
    expected = GaussianRatio.fit(x0, x1, 0.0)(x0)
    again = [torch.cat([x, x[:, :1]], 1) for x in (x0, x1)]
    found = GaussianRatio.fit(*again, 0.0)(again[0])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_likelihood_of_gaussians_selects_the_shrinkage():
    x0, x1 = normal((60, 3), 2), normal((50, 3), 3) @ normal((3, 3), 4) + 1
    ratio, expected = GaussianRatio.fit(x0, x1, 0.0), 0
    for part in (x0, x1):
        density = torch.distributions.MultivariateNormal(part.mean(0), part.T.cov())
        expected = expected + density.log_prob(part).mean().item() + 1.5 * math.log(2 * math.pi)
    assert ratio.log_likelihood((x0, x1)) == pytest.approx(expected, rel=1e-6)
    few, many = ([normal((num, 8), seed) for seed in (num, num + 1)] for num in (12, 900))
    assert select_shrinkage(few, many) == 1  # independent columns
    mixed = normal((8, 8), 9)
    assert select_shrinkage([x @ mixed for x in many], [x @ mixed for x in many]) == 0


def test_bound_and_error_of_the_exact_ratio():
    """KL = 1/2 nats: the bound is within its error, whatever the constant of the ratio."""
    errors = []
    for seed in range(40):
        x0, x1 = shifted(400, 1, 1.0, 2 * seed)
        estimate = bound_estimate(held_out(partial(shift_ratio, shift=1.0, offset=3.0), x0, x1))
        errors.append((estimate.value - 0.5) / estimate.stderr)
        assert abs(estimate.normaliser / math.exp(3) - 1) < 5 * estimate.normaliser_stderr
    assert abs(np.mean(errors)) < 0.6 and 0.7 < np.std(errors) < 1.4


def test_interval_rarely_begins_above_the_divergence():
    """In at most 2.5 percent of samples, although few rows dominate the normaliser."""
    pair = DensityPair(
        standard_normal(8), GaussianMixture([[0.3] * 8], torch.tensor([0.8, 1.2] * 4))
    )
    truth = pair.log_ratio(pair.p1.sample(400_000, generator())).mean().item()
    above = 0
    for seed in range(100):
        draws = generator(seed)
        x0, x1 = (p.sample(1_000, draws).double() for p in (pair.p0, pair.p1))
        estimate = bound_estimate(held_out(lambda x: pair.log_ratio(x).numpy(), x0, x1))
        above += estimate.interval[0] > truth
    assert above <= 2


def test_bound_is_below_the_divergence_for_a_wrong_ratio():
    estimate = bound_estimate(held_out(partial(shift_ratio, shift=0.3), *shifted(4_000, 1, 1.0)))
    assert estimate.value == pytest.approx(0.3 - 0.3**2 / 2, abs=0.05)
    assert f"{estimate.value:.4f}" in estimate.summary()
    assert json.loads(json.dumps(estimate.figures(), allow_nan=False)) == estimate.figures()


def test_distant_densities_have_a_mean_and_no_bound():
    known = held_out(partial(shift_ratio, shift=3.0), *shifted(2_000, 10, 3.0))
    r0, r1 = known.log_ratios
    folds = known._replace(training=[(r0, np.delete(r1, row)) for row in range(len(r1))])
    bound, mean = bound_estimate(known), mean_estimate(folds)
    assert bound.value is bound.stderr is bound.interval is None
    assert "effective rows" in bound.warnings[0]
    # the mean of a log ratio with variance 90
    assert mean.value == mean.mean_log_ratio == pytest.approx(45, abs=4 * (90 / 2_000) ** 0.5)
    assert mean.stderr == pytest.approx((90 / 2_000) ** 0.5, rel=0.1)
    assert "not a bound" in mean.warnings[0]


def test_infinite_normaliser_is_null_in_json():
    known = held_out(partial(shift_ratio, shift=0.3, offset=1e4), *shifted(400, 1, 0.3))
    assert json.loads(json.dumps(bound_estimate(known).figures(), allow_nan=False))["value"] > 0


def test_classifier_has_no_value_for_distant_gaussians():
    estimate = network(5).fit(*shifted(200, 1, 40.0)).estimate_
    assert estimate.value is None and estimate.mean_log_ratio > 500  # KL = 800


@pytest.mark.parametrize("ratio", [network(), CTSMRatio(num_folds=3, steps=20)])
def test_shifts_below_float32_precision_are_learned(ratio):
    """Columns near 1 that differ by 2e-7, less than two float32 steps: KL = 2 nats."""
    x0, x1 = (1 + 1e-7 * normal((600, 1), seed).numpy() for seed in (0, 1))
    estimate = ratio.fit(x0, x1 + 2e-7).estimate_
    assert abs(estimate.value - 2) < 4 * estimate.stderr < 0.8
    assert "x0" in error_of(ratio.fit, np.ma.masked_greater(x0, 1), x1)


def test_log_ratio_of_two_shifted_gaussians():
    ratio = network().fit(*shifted())
    estimate = ratio.estimate_
    assert estimate.interval[0] < 0.49 < estimate.interval[1]
    assert abs(estimate.value - 0.49) < 4 * estimate.stderr < 0.4
    x = normal((200, 2), 9).numpy() + 0.35
    assert np.square(ratio.log_ratio(x) - shift_ratio(x, 0.7)).mean() < 0.05
    assert estimate.estimator == repr(ratio)


def test_any_classifier_gives_a_log_ratio():
    """Discriminant analysis has the exact form of the log ratio of two Gaussians."""
    x0, x1 = shifted(3_000)
    ratio = ClassifierRatio(QuadraticDiscriminantAnalysis()).fit(x0, x1[:1_000])
    x = normal((200, 2), 9).numpy() + 0.35
    assert np.square(ratio.log_ratio(x) - shift_ratio(x, 0.7)).mean() < 0.02
    assert ratio.estimate_.interval[0] < 0.49 < ratio.estimate_.interval[1]
    tree = ClassifierRatio(DecisionTreeClassifier(random_state=0)).fit(x0, x1)  # probabilities 0
    assert np.isfinite(tree.estimate_.log_ratio1).all()


def test_network_learns_what_gaussians_miss():
    """A mixture of two modes against a Gaussian of the same mean and variance."""
    sign = (torch.arange(1_500) % 2 * 2.0 - 1)[:, None]
    x0, x1 = normal((1_500, 1), 1), 0.9 * sign + math.sqrt(0.19) * normal((1_500, 1), 2)
    estimate = network(200).fit(x0, x1).estimate_
    assert 0.15 < estimate.value < 0.35  # the Gaussians find 0


def test_log_ratio_raises_for_other_columns():
    table = pd.DataFrame(normal((60, 2)).numpy(), columns=["a", "b"])
    ratio = network(5).fit(table, table + 1)
    assert "b, a" in error_of(ratio.log_ratio, table[["b", "a"]])
    assert "row 1" in error_of(ratio.log_ratio, pd.DataFrame({"a": [0, 1e30], "b": [0, 1e30]}))
    for scale in (1e-200, 1e160):
        assert "column b" in error_of(network().fit, *(table * [1, scale] for _ in range(2)))
    assert "columns" in error_of(network().fit, table, table[["a"]])
    assert "num_folds" in error_of(ClassifierRatio(num_folds=2).fit, table, table)
    assert "LinearSVC" in error_of(ClassifierRatio(LinearSVC()).fit, table, table)
