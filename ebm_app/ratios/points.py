r"""Points for comparing estimated with true log ratios, and in two dimensions a grid for the
densities p_t of a path, from draws and as learned:

log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.pairs import TOY_2D, DensityPair

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


class Planes(NamedTuple):
    """Values on a grid of the plane at ``TIMES``, each (T, side, side) with rows in increasing y.

    ``limits`` are the edges of the square (left, right, bottom, top), ``drawn`` the histogram of
    draws of p_t, ``learned`` the learned p_t, and ``time_scores`` its time score.
    """

    limits: tuple[float, ...]
    drawn: Tensor
    learned: Tensor
    time_scores: Tensor

    @property
    def mass(self) -> float:
        """Integral of the learned p_1 over the square."""
        return (self.limits[1] - self.limits[0]) ** 2 * self.learned[-1].mean().item()


@torch.no_grad()
def density_planes(pair: DensityPair, ratio: TimeScoreRatio, generator: torch.Generator) -> Planes:
    """Compare draws of p_t with the learned p_t, in a square that contains nearly all draws."""
    x0, x1 = (p.sample(NUM_GRID_DRAWS, generator) for p in (pair.p0, pair.p1))
    noise = torch.randn(x0.shape, device=x0.device, generator=generator)
    times = torch.tensor(TIMES, device=x0.device).double()
    path = ratio.model.path
    drawn = [path.sample(x0, x1, t.expand(len(x0)), noise).xt.double().cpu() for t in times]
    low, high = torch.cat(drawn).quantile(torch.tensor([0.001, 0.999]).double(), 0)
    half = 0.55 * (high - low).max().item()
    limits = [end for m in ((low + high) / 2).tolist() for end in (m - half, m + half)]
    edges = [torch.linspace(*ends, SIDE + 1).double() for ends in (limits[:2], limits[2:])]
    counts = torch.stack([torch.histogramdd(part, edges).hist.mT for part in drawn])
    x, y = torch.meshgrid(*((part[1:] + part[:-1]) / 2 for part in edges), indexing="xy")
    centres = torch.stack([x, y], 2).flatten(0, 1).to(x0)
    learned = ratio.log_ratios_at(centres, TIMES) + pair.p0.log_density(centres)
    start, end = ratio.model.interval
    scores = torch.stack([ratio.time_scores(centres, t) for t in times.clamp(start, end)])
    parts = (part.unflatten(1, (SIDE, SIDE)).cpu() for part in (learned.exp(), scores))
    return Planes(tuple(limits), counts / len(x0) / (2 * half / SIDE) ** 2, *parts)
