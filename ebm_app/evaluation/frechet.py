"""How far drawn images are from a data set: by their features, and by the classes they show.

The features of either set are taken for Gaussian, and two Gaussians have a distance in closed
form; the classes are counted, and two histograms differ by their total variation.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ebm_app.io.errors import UserError

#: probability from which on a class is clear
CLEAR = 0.9


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    r"""Squared Frechet (2-Wasserstein) distance of the Gaussians with the mean and the unbiased
    covariance of two feature sets, in the squared unit of the features:

        |mu_a - mu_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^{1/2}).

    With C = R^T R the last trace is the sum of the singular values of R_a R_b^T, which exists for
    singular covariances too. The distance is biased upwards by the noise of both sets, the more
    the fewer rows they have: compare values for equal numbers of rows only.

    References: Dowson & Landau 1982, The Frechet distance between multivariate normal
    distributions, J. Multivariate Anal. 12; Heusel et al. 2017, arXiv:1706.08500, for its use on
    the features of images.

    >>> x = torch.tensor([[0.0], [2.0], [4.0]])
    >>> round(frechet_distance(x, 2 * x + 1), 6)
    13.0

    Args:
        features_a, features_b: (N, D) and (M, D), N and M at least 2, not necessarily above D.

    Raises:
        UserError: for features that are not finite.
    """
    if not (features_a.isfinite().all() and features_b.isfinite().all()):
        raise UserError("features are not finite: the images are, so the classifier has diverged")
    means, factors = [], []
    for features in (features_a.double(), features_b.double()):
        means.append(features.mean(0))
        centred = (features - means[-1]) / (len(features) - 1) ** 0.5
        factors.append(torch.linalg.qr(centred, mode="r").R)
    traces = sum(factor.square().sum() for factor in factors)
    overlap = torch.linalg.svdvals(factors[0] @ factors[1].T).sum()
    return ((means[0] - means[1]).square().sum() + traces - 2 * overlap).item()


def label_histogram(labels: Tensor, num_classes: int) -> Tensor:
    """Shares (num_classes,) of the classes among labels (N,), N at least 1: float64, sum 1."""
    return F.one_hot(labels, num_classes).double().mean(0)


def total_variation(shares_a: Tensor, shares_b: Tensor) -> float:
    """Total variation distance, half of sum_k |a_k - b_k|, of two histograms (num_classes,): from
    0, equal, to 1, without a common class."""
    return (shares_a - shares_b).abs().sum().item() / 2


def quality(
    features: Tensor, logits: Tensor, reference: Tensor, histogram: Tensor
) -> dict[str, float]:
    """How N images with features (N, D) and logits (N, num_classes) compare with a data set.

    Args:
        reference: (M, D), features of held-out images of the data set.
        histogram: (num_classes,), shares of the classes among its training labels.

    Returns:
        ``frechet``: see ``frechet_distance``. ``histogram_distance``: total variation of the
        classes with the largest logit and those of the data. ``class_balance``: the rarest class
        over the most frequent one, 0 where one is missing. ``clear_share``: how often the most
        likely class has a probability of at least 0.9.
    """
    shares = label_histogram(logits.argmax(1), logits.shape[1])
    best = logits.double().softmax(1).amax(1)
    return {
        "frechet": frechet_distance(features, reference),
        "histogram_distance": total_variation(shares, histogram),
        "class_balance": (shares.min() / shares.max()).item(),
        "clear_share": (best >= CLEAR).double().mean().item(),
    }
