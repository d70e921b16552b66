r"""Divergences by nearest neighbours, which check those of learned ratios.

Let the ball B of a row of p_1 contain its k nearest rows, and P_1(B) and P_0(B) be the fractions
of the rows of both samples in it. The estimate of KL(p_1 || p_0) is

    E_{p_1} log P_1(B) / P_0(B),   in nats, with digamma corrections.

As k decreases, it converges if p_1 has a density with respect to p_0. It grows like -a log k if
the divergence is infinite because p_1 lies on a set that p_0 does not: an atom, or the graph of
a function.

Balls are those of the maximum norm. Sources: Kraskov et al. 2004, arXiv:cond-mat/0305641; Wang,
Kulkarni and Verdu 2009; for partly discrete variables, Gao et al. 2017, arXiv:1709.06212.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import digamma

#: Max rows of which neighbours are counted; of more rows, evenly spaced ones are used
MAX_ROWS = 4_000
#: Numbers of neighbours k: the second is that of the value
COUNTS = (1, 3, 10)
#: Factor of the standard error, since rows share neighbours. It is between 1.1 and 1.4 on
#: Gaussians and discrete columns
SHARED_NEIGHBOURS = 1.3
#: Max number of columns in which growth alone shows that a divergence is not resolved. In more
#: columns, the estimate of a large but finite divergence grows too
MAX_COLUMNS = 3
#: Growth at which a divergence of up to ``MAX_COLUMNS`` columns is not resolved
MAX_GROWTH = 0.2


class NeighbourEstimate(NamedTuple):
    """Divergence by nearest neighbours, in nats.

    Attributes:
        value: the estimate. It is too small in many columns. ``stderr``: its standard error.
        growth: two standard errors below a of the growth -a log k; 0 for a finite divergence that
            the rows resolve.
        is_resolved: False if the growth shows that the divergence is infinite or too large.
    """

    value: float
    stderr: float
    growth: float
    is_resolved: bool


def estimate_by_neighbours(
    log_ratio: Callable[[int], np.ndarray], num_columns: int
) -> NeighbourEstimate:
    """Return the estimate from log ratios (N,) at the rows of p_1 by k neighbours."""
    ratios = [log_ratio(k) for k in COUNTS]
    slopes = [
        (fine - coarse) / math.log(many / few)
        for (few, fine), (many, coarse) in pairwise(zip(COUNTS, ratios, strict=True))
    ]
    growth = min(float(slope.mean()) - 2 * _standard_error(slope) for slope in slopes)
    is_resolved = num_columns > MAX_COLUMNS or growth < MAX_GROWTH
    stderr = SHARED_NEIGHBOURS * _standard_error(ratios[1])
    return NeighbourEstimate(float(ratios[1].mean()), stderr, growth, is_resolved)


def information_of_neighbours(x: np.ndarray, y: np.ndarray) -> NeighbourEstimate:
    """Estimate I(X; Y) from rows (N, dx) and (N, dy) of one scale."""
    x, y = (_thin(part) for part in (x, y))
    pairs, num = np.concatenate([x, y], 1), len(x)
    trees = [cKDTree(part) for part in (pairs, x, y)]

    def log_ratio(k: int) -> np.ndarray:
        radius = _distance(trees[0], pairs, k + 1)
        joint, *closed = (
            _count(tree, rows, radius) for tree, rows in zip(trees, (pairs, x, y), strict=True)
        )
        inside = [
            _count(tree, rows, radius * (1 - 1e-9))
            for tree, rows in zip(trees[1:], (x, y), strict=True)
        ]
        # without ties, only the k-th neighbour is on the boundary, in one of x and y
        has_ties = (radius == 0) | (np.sum(closed, 0) > np.sum(inside, 0) + 1)
        tied = digamma(joint - 1) + math.log(num - 1) - np.log(np.array(closed) - 1.0).sum(0)
        return np.where(has_ties, tied, digamma(k) + digamma(num) - digamma(inside).sum(0))

    return estimate_by_neighbours(log_ratio, pairs.shape[1])


def divergence_of_neighbours(x0: np.ndarray, x1: np.ndarray) -> NeighbourEstimate:
    """Estimate KL(p_1 || p_0) from rows (N0, D) and (N1, D) of one scale."""
    x0, x1 = (_thin(part) for part in (x0, x1))
    trees = [cKDTree(part) for part in (x0, x1)]

    def log_ratio(k: int) -> np.ndarray:
        radius = np.maximum(_distance(trees[0], x1, k), _distance(trees[1], x1, k + 1))
        count0, count1 = (_count(tree, x1, radius) for tree in trees)
        return digamma(count1 - 1) - digamma(count0) + math.log(len(x0) / (len(x1) - 1))

    return estimate_by_neighbours(log_ratio, x1.shape[1])


def _thin(rows: np.ndarray) -> np.ndarray:
    return rows[:: math.ceil(len(rows) / MAX_ROWS)]


def _distance(tree: cKDTree, rows: np.ndarray, k: int) -> np.ndarray:
    """Return the distance (N,) to the k-th nearest row of a tree."""
    return tree.query(rows, [k], p=np.inf)[0][:, 0]


def _count(tree: cKDTree, rows: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the number (N,) of rows of a tree in the closed balls of radii (N,)."""
    return tree.query_ball_point(rows, radius, p=np.inf, return_length=True)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std() / math.sqrt(len(values)))
