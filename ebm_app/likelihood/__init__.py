r"""Ways to find log p_t(x) with a model, by the name that ``--estimator`` takes.

They stand on different grounds, so that their disagreement says something: the integral of the
time score is normalised only as far as that score is exact; the probability-flow ODE, driven by
the Stein score, gives the density of its own flow, which is normalised whatever the score is; so
is the density of the reversed diffusion, for which the variational bound is a lower one.
All values are in nats.
"""

from ebm_app.likelihood.elbo import VariationalBound
from ebm_app.likelihood.estimator import Estimator, LogDensity
from ebm_app.likelihood.pf_ode import MidpointDensity, PFODEDensity
from ebm_app.likelihood.ratio import RatioIntegral, RatioODE

ESTIMATORS: dict[str, type[Estimator]] = {
    "ratio": RatioIntegral,
    "ode": RatioODE,
    "pf_ode": PFODEDensity,
    "pf_ode_exact": MidpointDensity,
    "elbo": VariationalBound,
}

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "PFODEDensity",
    "LogDensity",
    "RatioIntegral",
    "RatioODE",
    "MidpointDensity",
    "VariationalBound",
]
