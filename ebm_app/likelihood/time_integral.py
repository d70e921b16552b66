"""log p_t(x) at a fixed point x: the integral of the time score, or the value of an energy."""

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import EnergyModel
from ebm_app.nets.model import LogDensityEstimate, TimeScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration
from ebm_app.utils.quadrature import integrate
from ebm_app.utils.random import ImageNoise
from ebm_app.utils.tensors import sum_except_batch


@configuration
class TimeIntegral(Estimator):
    """Integral of the time score from 0 to t at fixed x, plus log N(x; 0, I): the paper's
    estimator.

    Args:
        integrator: "quadrature" for fixed nodes, or "rk45" for an adaptive solver with tolerance
            1e-6, the paper's protocol (appendix F.2).
    """

    integrator: Literal["quadrature", "rk45"] = "quadrature"

    needs: ClassVar[str] = "a time score"
    is_normalised: ClassVar[bool] = False

    @torch.no_grad()
    def __call__(
        self, model: TimeScoreModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        reference = require_one_sided(model.path).reference_log_density(x)
        total = sum_except_batch(reference)
        if self.integrator == "rk45":
            rate = partial(model.time_score, x)
            ratio = integrate(rate, model.start, t, like=total)
            nfe = ratio.nfe * model.passes
            return LogDensityEstimate(total + ratio.value, ratio.error, None, nfe)
        ratio = model.log_ratio(x, model.start, t)
        components = None if ratio.components is None else ratio.components + reference
        return LogDensityEstimate(total + ratio.value, ratio.error, components, ratio.nfe)


@configuration
class EnergyEstimate(Estimator):
    """Log density of an energy network in one evaluation, minus its calibration offset. The
    evaluation of a learned decoder is not counted.

    The offset is the mean difference from the variational bound over validation images, and
    ``error`` is the spread of that difference (``ebm_app.config.Calibration``). Subtracting the
    offset makes the mean bits equal to those of the bound.

    Raises:
        UserError: for another margin than that of the calibration.
    """

    needs: ClassVar[str] = "an energy network"
    is_normalised: ClassVar[bool] = False

    @torch.no_grad()
    def __call__(
        self, model: EnergyModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        if model.end != model.interval[1]:
            raise UserError(
                f"The calibration offset of this energy network is for t_margin "
                f"{1 - model.interval[1]:.3g}, got {1 - model.end:.3g}. Leave out t_margin."
            )
        components = model.terms(x, t) - model.calibration.mean / x[0].numel()
        value = sum_except_batch(components)
        return LogDensityEstimate(
            value, torch.full_like(value, model.calibration.spread), components, 1
        )
