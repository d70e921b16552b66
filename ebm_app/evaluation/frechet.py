"""How far drawn images are from a data set: by their features, and by the classes they show.

The features of either set are taken for Gaussian, and two Gaussians have a distance in closed
form; the classes are counted, and two histograms differ by their total variation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebm_app.io.errors import UserError

#: probability from which on a class is clear
CLEAR = 0.9
#: key of a metric of drawn images -> its column
METRICS = {
    "frechet": "Frechet distance",
    "histogram_distance": "histogram distance",
    "class_balance": "balance",
    "clear_share": "clear",
}
#: the same of a run alone, the last two where a class was asked for
OF_RUNS = {
    "copies": "copies",
    "identical": "identical",
    "of_class": "of the class",
    "of_class_by_neighbour": "by the nearest neighbour",
}


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    """Squared Frechet distance of the Gaussians with the mean and covariance of two feature sets,
    in the squared unit of the features; see ``gaussian_frechet_distance``.

    The covariances are the unbiased ones. The distance is biased upwards by the noise of both
    sets, the more the fewer rows they have: compare values for equal numbers of rows only.

    Args:
        features_a, features_b: (N, D) and (M, D), N and M at least 2, not necessarily above D.

    Raises:
        UserError: for features that are not finite.
    """
    if not (features_a.isfinite().all() and features_b.isfinite().all()):
        raise UserError("features are not finite: the images are, so the classifier has diverged")
    means = [features.double().mean(0) for features in (features_a, features_b)]
    covs = [torch.cov(features.double().T) for features in (features_a, features_b)]
    return gaussian_frechet_distance(means[0], covs[0], means[1], covs[1])


def gaussian_frechet_distance(
    mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor
) -> float:
    r"""Squared Frechet (2-Wasserstein) distance of N(mu_a, C_a) and N(mu_b, C_b), in float64:

        |mu_a - mu_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^{1/2}).

    C_a C_b is not symmetric but has the eigenvalues of S C_b S with S = C_a^{1/2}, which is: its
    trace is taken from two symmetric eigen-decompositions, and exists for singular covariances.
    By round-off, equal Gaussians may come out at a value just below zero.

    References: Dowson & Landau 1982, The Frechet distance between multivariate normal
    distributions, J. Multivariate Anal. 12; Heusel et al. 2017, arXiv:1706.08500, for its use on
    the features of images.

    Args:
        mean_a, mean_b: (D,). cov_a, cov_b: (D, D), symmetric and positive semi-definite.
    """
    mean_a, cov_a, mean_b, cov_b = (x.double() for x in (mean_a, cov_a, mean_b, cov_b))
    values, vectors = torch.linalg.eigh(cov_a)
    root = vectors * _square_roots(values) @ vectors.T
    product = root @ cov_b @ root
    roots = _square_roots(torch.linalg.eigvalsh((product + product.T) / 2))
    distance = (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * roots.sum()
    return distance.item()


def _square_roots(eigenvalues: Tensor) -> Tensor:
    """Square roots (D,) of the eigenvalues of a positive semi-definite matrix.

    Those within round-off of zero, D times the resolution of float64 relative to the largest, are
    zero: of the positive ones among them the root would be noise of 1e-8 and add up.
    """
    size = len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps * eigenvalues.abs().max()
    return torch.where(eigenvalues > size, eigenvalues, 0).sqrt()


def label_histogram(labels: Tensor, num_classes: int) -> Tensor:
    """Shares (num_classes,) of the classes among labels (N,), N at least 1: float64, sum 1."""
    return F.one_hot(labels, num_classes).double().mean(0)


def class_histogram(logits: Tensor) -> Tensor:
    """Shares (num_classes,) of the classes with the largest logit, of logits (N, num_classes)."""
    return label_histogram(logits.argmax(1), logits.shape[1])


def total_variation(shares_a: Tensor, shares_b: Tensor) -> float:
    """Total variation distance, half of sum_k |a_k - b_k|, of two histograms (num_classes,): from
    0, equal, to 1, without a common class."""
    return (shares_a - shares_b).abs().sum().item() / 2


@dataclass(frozen=True, eq=False)
class Reference:
    """What images are compared with.

    Args:
        features: (M, D) of held-out images of the data set.
        histogram: (num_classes,), shares of the classes among its training labels.
    """

    features: Tensor
    histogram: Tensor

    def metrics(self, features: Tensor, logits: Tensor) -> dict[str, float]:
        """The metrics of images with the features (N, D) and logits (N, num_classes), by the keys
        of ``METRICS``.

        ``frechet``: see ``frechet_distance``. ``histogram_distance``: total variation of the
        classes seen and those of the data. ``class_balance``: the rarest class over the most
        frequent one, 0 where one is missing. ``clear_share``: how often the most likely class has
        a probability of at least 0.9.
        """
        shares, best = class_histogram(logits), logits.double().softmax(1).amax(1)
        return {
            "frechet": frechet_distance(features, self.features),
            "histogram_distance": total_variation(shares, self.histogram),
            "class_balance": (shares.min() / shares.max()).item(),
            "clear_share": (best >= CLEAR).double().mean().item(),
        }

    def floor(
        self,
        features: Tensor,
        logits: Tensor,
        num_images: int,
        num_draws: int,
        generator: torch.Generator,
    ) -> dict[str, Any]:
        """The metrics of a perfect sampler: the means over at least 2 draws of ``num_images`` of N
        images of the data set itself, or of all where they are fewer.

        Returns:
            The keys of ``metrics``; ``spread``, with the same keys, the standard deviation of
            a single draw; and ``num_images`` of a draw.
        """
        num_images = min(num_images, len(features))
        draws = []
        for _ in range(num_draws):
            rows = torch.randperm(len(features), generator=generator)[:num_images]
            draws.append(self.metrics(features[rows], logits[rows]))
        values = {key: [draw[key] for draw in draws] for key in draws[0]}
        return {
            **{key: mean(value) for key, value in values.items()},
            "spread": {key: stdev(value) for key, value in values.items()},
            "num_images": num_images,
        }


def samplers_table(rows: Sequence[dict[str, Any]], floor: dict[str, Any]) -> str:
    """A table in Markdown: a line a run, and one of held-out images.

    Args:
        rows: each with ``run``, ``nfe``, ``seconds`` and the keys of ``METRICS``.
        floor: as ``Reference.floor`` returns it.
    """
    columns = METRICS | {key: name for key, name in OF_RUNS.items() if any(key in r for r in rows)}
    lines = [["run", "nfe", "seconds", *columns.values()], ["---", *["---:"] * (2 + len(columns))]]
    for row in rows:
        costs = [f"{row['nfe']:.0f}", f"{row['seconds']:.1f}"]
        lines.append(
            [row["run"], *costs, *(f"{row[key]:.3f}" if key in row else "" for key in columns)]
        )
    values = [f"{floor[key]:.3f} ± {floor['spread'][key]:.3f}" for key in METRICS]
    values += [""] * (len(columns) - len(METRICS))
    lines.append([f"{floor['num_images']} held-out images", "", "", *values])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
