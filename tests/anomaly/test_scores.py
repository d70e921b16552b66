"""Mahalanobis scores, p-values and maps, against scikit-learn and their distributions."""

import numpy as np
import torch
from sklearn.covariance import LedoitWolf
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from ebm_app.anomaly import (
    NUM_FOLDS,
    conformal_p_values,
    fit_normal,
    fit_scores,
    mahalanobis_scores,
)


def correlated(num, seed=0):
    """Correlated normal vectors of different scales, (num, 4)."""
    mixing = torch.tensor([[1.0, 2, 0, 0], [0, 10, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0.1]])
    draws = torch.randn(num, 4, generator=torch.manual_seed(seed))
    return draws.double() @ mixing.double()


def mahalanobis(ordinary, other):
    scaler = StandardScaler().fit(ordinary)
    covariance = LedoitWolf().fit(scaler.transform(ordinary))
    return covariance.mahalanobis(scaler.transform(other))


def test_scores_add_the_mahalanobis_distances_of_two_blocks():
    """Each as of scikit-learn, over its standard deviation on the images of the other folds."""
    ordinary, other = correlated(200), correlated(5, seed=1)
    expected = 0
    for columns in (slice(3), slice(3, 4)):
        folds = KFold(NUM_FOLDS, shuffle=True, random_state=0).split(ordinary)
        held_out = [mahalanobis(ordinary[a, columns], ordinary[b, columns]) for a, b in folds]
        scale = np.concatenate(held_out).std(ddof=1)
        expected = expected + mahalanobis(ordinary[:, columns], other[:, columns]) / scale
    mean, matrix, _ = fit_scores([ordinary[:, :3], ordinary[:, 3:]])
    np.testing.assert_allclose(-mahalanobis_scores(other, mean, matrix), expected, rtol=1e-9)


def test_calibration_scores_use_the_other_images():
    """An outlier is far from the others, but not from statistics that include it."""
    vectors = correlated(100)
    vectors[7] *= 30
    mean, precision, calibration = fit_scores([vectors])
    with_it = mahalanobis_scores(vectors[7:8], mean, precision)
    assert calibration.argmin() == 7 and abs(with_it / calibration[7] - 1) > 0.5
    mean, precision = fit_normal(vectors[torch.arange(100) != 7])
    scale = with_it / mahalanobis_scores(vectors[7:8], *fit_normal(vectors))
    without = scale * mahalanobis_scores(vectors[7:8], mean, precision)
    assert abs(calibration[7] / without - 1) < 0.5


def test_conformal_p_values_are_uniform():
    """Each of n + 1 distinct scores is equally likely to be the new one."""
    scores = torch.randperm(20).double()
    others = [scores[torch.arange(20) != k] for k in range(20)]
    p = [conformal_p_values(scores[k : k + 1], others[k]).item() for k in range(20)]
    np.testing.assert_allclose(sorted(p), np.arange(1, 21) / 20)


def test_p_values_of_ordinary_vectors_are_uniform():
    p = []
    for seed in range(40):
        vectors = correlated(300, seed)
        mean, precision, calibration = fit_scores([vectors[:200, :2], vectors[:200, 2:]])
        scores = mahalanobis_scores(vectors[200:], mean, precision)
        p.append(conformal_p_values(scores, calibration))
    p = torch.cat(p)
    for rate in (0.05, 0.2, 0.5, 0.8):
        # binomial error of 4,000 new and 8,000 calibration scores
        stderr = np.sqrt(rate * (1 - rate) * (1 / 4000 + 1 / 8000))
        assert abs((p <= rate).double().mean().item() - rate) <= 3 * stderr
