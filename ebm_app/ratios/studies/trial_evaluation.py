"""The metrics of a trial, on draws that stay the same throughout its training."""

import torch
from torch import Tensor

from ebm_app.ratios.data.pairs import DensityPair, KnownPair
from ebm_app.ratios.data.toy_2d_pairs import Toy2DPair
from ebm_app.ratios.estimators import RatioEstimator
from ebm_app.ratios.methods import Method
from ebm_app.ratios.studies.marginals import DensityGrid
from ebm_app.ratios.studies.points import EvaluationPoints
from ebm_app.ratios.training import draw

#: small enough that an evaluation takes about as long as the steps between two of them
NUM_POINTS, NUM_LOSS_DRAWS, NUM_GRID_DRAWS = 600, 2_048, 40_000


class DataPoints:
    """Points of two-dimensional toy data alone; ``EvaluationPoints`` takes half of its points
    from p_0, where the log ratio of such data may be -inf.

    ``truth`` is None where the density has no closed form.
    """

    def __init__(self, pair: Toy2DPair, num: int, generator: torch.Generator) -> None:
        self.x = pair.sample1(num, generator)
        self.truth = pair.log_ratio(self.x) if isinstance(pair, KnownPair) else None

    def metrics(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Of estimates (N,): "divergence", and "error" where there is a truth, as
        ``EvaluationPoints.metrics``."""
        found = {"divergence": log_ratio.mean()}
        if self.truth is not None:
            found["error"] = (log_ratio - self.truth).square().mean()
        return found


class TrialEvaluator:
    """Draws that stay the same, and the metrics of an estimator on them.

    Args:
        pair: the densities. method: gives the path and the times of the loss.
        generator: of the draws; the same one gives every method the same.
    """

    def __init__(self, pair: DensityPair, method: Method, generator: torch.Generator) -> None:
        kind = DataPoints if isinstance(pair, Toy2DPair) else EvaluationPoints
        self.points = kind(pair, NUM_POINTS, generator)
        times = method.sampler.sample
        self.draw = draw(pair, times, NUM_LOSS_DRAWS, generator)
        self.grid = None
        if pair.dim == 2:
            rows = draw(pair, times, NUM_GRID_DRAWS, generator)
            self.grid = DensityGrid(pair, method.path, rows)

    def criterion(self, ratio: RatioEstimator) -> dict[str, Tensor]:
        """Metrics by name: "loss"; "error", the mean squared error in nats^2, or the loss where
        there is no truth; "divergence", the mean log ratio over p_1 in nats; "estimate" (N,), the
        log ratios; and on the plane "log_densities" (T, side, side) and "mass", the integral of
        the learned p_1."""
        loss = ratio.loss(self.draw).detach().double().mean()
        estimate = ratio.log_ratio(self.points.x)
        metrics = {"loss": loss, "error": loss, **self.points.metrics(estimate)}
        metrics["estimate"] = estimate
        if self.grid is not None:
            metrics["log_densities"] = self.grid.log_densities(ratio)
            metrics["mass"] = self.grid.mass(metrics["log_densities"][-1])
        return metrics
