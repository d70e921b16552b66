"""How far drawn images are from a data set: by their features, and by the classes they show; and
whether they are copies of training images.

The features of either set are taken for Gaussian, and two Gaussians have a distance in closed
form.
"""

import torch
from torch import Tensor

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
    """
    means, factors = [], []
    for features in (features_a.double(), features_b.double()):
        means.append(features.mean(0))
        centred = (features - means[-1]) / (len(features) - 1) ** 0.5
        factors.append(torch.linalg.qr(centred, mode="r").R)
    traces = sum(factor.square().sum() for factor in factors)
    overlap = torch.linalg.svdvals(factors[0] @ factors[1].T).sum()
    return ((means[0] - means[1]).square().sum() + traces - 2 * overlap).item()


def quality(features: Tensor, logits: Tensor, reference: Tensor) -> dict[str, float]:
    """How N images with features (N, D) and logits (N, num_classes) compare with held-out images
    of a data set, whose features are ``reference`` (M, D).

    Returns:
        ``frechet``: see ``frechet_distance``. ``class_balance``: the rarest of the classes seen
        over the most frequent one, 0 where one is missing. ``clear_share``: how often the most
        likely class has a probability of at least 0.9.
    """
    counts = logits.argmax(1).bincount(minlength=logits.shape[1])
    best = logits.double().softmax(1).amax(1)
    return {
        "frechet": frechet_distance(features, reference),
        "class_balance": (counts.min() / counts.max()).item(),
        "clear_share": (best >= CLEAR).double().mean().item(),
    }


def nearest(images: Tensor, others: Tensor, chunk_size: int = 256) -> tuple[Tensor, Tensor]:
    """Root mean square distances of the pixels (N,) of images (N, C, H, W) to the nearest of
    ``others`` (M, C, H, W), and its indices (N,)."""
    rows, pool = images.flatten(1).double(), others.flatten(1).double()
    found = [
        torch.cdist(chunk, pool, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        for chunk in rows.split(chunk_size)
    ]
    values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
    return values / rows.shape[1] ** 0.5, indices


def share_of_copies(drawn: Tensor, held_out: Tensor, quantile: float = 0.01) -> float:
    """The share of drawn images that lie nearer to a training image than all but ``quantile`` of
    the held-out ones do: about ``quantile`` for a model that does not copy.

    Args:
        drawn, held_out: distances (N,) and (M,) to the nearest training image.
    """
    return (drawn < held_out.quantile(quantile)).double().mean().item()
