"""Log ratios of two samples, and mutual information, by classification."""

import json
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import call, error_of, figures_of
from exact import F64, generator, normal

from ebm_app import CTSMRatio, log_density_ratio, mutual_information
from ebm_app.ratios.classifier import GaussianRatio
from ebm_app.ratios.cross_fit import CrossFit, Sample
from ebm_app.ratios.information import EXAMPLES, InformationFit, draw_example, normal_scores
from ebm_app.ratios.pairs import DensityPair, GaussianMixture, standard_normal

SHORT = {"num_folds": 3, "steps": 100}


def pairs(task="normal_1x1", num=900, seed=0):
    return [part.numpy() for part in draw_example(task, num, generator(seed))]


def shifted(num=800, dim=2, shift=0.7, seed=0):
    return normal((num, dim), seed), normal((num, dim), seed + 1) + shift


class Shift:
    """Log ratio of N(shift, I) and N(0, I), plus a constant."""

    def __init__(self, shift, offset=0.0):
        self.shift, self.offset = shift, offset

    def __call__(self, x):
        return (self.shift * x - self.shift**2 / 2).sum(1) + self.offset


def cross_fit(ratio, x0, x1):
    """Results of a learner that returns a known ratio."""
    parts = [
        Sample(x, torch.arange(len(x)) % 3, first + torch.arange(len(x))[:, None])
        for first, x in ((0, x0), (len(x0), x1))
    ]
    fit = CrossFit(*parts, lambda *_: (ratio, ratio), 3, generator())
    return list(fit.run()), fit.result()


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
    part = ratio._replace(num_axes=2, scale=0.5)
    assert torch.equal(part(x), ratio.along_axes(x)[:, :2].sum(1) / 2)


def test_bound_and_error_of_the_exact_ratio():
    """KL = 1/2 nats: the bound is within its error, whatever the constant of the ratio."""
    errors = []
    for seed in range(40):
        x0, x1 = shifted(400, 1, 1.0, 2 * seed)
        _, estimate = cross_fit(Shift(1.0, 3.0), x0, x1)
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
        _, estimate = cross_fit(pair.log_ratio, x0, x1)
        above += estimate.interval[0] > truth
    assert above <= 2


def test_bound_is_below_the_divergence_for_a_wrong_ratio():
    steps, estimate = cross_fit(Shift(0.3), *shifted(4_000, 1, 1.0))
    assert steps == [1, 2, 3]
    assert estimate.value == pytest.approx(0.3 - 0.3**2 / 2, abs=0.05)
    for number in (estimate.value, estimate.stderr, *estimate.interval):
        assert f"{number:.4f}" in estimate.summary()


@pytest.mark.parametrize(("shift", "reason"), [(3.0, "effective rows"), (0.0, "constant")])
def test_bound_is_withheld(shift, reason):
    """With few effective rows, and for a constant ratio."""
    _, estimate = cross_fit(Shift(shift), *shifted(300, 10, shift))
    assert estimate.value is estimate.stderr is estimate.interval is None
    assert reason in estimate.warnings[0] and "KL" not in estimate.summary()
    assert estimate.figures()["interval"] is None


@pytest.mark.parametrize(
    "fit", [partial(log_density_ratio, **SHORT), CTSMRatio(num_folds=3, steps=20).fit]
)
def test_shifts_below_float32_precision_are_learned(fit):
    """Columns near 1 that differ by 6e-7, which is 5 float32 steps: KL = 18 nats."""
    x0, x1 = (1 + 1e-7 * normal((200, 1), seed) for seed in (0, 1))
    fitted = fit(x0, x1 + 6e-7)
    estimate = getattr(fitted, "estimate_", fitted)
    assert estimate.mean_log_ratio == pytest.approx(18, rel=0.3)
    assert estimate.value is None
    assert "x0" in error_of(fit, np.ma.masked_greater(x0.numpy(), 1), x1)


def test_log_ratio_of_two_shifted_gaussians():
    x0, x1 = shifted()
    estimate = log_density_ratio(x0, x1, **SHORT)
    assert estimate.interval[0] < 0.49 < estimate.interval[1]
    assert abs(estimate.value - 0.49) < 4 * estimate.stderr < 0.4
    x = normal((200, 2), 9) + 0.35
    assert (estimate.log_ratio(x) - Shift(0.7)(x)).square().mean() < 0.05
    weights = (estimate.log_ratio0 - estimate.log_ratio0.exp().mean().log()).exp()
    assert weights.mean().item() == pytest.approx(1)
    assert json.loads(json.dumps(estimate.figures(), allow_nan=False))["value"] == estimate.value


