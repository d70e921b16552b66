"""Points at which estimated log ratios are compared with the truth."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ebm_app.ratios.estimators import RatioEstimator
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.toy_2d import Toy2DPair


class EvaluationPoints:
    """Points of 1/2 p_0 + 1/2 p_1; of two-dimensional toy data those of p_1 alone, as their log
    ratio may be -inf at points of p_0.

    Args:
        pair: the densities. num: points, half of either density. generator: of the draw.

    Attributes:
        truth: log ratios (N,) at the points x (N, D), in nats; None where they are not known.
    """

    def __init__(self, pair: DensityPair, num: int, generator: torch.Generator) -> None:
        self.num1 = num if isinstance(pair, Toy2DPair) else num // 2
        parts = pair.sample0(num - self.num1, generator), pair.sample1(self.num1, generator)
        self.x = torch.cat(parts)
        self.truth = pair.log_ratio(self.x)

    def metrics(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Of estimates (N,): "error", their mean squared distance to the truth in nats^2 if there
        is one, and "divergence", their mean over p_1, which estimates KL(p_1 || p_0) in nats."""
        divergence = {"divergence": log_ratio[-self.num1 :].mean()}
        if self.truth is None:
            return divergence
        return {"error": (log_ratio - self.truth).square().mean(), **divergence}

    def criterion(self, ratio: RatioEstimator) -> dict[str, Tensor]:
        """The metrics of the fixed-node integral, and those of ``matrix_metrics``."""
        return self.metrics(ratio.log_ratio(self.x)) | matrix_metrics(ratio)


def matrix_metrics(ratio: RatioEstimator) -> dict[str, Tensor]:
    """ "matrix", -1/2 log det Sigma in nats, of an estimator that learns a Sigma; else nothing."""
    net = next((net for net in ratio.modules() if isinstance(net, GaussianNet)), None)
    return {} if net is None else {"matrix": net.mutual_information()}


def as_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Metrics () as numbers; None where they are not finite, for which JSON has no word."""
    values = {name: value.item() for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
