"""What an estimator of log p_t(x) is."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ebm_app.nets.energy import LogDensity, TimeScoreEnergy


class Estimator(ABC):
    """log p_t(x) of a model in nats; a subclass is a frozen dataclass of its settings.

    ``note`` says in one sentence what it computes, for help texts and tables. ``normalised`` says
    whether its density integrates to 1 for any network. ``error_is_drawn`` says whether its error
    is that of random draws alone, anew for every example: the spread of several examples then
    holds it. ``reads_time_score`` says whether it is of no use to a model that has none.
    """

    note: ClassVar[str]
    normalised: ClassVar[bool]
    error_is_drawn: ClassVar[bool] = False
    reads_time_score: ClassVar[bool] = False

    @classmethod
    def suits(cls, energy: TimeScoreEnergy) -> bool:
        """Whether it is for models of this kind."""
        return not cls.reads_time_score or getattr(energy.model, "has_time_score", True)

    @abstractmethod
    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        """log p_t at ``x`` (B, *)."""
