r"""Points at which estimated log ratios are compared with the truth, and on the plane a grid of
cells for the densities p_t of a path, as drawn and as learned:

log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.ratios.estimators import EndPoints, TimeScoreRatio
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.toy_2d import TOY_2D

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)


class EvaluationPoints:
    """Points of 1/2 p_0 + 1/2 p_1; of two-dimensional toy data those of p_1 alone, from which
    those of p_0 are hundreds of nats away.

    Args:
        pair: the densities. num: points, half of either density. generator: of the draw.

    Attributes:
        truth: log ratios (N,) at the points x (N, D), in nats.
    """

    def __init__(self, pair: DensityPair, num: int, generator: torch.Generator) -> None:
        self.num1 = num if pair.p1 in TOY_2D.values() else num // 2
        parts = pair.p0.sample(num - self.num1, generator), pair.p1.sample(self.num1, generator)
        self.x = torch.cat(parts)
        self.truth = pair.log_ratio(self.x)

    def metrics(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Of estimates (N,): "error", their mean squared distance to the truth in nats^2, and
        "divergence", their mean over p_1, which estimates KL(p_1 || p_0) in nats."""
        error = (log_ratio - self.truth).square().mean()
        return {"error": error, "divergence": log_ratio[-self.num1 :].mean()}

    def criterion(self, ratio: TimeScoreRatio) -> dict[str, Tensor]:
        """The metrics of the fixed-node integral, and those of ``matrix_metrics``."""
        return self.metrics(ratio.log_ratio(self.x)) | matrix_metrics(ratio)


def matrix_metrics(ratio: TimeScoreRatio) -> dict[str, Tensor]:
    """ "matrix", -1/2 log det Sigma in nats, of an estimator that learns a Sigma; else nothing."""
    net = next((net for net in ratio.modules() if isinstance(net, GaussianNet)), None)
    return {} if net is None else {"matrix": net.mutual_information()}


def as_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Metrics () as numbers; None where they are not finite, for which JSON has no word."""
    values = {name: value.item() for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


class DensityGrid:
    """A square window of the plane that holds nearly all draws of p_t, cut into cells.

    Args:
        pair: the two densities. path: between them. draw: rows of both, with noise.
        side: cells in either direction.

    Attributes:
        limits: the window, (left, right, bottom, top).
        drawn: (T, side, side), density of the draws at ``TIMES`` by cell; rows go upwards.
    """

    def __init__(
        self, pair: DensityPair, path: GaussianPath, draw: EndPoints, side: int = 40
    ) -> None:
        ones = torch.ones_like(draw.times.t)
        drawn = [draw.at(path, time * ones).xt.double().cpu() for time in TIMES]
        self.pair, self.side = pair, side
        self.limits = _window(torch.cat(drawn))
        left, right, bottom, top = self.limits
        edges = [
            torch.linspace(*ends, side + 1).double() for ends in ((bottom, top), (left, right))
        ]
        self.cell_area = ((right - left) / side) ** 2
        y, x = torch.meshgrid(*((part[1:] + part[:-1]) / 2 for part in edges), indexing="ij")
        self.centres = torch.stack([x, y], 2).flatten(0, 1).to(draw.x0)
        counts = torch.stack([torch.histogramdd(part.flip(1), edges).hist for part in drawn])
        self.drawn = counts / (len(draw.x0) * self.cell_area)

    def log_densities(self, ratio: TimeScoreRatio) -> Tensor:
        """log p_t at ``TIMES`` and the centres of the cells, in nats: (T, side, side)."""
        log_ratios = ratio.log_ratios_at(self.centres, TIMES)
        values = log_ratios + self.pair.p0.log_density(self.centres)
        return values.unflatten(1, (self.side, self.side))

    @torch.no_grad()
    def time_scores(self, ratio: TimeScoreRatio) -> Tensor:
        """d/dt log p_t as learned, at the same times and cells: (T, side, side)."""
        start, end = ratio.model.interval
        times = torch.tensor(TIMES).double().clamp(start, end)
        values = torch.stack([ratio.time_scores(self.centres, t) for t in times])
        return values.unflatten(1, (self.side, self.side))

    def mass(self, log_density: Tensor) -> Tensor:
        """Integral over the window of densities ``(*, side, side)``: ``(*)``."""
        return self.cell_area * log_density.exp().sum((-2, -1))


def _window(x: Tensor) -> tuple[float, float, float, float]:
    """The square about the points (N, 2), but for one in a thousand at either end of an axis."""
    low, high = x.kthvalue(1 + len(x) // 1000, 0).values, x.kthvalue(len(x) - len(x) // 1000, 0)[0]
    half = 0.55 * (high - low).max().item()
    (across, up) = ((low + high) / 2).tolist()
    return across - half, across + half, up - half, up + half
