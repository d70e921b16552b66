"""Quality of samples: Fréchet distance to a data set, predicted classes, and copies."""

import torch
from torch import Tensor

#: Min probability of the predicted class of a confident prediction
CONFIDENT = 0.9


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    r"""Return the squared Fréchet (2-Wasserstein) distance between Gaussians with the means and
    unbiased covariances of two sets of features:

        |mu_a - mu_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^{1/2}).

    With C = R^T R the last trace is the sum of the singular values of R_a R_b^T, also for singular
    covariances. The estimate is biased upwards, more so for fewer rows: only compare values for
    equal numbers of rows.

    Source: Dowson & Landau 1982, The Fréchet distance between multivariate normal distributions,
    J. Multivariate Anal. 12; Heusel et al. 2017, arXiv:1706.08500, for features of images.

    >>> x = torch.tensor([[0.0], [2.0], [4.0]])
    >>> round(frechet_distance(x, 2 * x + 1), 6)
    13.0

    Args:
        features_a, features_b: (N, D) and (M, D) with N, M >= 2, which may be less than D.
    """
    means, factors = [], []
    for features in (features_a.double(), features_b.double()):
        means.append(features.mean(0))
        centred = (features - means[-1]) / (len(features) - 1) ** 0.5
        factors.append(torch.linalg.qr(centred, mode="r").R)
    traces = sum(factor.square().sum() for factor in factors)
    overlap = torch.linalg.svdvals(factors[0] @ factors[1].T).sum()
    return ((means[0] - means[1]).square().sum() + traces - 2 * overlap).item()


def sample_quality(features: Tensor, logits: Tensor, reference: Tensor) -> dict[str, float]:
    """Compare N images with a data set by the features and logits of a classifier.

    Args:
        features, logits: (N, D) and (N, num_classes) of the images.
        reference: (M, D), features of held-out images of the data set.

    Returns:
        ``frechet``: see ``frechet_distance``. ``class_balance``: frequency of the rarest
        predicted class divided by that of the most frequent one, 0 if a class is missing.
        ``confident_fraction``: fraction of images whose most likely class has a probability of at
        least 0.9.
    """
    counts = logits.argmax(1).bincount(minlength=logits.shape[1])
    best = logits.double().softmax(1).amax(1)
    return {
        "frechet": frechet_distance(features, reference),
        "class_balance": (counts.min() / counts.max()).item(),
        "confident_fraction": (best >= CONFIDENT).double().mean().item(),
    }


def nearest(images: Tensor, others: Tensor, chunk_size: int = 256) -> tuple[Tensor, Tensor]:
    """Return the root mean square pixel distances (N,) of images (N, C, H, W) to the nearest of
    ``others`` (M, C, H, W), and its indices (N,)."""
    rows, pool = images.flatten(1).double(), others.flatten(1).double()
    chunks = [
        torch.cdist(chunk, pool, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        for chunk in rows.split(chunk_size)
    ]
    distances, indices = (torch.cat(column) for column in zip(*chunks, strict=True))
    return distances / rows.shape[1] ** 0.5, indices


def copied_fraction(drawn: Tensor, held_out: Tensor) -> float:
    """Return the fraction of drawn images that are closer to a training image than 99% of held-out
    images are: about 0.01 for a model that does not copy.

    Args:
        drawn, held_out: distances (N,) and (M,) to the nearest training image.
    """
    return (drawn < held_out.quantile(0.01)).double().mean().item()
