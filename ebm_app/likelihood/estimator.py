"""Base classes of estimators of log-likelihoods, of continuous points or of grey levels.

Their ``needs`` is the protocol of ``ebm_app.nets.protocols`` that a model must implement. All
values are in nats.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

from ebm_app.likelihood.dequantisation import Cells, Dequantiser
from ebm_app.nets.protocols import LogDensityEstimate
from ebm_app.utils.tensors import sum_except_batch


class Estimator(ABC):
    """Estimator of the log probability of images. Subclasses are frozen dataclasses of settings.

    Attributes:
        needs: protocol or class that a model must implement.
        error_is_drawn: whether the error comes mainly from random draws that differ between
            points, so that the spread over draws of the dequantiser includes it.
    """

    needs: ClassVar[type]
    error_is_drawn: ClassVar[bool] = False

    @classmethod
    def supports(cls, model: Any) -> bool:
        """Return whether a model implements ``needs``."""
        return isinstance(model, cls.needs)

    @abstractmethod
    def log_prob_of_levels(
        self, model: Any, levels: Tensor, cells: Cells, dequantiser: Dequantiser, noise: Tensor
    ) -> LogDensityEstimate:
        """Return a lower bound on log P(levels) of B images.

        Args:
            model: density p_t in the space of the path; implements ``needs``.
            levels: (B, C, H, W) integers, the grey levels of ``cells``.
            dequantiser: density q on the cell of a level.
            noise: (K, B, C, H, W) uniform numbers for K draws of the dequantiser.

        Raises:
            UserError: for a model that does not implement ``needs``.
        """


class PointEstimator(Estimator):
    """Estimator of log p_t(x) at points of the path's space."""

    @abstractmethod
    def __call__(self, model: Any, x: Tensor, t: float) -> LogDensityEstimate:
        """Return log p_t(x) at ``x`` (B, *)."""

    def log_prob_of_levels(
        self, model: Any, levels: Tensor, cells: Cells, dequantiser: Dequantiser, noise: Tensor
    ) -> LogDensityEstimate:
        """Return the mean over draws y ~ q of log p_t(y) - log q(y | levels).

        With several draws, the error includes their spread. With one, it is that of log p_t(y).
        """
        values, errors, components, nfe = [], [], [], 0
        for u in noise:
            point = dequantiser.points(levels, cells, u, model)
            density = self(model, point.y, point.t)
            values.append(density.value + sum_except_batch(point.negative_log_q))
            errors.append(density.error)
            nfe += density.nfe
            if density.components is not None:
                components.append(density.components + point.negative_log_q)
        mean = torch.stack(components).mean(0) if components else None
        error = torch.stack(errors).mean(0)
        if len(values) > 1:  # the spread includes a drawn error
            spread = error_over_draws(torch.stack(values))
            error = spread if self.error_is_drawn else torch.hypot(spread, error)
        return LogDensityEstimate(torch.stack(values).mean(0), error, mean, nfe)


def error_over_draws(values: Tensor) -> Tensor:
    """Return the error (B,) of the mean of K independent draws (K, B), within which it is with
    probability 0.68: the standard error times a quantile of Student's t distribution. NaN for K =
    1."""
    num = len(values)
    if num < 2:
        return torch.full_like(values[0], math.nan)
    return values.std(0, unbiased=True) * (stdtrit(num - 1, ndtr(1)) / math.sqrt(num))
