"""Mahalanobis scores of feature vectors, their cross-conformal p-values, and scales of maps."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

#: Number of folds of cross-conformal prediction
NUM_FOLDS = 5
#: Fraction of ordinary images whose maps are below 1 everywhere
MAP_QUANTILE = 0.9


class Fitted(NamedTuple):
    """What ``fit`` learns from n ordinary images, whose feature vectors have F entries.

    Attributes:
        mean, precision: mean (F,) and inverse covariance (F, F) of the vectors, float64.
        calibration: scores of the n images, each by the vectors of the other folds, (n,) float64.
        map_mean, map_scale: mean, and value of a map of 1 above the mean, of the smoothed
            residuals at each noise level, float32 (noise levels, H, W).
    """

    mean: Tensor
    precision: Tensor
    calibration: Tensor
    map_mean: Tensor
    map_scale: Tensor


def fit_scores(vectors: Tensor) -> tuple[Tensor, ...]:
    """Return the mean, precision and calibration scores of feature vectors (n, F), see
    ``Fitted``."""
    from sklearn.model_selection import KFold

    calibration = torch.empty(len(vectors), dtype=torch.float64)
    for others, fold in KFold(NUM_FOLDS, shuffle=True, random_state=0).split(vectors):
        calibration[fold] = mahalanobis_scores(vectors[fold], *fit_normal(vectors[others]))
    mean, precision = fit_normal(vectors)
    return mean, precision, calibration


def fit_normal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (F,) and inverse covariance (F, F) of vectors (n, F). The covariance is that
    of Ledoit and Wolf 2004 for entries of unit variance."""
    from sklearn.covariance import LedoitWolf  # takes a second to import
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    covariance = LedoitWolf().fit(scaler.fit_transform(vectors.numpy()))
    precision = covariance.precision_ / np.outer(scaler.scale_, scaler.scale_)
    return torch.from_numpy(scaler.mean_), torch.from_numpy(precision)


def mahalanobis_scores(vectors: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return minus the squared Mahalanobis distances of vectors (B, F), float64 (B,)."""
    centred = vectors - mean
    return -((centred @ precision) * centred).sum(1)


def fit_maps(smoothed: Tensor) -> tuple[Tensor, ...]:
    """Return the mean and scale of maps, see ``Fitted``, of smoothed residuals (n, noise levels,
    H, W) of ordinary images."""
    mean, std = smoothed.mean(0), smoothed.std(0)
    std = std + 0.1 * std.mean()  # some pixels never vary, such as the corners of MNIST
    largest = ((smoothed - mean) / std).flatten(1).amax(1)
    return mean, std * largest.quantile(MAP_QUANTILE)


def conformal_p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    r"""Return p = (1 + #{i: s_i <= s}) / (n + 1) for each score s (B,), float64.

    P(p <= a) <= a if s is exchangeable with the n calibration scores s_i.

    >>> conformal_p_values(torch.tensor([0.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.2500, 1.0000], dtype=torch.float64)

    Source: Bates et al. 2023, arXiv:2104.08279.
    """
    num_below = torch.searchsorted(calibration.sort().values, scores, right=True)
    return (1 + num_below).double() / (1 + len(calibration))