def test_network_learns_what_gaussians_miss():
    """A mixture of two modes against a Gaussian of the same mean and variance."""
    sign = (torch.arange(1_500) % 2 * 2.0 - 1)[:, None]
    x0, x1 = normal((1_500, 1), 1), 0.9 * sign + math.sqrt(0.19) * normal((1_500, 1), 2)
    estimate = log_density_ratio(x0, x1, num_folds=3, steps=400)
    assert 0.15 < estimate.value < 0.35  # the Gaussians find 0


def test_log_ratio_raises_for_other_columns():
    table = pd.DataFrame(normal((60, 2)).numpy(), columns=["a", "b"])
    estimate = log_density_ratio(table, table + 1, **SHORT)
    assert "b, a" in error_of(estimate.log_ratio, table[["b", "a"]])
    assert "columns" in error_of(log_density_ratio, table, table[["a"]])


@pytest.mark.parametrize("task", ["normal_1x1", "sparse_5x5"])
def test_information_interval_holds_the_truth(task):
    estimate = mutual_information(*pairs(task), **SHORT)
    truth = EXAMPLES[task][0]
    assert estimate.interval[0] < truth < estimate.interval[1] < truth + 0.3
    assert estimate.log_ratio1.shape == (900,)


def test_information_of_independent_and_of_equal_columns():
    estimate = mutual_information(normal((500, 2)), normal((500, 2), 1), **SHORT)
    assert estimate.interval[0] == 0 < estimate.interval[1] < 0.1
    x = (normal((300, 1)) > 0).double()
    estimate = mutual_information(x, -x, **SHORT)  # log 2 nats
    assert estimate.interval[0] < math.log(2) < estimate.interval[1]


def test_information_depends_on_order_and_seed_alone():
    """Increasing maps of the columns do not change it."""
    x, y = pairs(num=300)
    first, other = (mutual_information(x, y, random_state=k, **SHORT).value for k in (3, 4))
    same = mutual_information(np.exp(x), y**3, random_state=3, **SHORT)
    assert same.value == first != other


def test_pairs_of_different_rows_stay_in_their_fold():
    x, y = pairs(num=90)
    shuffled, joint = InformationFit(x, y, num_folds=3).samples
    first, second = shuffled.units.T
    assert (first != second).all()
    assert torch.equal(joint.units[:, 0].sort().values, torch.arange(90))
    by_unit = torch.zeros(90, dtype=torch.int64)
    by_unit[joint.units[:, 0]] = joint.fold
    assert torch.equal(by_unit[first], shuffled.fold)
    assert torch.equal(by_unit[second], shuffled.fold)


def test_normal_scores_of_ties():
    scores = normal_scores(np.array([[3.0], [1.0], [1.0], [7.0]]))
    assert scores[:, 0].tolist() == pytest.approx([0.2533, -0.5244, -0.5244, 0.8416], abs=1e-4)


def test_invalid_pairs_raise():
    x, y = pairs(num=60)
    assert "60 rows" in error_of(mutual_information, x, y[:50])
    for copy in (-y, np.exp(y), y + 6e-7 * x):
        assert "infinite" in error_of(mutual_information, np.hstack([x, copy]), y)
    assert "num_folds" in error_of(mutual_information, x, y, num_folds=2)
    assert "distinct" in error_of(mutual_information, x[:20], y[:20])


@pytest.mark.process
def test_mi_script_estimates_from_files(script, capsys, tmp_path):
    table = pd.DataFrame(np.hstack(pairs(num=200)), columns=["a", "b"])
    table.to_csv(tmp_path / "t.csv", index=False)
    flags = ["--x", tmp_path / "t.csv", "--x_columns", "a", "--y", tmp_path / "t.csv"]
    flags += ["--y_columns", "b", "--iterations", 20, "--output_dir", tmp_path / "out"]
    module = script("evaluate/mi.py")
    metrics = figures_of(module, *flags)
    assert metrics["interval"][0] < 0.4133 < metrics["interval"][1]
    assert {"value", "stderr", "interval"} <= metrics.keys()
    assert (tmp_path / "out/mi_data.png").exists()
    assert call(module, *flags[:4], *flags[-2:]) == 2 and "--y" in capsys.readouterr().err
