"""The metrics of a trial, on draws that stay the same throughout its training."""

import torch
from torch import Tensor

from ebm_app.ratios.estimators import RatioEstimator
from ebm_app.ratios.marginals import DensityGrid
from ebm_app.ratios.methods import Method
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.ratios.training import draw

#: small enough that an evaluation takes about as long as the steps between two of them
NUM_POINTS, NUM_LOSS_DRAWS, NUM_GRID_DRAWS = 600, 2_048, 40_000


class TrialEvaluator:
    """Draws that stay the same, and the metrics of an estimator on them.

    Args:
        pair: the densities. method: gives the path and the times of the loss.
        generator: of the draws; the same one gives every method the same.
    """

    def __init__(self, pair: DensityPair, method: Method, generator: torch.Generator) -> None:
        self.points = EvaluationPoints(pair, NUM_POINTS, generator)
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
