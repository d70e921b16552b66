r"""Points at which estimated log ratios are compared with the truth, and on the plane a grid of
cells for the densities p_t of a path, as drawn and as learned:

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
#: cells of a grid in either direction, and draws of either density in them
SIDE, NUM_GRID_DRAWS = 40, 40_000


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

    def metrics(self, log_ratio: Tensor) -> dict[str, float]:
        """Of estimates (N,): "error", their mean squared distance to the truth in nats^2, and
        "divergence", their mean over p_1, which estimates KL(p_1 || p_0) in nats."""
        error = (log_ratio - self.truth).square().mean()
        return {"error": error.item(), "divergence": log_ratio[-self.num1 :].mean().item()}

    def judge(self, ratio: TimeScoreRatio) -> dict[str, float]:
        """The metrics of the fixed-node integral."""
        return self.metrics(ratio.log_ratio(self.x))


class Planes(NamedTuple):
    """What is learned on the plane, in a square window (left, right, bottom, top) at ``TIMES``:
    p_t as drawn and as learned, and its time score, (T, side, side); rows go upwards."""

    limits: tuple[float, float, float, float]
    drawn: Tensor
    learned: Tensor
    time_scores: Tensor

    @property
    def mass(self) -> float:
        """The integral of the learned p_1 over the window."""
        return (self.limits[1] - self.limits[0]) ** 2 * self.learned[-1].mean().item()


class DensityGrid:
    """A square window of the plane that holds nearly all draws of p_t, cut into cells."""

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
        """What an estimator has learned, at the centres of the cells."""
        log_ratios = ratio.log_ratios_at(self.centres, TIMES)
        learned = (log_ratios + self.pair.p0.log_density(self.centres)).exp()
        times = torch.tensor(TIMES).double().clamp(*ratio.model.interval)
        scores = torch.stack([ratio.time_scores(self.centres, t) for t in times])
        parts = (part.unflatten(1, (SIDE, SIDE)).cpu() for part in (learned, scores))
        return Planes(self.limits, self.drawn, *parts)


def _window(x: Tensor) -> tuple[float, float, float, float]:
    """The square about the points (N, 2), but for one in a thousand at either end of an axis."""
    low, high = x.kthvalue(1 + len(x) // 1000, 0).values, x.kthvalue(len(x) - len(x) // 1000, 0)[0]
    half = 0.55 * (high - low).max().item()
    (across, up) = ((low + high) / 2).tolist()
    return across - half, across + half, up - half, up + half
