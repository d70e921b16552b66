r"""Ways to find log p_t(x) with a model, by the name that ``--estimator`` takes.

They rest on different quantities, so that a disagreement between them means something. All values
are in nats.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ebm_app.likelihood.discrete import DiscreteBound
from ebm_app.likelihood.elbo import VariationalBound
from ebm_app.likelihood.energy import OnePassDensity
from ebm_app.likelihood.estimator import Estimator
from ebm_app.likelihood.noised import NoisedIntegral
from ebm_app.likelihood.pf_ode import PFODEDensity
from ebm_app.likelihood.ratio import RatioIntegral, RatioODE
from ebm_app.nets.energy import LogDensity
from ebm_app.utils.registry import make

ESTIMATORS: dict[str, type[Estimator]] = {
    "elbo": VariationalBound,
    "noised": NoisedIntegral,
    "pf_ode": PFODEDensity,
    "ratio": RatioIntegral,
    "paper": RatioODE,
    "energy": OnePassDensity,
    "discrete": DiscreteBound,
}


def make_estimator(name: str | Estimator, settings: Mapping[str, Any], seed: int = 0) -> Estimator:
    """An estimator by its name in ``ESTIMATORS`` and its settings; an object is returned as it is.

    >>> make_estimator("elbo", {"num_draws": 4}, seed=3).seed
    3

    Args:
        seed: of its noise, where it draws any and ``settings`` hold no other.

    Raises:
        UserError: for an unknown name or setting.
    """
    kind = ESTIMATORS.get(name) if isinstance(name, str) else None
    if kind is not None and any(field.name == "seed" for field in dataclasses.fields(kind)):
        settings = {"seed": seed, **settings}
    return make(ESTIMATORS, Estimator, "estimator", name, settings)
