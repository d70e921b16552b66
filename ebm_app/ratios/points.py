r"""Points for comparing estimated with true log ratios, and in two dimensions a grid for the
densities p_t of a path, from draws and as learned:

log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.toy_2d import TOY_2D

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Cells of a grid per axis, and draws of each density in the histogram
SIDE, NUM_GRID_DRAWS = 40, 40_000


class EvaluationPoints:
    """Points of 1/2 p_0 + 1/2 p_1; only of p_1 for two-dimensional toy data, because its log ratio
    at points of p_0 is hundreds of nats.

    Args:
        pair: the densities. num: number of points. generator: source of the draws.

    Attributes:
        truth: log ratios (N,) at the points x (N, D), in nats.
    """

    def __init__(self, pair: DensityPair, num: int, generator: torch.Generator) -> None:
        self.num1 = num if pair.p1 in TOY_2D.values() else num // 2
        parts = pair.p0.sample(num - self.num1, generator), pair.p1.sample(self.num1, generator)
        self.x = torch.cat(parts)
        self.truth = pair.log_ratio(self.x)

    def metrics(self, log_ratio: Tensor) -> dict[str, float]:
        """Metrics of estimates (N,): "error", the mean squared error in nats^2, and "divergence",
        the mean over p_1, an estimate of KL(p_1 || p_0) in nats."""
        error = (log_ratio - self.truth).square().mean()
        return {"error": error.item(), "divergence": log_ratio[-self.num1 :].mean().item()}

    def judge(self, ratio: TimeScoreRatio) -> dict[str, float]:
        """Metrics of the integral with fixed nodes."""
        return self.metrics(ratio.log_ratio(self.x))


class Planes(NamedTuple):
    """Values on a grid of the plane at ``TIMES``, each (T, side, side) with rows in increasing y.

    ``limits`` are the edges of the square (left, right, bottom, top), ``drawn`` the histogram of
    draws of p_t, ``learned`` the learned p_t, and ``time_scores`` its time score.
    """

    limits: tuple[float, float, float, float]
    drawn: Tensor
    learned: Tensor
    time_scores: Tensor

    @property
    def mass(self) -> float:
        """Integral of the learned p_1 over the square."""
        return (self.limits[1] - self.limits[0]) ** 2 * self.learned[-1].mean().item()


class DensityGrid:
    """Grid on a square that contains nearly all draws of p_t.

    Args:
        pair: the densities. path: path between them. generator: source of the draws.
    """

    def __init__(self, pair: DensityPair, path: GaussianPath, generator: torch.Generator) -> None:
        x0, x1 = (p.sample(NUM_GRID_DRAWS, generator) for p in (pair.p0, pair.p1))
        noise = torch.randn(x0.shape, device=x0.device, generator=generator)
        times = torch.tensor(TIMES).to(x0)[:, None].expand(-1, len(x0)).double()
        drawn = [path.sample(x0, x1, t, noise).xt.double().cpu() for t in times]
        self.pair, self.limits = pair, _window(torch.cat(drawn))
        left, right, bottom, top = self.limits
        edges = [
            torch.linspace(*ends, SIDE + 1).double() for ends in ((bottom, top), (left, right))
        ]
        y, x = torch.meshgrid(*((part[1:] + part[:-1]) / 2 for part in edges), indexing="ij")
        self.centres = torch.stack([x, y], 2).flatten(0, 1).to(x0)
        counts = torch.stack([torch.histogramdd(part.flip(1), edges).hist for part in drawn])
        self.drawn = counts / len(x0) / ((right - left) / SIDE) ** 2

    @torch.no_grad()
    def planes(self, ratio: TimeScoreRatio) -> Planes:
        """Densities and time scores of an estimator at the centres of the cells."""
        log_ratios = ratio.log_ratios_at(self.centres, TIMES)
        learned = (log_ratios + self.pair.p0.log_density(self.centres)).exp()
        times = torch.tensor(TIMES).double().clamp(*ratio.model.interval)
        scores = torch.stack([ratio.time_scores(self.centres, t) for t in times])
        parts = (part.unflatten(1, (SIDE, SIDE)).cpu() for part in (learned, scores))
        return Planes(self.limits, self.drawn, *parts)


def _window(x: Tensor) -> tuple[float, float, float, float]:
    """Square around the points (N, 2), without one in a thousand at each end of each axis."""
    low, high = x.kthvalue(1 + len(x) // 1000, 0).values, x.kthvalue(len(x) - len(x) // 1000, 0)[0]
    half = 0.55 * (high - low).max().item()
    (across, up) = ((low + high) / 2).tolist()
    return across - half, across + half, up - half, up + half
