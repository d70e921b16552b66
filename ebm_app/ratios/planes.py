r"""Densities p_t of a two-dimensional problem on a grid: a histogram of draws, and the learned

log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.ratios.methods import TimeScoreRatio
from ebm_app.ratios.pairs import DensityPair

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Grid cells per axis, and draws of each density in the histogram
SIDE, NUM_DRAWS = 40, 40_000
#: Nodes of the integral between two of ``TIMES``
NODES_PER_INTERVAL = 4


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
    x0, x1 = (p.sample(NUM_DRAWS, generator) for p in (pair.p0, pair.p1))
    noise = torch.randn(x0.shape, device=x0.device, generator=generator)
    path, interval = ratio.model.path, ratio.model.interval
    drawn = [
        path.sample(x0, x1, torch.full((len(x0),), t, device=x0.device), noise).xt.double().cpu()
        for t in TIMES
    ]
    low, high = torch.cat(drawn).quantile(torch.tensor([0.001, 0.999]).double(), 0)
    half = 0.55 * (high - low).max().item()
    limits = [end for m in ((low + high) / 2).tolist() for end in (m - half, m + half)]
    edges = [torch.linspace(*ends, SIDE + 1).double() for ends in (limits[:2], limits[2:])]
    counts = torch.stack([torch.histogramdd(part, edges).hist.mT for part in drawn])
    x, y = torch.meshgrid(*((part[1:] + part[:-1]) / 2 for part in edges), indexing="xy")
    centres = torch.stack([x, y], 2).flatten(0, 1).to(x0)
    log_density, learned = pair.p0.log_density(centres), []
    times = torch.tensor(TIMES).double().clamp(*interval)
    for begin, end in pairwise([interval[0], *times.tolist()]):
        log_density = log_density + ratio.integral(centres, begin, end, NODES_PER_INTERVAL)
        learned.append(log_density.exp())
    scores = [ratio.time_score(centres, t) for t in times]
    parts = (torch.stack(part).unflatten(1, (SIDE, SIDE)).cpu() for part in (learned, scores))
    return Planes(tuple(limits), counts / len(x0) / (2 * half / SIDE) ** 2, *parts)
