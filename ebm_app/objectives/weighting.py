"""Weightings lambda(t) of the regression over time (paper, section 5, arXiv:2502.02300)."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ebm_app.numerics.tensors import slope
from ebm_app.paths import GaussianPath


class Weighting(ABC):
    """lambda(t) > 0 of a path: times (B,) -> weights (B,), float64."""

    @abstractmethod
    def __call__(self, path: GaussianPath, t: Tensor) -> Tensor:
        """lambda(t)."""

    def derivative(self, path: GaussianPath, t: Tensor) -> Tensor:
        """d lambda / dt, by automatic differentiation."""
        return slope(lambda s: self(path, s), t)


class UniformWeighting(Weighting):
    """lambda(t) = 1."""

    def __call__(self, path: GaussianPath, t: Tensor) -> Tensor:
        return torch.ones_like(t)


class SteinScore(Weighting):
    """Stein score normalisation: lambda(t) = v_t, the inverse second moment of the Stein score."""

    def __call__(self, path: GaussianPath, t: Tensor) -> Tensor:
        return path.variance(t)


class TimeScore(Weighting):
    """Time score normalisation: lambda(t) = 1 / Var[d/dt log p_t(x_i | z)].

    Args:
        c: second moment E||delta||^2 / D of the data; None takes the
            path's own, which is 1 unless stated.
    """

    def __init__(self, c: float | None = None) -> None:
        self.c = c

    def __call__(self, path: GaussianPath, t: Tensor) -> Tensor:
        return 1 / path.time_score_variance(t, self.c)


WEIGHTINGS: dict[str, type[Weighting]] = {
    "uniform": UniformWeighting,
    "stein_score": SteinScore,
    "time_score": TimeScore,
}
