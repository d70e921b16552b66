"""Anomaly scores against their equations."""

import numpy as np
import pytest
import torch
from conftest import error_of
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

from ebm_app.anomaly import conformal_p_values
from ebm_app.anomaly.features import Features
from ebm_app.anomaly.scores import (
    NUM_FOLDS,
    SCORES,
    TAIL,
    cross_fitted_ranks,
    cross_fitted_scores,
    log_rank,
)


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


def test_cross_fitted_scores_do_not_see_their_own_fold():
    features, score = random_features(20, seed=2), SCORES["residuals"]
    scores = cross_fitted_scores(score, features)
    fold = torch.arange(20) % NUM_FOLDS == 1
    state = score.fit(features.select(~fold))
    torch.testing.assert_close(scores[fold], score(features.select(fold), state))
    ranks = cross_fitted_ranks([scores, -scores])
    expected = sum(log_rank(each[fold], each[~fold]) for each in (scores, -scores))
    torch.testing.assert_close(ranks[fold], expected)


@pytest.mark.parametrize("num_tied", [11, 50, 99, 100])
def test_log_rank_orders_scores_below_tied_references(num_tied):
    reference = torch.cat([torch.zeros(num_tied), torch.arange(1.0, 101 - num_tied)])
    ranks = log_rank(torch.tensor([-9.0, -1.0, 0.0, 200.0]), reference).exp().tolist()
    assert ranks[0] <= ranks[1] < TAIL < ranks[2] <= ranks[3] == 1
    assert num_tied == 100 or ranks[0] < ranks[1]
    assert ranks[2] == pytest.approx((1 + num_tied) / 101)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("call", [log_rank, conformal_p_values])
def test_scores_that_are_not_finite_are_refused(call, bad):
    good, wrong = torch.arange(20.0), torch.tensor([1.0, bad])
    assert "1 of 2 images" in error_of(call, wrong, good)
    assert "1 of 2 images" in error_of(call, good, wrong)
