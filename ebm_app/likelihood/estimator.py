"""Base class of estimators of log p_t(x). All values are in nats."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

from ebm_app.nets.energy import EnergyModel
from ebm_app.nets.model import LogDensityEstimate, ScoreModel, TimeScoreModel
from ebm_app.utils.random import ImageNoise

#: Min number of draws to estimate the error of their mean from their spread
MANY_DRAWS = 8


class Need(NamedTuple):
    """What an estimator needs: a function of a model, and the models that have it."""

    is_met: Callable[[ScoreModel], bool]
    models: str


#: Needs of estimators by name
NEEDS: dict[str, Need] = {
    "a Stein score": Need(lambda model: True, "all models"),
    "a time score": Need(
        lambda model: isinstance(model, TimeScoreModel), "models trained with this package"
    ),
    "both scores of a network": Need(
        lambda model: isinstance(model, TimeScoreModel) and model.has_score,
        "models trained with a Stein head, and energy networks",
    ),
    "an energy network": Need(
        lambda model: isinstance(model, EnergyModel), "models distilled with train/energy.py"
    ),
}


class Estimator(ABC):
    """Estimator of log p_t(x) at points of the path's space. Subclasses are frozen dataclasses of
    settings.

    Attributes:
        needs: what a model must have, a key of ``NEEDS``.
        error_is_drawn: whether the error comes mainly from random draws that differ between
            points, so that the spread over draws of the dequantiser includes it.
        is_normalised: whether the density is normalised for any network. Others are compared with
            "elbo", see ``warn_of_disagreement``.
    """

    needs: ClassVar[str] = "a Stein score"
    error_is_drawn: ClassVar[bool] = False
    is_normalised: ClassVar[bool] = True

    @classmethod
    def supports(cls, model: ScoreModel) -> bool:
        """Return whether a model has what the estimator needs."""
        return NEEDS[cls.needs].is_met(model)

    @abstractmethod
    def __call__(
        self, model: ScoreModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        """Return log p_t(x) at ``x`` (B, *).

        Args:
            model: density p_t in the space of the path; has what the estimator ``needs``.
            noise: source of the estimator's random numbers, for B points.
        """


def error_over_draws(values: Tensor) -> Tensor:
    """Return the error (B,) of the mean of K independent draws (K, B), within which it is with
    probability 0.68: the standard error times a quantile of Student's t distribution. NaN for K =
    1."""
    num = len(values)
    if num < 2:
        return torch.full_like(values[0], math.nan)
    return values.std(0, unbiased=True) * (stdtrit(num - 1, ndtr(1)) / math.sqrt(num))
