"""Scores of how ordinary an image is, from its residuals and time scores (see ``passes``).

A score is fitted to ordinary images, keeps what it learned as tensors in ``state``, and gives
numbers (B,) float64, higher for more ordinary images.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ebm_app.anomaly.passes import Passes


class Score(ABC):
    """A score."""

    def __init__(self, state: dict[str, Tensor] | None = None) -> None:
        self.state = state or {}

    def fit(self, found: Passes) -> "Score":
        """Learn from ordinary images."""
        return self

    @abstractmethod
    def __call__(self, found: Passes) -> Tensor:
        """The scores (B,) of images."""


class Likelihood(Score):
    """Minus the loss, log p(x) up to a constant, at the levels at which shapes are decided."""

    def __call__(self, found: Passes) -> Tensor:
        return -found.losses[:, 0]


class Typicality(Likelihood):
    """Minus the distance of the likelihood from its median: too probable is odd too.

    Source: Nalisnick et al. 2019, arXiv:1906.02994.
    """

    def fit(self, found: Passes) -> Score:
        self.state = {"median": super().__call__(found).median()}
        return self

    def __call__(self, found: Passes) -> Tensor:
        return -(super().__call__(found) - self.state["median"]).abs()


class Mahalanobis(Score):
    """Minus the squared Mahalanobis distance of features from those of ordinary images, by a
    covariance shrunk as Ledoit and Wolf do."""

    @staticmethod
    @abstractmethod
    def features(found: Passes) -> Tensor:
        """Features (B, F) float64."""

    def fit(self, found: Passes) -> Score:
        from sklearn.covariance import LedoitWolf  # a second to import

        features = self.features(found)
        mean, scale = features.mean(0), features.std(0) + 1e-9
        fitted = LedoitWolf().fit(((features - mean) / scale).numpy())
        precision = torch.from_numpy(fitted.precision_)
        self.state = {"mean": mean, "scale": scale, "precision": precision}
        return self

    def __call__(self, found: Passes) -> Tensor:
        z = (self.features(found) - self.state["mean"]) / self.state["scale"]
        return -((z @ self.state["precision"].double()) * z).sum(1)


class Residuals(Mahalanobis):
    """Of the log residuals by cell of the image and noise level, each over what the model expects.

    Source: Mahmood et al. 2021, arXiv:2010.13132, for norms of a score at several noise levels.
    """

    @staticmethod
    def features(found: Passes) -> Tensor:
        return found.cells()


class TimeScores(Mahalanobis):
    """Of the time scores by noise level, beside the norms of the residuals, what the model expects
    of these, and the losses of the image and of its turned and mirrored copies."""

    @staticmethod
    def features(found: Passes) -> Tensor:
        norms = [part.double().flatten(2).mean(2) for part in (found.squares, found.expected)]
        return torch.cat([found.time_scores, *(norm.log() for norm in norms), found.losses], 1)


class Symmetry(Score):
    r"""log p(x) - log sum_g p(g x) over the turned and mirrored copies g x, x among them.

    The background model is p made symmetric: both see an image as complex as the other's, so that
    complexity cancels. Sources: Ren et al. 2019, arXiv:1906.02845, for a ratio to a background
    model; Golan and El-Yaniv 2018, arXiv:1805.10917, for turned copies.
    """

    def __call__(self, found: Passes) -> Tensor:
        return -found.losses[:, 0] - (-found.losses).logsumexp(1)


SCORES: dict[str, type[Score]] = {
    "likelihood": Likelihood,
    "typicality": Typicality,
    "residuals": Residuals,
    "time_scores": TimeScores,
    "symmetry": Symmetry,
}
#: scores that the combination by ranks joins
JOINED = ("likelihood", "residuals", "symmetry", "time_scores")
RANKS = "ranks"
#: share of the reference images whose scores tell how a score falls off beyond them
TAIL = 0.1


def log_rank(score: Tensor, reference: Tensor) -> Tensor:
    r"""log of the share of reference scores (N,) at or below scores (B,), (B,) float64.

    Below their quantile q of a tenth the shares are those of an exponential distribution, 0.1
    exp(-(q - s) / m), m the mean of q - s there: beyond all N the order of images is kept.

    >>> log_rank(torch.tensor([50.0]), torch.arange(100.0)).exp()
    tensor([0.5149], dtype=torch.float64)
    """
    reference, score = reference.double().sort().values, score.double()
    below = torch.searchsorted(reference, score, right=True)
    rank = ((1 + below) / (1 + len(reference))).log()
    q = reference.quantile(TAIL)
    mean = (q - reference[reference < q]).mean().clamp_min(1e-12)
    return torch.where(score < q, math.log(TAIL) - (q - score) / mean, rank)
