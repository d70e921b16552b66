"""Estimators of log p_t(x). ``ESTIMATORS`` maps the values of ``--estimator`` to classes.

They use different outputs of a model, so their disagreement indicates its error. All values are
in nats.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ebm_app.likelihood.elbo import VariationalBound
from ebm_app.likelihood.estimator import Estimator, PointEstimator
from ebm_app.likelihood.path_integral import PathIntegral
from ebm_app.likelihood.probability_flow import ProbabilityFlowDensity
from ebm_app.likelihood.time_integral import EnergyEstimate, TimeIntegral
from ebm_app.utils.registry import make

ESTIMATORS: dict[str, type[Estimator]] = {
    "elbo": VariationalBound,
    "path_integral": PathIntegral,
    "probability_flow": ProbabilityFlowDensity,
    "time_integral": TimeIntegral,
    "energy": EnergyEstimate,
}
#: Old name of an estimator -> its new name, and the settings that it implies.
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "noised": ("path_integral", {}),
    "pf_ode": ("probability_flow", {}),
    "ratio": ("time_integral", {}),
    "paper": ("time_integral", {"integrator": "rk45"}),
}


def resolve_estimator(name: str) -> tuple[str, dict[str, Any]]:
    """Return the key in ``ESTIMATORS`` of a name or an old name, and the settings it implies.

    >>> resolve_estimator("paper")
    ('time_integral', {'integrator': 'rk45'})
    """
    return ALIASES.get(name, (name, {}))


def make_estimator(name: str | Estimator, settings: Mapping[str, Any], seed: int = 0) -> Estimator:
    """Return an estimator by its name and settings; an ``Estimator`` is returned unchanged.

    >>> make_estimator("elbo", {"num_draws": 4}, seed=3).seed
    3

    Args:
        name: a key of ``ESTIMATORS`` or ``ALIASES``.
        seed: default for the setting ``seed`` of estimators that draw noise.

    Raises:
        UserError: for an unknown name or setting.
    """
    implied: dict[str, Any] = {}
    if isinstance(name, str):
        name, implied = resolve_estimator(name)
        kind = ESTIMATORS.get(name)
        if kind is not None and any(field.name == "seed" for field in dataclasses.fields(kind)):
            implied = {"seed": seed, **implied}
    return make(ESTIMATORS, Estimator, "estimator", name, {**implied, **settings})
