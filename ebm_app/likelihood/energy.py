"""log p_t(x) by one evaluation of an energy network."""

from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import LogDensity, TimeScoreEnergy
from ebm_app.nets.energy_net import OnePassEnergy
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration
from ebm_app.utils.tensors import sum_except_batch


@configuration
class OnePassDensity(Estimator):
    """What an ``EnergyModel`` says of log p_t(x), less what it is known to be off by.

    That constant is the mean difference from the variational bound over validation images, and
    ``error`` the spread of that difference (``ebm_app.config.Residual``): the constant
    brings the mean of the bits to the bound's, the spread is what it leaves in an image.

    Raises:
        UserError: for a model that is no ``EnergyModel``.
    """

    note: ClassVar[str] = (
        "one evaluation of an energy network, less its mean difference from the bound on "
        "validation images; normalised only as far as that goes"
    )
    normalised: ClassVar[bool] = False

    @classmethod
    def suits(cls, energy: TimeScoreEnergy) -> bool:
        return isinstance(energy, OnePassEnergy)

    @torch.no_grad()
    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if not isinstance(energy, OnePassEnergy):
            raise UserError(
                "this model has no energy to read in one evaluation: distil one from it with "
                "train/energy.py"
            )
        components = energy.terms(x, t) - energy.residual.mean / x[0].numel()
        value = sum_except_batch(components)
        return LogDensity(value, torch.full_like(value, energy.residual.spread), components, 1)
