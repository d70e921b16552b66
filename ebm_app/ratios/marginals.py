r"""The densities p_t of a path between two distributions on the plane: as drawn, and as learned.

log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.numerics.quadrature import rule_on
from ebm_app.paths import GaussianPath
from ebm_app.ratios.diagonal_pairs import DiagonalPair
from ebm_app.ratios.estimators import EndPoints, RatioEstimator, RotatedRatio, TimeScoreRatio
from ebm_app.ratios.toy_2d import Toy2DPair

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)


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
        self, pair: DiagonalPair | Toy2DPair, path: GaussianPath, draw: EndPoints, side: int = 40
    ) -> None:
        ones = torch.ones_like(draw.times.t)
        drawn = [draw.at(path, time * ones).xt.double().cpu() for time in TIMES]
        self.pair, self.side = pair, side
        self.limits = _window(torch.cat(drawn))
        left, right, bottom, top = self.limits
        self.cell_area = ((right - left) / side) ** 2
        across, up = (
            low + (torch.arange(side, dtype=torch.float64) + 0.5) * (right - left) / side
            for low in (left, bottom)
        )
        y, x = torch.meshgrid(up, across, indexing="ij")
        self.centres = torch.stack([x, y], 2).flatten(0, 1).to(draw.x0)
        self.drawn = torch.stack([self._histogram(part) for part in drawn])

    def log_densities(self, ratio: RatioEstimator) -> Tensor:
        """log p_t at ``TIMES`` and the centres of the cells, in nats: (T, side, side); NaN at
        times of which the method has no density."""
        log_ratios = log_ratios_along(ratio, self.centres, TIMES)
        values = log_ratios + self.pair.log_density0(self.centres)
        return values.unflatten(1, (self.side, self.side))

    def mass(self, log_density: Tensor) -> Tensor:
        """Integral over the window of densities ``(*, side, side)``: ``(*)``."""
        return self.cell_area * log_density.exp().sum((-2, -1))

    def _histogram(self, x: Tensor) -> Tensor:
        left, right, bottom, top = self.limits
        edges = [
            torch.linspace(low, high, self.side + 1, dtype=x.dtype)
            for low, high in ((bottom, top), (left, right))
        ]
        return torch.histogramdd(x.flip(1), edges).hist / (len(x) * self.cell_area)


def _window(x: Tensor) -> tuple[float, float, float, float]:
    """The square about the points (N, 2), but for one in a thousand at either end of an axis."""
    low, high = x.kthvalue(1 + len(x) // 1000, 0).values, x.kthvalue(len(x) - len(x) // 1000, 0)[0]
    half = 0.55 * (high - low).max().item()
    (across, up) = ((low + high) / 2).tolist()
    return across - half, across + half, up - half, up + half


@torch.no_grad()
def log_ratios_along(
    ratio: RatioEstimator, x: Tensor, times: Sequence[float], num_nodes: int = 6
) -> Tensor:
    """log p_t/p_0 at the points x (N, D), in nats: (T, N), float64.

    Classifiers are trained at the two ends; at the times between it is NaN.

    Args:
        times: increasing, in [0, 1]. num_nodes: Gauss-Legendre nodes between two of them.
    """
    if isinstance(ratio, RotatedRatio):
        return log_ratios_along(ratio.inner, x @ ratio.axes, times, num_nodes)
    if isinstance(ratio, TimeScoreRatio):
        return _integrals(ratio, x, times, num_nodes)
    end = ratio.log_ratio(x)
    by_time = {0.0: torch.zeros_like(end), 1.0: end}
    return torch.stack([by_time.get(t, torch.full_like(end, math.nan)) for t in times])


def _integrals(ratio: TimeScoreRatio, x: Tensor, times: Sequence[float], num_nodes: int) -> Tensor:
    start, end = ratio.model.interval  # a margin at the ends of a path, as in the log ratio
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    below, values = start, []
    for time in times:
        above = min(max(time, start), end)
        if above > below:
            rule = rule_on(num_nodes, below, above)
            for node, weight in zip(rule.nodes, rule.weights, strict=True):
                total = total + weight.item() * ratio.time_scores(x, node)
        below = above
        values.append(total)
    return torch.stack(values)
