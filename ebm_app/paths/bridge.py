"""The path between any two densities."""

import torch
from torch import Tensor

from ebm_app.paths.base import GaussianPath, PathSample, arc_length_integral
from ebm_app.utils.fields import NonNegative, check_argument


class SchrodingerBridgePath(GaussianPath):
    """Two sided: mean (1 - t) x0 + t x1, v_t = sigma^2 t (1 - t), any p0 and p1; z = (x0, x1).

    ``c`` is E||x1 - x0||^2 / D. With sigma = 0 points can be drawn but no conditional quantity
    exists.
    """

    def __init__(self, sigma: float = 1.0, c: float = 1.0) -> None:
        super().__init__(c)
        self.sigma = check_argument(NonNegative, "sigma", sigma)

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def variance(self, t: Tensor) -> Tensor:
        return self.sigma**2 * t * (1 - t)

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return sample.x0, sample.x1 - sample.x0

    def interval(self, eps: float) -> tuple[float, float]:
        return eps, 1.0 - eps

    def alpha_dt(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance_dt(self, t: Tensor) -> Tensor:
        return self.sigma**2 * (1 - 2 * t)

    def arc_length(self, t: Tensor) -> Tensor:
        """Arc length measured from t = 1/2, in closed form, for sigma > 0; infinite at both
        ends."""
        return arc_length_integral(2 * t - 1, 4 * t * (1 - t), self.c / self.sigma**2)
