"""Anomaly scores of images from their ``Features``.

As in scikit-learn, a lower score is more anomalous. ``fit`` returns the state of a score, a dict
of tensors.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ebm_app.anomaly.features import Features
from ebm_app.utils.errors import UserError

State = dict[str, Tensor]


class Score:
    """Minus the denoising loss, which approximates log p(x) up to a constant."""

    def fit(self, features: Features) -> State:
        """Return the state of the score fitted to ordinary images."""
        return {}

    def __call__(self, features: Features, state: State) -> Tensor:
        """Return the scores (B,) of images, float64."""
        return -features.losses[:, 0]


class Symmetry(Score):
    r"""log p(x) - log sum_g p(g x) over the rotated and mirrored copies g x, x included.

    This is a likelihood ratio to the symmetrised model, whose copies are as complex as the image,
    so that complexity cancels.

    Sources: Ren et al. 2019, arXiv:1906.02845, for the ratio to a background model; Golan and
    El-Yaniv 2018, arXiv:1805.10917, for rotated copies.
    """

    def __call__(self, features: Features, state: State) -> Tensor:
        return -features.losses[:, 0] - (-features.losses).logsumexp(1)


class Mahalanobis(Score):
    """Minus the squared Mahalanobis distance of feature vectors from those of ordinary images.

    The covariance is shrunk as in Ledoit and Wolf 2004.

    Source: Mahmood et al. 2021, arXiv:2010.13132, for residual norms at several noise levels.

    Args:
        vectors: function from features to feature vectors (B, F), float64.
    """

    def __init__(self, vectors: Callable[[Features], Tensor]) -> None:
        self.vectors = vectors

    def fit(self, features: Features) -> State:
        from sklearn.covariance import LedoitWolf  # takes a second to import

        vectors = self.vectors(features)
        mean, scale = vectors.mean(0), vectors.std(0) + 1e-9
        fitted = LedoitWolf().fit(((vectors - mean) / scale).numpy())
        return {"mean": mean, "scale": scale, "precision": torch.from_numpy(fitted.precision_)}

    def __call__(self, features: Features, state: State) -> Tensor:
        z = (self.vectors(features) - state["mean"]) / state["scale"]
        return -((z @ state["precision"].double()) * z).sum(1)


SCORES: dict[str, Score] = {
    "likelihood": Score(),
    "residuals": Mahalanobis(Features.residuals),
    "time_scores": Mahalanobis(Features.summary),
    "symmetry": Symmetry(),
    "statistics": Mahalanobis(lambda features: features.statistics),
}
#: Name of the default score: the sum of the log ranks of all scores.
RANKS = "ranks"
#: Number of folds for cross-fitting in ``AnomalyDetector.fit``.
NUM_FOLDS = 5
#: Share of the reference scores to which the exponential tail is fitted.
TAIL = 0.1


def fold_masks(num: int) -> list[Tensor]:
    """Return the masks (N,) of ``NUM_FOLDS`` folds of N images."""
    return [torch.arange(num) % NUM_FOLDS == fold for fold in range(NUM_FOLDS)]


def cross_fitted_scores(score: Score, features: Features) -> Tensor:
    """Return the scores (N,) of images, each with the state fitted to the other folds."""
    scores = torch.empty(len(features.losses), dtype=torch.float64)
    for fold in fold_masks(len(scores)):
        state = score.fit(features.select(~fold))
        scores[fold] = score(features.select(fold), state)
    return scores


def cross_fitted_ranks(scores: Sequence[Tensor]) -> Tensor:
    """Return the sums (N,) of the log ranks of several scores (N,) of the same images, each ranked
    among the other folds."""
    ranks = torch.empty_like(scores[0])
    for fold in fold_masks(len(ranks)):
        ranks[fold] = sum(log_rank(score[fold], score[~fold]) for score in scores)
    return ranks


def check_finite(values: Tensor, kind: str) -> None:
    """Raise a UserError if values (B,) or (B, F) of B images, such as scores, are not finite."""
    is_bad = ~values.isfinite().view(len(values), -1).all(1)
    if is_bad.any():
        raise UserError(
            f"The {kind} of {int(is_bad.sum())} of {len(values)} images are not finite, the first "
            f"at index {int(is_bad.nonzero()[0])}. Use a model whose training has not diverged."
        )


def log_rank(score: Tensor, reference: Tensor) -> Tensor:
    r"""Return the log of the share of reference scores (N,) at or below scores (B,), float64.

    Below the quantile q at ``TAIL`` the share is extrapolated by an exponential distribution,
    0.1 exp(-(q - s) / m) with m the mean of q - s, so that scores beyond all N stay ordered. If
    the lowest tenth is tied at q, m is the mean distance of the other scores from q; equal
    reference scores are not extrapolated.

    >>> log_rank(torch.tensor([50.0]), torch.arange(100.0)).exp()
    tensor([0.5149], dtype=torch.float64)
    """
    check_finite(score, "anomaly scores")
    check_finite(reference, "reference scores")
    reference, score = reference.double().sort().values, score.double()
    below = torch.searchsorted(reference, score, right=True)
    rank = ((1 + below) / (1 + len(reference))).log()
    if reference[0] == reference[-1]:
        return rank
    q = reference.quantile(TAIL)
    tail = reference[reference < q]
    distances = (q - (tail if len(tail) else reference[reference > q])).abs()
    mean = distances.mean().clamp_min(1e-12)
    return torch.where(score < q, math.log(TAIL) - (q - score) / mean, rank)
