"""log p_t(x) as the integral of the time score."""

from typing import ClassVar

from torch import Tensor

from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import QUADRATURE, LogDensity, TimeScoreEnergy
from ebm_app.utils.fields import configuration
from ebm_app.utils.tensors import sum_except_batch


@configuration
class RatioIntegral(Estimator):
    """log N(x; 0, I) + integral of the time score from 0 to t.

    Args:
        integrator: "quadrature", fixed nodes, or an adaptive solver, "rk45" or "dopri5".
    """

    integrator: str = QUADRATURE

    note: ClassVar[str] = (
        "the integral of the time score over time, by a fixed quadrature; normalised only as far "
        "as the time score is exact"
    )
    normalised: ClassVar[bool] = False
    reads_time_score: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        reference = energy.path.reference_log_density(x)
        ratio = energy.log_ratio(x, t1=t, integrator=self.integrator)
        components = None if ratio.components is None else ratio.components + reference
        value = ratio.value + sum_except_batch(reference)
        return LogDensity(value, ratio.error, components, ratio.nfe)


@configuration
class RatioODE(RatioIntegral):
    """The same by an adaptive solve, the paper's protocol: RK45 at 1e-6 (appendix F.2)."""

    integrator: str = "rk45"

    note: ClassVar[str] = "the same integral by the protocol of the paper, RK45 at 1e-6"
