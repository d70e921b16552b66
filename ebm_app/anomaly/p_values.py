"""Conformal p-values, false discovery control, and a two-sample permutation test."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import false_discovery_control
from torch import Tensor

from ebm_app.anomaly.features import extract_features
from ebm_app.anomaly.scores import check_finite
from ebm_app.ebm import EBM
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Fraction, PositiveInt, Probability, Seed, check_argument


class Findings(NamedTuple):
    """Results of ``AnomalyDetector.examine`` for B images.

    Attributes:
        score: anomaly scores (B,); lower is more anomalous.
        p_value: conformal p-values (B,).
        p_values: conformal p-values (B,) of each single score, by its name in ``SCORES``.
        maps: anomaly maps (B, H, W), see ``AnomalyDetector.explain``.
    """

    score: np.ndarray
    p_value: np.ndarray
    p_values: dict[str, np.ndarray]
    maps: np.ndarray


def conformal_p_values(scores: Tensor, calibration: Tensor) -> np.ndarray:
    r"""Return p = (1 + #{i: s_i <= s}) / (n + 1) for each score s (B,), float64.

    P(p <= a) <= a if s is exchangeable with the n calibration scores s_i.

    >>> conformal_p_values(torch.tensor([0.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
    array([0.25, 1.  ])

    Source: Bates et al. 2023, arXiv:2104.08279.

    Raises:
        UserError: for scores that are not finite.
    """
    check_finite(scores, "anomaly scores")
    check_finite(calibration, "calibration scores")
    ordered = calibration.double().sort().values
    below = torch.searchsorted(ordered, scores.double(), right=True)
    return ((1 + below).double() / (1 + len(ordered))).numpy()


def conformal_threshold(calibration: Tensor, rate: float) -> float:
    """Return the score below which the conformal p-value is at most ``rate``.

    Raises:
        UserError: if the rate is not in (0, 1), or too small for the number of scores.
    """
    rate = check_argument(Fraction, "false_alarm_rate", rate)
    index = int(rate * (len(calibration) + 1) + 1e-9)
    if index < 1:
        raise UserError(
            f"A false-alarm rate of {rate:g} needs {math.ceil(1 / rate) - 1} calibration images, "
            f"got {len(calibration)}. Raise the rate, or fit to more images."
        )
    return calibration.sort().values[index - 1].item()


def benjamini_hochberg(p_values: Any, rate: float) -> np.ndarray:
    """Return which of m images are unusual at a false discovery rate, (m,) bool.

    The k images with the smallest p-values are flagged, where k is the largest number for which
    the k-th p-value is at most k rate / m. The expected share of ordinary images among them is at
    most ``rate``.

    >>> benjamini_hochberg([0.01, 0.5, 0.03], 0.1)
    array([ True, False,  True])

    Source: Benjamini and Hochberg 1995; for conformal p-values, arXiv:2104.08279.

    Raises:
        UserError: if the rate is not in (0, 1), or a p-value is not in [0, 1].
    """
    p = np.array(check_argument(Sequence[Probability], "p_values", p_values))
    return false_discovery_control(p) <= check_argument(Fraction, "rate", rate)


class Shift(NamedTuple):
    """Result of ``two_sample_test`` on sets of N and M images.

    Attributes:
        distance: energy distance between the feature vectors of the sets.
        p_value: permutation p-value of the distance.
        a, b: for each image (N,) and (M,), the mean distance to its own set minus that to the
            other set; the lowest are least like the other set.
    """

    distance: float
    p_value: float
    a: np.ndarray
    b: np.ndarray


def two_sample_test(
    model: EBM, a: Any, b: Any, num_permutations: int = 999, seed: int = 0
) -> Shift:
    r"""Test whether images a and b have the same distribution.

    The statistic is the energy distance between feature vectors f(x), which hold the log
    residuals by image cell and noise level, standardised:

        D = 2 E|f(a) - f(b)| - E|f(a) - f(a')| - E|f(b) - f(b')|.

    The p-value is the share of random permutations of the images, including the identity, whose D
    is at least as large. It is exact for any number of images.

    >>> ebm = EBM.from_pretrained("digits")
    >>> grey, black = torch.rand(2, 8, 1, 8, 8).mul(2).floor().div(2)
    >>> two_sample_test(ebm, grey, 0 * black, num_permutations=99).p_value
    0.01

    Args:
        model: an EBM with a Stein head.
        a, b: images (N, C, H, W) and (M, C, H, W), in [0, 1] or uint8 levels.

    Raises:
        UserError: if a set has fewer than 2 images, or images do not match the model.

    Source: Szekely and Rizzo 2013, https://doi.org/10.1016/j.jspi.2013.03.018.
    """
    num = check_argument(PositiveInt, "num_permutations", num_permutations)
    seed = check_argument(Seed, "seed", seed)
    features = [extract_features(model, images) for images in (a, b)]
    sizes = [len(x.losses) for x in features]
    if min(sizes) < 2:
        raise UserError(
            f"Expected at least 2 images in each set, got {sizes[0]} and {sizes[1]} images."
        )
    vectors = torch.cat([torch.cat([x.residuals(), x.losses[:, :1]], 1) for x in features])
    check_finite(vectors, "features")
    vectors = (vectors - vectors.mean(0)) / (vectors.std(0) + 1e-9)
    distances = torch.cdist(vectors, vectors)
    in_a = torch.arange(len(vectors)) < sizes[0]
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(vectors), generator=generator) for _ in range(num)]
    statistics = energy_distances(distances, torch.stack([in_a, *(in_a[o] for o in orders)]))
    p_value = (statistics >= statistics[0] - 1e-12).double().mean().item()
    nearness = distances[:, in_a].mean(1) - distances[:, ~in_a].mean(1)
    return Shift(statistics[0].item(), p_value, nearness[in_a].numpy(), -nearness[~in_a].numpy())


def energy_distances(distances: Tensor, members: Tensor) -> Tensor:
    """Return the energy distances (K,) of K splits of n points into two sets.

    With weights w of 1 / N in the first set and -1 / M in the second, each is -w^T distances w.

    Args:
        distances: distances between all points, (n, n) float64.
        members: whether a point is in the first set, (K, n) bool.
    """
    first, second = members.double(), (~members).double()
    weights = first / first.sum(1, keepdim=True) - second / second.sum(1, keepdim=True)
    return -((weights @ distances) * weights).sum(1)
