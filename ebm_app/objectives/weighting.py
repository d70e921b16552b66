"""Weightings lambda(t) > 0 of the regression over time (paper, section 5, arXiv:2502.02300)."""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath

#: (path, times (B,)) -> lambda(t) (B,) float64, each component by itself
Weighting = Callable[[GaussianPath, Tensor], Tensor]


def uniform(path: GaussianPath, t: Tensor) -> Tensor:
    """lambda(t) = 1."""
    return torch.ones_like(t)


def stein_score(path: GaussianPath, t: Tensor) -> Tensor:
    """Stein score normalisation: lambda(t) = v_t, the inverse second moment of the Stein score."""
    return path.variance(t)


def time_score(path: GaussianPath, t: Tensor) -> Tensor:
    """Time score normalisation: lambda(t) = 1 / Var[d/dt log p_t(x_i | z)], by the c of the
    path."""
    return 1 / path.time_score_variance(t)


WEIGHTINGS: dict[str, Weighting] = {
    "uniform": uniform,
    "stein_score": stein_score,
    "time_score": time_score,
}
