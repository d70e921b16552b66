"""Features of images, against their equations; scores and p-values, against scikit-learn and
their distributions."""

import numpy as np
import torch
from conftest import GREY
from sklearn.covariance import LedoitWolf
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from ebm_app.anomaly import (
    FLOOR,
    NUM_FOLDS,
    SEED,
    SMALL,
    conformal_p_values,
    extract_features,
    fit_normal,
    fit_scores,
    image_statistics,
    mahalanobis_scores,
    noise_levels,
    noise_times,
)
from ebm_app.ebm import EBM
from ebm_app.nets.model import ModelOutput


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, the residual is alpha^2 e - alpha sqrt(v) y."""
    ebm = EBM(GREY).double().eval()
    monkeypatch.setattr(ebm.model, "output", lambda x, t: ModelOutput(x, -x, 3 + 0 * x))
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    uniform = u.expand(3, -1, -1, -1)
    y = ebm.dequantiser.points(images, ebm.cells, uniform, ebm.model).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, variance = ebm.model.path.alpha(t), ebm.model.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * variance.sqrt() * y
        expected = (residual.square()[:, 0] / (3 + FLOOR)).float()
        torch.testing.assert_close(features.squares[:, index], expected)
        x = alpha * y + variance.sqrt() * noise[index]
        torch.testing.assert_close(features.time_scores[:, index], x.sum((1, 2, 3)))
    torch.testing.assert_close(features.variances, torch.full((3, 4), 3.0).double())


def test_noise_levels_are_signal_to_noise_ratios():
    ebm = EBM(GREY)
    t = torch.tensor(noise_times(ebm), dtype=torch.float64)
    path = ebm.model.path
    expected = (path.alpha(t).square() / path.variance(t)).log()
    torch.testing.assert_close(torch.tensor(noise_levels((1, 8, 8))).double(), expected)
    # the noise variance is proportional to the number of pixels
    shift = np.subtract(noise_levels((1, 14, 28)), noise_levels((1, 28, 28)))
    np.testing.assert_allclose(shift, np.log(2))


def test_differences_of_pixels_in_closed_form():
    """Of a linear ramp, whose pooled pixels differ by the scale times the slope."""
    ramp = 0.05 * torch.arange(16).double().expand(1, 1, 8, 16)
    scales = torch.tensor([1.0, 2, 4]).double()
    expected = ((0.05 * scales).square() / 2 + SMALL).log()
    torch.testing.assert_close(image_statistics(ramp)[0, 1:], expected)


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
