"""What an estimator of log p_t(x) is, and the Stein score whose cost it counts."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import expand_like


class LogDensity(NamedTuple):
    """log p_t(x) (B,) float64, an estimate of the numerical error of each (B,), the parts (B, *)
    that sum to the value, or None, and the evaluations of the network for each example."""

    value: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


class Estimator(ABC):
    """log p_t(x) of a model in nats; a subclass is a frozen dataclass of its settings.

    ``note`` says in one sentence what it computes, for help texts and tables. ``normalised`` says
    whether its density integrates to 1 for any network. ``slow`` marks an estimator whose cost
    grows with the number of components of x. ``error_is_drawn`` says whether its error is that of
    random draws alone, anew for every example: the spread of several examples then holds it.
    """

    note: ClassVar[str]
    normalised: ClassVar[bool]
    slow: ClassVar[bool] = False
    error_is_drawn: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        """log p_t at ``x`` (B, *)."""


class CountedScore:
    """A Stein score of an energy that counts its evaluations of the network, ``nfe``."""

    def __init__(self, energy: TimeScoreEnergy, source: str | None) -> None:
        self.energy, self.source, self.nfe = energy, source, 0
        self.score = energy.stein_score(source)

    def __call__(self, x: Tensor, t: float) -> Tensor:
        self.nfe += self.energy.score_cost(self.source, t)
        return self.score(x, t)

    def with_noise_variance(self, x: Tensor, t: float) -> tuple[Tensor, Tensor | None]:
        """The score and Var[eps | x_t = x], (B, *) each, without gradients; None for a variance
        that the model does not predict, or beside a score that is not its head's."""
        with torch.no_grad():
            if not self.energy.is_head(self.source):
                return self(x, t), None
            self.nfe += 1
            output = self.energy.output(x, t)
            if output.variance is None:
                return output.score, None
            time = torch.tensor(t, dtype=torch.float64)
            gain = expand_like(self.energy.path.noise_variance_gain(time), x)
            return output.score, gain * output.variance
