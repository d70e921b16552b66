"""Anomaly scores, p-values and the two-sample test against their equations."""

import numpy as np
import pytest
import torch
from conftest import error_of
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

from ebm_app.anomaly import conformal_p_values, two_sample_test
from ebm_app.anomaly.features import Features
from ebm_app.anomaly.p_values import energy_distances
from ebm_app.anomaly.scores import SCORES, TAIL, log_rank
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM


def random_features(num, seed):
    draw = torch.Generator().manual_seed(seed)
    squares, expected = (torch.rand(num, 2, 4, 4, generator=draw) + 0.5 for _ in range(2))
    time_scores = torch.randn(num, 2, generator=draw, dtype=torch.float64)
    losses = torch.randn(num, 8, generator=draw, dtype=torch.float64)
    statistics = torch.randn(num, 5, generator=draw, dtype=torch.float64)
    return Features(statistics, squares, expected, time_scores, losses)


def test_scores_match_their_equations():
    ordinary, other = random_features(200, seed=0), random_features(5, seed=1)
    found = {name: score(other, score.fit(ordinary)) for name, score in SCORES.items()}
    torch.testing.assert_close(found["likelihood"], -other.losses[:, 0])
    torch.testing.assert_close(found["symmetry"], (-other.losses).log_softmax(1)[:, 0])
    for name in ("residuals", "time_scores"):
        x, z = (SCORES[name].vectors(part).numpy() for part in (ordinary, other))
        scale = x.std(0, ddof=1)
        precision = LedoitWolf().fit((x - x.mean(0)) / scale).precision_
        expected = [-(mahalanobis(r, x.mean(0) / scale, precision) ** 2) for r in z / scale]
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_log_rank_extrapolates_below_the_reference():
    reference = torch.arange(1.0, 101)
    ranks = log_rank(torch.tensor([200.0, 50.5, 0.0, -10.0]), reference).exp()
    assert ranks[0] == 1 and ranks[1] == pytest.approx(51 / 101)
    q = np.quantile(reference, TAIL)
    mean = np.mean([q - s for s in range(1, 101) if s < q])
    assert ranks[2].item() == pytest.approx(TAIL * np.exp(-q / mean))
    assert ranks[3].item() == pytest.approx(TAIL * np.exp(-(q + 10) / mean))


@pytest.mark.parametrize("num_tied", [11, 50, 99, 100])
def test_log_rank_orders_scores_below_tied_references(num_tied):
    reference = torch.cat([torch.zeros(num_tied), torch.arange(1.0, 101 - num_tied)])
    ranks = log_rank(torch.tensor([-9.0, -1.0, 0.0, 200.0]), reference).exp().tolist()
    assert ranks[0] <= ranks[1] < TAIL < ranks[2] <= ranks[3] == 1
    assert num_tied == 100 or ranks[0] < ranks[1]
    assert ranks[2] == pytest.approx((1 + num_tied) / 101)


@pytest.mark.parametrize("call", [log_rank, conformal_p_values])
def test_scores_that_are_not_finite_are_refused(call):
    good, wrong = torch.arange(20.0), torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    for scores in ((wrong, good), (good, wrong)):
        assert "3 of 4 images" in error_of(call, *scores)


def test_conformal_p_values_are_uniform():
    """Each of n + 1 distinct scores is equally likely to be the new one."""
    scores = torch.randperm(20).double()
    others = [scores[torch.arange(20) != k] for k in range(20)]
    p = [conformal_p_values(scores[k : k + 1], others[k])[0] for k in range(20)]
    np.testing.assert_allclose(sorted(p), np.arange(1, 21) / 20)


def test_energy_distance_matches_its_equation():
    x, in_a = torch.randn(7, 3).double(), torch.tensor([1, 0, 1, 1, 0, 0, 1]).bool()
    a, b = x[in_a], x[~in_a]
    expected = 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
    torch.testing.assert_close(energy_distances(torch.cdist(x, x), in_a[None]), expected[None])


def test_two_sample_test_detects_mirrored_images():
    ebm, digits = EBM.from_pretrained("digits"), load_images("digits")
    a, b = digits.test[:80], digits.test[80:160]
    same = two_sample_test(ebm, a, b, 199)
    shifted = two_sample_test(ebm, a, torch.cat([b[:40], b[40:].flip(-1)]), 199)
    assert same.p_value > 0.05 > shifted.p_value and shifted.b.shape == (80,)
    assert shifted.b[40:].mean() < shifted.b[:40].mean()
